package qmgr

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/queueread"
	"posthaste/internal/rewriteclient"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/submit"
)

const (
	// drainTime is how long deliveries under way may take when the service
	// stops: nothing else is delivered in that time. What takes longer goes on
	// in the agents, which tell the next queue manager what came of it.
	drainTime = 3 * time.Second
)

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "qmgr", Exclusive: true, Prepares: true, Rank: service.Queue, TakesOver: true, Confines: true, Tries: true, Frugal: true, Sandbox: service.Plain, Run: run}
}

func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	services, _, err := config.LoadMaster(cfg.Dir(), cfg) // master has reported the faulty entries
	if err != nil {
		return err
	}
	settings, err := Load(cfg, services, env.Log.Warning)
	if err != nil {
		return err
	}
	state, err := statedir.Open(filepath.Join(cfg.String("data_directory"), "qmgr"))
	if err != nil {
		env.Log.Warning("what this queue manager learns is not kept when the mail system is reloaded: %v", err)
	} else {
		defer state.Close()
	}
	overrides, err := openOverrides(cfg.String("data_directory"), env.Log)
	if err != nil {
		return err
	}
	if overrides != nil {
		defer overrides.Close()
	}
	reader, err := queueread.NewReader(env.Files(), cfg)
	if err != nil {
		return err
	}
	defer reader.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	env.Await(ctx)
	if ctx.Err() != nil {
		return nil // it has never been our turn
	}
	resolver := rewriteclient.New(env.Private(cfg.String("rewrite_service_name")))
	defer resolver.Close()
	cleanup := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer cleanup.Close()
	submitter := submit.New(cleanup)
	defer submitter.Close()
	opener := queueread.Opener{Reader: reader, Cleanup: cleanup}
	s := New(Options{
		Settings:  settings,
		Resolver:  resolver,
		Open:      opener.Open,
		Submit:    submitter,
		Log:       env.Log,
		Overrides: overrides,
		Cleanup:   env.Public(cfg.String("cleanup_service_name")),
		Bounce:    env.Private(cfg.String("bounce_service_name")),
		Verify:    env.Private(cfg.String("address_verify_service_name")),
		Agent:     func(t mail.Transport) ipc.Address { return env.Private(string(t)) },
		Flow:      flow(env.Flow, settings.FlowLimit, cfg.Duration("in_flow_delay") > 0),
	})
	s.opt.State, s.opt.TookOver = state, env.TookOver
	s.opt.Deep = func(deep bool) {
		if deep {
			service.LimitHeap(service.HeapGrowth / 2)
		} else {
			service.LimitHeap(service.HeapGrowth)
		}
	}
	env.Metrics.Offer(s.offer)
	env.Used()
	done := make(chan error, 1)
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		err := s.Run(serving, drainTime)
		env.Release() // tools are told to ask the successor
		done <- err
	}()
	err = env.ServeIPC(serving, s.IPC(), toolDrain)
	stop()
	if rerr := <-done; err == nil {
		err = rerr
	}
	return err
}

// openOverrides opens the store of what is allowed for now. Without it mail goes on: nil.
// Only what is there and cannot be read is an error: what is suspended must not be tried.
func openOverrides(data string, log *maillog.Logger) (*override.Store, error) {
	dir, err := statedir.Open(filepath.Join(data, "overrides"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		log.Warning("overrides cannot be kept: %v; no destination can be suspended", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	store, err := override.Open(dir)
	if errors.Is(err, override.ErrRestored) {
		log.Error("in %s: %v; the damaged file is kept beside the new one", filepath.Join(data, "overrides"), err)
		return store, nil
	}
	if errors.Is(err, override.ErrDamaged) {
		log.Error("in %s: %v: what was suspended is not known any more, and is tried; the file is kept beside the new one", filepath.Join(data, "overrides"), err)
		return store, nil
	}
	return store, err
}

// flow feeds the pipe of in_flow_delay: a token for each message that leaves
// the incoming queue, as many as there are processes when nothing waits there,
// never more than that.
func flow(f *service.Flow, limit int, on bool) func(moved, incoming int) {
	if !on {
		return nil // nobody takes tokens
	}
	return func(moved, incoming int) {
		switch level := f.Level(); {
		case level > limit:
			f.Put(limit - level)
		case incoming == 0:
			f.Put(limit - level)
		case level < limit && moved > 0:
			f.Put(min(moved, limit-level))
		}
	}
}
