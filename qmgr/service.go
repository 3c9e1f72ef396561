// The service around the Server: what a queue manager process opens, in which order, and
// what it does when something is missing. The order is that of privileges: files are
// opened as root may, then the process confines itself, and only then it listens to
// others.

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
	"posthaste/internal/suppress/suppressclient"
)

const (
	// drainTime is how long deliveries under way may take when the service stops without
	// a successor; nothing new is ordered meanwhile. Longer ones go on in the agents,
	// which tell the next queue manager what came of them. master waits longer than this
	// before it kills.
	drainTime = 3 * time.Second
)

// Spec declares the service: one process at a time, which takes over from its predecessor
// and prepares for that while the predecessor still serves.
func Spec() service.Spec {
	return service.Spec{Process: "qmgr", Queue: true, Exclusive: true, Prepares: true, Rank: service.Queue, TakesOver: true, Confines: true, Tries: true, Frugal: true, Sandbox: service.Plain, Run: run}
}

// run is the process's main function. It returns when ctx ends or when the queue manager
// cannot work.
func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	// Process limits of transports, and the options of pickup.
	services, _, err := config.LoadMaster(cfg.Dir(), cfg) // master has reported the faulty entries
	if err != nil {
		return err
	}
	settings, err := Load(cfg, services, env.Tables(), env.Log.Warning)
	if err != nil {
		return err
	}
	// What is kept there helps a reload, and is not worth refusing to start for.
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
	// The spool is read directly, not through cleanup: the files are opened before
	// privileges go.
	reader, err := queueread.NewReader(env.Files(), cfg, env.Storage)
	if err != nil {
		return err
	}
	defer reader.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	// At a reload the predecessor works until now. Everything that can fail has been
	// done, so that a configuration that is no good leaves the old process in charge.
	env.Await(ctx)
	if ctx.Err() != nil {
		return nil // it has never been our turn
	}
	// Clients connect when they are used, so the order in which services start does not
	// matter.
	resolver := router(env, settings.limits)
	defer resolver.Close()
	cleanup := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer cleanup.Close()
	submitter := submit.New(cleanup)
	defer submitter.Close()
	// Only a queue that nodes share can be looked at beyond this node.
	whole, _ := reader.(viewer)
	s := New(Options{
		Settings: settings, Resolver: resolver,
		Open:   (&queueread.Opener{Reader: reader, Cleanup: cleanup}).Open,
		Viewer: whole, Self: env.Public(cfg.String("queue_service_name")), Metrics: publisher(env), Suppress: suppression(env),
		Submit:    submitter,
		Log:       env.Log,
		Events:    env.Events,
		Overrides: overrides,
		Cleanup:   env.Public(cfg.String("cleanup_service_name")),
		Bounce:    env.Private(cfg.String("bounce_service_name")),
		Verify:    env.Private(cfg.String("address_verify_service_name")),
		Agent:     func(t mail.Transport) ipc.Address { return env.Private(string(t)) },
		Flow:      flow(env.Flow, settings.FlowLimit, cfg.Duration("in_flow_delay") > 0),
	})
	s.opt.State, s.opt.TookOver = state, env.TookOver
	// Twice as many collections, for as long as the queue is deep.
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
	// Run needs its own context: ServeIPC may fail first, and then the queue manager must
	// still drain.
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

// publisher is the service that other nodes may be told the numbers of; nil: nothing is published.
func publisher(env *service.Env) ipc.Address {
	if env.Metrics == nil {
		return nil
	}
	return env.Private(service.MetricsName)
}

// suppression is the service that knows what comes back of mail; nil: no mail is under the suppression list.
func suppression(env *service.Env) ipc.Address {
	if !suppressclient.Enabled(env.Config) {
		return nil
	}
	return env.Private(suppressclient.Name)
}

// router is the way to trivial-rewrite. Limits take it longer to find out, so it is only
// asked for them where some are set.
func router(env *service.Env, limits bool) *rewriteclient.Client {
	c := rewriteclient.New(env.Private(env.Config.String("rewrite_service_name")))
	if limits {
		c.AskLimits()
	}
	return c
}

// openOverrides opens the store of suspensions and limits; nil without an error when none can be
// kept. Mail goes on in that case, as nothing has been suspended. A store that exists and
// cannot be opened is an error: what was suspended must not be tried by mistake. Only a
// damaged file is given up, since waiting would not mend it, and that is logged as an
// error.
func openOverrides(data string, log *maillog.Logger) (*override.Store, error) {
	dir, err := statedir.Open(filepath.Join(data, "overrides"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		log.Warning("overrides cannot be kept: %v; no destination can be suspended or limited", err)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	store, err := override.Open(dir)
	// The backup was good: what was suspended still is.
	if errors.Is(err, override.ErrRestored) {
		log.Error("in %s: %v; the damaged file is kept beside the new one", filepath.Join(data, "overrides"), err)
		return store, nil
	}
	if errors.Is(err, override.ErrDamaged) {
		log.Error("in %s: %v: what was suspended or limited is not known any more, and is tried; the file is kept beside the new one", filepath.Join(data, "overrides"), err)
		return store, nil
	}
	return store, err
}

// flow feeds the pipe of in_flow_delay, which cleanup takes tokens from: a token for each
// message that leaves the incoming queue, so that mail comes in as fast as it is taken
// up, and as many as there may be processes when nothing waits there. The pipe never
// holds more than limit, or a burst could outrun the queue manager by that much.
func flow(f *service.Flow, limit int, on bool) func(moved, incoming int) {
	if !on {
		return nil // nobody takes tokens
	}
	return func(moved, incoming int) {
		switch level := f.Level(); {
		// After a reload with a smaller process limit.
		case level > limit:
			f.Put(limit - level)
		case incoming == 0:
			f.Put(limit - level)
		case level < limit && moved > 0:
			f.Put(min(moved, limit-level))
		}
	}
}
