package service

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
)

// statusPanic is the exit status after a panic, which is also that of Go's
// runtime.
const statusPanic = 2

type stopKey struct{}

// Stopping returns the context that ends when what is in hand must be
// finished, for a service that keeps its own sessions. ctx is that of
// Spec.Run or comes from it; any other context is its own answer.
func Stopping(ctx context.Context) context.Context {
	if stop, ok := ctx.Value(stopKey{}).(context.Context); ok {
		return stop
	}
	return ctx
}

// ServeConns accepts connections from l until ctx ends, serves each with
// handle on a goroutine of its own, at most limit at once (0 is no limit),
// and returns when all of them have been served. Clients over the limit wait
// in the socket's backlog. The handler's context is Stopping(ctx): it goes on
// while the process retires. handle need not close the connection.
//
// ServeConns closes l. The error is that of a listener that is broken for
// good; one that only lacks a resource (descriptors, memory) is tried again.
func ServeConns(ctx context.Context, l net.Listener, limit int, handle func(context.Context, net.Conn)) error {
	s := connServer{limit: limit, handle: handle}
	return s.serve(ctx, l)
}

// ServeConns is the function of that name for all of the service's
// listeners, with the limit of master.cf over all of them, and a warning in
// the log when it is reached.
func (env *Env) ServeConns(ctx context.Context, handle func(context.Context, net.Conn)) error {
	s := connServer{limit: env.clients(), handle: handle, env: env}
	return env.eachListener(ctx, func(l net.Listener) error { return s.serve(ctx, l) })
}

// ownFiles is how many descriptors a process has for itself: its log, tables,
// sockets, and connections to other services, of three each.
const ownFiles = 64

// clients is how many are served at once: as many as master.cf says, if the
// process may have two descriptors for each. If clients had them all there would be none
// for what serves them, and all would wait for ever.
func (env *Env) clients() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return env.MaxProc // cannot fail
	}
	most := affordable(r.Cur)
	if env.MaxProc > 0 && env.MaxProc <= most {
		return env.MaxProc
	}
	if env.MaxProc > 0 {
		env.Log.Warning("service %s: %d clients are served at a time instead of %d, as the process may have no more than %d files open: "+
			"raise that limit (LimitNOFILE with systemd, ulimit -n), or lower the process limit in master.cf", env.Name, most, env.MaxProc, r.Cur)
	}
	return most
}

// affordable is how many clients so many descriptors are enough for.
func affordable(files uint64) int {
	return int(max(min(files, 1<<20), ownFiles+2)-ownFiles) / 2
}

// ServeIPC serves the services' protocol on all of the service's listeners.
// When ctx ends it tells the clients to go away, waits until they have, at
// most for drain, and returns.
func (env *Env) ServeIPC(ctx context.Context, s *ipc.Server, drain time.Duration) error {
	env.watchIPC(s)
	return env.eachListener(ctx, func(l net.Listener) error { return s.Serve(ctx, l, drain) })
}

// LendIPC is ServeIPC for who serves with another server afterwards: the
// listeners stay open when ctx ends, unless the process retires.
func (env *Env) LendIPC(ctx context.Context, s *ipc.Server, drain time.Duration) error {
	env.watchIPC(s)
	return env.eachListener(ctx, func(l net.Listener) error { return s.Serve(ctx, lend(l), drain) })
}

// watchIPC has the server's connections count as activity.
func (env *Env) watchIPC(s *ipc.Server) {
	s.Owner = env.owner
	s.OnFault = env.cannotAccept
	onConn, onClose := s.OnConn, s.OnClose
	s.OnConn = func(c *ipc.Conn) {
		env.activity.enter()
		if onConn != nil {
			onConn(c)
		}
	}
	s.OnClose = func(c *ipc.Conn) {
		if onClose != nil {
			onClose(c)
		}
		env.activity.leave()
	}
}

// A lent listener is closed only for who it was lent to.
type lent struct {
	net.Listener
	closed atomic.Bool
}

// deadlines is what listening sockets can do.
type deadlines interface{ SetDeadline(time.Time) error }

// lend lends a listener, which nobody else uses. A listener that knows no deadlines
// cannot be lent, and is closed.
func lend(l net.Listener) net.Listener {
	if d := deadlinesOf(l); d == nil || d.SetDeadline(time.Time{}) != nil {
		return l
	}
	return &lent{Listener: l}
}

func deadlinesOf(l net.Listener) deadlines {
	if own, ok := l.(*listener); ok {
		l = own.Listener
	}
	d, _ := l.(deadlines)
	return d
}

func (l *lent) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && l.closed.Load() {
		return nil, net.ErrClosed
	}
	return c, err
}

// Close has Accept return, now and from now on.
func (l *lent) Close() error {
	l.closed.Store(true)
	return deadlinesOf(l.Listener).SetDeadline(time.Unix(1, 0))
}

