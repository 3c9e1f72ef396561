package smtpd

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/quickio"
	"posthaste/internal/resolver"
	"posthaste/internal/reuse"
	"posthaste/internal/service"
	"posthaste/internal/smtpwire"
	"posthaste/internal/submit"
	"posthaste/internal/table"
	"posthaste/internal/watch"
	"posthaste/smtpd/postscreen"
)

// Names finds the names of clients.
type Names interface {
	PTR(ctx context.Context, addr netip.Addr) (resolver.Answer[string], error)
	Addrs(ctx context.Context, host string, f resolver.Family) (resolver.Answer[netip.Addr], error)
}

// Flusher starts the delivery of what waits for a site: ETRN. queued is false
// when the site may not be asked for.
type Flusher interface {
	Flush(ctx context.Context, domain string) (queued bool, err error)
}

// Deps are what a Server works with.
type Deps struct {
	Config  *config.Config
	Log     *maillog.Logger
	Service string // name in master.cf, for limits and their log lines
	Submit  *submit.Client
	Router  access.Router
	// Foresee has what Router is going to be asked of an address asked before the
	// answer is needed. It does not wait. May be nil.
	Foresee func(ctx context.Context, sender, addr string)
	DNS     resolver.Resolver
	Names   Names         // nil: clients are "unknown"
	Verify  access.Prober // may be nil
	Flush   Flusher       // nil: no ETRN
	Milters *ipc.Client   // cleanup, for smtpd_milters; nil: there are none
	MaxProc int           // sessions at a time; 0: 100
	Tables  table.Options
	Now     func() time.Time // nil: time.Now
	// Screen has clients go through postscreen's tests first.
	Screen bool
	// Verbose is how often master.cf has -v: with one or more all dialogues are logged.
	Verbose int
	// Watch is told the dialogues that somebody watches; nil: nobody can.
	Watch *watch.Hub
	// ContentFree is how many bytes the file system of spool_content_directory has free; nil
	// when there is no such directory. It is called by many sessions at a time.
	ContentFree func() (int64, error)
	// SessionConfig, when set, gives the settings that a session which begins
	// now is to have: Config, or Config under stress.
	SessionConfig func() *config.Config
}

// flushTimeout bounds the wait for the queue manager to take an ETRN.
const flushTimeout = 30 * time.Second

// A Server is one smtpd service.
type Server struct {
	log      *maillog.Logger
	set      *settings
	current  func() *config.Config
	stressed sync.Map // *config.Config to *settings
	tables   table.Options
	service  string
	access   *access.Evaluator
	limits   *limits
	submit   *submit.Client
	names    Names
	flush    Flusher
	notices  *notice.Mailer
	maxProc  int
	now      func() time.Time
	sasl     *saslSettings
	tlsSet   *tlsSettings
	proxies  *proxySettings
	filter   *filterSettings    // nil: to cleanup
	screen   *postscreen.Screen // nil: no tests before sessions

	draining atomic.Bool
	ample    atomic.Int64 // until then, in Unix nanoseconds, the queue's file system has room
	mu       sync.Mutex
	sessions map[*session]struct{}
	idle     reuse.Pool[session] // of those that have ended
	ports    *ports
	engine   sync.WaitGroup
	milters  *milterSettings
	verbose  int        // all dialogues are logged
	watch    *watch.Hub // nil: nobody watches
	router   access.Router
	// contentFree is Deps.ContentFree; may be nil.
	contentFree func() (int64, error)
	foresee     func(ctx context.Context, sender, addr string) // may be nil
}

// New makes a server from the configuration. Close it when Serve has
// returned.
func New(ctx context.Context, d Deps) (*Server, error) {
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.MaxProc <= 0 {
		d.MaxProc = 100
	}
	if d.Service == "" {
		d.Service = "smtp"
	}
	screenLog := d.Log
	if d.Screen {
		screenLog, d.Log = screenLogs(d.Log)
	}
	if d.Tables.Warn == nil {
		d.Tables.Warn = func(text string) { d.Log.Warning("%s", text) }
	}
	s := &Server{log: d.Log, submit: d.Submit, names: d.Names, flush: d.Flush, maxProc: d.MaxProc, now: d.Now,
		sessions: make(map[*session]struct{}), ports: newPorts(),
		verbose: d.Verbose, watch: d.Watch, contentFree: d.ContentFree, current: d.SessionConfig, tables: d.Tables, service: d.Service}
	var err error
	if s.set, err = readSettings(d.Config, d.Service, d.Tables); err != nil {
		return nil, err
	}
	s.stressed.Store(d.Config, s.set)
	if d.Submit != nil {
		s.notices = notice.New(d.Config, d.Submit, d.Log)
	}
	if s.limits, err = newLimits(d.Config, d.Service, d.Log, d.Now, d.Tables); err != nil {
		return nil, err
	}
	s.access, err = access.New(ctx, d.Config, access.Deps{Log: d.Log, Router: d.Router, DNS: followedDNS(d.DNS, resolver.NamesOf(d.Config)), Verify: d.Verify, Tables: d.Tables})
	if err != nil {
		return nil, err
	}
	if err := s.readExtensions(d.Config, d.Screen, d.Tables); err != nil {
		return nil, err
	}
	s.router, s.foresee = d.Router, d.Foresee
	if s.milters, err = readMilters(d.Config, d.Milters, d.Tables); err != nil {
		return nil, err
	}
	if d.Screen {
		s.screen, err = postscreen.New(postscreen.Options{Config: d.Config, Log: screenLog, DNS: d.DNS, Local: s.access.MyNetworks,
			Sessions: s.maxProc, Tables: d.Tables, Now: d.Now})
		if err != nil {
			return nil, err
		}
	}
	engine := newEngine(engineLog{s.log})
	s.engine.Go(func() {
		_ = engine.Serve(s.ports)                 // until Close
		_ = engine.Shutdown(context.Background()) // waits for its goroutines
	})
	return s, nil
}

