// The services smtp and lmtp, which are the same program under two names.

package smtp

import (
	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/internal/watch"
)

// Spec declares the service smtp.
func Spec() service.Spec { return spec("smtp", false) }

// LMTPSpec declares the service lmtp.
func LMTPSpec() service.Spec { return spec("lmtp", true) }

// spec declares the service of one name. The kernel holds it to what an SMTP client
// needs, since what servers say goes through a great deal of code.
func spec(process string, lmtp bool) service.Spec {
	s := agent.Spec(process, func(env *service.Env) (agent.Deliverer, func(), error) { return build(env, lmtp) })
	s.Talks, s.Frugal, s.Sandbox = true, true, sandbox
	return s
}

// sandbox lets the service write nowhere else, unless it asks a program for tokens.
func sandbox(cfg *config.Config) (writes []string, ok bool) {
	return nil, len(cfg.List("smtp_sasl_token_command")) == 0
}

// build makes the agent of a process, and returns what frees it and its clients.
func build(env *service.Env, lmtp bool) (agent.Deliverer, func(), error) {
	client := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
	submitter := submit.New(client)
	hub := watch.New(watch.Destination, env.Log.Tag())
	free := func() { hub.Close(); submitter.Close(); client.Close() }
	a, err := newAgent(deps{Config: env.Config, Log: env.Log, Tables: env.Tables(), LMTP: lmtp, Args: env.Args, Submit: submitter,
		Verbose: env.Verbose, Watch: hub, Dial: env.Connect(), Lookups: env.Resolver, Own: env.Own, Random: env.Random()})
	if err != nil {
		free()
		return nil, nil, err
	}
	return a, func() { a.Close(); free() }, nil
}
