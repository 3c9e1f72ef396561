package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/confine"
	"posthaste/internal/maillog"
)

// Main is the entry of a process that master has executed under a service's
// name. args are those of the command line without the program's name. It
// returns the exit status.
func Main(spec Spec, args []string) int {
	NameProcess(spec.Process)
	LimitHeap(HeapGrowth)
	signal.Ignore(syscall.SIGINT) // a terminal's interrupt is for master
	syscall.Umask(0o077)
	cl, err := ParseCommandLine(args)
	if err == nil {
		err = checkInherited(cl)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: fatal: %v\n", spec.Process, err)
		return 1
	}
	p := &process{spec: spec, cl: cl, status: newStatus(StatusFD), turn: make(chan struct{})}
	if err := p.setUp(); err != nil {
		if p.env.Log == nil {
			fmt.Fprintf(os.Stderr, "fatal: %v\n", err)
			return 1
		}
		p.env.Log.Fatal("%v", err)
		p.env.Log.Close()
		return 1
	}
	return p.run()
}

// orphanTime bounds how long a process outlives master: the next master waits
// for it.
const orphanTime = 10 * time.Second

// A process is one service process.
type process struct {
	spec   Spec
	cl     *CommandLine
	env    Env
	status *status
	retire func()        // takes no new work, and ends when what is in hand is done
	leave  func()        // the same, when it suits
	turn   chan struct{} // closed when master lets the process serve
}

// checkInherited says whether the descriptors are those that master passes,
// and sees to it that no program that the service executes inherits them.
func checkInherited(cl *CommandLine) error {
	for fd := FlowReadFD; fd < ListenFD+cl.Sockets; fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			return fmt.Errorf("descriptor %d is missing: a service is started by master, not by hand", fd)
		}
		unix.CloseOnExec(fd)
	}
	return nil
}

// setUp makes the environment: settings, log, sockets, privileges.
func (p *process) setUp() error {
	env := &p.env
	env.Name, env.Type, env.Args, env.MaxProc = p.cl.Name, p.cl.Type, p.cl.Args, p.cl.MaxProc
	env.Process, env.Verbose, env.Storage = p.spec.Process, p.cl.Verbose, p.spec.Storage
	env.Flow = NewFlow(FlowReadFD, FlowWriteFD)
	env.activity = &activity{onUse: func() { p.status.write(StatusUsed) }}

	cfg, err := config.Load(config.Dir(""), p.cl.Settings(p.spec.Process, os.Getpid())...)
	if err != nil {
		return err
	}
	env.Config = cfg
	if err := p.openLog(cfg); err != nil {
		return err
	}
	if cfg.String("metrics_listen") != "" {
		env.reporter = newReporter(env)
	}
	env.tellEvents(p.spec)
	env.Privileged = os.Geteuid() == 0 && !p.cl.Unprivileged
	if err := p.inheritSockets(); err != nil {
		return err
	}
	env.confined = confine.New(func(path string) {
		env.Log.Info("table %s has changed -- restarting", path)
		p.leave()
	})
	env.confine = p.confine
	if p.spec.Confines {
		return nil
	}
	return env.Confine()
}

// openLog opens the log and goes to the queue directory. Paths below it are
// relative from then on, and so the same inside chroot.
func (p *process) openLog(cfg *config.Config) error {
	cderr := os.Chdir(cfg.String("queue_directory"))
	open := maillog.OpenHere
	if p.spec.LogDirect {
		open = maillog.OpenDirect
	} else if cderr != nil {
		open = maillog.Open
	}
	var err error
	if p.env.Log, err = open(cfg, p.spec.Process); err != nil {
		return err
	}
	if cderr != nil {
		return fmt.Errorf("queue_directory: %w", cderr)
	}
	return nil
}

// inheritSockets makes listeners of the inherited descriptors.
func (p *process) inheritSockets() error {
	for i := range p.cl.Sockets {
		f := os.NewFile(uintptr(ListenFD+i), p.cl.Name)
		var err error
		if p.cl.Type == "unix-dgram" {
			var c net.PacketConn
			if c, err = net.FilePacketConn(f); err == nil {
				uc, ok := c.(*net.UnixConn)
				if !ok {
					err = fmt.Errorf("is a %T", c)
				}
				p.env.PacketConns = append(p.env.PacketConns, uc)
			}
		} else {
			var l net.Listener
			if l, err = net.FileListener(f); err == nil {
				if p.cl.Type == "pass" {
					l = passListener{l}
				}
				p.env.Listeners = append(p.env.Listeners, &listener{l, p.env.activity})
			}
		}
		f.Close()
		if err != nil {
			return fmt.Errorf("inherited socket %d of service %s: %w", i, p.cl.Name, err)
		}
	}
	return nil
}

