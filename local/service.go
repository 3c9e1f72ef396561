package local

import (
	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/local/users"
)

// Spec declares the service. Its limit of file sizes is also that of the commands that mail is
// delivered to, as with Postfix.
func Spec() service.Spec {
	s := agent.Spec("local", build)
	s.Syncs = true
	s.MaxFile = func(cfg *config.Config) int64 { return cfg.Bytes("mailbox_size_limit") }
	return s
}

// build makes the agent of a process, and returns what frees its clients.
func build(env *service.Env) (agent.Deliverer, func(), error) {
	client := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
	submitter := submit.New(client)
	rewriter := rewriteclient.New(env.Private(env.Config.String("rewrite_service_name")))
	free := func() { rewriter.Close(); submitter.Close(); client.Close() }
	a, err := newAgent(options{Config: env.Config, Service: env.Name, Rewriter: rewriter, Log: env.Log, Submit: submitter,
		Users: users.In(env.Accounts()), Change: env.Change()})
	if err != nil {
		free()
		return nil, nil, err
	}
	return a, free, nil
}