// screenLogs returns the logs of postscreen's tests and of the sessions behind
// them. One process has both; programs that read logs want each under the name
// of the program that writes it with Postfix.
func screenLogs(log *maillog.Logger) (tests, sessions *maillog.Logger) {
	prefix := strings.TrimSuffix(strings.TrimSuffix(log.Tag(), "postscreen"), "smtpd")
	return log.With(prefix + "postscreen"), log.With(prefix + "smtpd")
}

// Close frees what New opened. Serve and ServeConn must have returned.
func (s *Server) Close() {
	s.ports.Close()
	s.engine.Wait()
	s.access.Close()
	s.stressed.Range(func(_, v any) bool { v.(*settings).close(); return true })
	s.limits.Finish()
	s.milters.maps.Close()
	s.tlsSet.logLevels.Close()
	if s.sasl.backend != nil {
		s.sasl.backend.Close()
	}
	if s.screen != nil {
		s.screen.Close()
	}
}

// Serve accepts sessions from l until ctx ends, and returns when the last of
// them has ended: those that wait for a command get 421, those in the middle
// of a message finish it. It may be called for several listeners at a time.
// The listener is closed.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(service.Stopping(ctx), s.Drain)()
	return service.ServeConns(ctx, l, s.maxProc, s.ServeConn)
}

// ServeConn serves one client and returns when its session is over. ctx is
// not looked at: Drain ends sessions.
func (s *Server) ServeConn(_ context.Context, nc net.Conn) {
	set := s.settings()
	ss := s.idle.Get()
	if ss.over == nil { // a new one
		ss.over = make(chan struct{}, 1)
	}
	ss.srv, ss.set, ss.sock = s, set, nc
	ss.wire = wire{nc: quickio.New(nc), timeout: set.timeout}
	ss.setEndpoints(nc.RemoteAddr(), nc.LocalAddr())
	ss.history = s.notices.Transcript()
	ss.busy.Store(true)
	s.mu.Lock()
	s.sessions[ss] = struct{}{}
	s.mu.Unlock()
	s.ports.serve(ss)
	<-ss.over
	ss.forget()
	s.idle.Put(ss)
}

// readExtensions reads what TLS, SASL and proxies are told to do.
func (s *Server) readExtensions(cfg *config.Config, screen bool, o table.Options) (err error) {
	if s.tlsSet, err = readTLS(cfg, s.log.Warning, o); err != nil {
		return err
	}
	if s.filter, err = readFilter(cfg); err != nil {
		return err
	}
	if s.proxies, err = readProxies(cfg, screen, o); err != nil {
		return err
	}
	s.sasl, err = readSASL(cfg, o)
	return err
}

// settings are those of a session that begins now.
func (s *Server) settings() *settings {
	if s.current == nil {
		return s.set
	}
	cfg := s.current()
	if v, ok := s.stressed.Load(cfg); ok {
		return v.(*settings)
	}
	set, err := readSettings(cfg, s.service, s.tables)
	if err != nil {
		s.log.Warning("settings under stress: %v", err)
		set = s.set
	}
	v, _ := s.stressed.LoadOrStore(cfg, set)
	return v.(*settings)
}

// ended is told that a session is over.
func (s *Server) ended(ss *session) {
	s.mu.Lock()
	_, first := s.sessions[ss]
	delete(s.sessions, ss)
	s.mu.Unlock()
	if first {
		ss.over <- struct{}{} // the session is not to be touched after this
	}
}

// Drain has sessions end as soon as they are between two messages: those that
// wait for a command get 421 at once. It does not wait.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss := range s.sessions {
		if !ss.busy.Load() {
			ss.sock.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// ctx is the context of lookups on behalf of sessions. It has no end of its
// own: everything that is asked bounds its own time.
func (s *Server) ctx() context.Context { return context.Background() }

// engineLog takes what the engine has to say, which is about panics.
type engineLog struct{ log *maillog.Logger }

func (l engineLog) Printf(format string, v ...any) { l.log.Error("transaction engine: "+format, v...) }
func (l engineLog) Println(v ...any)               { l.log.Error("transaction engine: %s", fmt.Sprintln(v...)) }

// flushSite carries out ETRN.
func (s *Server) flushSite(ctx context.Context, domain string) *smtpwire.Reply {
	queued, err := s.flush.Flush(ctx, domain)
	return s.flushSiteReply(domain, queued, err)
}