// confine gives up what the service does not need.
func (p *process) confine() error {
	p.sandbox()
	if err := p.limitFiles(); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil // master runs as an ordinary user, and says so
	}
	owner, err := LookupAccount(p.env.Config.String("mail_owner"))
	switch {
	case err == nil:
		p.env.owner = owner.UID
	case p.cl.Unprivileged:
		return fmt.Errorf("mail_owner: %w", err)
	}
	if p.cl.Chroot {
		if err := p.jail(); err != nil {
			return err
		}
	}
	if p.cl.Unprivileged {
		if err := owner.Become(); err != nil {
			return err
		}
	}
	p.env.confined.Begin(p.cl.Chroot)
	return nil
}

// limitFiles has the kernel hold the service, and what it starts, to files of
// Spec.MaxFile. Limits are inherited, and a program that is started
// can have none of its own before it runs. So is it that a write beyond the limit
// fails, instead of a signal that ends the program.
func (p *process) limitFiles() error {
	if p.spec.MaxFile == nil {
		return nil
	}
	most := p.spec.MaxFile(p.env.Config)
	if most <= 0 {
		return nil
	}
	var now unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &now); err != nil {
		return fmt.Errorf("getrlimit: %w", err)
	}
	now.Max = min(now.Max, uint64(most))
	now.Cur = now.Max
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &now); err != nil {
		return fmt.Errorf("limit the size of files: %w", err)
	}
	signal.Ignore(unix.SIGXFSZ)
	return nil
}

// sandbox has the kernel hold the service to what its Spec says. It comes first,
// as paths mean something else inside chroot.
func (p *process) sandbox() {
	cfg := p.env.Config
	if p.spec.Sandbox == nil || !cfg.Bool("service_sandbox") {
		return
	}
	writes, ok := p.spec.Sandbox(cfg)
	if !ok {
		return
	}
	writes = append(writes, cfg.String("queue_directory"), cfg.String("data_directory"), os.TempDir())
	if dir := os.Getenv("GOCOVERDIR"); dir != "" {
		writes = append(writes, dir) // a test's program counts what it executes there
	}
	if err := confine.Sandbox(writes); err != nil {
		p.env.Log.Warning("sandbox: %v; set service_sandbox = no to run without it", err)
	}
}

