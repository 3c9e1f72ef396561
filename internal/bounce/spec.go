package bounce

import (
	"context"
	"time"

	"posthaste/internal/bounceclass"
	"posthaste/internal/ipc"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/internal/suppress/suppressclient"
)

// drainTime is how long notices under way may take when the service stops.
const drainTime = 30 * time.Second

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "bounce", Queue: true, Rank: service.Helper, Confines: true, Tries: true, Sandbox: service.Plain, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	reader, err := queueread.NewReader(env.Files(), env.Config, env.Storage)
	if err != nil {
		return err
	}
	defer reader.Close()
	client := ipc.NewClient(env.Public(env.Config.String("cleanup_service_name")), nil)
	defer client.Close()
	submitter := submit.New(client)
	defer submitter.Close()
	s := newService(env.Config, fromQueue(&queueread.Opener{Reader: reader, Cleanup: client}), submitter, env.Log)
	defer s.Wait()
	if suppressclient.Enabled(env.Config) {
		classes, err := bounceclass.Open(suppressclient.ClassFiles(env.Config))
		if err != nil {
			return err
		}
		suppress := suppressclient.New(env.Private(suppressclient.Name))
		defer suppress.Close()
		s.listed = &listed{suppress, classes, env.Log}
	}
	if err := env.Confine(); err != nil {
		return err
	}
	return env.ServeIPC(ctx, &ipc.Server{Handler: s.Handle}, drainTime)
}
