package agent

import (
	"context"
	"sync"
	"time"

	"posthaste/internal/bounceclass"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/suppress/suppressclient"
)

const (
	// drainTime is how long deliveries under way may take when the mail system
	// stops.
	drainTime = 20 * time.Second
	// retireTime is the same for a process that has a successor. It only bounds
	// what a defect may do: a delivery has limits of its own.
	retireTime = 7 * 24 * time.Hour
)

// Spec declares an agent's service. build makes the Deliverer, and a function
// that frees what it holds, which may be nil.
func Spec(process string, build func(env *service.Env) (d Deliverer, free func(), err error)) service.Spec {
	return service.Spec{Process: process, Queue: true, Rank: service.Agent, Confines: true, Tries: true, Run: func(ctx context.Context, env *service.Env) error {
		d, free, err := build(env)
		if err != nil {
			return err
		}
		if free != nil {
			defer free()
		}
		reader, err := queueread.NewReader(env.Files(), env.Config, env.Storage) // before the path of its content is out of reach
		if err != nil {
			return err
		}
		defer reader.Close()
		classes := openClasses(env)
		if err := env.Confine(); err != nil {
			return err
		}
		if s, ok := d.(Starter); ok {
			s.Start()
		}
		return run(ctx, env, d, reader, classes)
	}}
}

// A Starter is a Deliverer that has something to begin with when the process has given up its
// privileges, before the first delivery.
type Starter interface{ Start() }

// openClasses reads the rules that bounce_class_files names, and warns if it cannot: no mail waits for them.
func openClasses(env *service.Env) *bounceclass.Rules {
	files := suppressclient.ClassFiles(env.Config)
	if len(files) == 0 {
		return nil
	}
	rules, err := bounceclass.Open(files)
	if err != nil {
		env.Log.Warning("bounce_class_files: %v; failures are logged without their class", err)
		return nil
	}
	return rules
}

func run(ctx context.Context, env *service.Env, d Deliverer, reader queueread.Reader, classes *bounceclass.Rules) error {
	cfg := env.Config
	cleanup := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer cleanup.Close()
	opener := queueread.Opener{Reader: reader, Cleanup: cleanup}
	filter := OpenFilter(cfg, env.Process, env.Log)
	defer filter.Close()
	var suppress Suppressor
	if suppressclient.Enabled(cfg) {
		client := suppressclient.New(env.Private(suppressclient.Name))
		defer client.Close()
		suppress = client
	}
	o := options(env)
	o.Deliverer, o.Content, o.Filter, o.Classes, o.Suppress = d, opener.Content, filter, classes, suppress
	o.Hand = func(ctx context.Context, m *proto.Hand, reply *proto.RecordReply) error {
		return cleanup.CallAgain(ctx, m, reply)
	}
	s := NewServer(o)
	stopping := service.Stopping(ctx)
	work, stop := context.WithCancel(stopping)
	defer stop()
	s.start(work)
	cut := context.AfterFunc(stopping, func() { time.AfterFunc(drainTime, s.srv.Close) })
	defer cut()
	delivered := make(chan struct{})
	var calling sync.WaitGroup
	calling.Go(func() { s.callQueue(stopping, delivered) })
	err := env.ServeIPC(ctx, &s.srv, retireTime)
	// A process that retires brings its deliveries to their natural end, and its
	// results to the queue manager.
	s.wg.Wait()
	s.unhanded.end(s.opt.Log)
	close(delivered)
	calling.Wait()
	s.close()
	return err
}

// options are those that main.cf and master.cf decide.
func options(env *service.Env) Options {
	cfg := env.Config
	limit := env.MaxProc
	if limit > 0 {
		// The queue manager orders that many more while others wait for hosts that do not answer.
		limit += cfg.Prefix(env.Name).Int("slow_delivery_limit")
	}
	return Options{Log: env.Log, Limit: limit, Events: env.Events,
		Queue:     env.Public(cfg.String("queue_service_name")),
		Agent:     func(t mail.Transport) ipc.Address { return env.Private(string(t)) },
		TimeLimit: cfg.Duration("daemon_timeout"), Overdue: overdue(env.Log.Fatal, env.Retire, env.Exit),
		Reports: cfg.Bool("confirm_delay_cleared"), SoftBounce: cfg.Bool("soft_bounce"), Resolution: maillog.ResolutionLimit(cfg.Int("delay_logging_resolution_limit")),
		// Other agents hand mail to this system's own users and programs.
		Leaves: env.Process == "smtp" && cfg.String("return_path_domain") != "", Before: cfg.Bool("suppress_before_delivery")}
}