// eachListener runs serve for every listener at once and waits for all.
func (env *Env) eachListener(ctx context.Context, serve func(net.Listener) error) error {
	if env.confine != nil {
		panic("service " + env.Process + " serves before it has given up its privileges")
	}
	env.Await(ctx)
	errs := make([]error, len(env.Listeners))
	var wg sync.WaitGroup
	for i, l := range env.Listeners {
		wg.Go(func() { errs[i] = serve(l) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// A connServer serves connections from several listeners under one limit.
type connServer struct {
	limit  int
	handle func(context.Context, net.Conn)
	env    *Env // may be nil

	once  sync.Once
	slots chan struct{} // nil without a limit
}

func (s *connServer) serve(ctx context.Context, l net.Listener) error {
	s.once.Do(func() {
		if s.limit > 0 {
			s.slots = make(chan struct{}, s.limit)
		}
	})
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer func() {
		stop()
		l.Close()
	}()
	for {
		if !s.acquire(ctx) {
			return nil
		}
		nc, err := s.accept(ctx, l)
		if err != nil {
			s.release()
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		wg.Go(func() { s.one(ctx, nc) })
	}
}

// one serves a connection.
func (s *connServer) one(ctx context.Context, nc net.Conn) {
	defer s.release()
	defer nc.Close()
	if s.env != nil {
		defer s.env.Busy()()
		defer s.env.reportPanic()
	}
	s.handle(Stopping(ctx), nc)
}

// acquire waits for a free slot. It is false when ctx ended first.
func (s *connServer) acquire(ctx context.Context) bool {
	if s.slots == nil {
		return ctx.Err() == nil
	}
	select {
	case s.slots <- struct{}{}:
		return true
	default:
	}
	if s.env != nil {
		s.env.overloaded(time.Now(), s.limit)
	}
	select {
	case s.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *connServer) release() {
	if s.slots != nil {
		<-s.slots
	}
}

// accept accepts one connection. It waits and tries again when what is
// lacking may come back: the process is out of descriptors, say.
func (s *connServer) accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	delay := 10 * time.Millisecond
	for {
		nc, err := l.Accept()
		var temporary interface{ Temporary() bool }
		if err == nil || !errors.As(err, &temporary) || !temporary.Temporary() || ctx.Err() != nil {
			return nc, err
		}
		if s.env != nil {
			s.env.cannotAccept(err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(delay):
			delay = min(2*delay, time.Second)
		}
	}
}

// faults are the reasons why connections could not be accepted, and when they
// were in the log.
type faults struct {
	mu   sync.Mutex
	said map[string]time.Time
}

// cannotAccept says in the log why a connection cannot be accepted, once in
// stressTime for each reason: who connects waits meanwhile, and nobody else says
// why.
func (env *Env) cannotAccept(err error) {
	var reason syscall.Errno // without it the text is the reason
	key := err.Error()
	if errors.As(err, &reason) {
		key = reason.Error()
	}
	f := &env.faults
	now := time.Now()
	f.mu.Lock()
	last, seen := f.said[key]
	quiet := seen && now.Sub(last) < stressTime
	if !quiet && len(f.said) < 100 {
		if f.said == nil {
			f.said = make(map[string]time.Time)
		}
		f.said[key] = now
	}
	f.mu.Unlock()
	if !quiet {
		env.Log.Warning("cannot accept a connection, and try again: %v", err)
	}
}

// stressTime is how long after the last overload sessions start under
// stress, and how long it is quiet in the log.
const stressTime = 1000 * time.Second

// stress is whether the service has had more clients than it may serve.
type stress struct {
	mu     sync.Mutex
	last   time.Time
	warned time.Time
	config *config.Config // with stress=yes
}

// overloaded notes that the limit is reached, and says so in the log at most
// once in stressTime.
func (env *Env) overloaded(now time.Time, limit int) {
	s := &env.stress
	s.mu.Lock()
	s.last = now
	quiet := !s.warned.IsZero() && now.Sub(s.warned) < stressTime
	if !quiet {
		s.warned = now
	}
	s.mu.Unlock()
	if quiet {
		return
	}
	env.Log.LogWarning(maillog.ProcessLimit{Service: env.Name, Endpoint: env.endpoint(), Limit: limit})
	env.Log.Warning("to avoid this condition, increase the process count in master.cf or reduce the service time per client")
	env.Log.Warning("see https://www.postfix.org/STRESS_README.html for examples of stress-adapting configuration settings")
}

// endpoint is the service's name with a number for the port: smtp is 25.
func (env *Env) endpoint() string {
	if env.Type != "inet" || len(env.Listeners) == 0 {
		return env.Name
	}
	a, ok := env.Listeners[0].Addr().(*net.TCPAddr)
	if !ok {
		return env.Name
	}
	host := ""
	if i := strings.LastIndexByte(env.Name, ':'); i >= 0 {
		host = env.Name[:i+1]
	}
	return host + strconv.Itoa(a.Port)
}

// SessionConfig is the configuration for a session that begins now: Config,
// or, while the service is under stress, Config with stress = yes, on which
// limits and time-outs may depend.
func (env *Env) SessionConfig() *config.Config {
	s := &env.stress
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.IsZero() || time.Since(s.last) >= stressTime {
		return env.Config
	}
	if s.config == nil {
		c, err := env.Config.With(config.Override{Name: "stress", Value: "yes"})
		if err != nil {
			env.Log.Warning("the settings for stress are not used: %v", err)
			c = env.Config
		}
		s.config = c
	}
	return s.config
}

// reportPanic logs a panic and ends the process: whatever has been half done
// is not to be built upon. It is to be deferred.
func (env *Env) reportPanic() {
	if r := recover(); r != nil {
		if env.world != nil {
			panic(r) // a simulation ends with it
		}
		env.Log.Panic(r)
		env.Log.Close()
		os.Exit(statusPanic)
	}
}
