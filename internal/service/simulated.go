package service

import (
	"net"
	"sync"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
)

// A Setting is what master, main.cf and the system give to a process otherwise. It is for
// a process that is simulated.
type Setting struct {
	Line      *CommandLine
	Config    *config.Config
	Log       *maillog.Logger
	World     World
	Flow      *Flow
	Listeners []net.Listener
	// Metrics counts what the log says and what the service adds; nil: nobody does.
	Metrics *metrics.Set
	// Tell is what master hears on the status socket, StatusReady and so on. It may be
	// called from any goroutine, and must not wait.
	Tell func(status byte)
	// Exit is called when the process ends itself without returning from Run.
	Exit func()
}

// A Simulated process is a service that runs as goroutines of the present process, as package simtest
// does it. It gives up no privileges, writes no profiles, and hears no signals but by its
// methods, which may be called concurrently.
type Simulated struct {
	p    process
	stop func()
	run  func() error
	once sync.Once
}

// Simulate makes a process. It does nothing before Run.
func Simulate(spec Spec, s Setting) *Simulated {
	sim := &Simulated{p: process{spec: spec, cl: s.Line, status: &status{tell: s.Tell}, turn: make(chan struct{})}}
	p := &sim.p
	env := &p.env
	env.Name, env.Type, env.Args, env.MaxProc = s.Line.Name, s.Line.Type, s.Line.Args, s.Line.MaxProc
	env.Process, env.Verbose = spec.Process, s.Line.Verbose
	env.Config, env.Log, env.Flow, env.world, env.exit = s.Config, s.Log, s.Flow, s.World, s.Exit
	if s.Metrics != nil {
		env.Metrics = s.Metrics
		env.Log.Observe(s.Metrics.Event)
	}
	env.tellEvents(spec)
	env.activity = &activity{onUse: func() { p.status.write(StatusUsed) }}
	for _, l := range s.Listeners {
		env.Listeners = append(env.Listeners, &listener{l, env.activity})
	}
	env.confined = confine.New(func(string) { p.leave() })
	env.confine = func() error { return nil }
	if !spec.Confines {
		env.confine = nil
	}
	ctx, stop, free := p.contexts()
	sim.stop = stop
	sim.run = func() error {
		defer free()
		env.Events.Start()
		defer env.Events.Close()
		if !spec.Exclusive {
			env.activity.start(env.Config.Duration("max_idle"), p.retire)
		}
		err := p.serve(ctx)
		env.Release()
		env.activity.stop()
		if err != nil {
			env.Log.Fatal("%v", err)
		}
		return err
	}
	return sim
}

// Run serves until the process ends. It may be called once.
func (s *Simulated) Run() error { return s.run() }

// Go lets the process serve, see Env.Await.
func (s *Simulated) Go() { s.once.Do(func() { close(s.p.turn) }) }

// Leave is SIGHUP: the process retires.
func (s *Simulated) Leave() { s.p.leave() }

// Stop is SIGTERM.
func (s *Simulated) Stop() { s.stop() }