// jail confines the process to the queue directory, where it is already, and
// which is / from then on.
func (p *process) jail() error {
	queue := p.env.Config.String("queue_directory")
	_ = time.Now().Local().String() // the time zone is read when it is first used
	p.env.Log.Reopen()              // the socket of syslog is not inside
	if err := syscall.Chroot("."); err != nil {
		return fmt.Errorf("chroot %s: %w", queue, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	cfg, err := p.env.Config.With(config.Override{Name: "queue_directory", Value: "/"})
	p.env.Config = cfg
	return err
}

// contexts makes the contexts that end with the process: that of Spec.Run, which ends first when
// the process retires, and the one that stop ends. free ends both.
func (p *process) contexts() (ctx context.Context, stop, free func()) {
	env := &p.env
	stopCtx, stop := context.WithCancel(context.Background())
	ctx, retire := context.WithCancel(context.WithValue(stopCtx, stopKey{}, stopCtx))
	p.retire, env.retire = retire, retire
	env.await, env.turn, env.leaving = p.await, p.turn, make(chan struct{})
	p.leave = retire
	if p.spec.Lingers {
		p.leave = sync.OnceFunc(func() {
			close(env.leaving)
			late := time.AfterFunc(LingerTime, retire)
			context.AfterFunc(ctx, func() { late.Stop() })
		})
	}
	env.release = sync.OnceFunc(func() { p.status.write(StatusReleased) })
	env.tookOver = sync.OnceFunc(func() { p.status.write(StatusTookOver) })

	// Whatever ends ctx gives the sockets up before anything else happens.
	closed := context.AfterFunc(ctx, func() {
		p.closeSockets()
		p.status.write(StatusRetired)
	})
	return ctx, stop, func() { closed(); retire(); stop() }
}

// run serves until it is time to end.
func (p *process) run() int {
	env := &p.env
	ctx, stop, free := p.contexts()
	defer free()

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGUSR1)
	profiler := newProfiler(env)
	var watchers sync.WaitGroup
	watchers.Go(func() {
		for s := range signals {
			switch s {
			case syscall.SIGTERM:
				stop()
			case syscall.SIGUSR1:
				profiler.start()
			default:
				p.leave()
			}
		}
	})
	watchers.Go(func() {
		p.status.watch(sync.OnceFunc(func() { close(p.turn) }), func() {
			stop()
			time.AfterFunc(orphanTime, func() {
				env.Log.Fatal("master has died, and work in progress has not ended after %v", orphanTime)
				os.Exit(1)
			})
		})
	})
	settled := time.AfterFunc(SettleTime, Settle)
	defer settled.Stop()
	spread(p.spec, func(procs int) { runtime.GOMAXPROCS(procs) })
	governed := make(chan struct{})
	watchers.Go(func() { newGovernor(p.spec).run(governed) })
	if !p.spec.Exclusive {
		env.activity.start(env.Config.Duration("max_idle"), p.retire)
	}
	err := p.serve(ctx)
	env.Release()
	env.activity.stop()
	signal.Stop(signals)
	close(signals)
	p.status.close()
	close(governed)
	watchers.Wait()
	profiler.close()
	env.Events.Close()
	env.reporter.close()
	if err != nil {
		env.Log.Fatal("%v", err)
		env.Log.Close()
		return 1
	}
	env.Log.Close()
	return 0
}

func (p *process) serve(ctx context.Context) error {
	defer p.env.reportPanic()
	if p.spec.Exclusive && !p.spec.Prepares {
		p.await(ctx)
		if ctx.Err() != nil {
			return nil // it has never been our turn
		}
	}
	return p.spec.Run(ctx, &p.env)
}

// await is Env.Await.
func (p *process) await(ctx context.Context) {
	select {
	case <-p.turn:
		return
	default:
	}
	p.status.write(StatusReady)
	select {
	case <-p.turn:
	case <-p.env.leaving: // there is nothing to linger for
		p.retire()
		<-ctx.Done()
	case <-ctx.Done():
	}
}

// closeSockets gives up the listening sockets. A datagram socket is left to
// Spec.Run, which reads what is in it first.
func (p *process) closeSockets() {
	for _, l := range p.env.Listeners {
		l.Close()
	}
}

// A status is a service's end of the socket that master watches it by.
type status struct {
	mu   sync.Mutex
	c    net.Conn   // nil when closed
	tell func(byte) // nil: who is told is at the other end of c
}

func newStatus(fd int) *status {
	f := os.NewFile(uintptr(fd), "status")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return &status{}
	}
	return &status{c: c}
}

// write tells master of a change. A master that has died is noticed elsewhere.
func (s *status) write(what byte) {
	if s.tell != nil {
		s.tell(what)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		s.c.Write([]byte{what})
	}
}

// watch calls turn when master lets the process serve, waits until master dies,
// and then calls orphaned. It returns when close is called.
func (s *status) watch(turn, orphaned func()) {
	s.mu.Lock()
	c := s.c
	s.mu.Unlock()
	if c == nil {
		turn() // nobody will say anything
		return
	}
	var err error
	for b := make([]byte, 16); err == nil; {
		var n int
		if n, err = c.Read(b); bytes.IndexByte(b[:n], StatusGo) >= 0 {
			turn()
		}
	}
	s.mu.Lock()
	closed := s.c == nil
	s.mu.Unlock()
	if !closed && !errors.Is(err, net.ErrClosed) {
		orphaned()
	}
}

func (s *status) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.c != nil {
		s.c.Close()
		s.c = nil
	}
}

// NameProcess has ps and top show the process under its name, which would be
// "exe" after the path that it was executed by.
func NameProcess(name string) {
	os.WriteFile("/proc/self/comm", []byte(name), 0) // for people's eyes only
}

// ProgramPath finds another program of the mail system: it is beside the
// present one or in daemonDirectory.
func ProgramPath(name, daemonDirectory string) (string, error) {
	var tried []string
	if self, err := os.Executable(); err == nil {
		tried = append(tried, filepath.Join(filepath.Dir(self), name))
	}
	tried = append(tried, filepath.Join(daemonDirectory, name))
	for _, path := range tried {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("program %s: it is neither of %s", name, strings.Join(tried, ", "))
}
