package agent

import (
	"context"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/spool"
)

// drainTime is how long deliveries under way may take when the service stops.
const drainTime = 20 * time.Second

// Spec declares an agent's service. build makes the Deliverer, and a function
// that frees what it holds, which may be nil.
func Spec(process string, build func(env *service.Env) (d Deliverer, free func(), err error)) service.Spec {
	return service.Spec{Process: process, Rank: service.Agent, Confines: true, Tries: true, Run: func(ctx context.Context, env *service.Env) error {
		d, free, err := build(env)
		if err != nil {
			return err
		}
		if free != nil {
			defer free()
		}
		if err := env.Confine(); err != nil {
			return err
		}
		return run(ctx, env, d)
	}}
}

func run(ctx context.Context, env *service.Env, d Deliverer) error {
	cfg := env.Config
	reader := spool.NewReader(nil, spool.Subdir)
	defer reader.Close()
	cleanup := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer cleanup.Close()
	opener := queueread.Opener{Reader: reader, Cleanup: cleanup}
	filter := OpenFilter(cfg, env.Process, env.Log)
	defer filter.Close()
	s := NewServer(Options{Deliverer: d, Open: opener.Open, Log: env.Log, Limit: env.MaxProc,
		Agent:      func(t mail.Transport) string { return env.Private(string(t)) },
		SoftBounce: cfg.Bool("soft_bounce"), Filter: filter, Resolution: maillog.ResolutionLimit(cfg.Int("delay_logging_resolution_limit"))})
	work, stop := context.WithCancel(service.Stopping(ctx))
	defer stop()
	s.start(work)
	err := env.ServeIPC(ctx, &s.srv, drainTime)
	stop()
	s.wg.Wait()
	s.close()
	return err
}
