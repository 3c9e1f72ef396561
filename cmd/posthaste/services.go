package main

import (
	"context"
	"time"

	"posthaste/cleanup"
	"posthaste/internal/agent"
	"posthaste/internal/anvil"
	"posthaste/internal/bounce"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/postlog"
	"posthaste/internal/queueread"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/service"
	"posthaste/internal/showq"
	"posthaste/internal/submit"
	"posthaste/internal/table/proxymap"
	"posthaste/internal/verify"
	"posthaste/internal/watch"
	"posthaste/local"
	"posthaste/local/discard"
	"posthaste/local/errordrop"
	"posthaste/local/pipe"
	"posthaste/local/spawn"
	"posthaste/local/virtual"
	"posthaste/pickup"
	"posthaste/qmgr"
	"posthaste/smtp"
	"posthaste/smtpd"
	"posthaste/trivialrewrite"
)

// services are the programs that master.cf may name.
func services() map[string]service.Spec {
	list := []service.Spec{
		cleanup.Spec(),
		pickup.Spec(),
		qmgr.Spec(),
		smtpd.Spec(),
		smtpd.ScreenSpec(),
		trivialrewrite.Spec(),
		postlog.Spec(),
		bounceSpec(),
		verify.Spec(),
		showq.Spec(),
		anvil.Spec(),
		proxymap.Spec(nil),
		service.MetricsSpec(nil),
		talks(frugal(smtpSandbox, agent.Spec("smtp", smtpAgent(false)))),
		talks(frugal(smtpSandbox, agent.Spec("lmtp", smtpAgent(true)))),
		localSpec(),
		syncs(agent.Spec("virtual", func(env *service.Env) (agent.Deliverer, func(), error) {
			a, err := virtual.New(env.Config, env.Name, env.Log)
			return a, nil, err
		})),
		untried(agent.Spec("pipe", func(env *service.Env) (agent.Deliverer, func(), error) {
			a, err := pipe.New(env.Config, env.Name, env.Args, nil, env.Log)
			return a, nil, err
		})),
		spawn.Spec(),
		frugal(service.Plain, agent.Spec("discard", func(*service.Env) (agent.Deliverer, func(), error) { return discard.Agent{}, nil, nil })),
		frugal(service.Plain, agent.Spec("error", func(env *service.Env) (agent.Deliverer, func(), error) {
			return errordrop.Agent{Retry: env.Name == "retry"}, nil, nil
		})),
	}
	specs := make(map[string]service.Spec, len(list))
	for _, s := range list {
		specs[s.Process] = s
	}
	return specs
}

// untried is a service that nobody misses before it is used: a usual master.cf
// lists pipes to programs, and for users, that are not there.
func untried(spec service.Spec) service.Spec {
	spec.Tries = false
	return spec
}

// talks are the agents that have dialogues to log.
func talks(spec service.Spec) service.Spec {
	spec.Talks = true
	return spec
}

// syncs are the agents that write mailboxes.
func syncs(spec service.Spec) service.Spec {
	spec.Syncs = true
	return spec
}

// frugal are the agents that neither write files nor, but for what sandbox
// says, execute programs.
func frugal(sandbox func(*config.Config) ([]string, bool), spec service.Spec) service.Spec {
	spec.Sandbox, spec.Frugal = sandbox, true
	return spec
}

// smtpSandbox is the sandbox of smtp and lmtp, unless they ask a program for tokens.
func smtpSandbox(cfg *config.Config) (writes []string, ok bool) {
	return nil, len(cfg.List("smtp_sasl_token_command")) == 0
}

func smtpAgent(lmtp bool) func(env *service.Env) (agent.Deliverer, func(), error) {
	return func(env *service.Env) (agent.Deliverer, func(), error) {
		client := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
		submitter := submit.New(client)
		hub := watch.New(watch.Destination, env.Log.Tag())
		free := func() { hub.Close(); submitter.Close(); client.Close() }
		a, err := smtp.New(smtp.Deps{Config: env.Config, Log: env.Log, Tables: env.Tables(), LMTP: lmtp, Args: env.Args, Submit: submitter,
			Verbose: env.Verbose, Watch: hub})
		if err != nil {
			free()
			return nil, nil, err
		}
		return a, func() { a.Close(); free() }, nil
	}
}

// localSpec is local's service. Its limit is also that of the commands that mail is
// delivered to, as with Postfix.
func localSpec() service.Spec {
	spec := syncs(agent.Spec("local", localAgent))
	spec.MaxFile = func(cfg *config.Config) int64 { return cfg.Bytes("mailbox_size_limit") }
	return spec
}

func localAgent(env *service.Env) (agent.Deliverer, func(), error) {
	client := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
	submitter := submit.New(client)
	rewriter := rewriteclient.New(env.Private(env.Config.String("rewrite_service_name")))
	free := func() { rewriter.Close(); submitter.Close(); client.Close() }
	a, err := local.New(local.Options{Config: env.Config, Service: env.Name, Rewriter: rewriter, Log: env.Log, Submit: submitter})
	if err != nil {
		free()
		return nil, nil, err
	}
	return a, free, nil
}

// noticeDrain is how long notices under way may take when the service stops.
const noticeDrain = 30 * time.Second

func bounceSpec() service.Spec {
	return service.Spec{Process: "bounce", Rank: service.Helper, Confines: true, Tries: true, Sandbox: service.Plain, Run: func(ctx context.Context, env *service.Env) error {
		reader, err := queueread.NewReader(env.Config)
		if err != nil {
			return err
		}
		defer reader.Close()
		client := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
		defer client.Close()
		submitter := submit.New(client)
		defer submitter.Close()
		s := bounce.NewService(env.Config, bounce.FromQueue(&queueread.Opener{Reader: reader, Cleanup: client}), submitter, env.Log)
		defer s.Wait()
		if err := env.Confine(); err != nil {
			return err
		}
		return env.ServeIPC(ctx, &ipc.Server{Handler: s.Handle}, noticeDrain)
	}}
}
