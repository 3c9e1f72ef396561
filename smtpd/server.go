// The Server: what all sessions of one process share, and the life of a session as
// others see it, from an accepted connection to the end of its goroutine.

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
	"posthaste/internal/event"
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

// Names finds the names of clients. It is called by many sessions at a time, and
// bounds its own time. Errors are those of package resolver: sessions tell a
// temporary failure from a name that does not exist.
type Names interface {
	// PTR is what the address points at. An answer without an error has at least
	// one record.
	PTR(ctx context.Context, addr netip.Addr) (resolver.Answer[string], error)
	// Addrs is the addresses of host in one family.
	Addrs(ctx context.Context, host string, f resolver.Family) (resolver.Answer[netip.Addr], error)
}

// Flusher starts the delivery of what waits for a site (ETRN). queued is false when
// the site may not be asked for. An error means that it is not known whether
// anything was started. It is called by many sessions at a time.
type Flusher interface {
	Flush(ctx context.Context, domain string) (queued bool, err error)
}

// Deps are what a Server works with. They belong to the caller, who closes them
// after the Server. Many sessions call them at the same time.
type Deps struct {
	Config *config.Config
	Log    *maillog.Logger
	// Service is the service's name in master.cf: it is in the log lines of limits, and
	// counts are published under it. Empty: smtp.
	Service string
	// Submit is the way to cleanup. Nil only in tests without mail.
	Submit *submit.Client
	// Router rewrites and resolves addresses: trivial-rewrite.
	Router access.Router
	// Foresee has what Router is going to be asked of an address asked before the
	// answer is needed. It does not wait. May be nil.
	Foresee func(ctx context.Context, sender, addr string)
	DNS     resolver.Resolver
	Names   Names         // nil: clients are "unknown"
	Verify  access.Prober // for reject_unverified_...; may be nil
	// Suppress is for reject_suppressed_recipient; may be nil.
	Suppress access.Suppressor
	// Spender limits what accounts send (account_recipient_limit); nil: nothing does.
	Spender spender
	Flush   Flusher // nil: no ETRN
	// Milters is cleanup, where sessions with smtpd_milters live; nil: there are none.
	Milters *ipc.Client
	// MaxProc is how many sessions there may be at a time: the process limit in
	// master.cf, which with Postfix counts processes of one client each. 0: 100.
	MaxProc int
	Tables  table.Options
	// Now is the clock of dates, counts and greylists. Timeouts of the network do
	// not use it. Nil: time.Now.
	Now func() time.Time
	// Screen has clients go through postscreen's tests first.
	Screen bool
	// Verbose is how often master.cf has -v: with one or more all dialogues are logged.
	Verbose int
	// Watch is told the dialogues that somebody watches; nil: nobody can.
	Watch *watch.Hub
	// ContentFree is how many bytes the file system of spool_content_directory has free; nil
	// when there is no such directory. It is called by many sessions at a time.
	ContentFree func() (int64, error)
	// QueueFree is how many bytes the file system has free that new mail goes to, of several the one with most room; nil: that
	// of the working directory is asked.
	QueueFree func() (int64, error)
	// SessionConfig, when set, gives the settings that a session which begins
	// now is to have: Config, or Config under stress.
	SessionConfig func() *config.Config
}

// flushTimeout bounds the wait for the queue manager to take an ETRN. A client waits
// five minutes for most replies (RFC 5321 section 4.5.3.2); a qmgr that has not
// answered in half a minute is not there.
const flushTimeout = 30 * time.Second

// A Server is one smtpd service. New sets its fields, and they do not change except
// where a comment says so. What they point at is safe for concurrent use.
type Server struct {
	log *maillog.Logger
	// set is the settings of sessions while the service is not under stress.
	set *settings
	// current is Deps.SessionConfig; nil: every session gets set.
	current func() *config.Config
	// stressed is from *config.Config to the *settings that were read from it: set, and
	// those under stress once they have been needed. It lives as long as the Server.
	stressed sync.Map
	tables   table.Options     // for reading settings under stress
	access   *access.Evaluator // judges each command
	limits   *limits           // rates and connections of each client
	submit   *submit.Client    // how messages get to cleanup
	names    Names             // finds the names of clients
	flush    Flusher           // carries out ETRN; nil: it is not offered
	notices  *notice.Mailer    // nil without Deps.Submit
	maxProc  int               // the process limit: sessions at the same time; 0: no bound
	now      func() time.Time  // the clock of every session
	sasl     *saslSettings
	tlsSet   *tlsSettings
	proxies  *proxySettings     // of load balancers that say who the client is
	filter   *filterSettings    // smtpd_proxy_filter; nil: content goes to cleanup
	screen   *postscreen.Screen // nil: no tests before sessions
	milters  *milterSettings
	spender  spender                                        // Deps.Spender; may be nil
	router   access.Router                                  // trivial-rewrite
	foresee  func(ctx context.Context, sender, addr string) // Deps.Foresee; may be nil
	// contentFree is Deps.ContentFree; may be nil.
	contentFree func() (int64, error)
	queueFree   func() (int64, error) // Deps.QueueFree; may be nil
	verbose     int                   // Deps.Verbose
	watch       *watch.Hub            // nil: nobody can watch

	// draining says that sessions are to end. Drain sets it; it is never cleared.
	draining atomic.Bool
	// ample is until when, in Unix nanoseconds, the queue's file system is known to
	// have far more room than one message needs. Sessions store it without
	// coordination: a lost value costs one more statfs.
	ample atomic.Int64

	mu sync.Mutex
	// sessions are those under way, for Drain. mu guards it.
	sessions map[*session]struct{}
	// idle are sessions that have ended, to be used again with what memory they have.
	idle reuse.Pool[session]
	// ports is how the transaction engine gets sessions, and engine waits for its end.
	ports  *ports
	engine sync.WaitGroup
}

// New makes a server from the configuration, with its tables open and its
// certificates read. An error is one of the configuration, and says which parameter
// is wrong. The caller calls Close once Serve and ServeConn have returned. ctx
// bounds only the opening.
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
		verbose: d.Verbose, watch: d.Watch, contentFree: d.ContentFree, queueFree: d.QueueFree, current: d.SessionConfig, tables: d.Tables}
	var err error
	if s.set, err = readSettings(d.Config, d.Tables); err != nil {
		return nil, err
	}
	if s.set.wait > 0 && event.Enabled(d.Config) {
		d.Log.Warning("smtpd_delivery_wait = %v has no effect while event_sinks is set: an event must be on the disk before a delivery begins", s.set.wait)
	}
	// Sessions that are not under stress find their settings under the same key.
	s.stressed.Store(d.Config, s.set)
	if d.Submit != nil {
		s.notices = notice.New(d.Config, d.Submit, d.Log)
	}
	if s.limits, err = newLimits(d.Config, d.Service, d.Log, d.Now, d.Tables); err != nil {
		return nil, err
	}
	s.access, err = access.New(ctx, d.Config, access.Deps{Log: d.Log, Router: d.Router, DNS: followedDNS(d.DNS, resolver.NamesOf(d.Config)), Verify: d.Verify, Suppress: d.Suppress, Tables: d.Tables})
	if err != nil {
		return nil, err
	}
	if err := s.readExtensions(d.Config, d.DNS, d.Screen, d.Tables); err != nil {
		return nil, err
	}
	s.router, s.foresee, s.spender = d.Router, d.Foresee, d.Spender
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
	// The engine has a goroutine for each of its ports. They belong to the Server:
	// Close waits for all of them.
	engine := newEngine(engineLog{s.log})
	s.engine.Go(func() {
		_ = engine.Serve(s.ports)                 // until Close
		_ = engine.Shutdown(context.Background()) // waits for its goroutines
	})
	return s, nil
}

// screenLogs returns the logs of postscreen's tests and of the sessions behind
// them. One process has both; programs that read logs want each under the name of
// the program that writes it with Postfix. The tag's beginning is syslog_name,
// which is kept.
func screenLogs(log *maillog.Logger) (tests, sessions *maillog.Logger) {
	prefix := strings.TrimSuffix(strings.TrimSuffix(log.Tag(), "postscreen"), "smtpd")
	return log.With(prefix + "postscreen"), log.With(prefix + "smtpd")
}

// Close frees what New opened. Serve and ServeConn must have returned: sessions use
// all of this to their last line. The engine ends first, since a port that waits
// for a session is still in it.
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

// ServeConn serves one client and returns when its session is over, with the
// connection closed. It may be called any number of times at once; the caller
// bounds that. ctx is not looked at: a session in the middle of a message finishes
// it, and Drain ends the others.
//
// The session runs on a goroutine of the engine, and this one waits for it: package
// service counts the connections by the calls that have not returned.
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
	// The session's owner is the engine now, until ended gives it back.
	<-ss.over
	ss.forget()
	s.idle.Put(ss)
}

// readExtensions reads what TLS, SASL, proxies and the content filter are told to
// do. Unlike settings these are the same under stress: they hold keys, tables and
// connections, which are opened once.
func (s *Server) readExtensions(cfg *config.Config, dns resolver.Resolver, screen bool, o table.Options) (err error) {
	if s.tlsSet, err = readTLS(cfg, s.log.Warning, o); err != nil {
		return err
	}
	if s.filter, err = readFilter(cfg); err != nil {
		return err
	}
	if s.proxies, err = readProxies(cfg, screen, o); err != nil {
		return err
	}
	s.sasl, err = readSASL(cfg, dns, o)
	return err
}

// settings are those of a session that begins now. Under stress many parameters
// have other values (smtpd_timeout is 10 seconds instead of 300). What is read for
// the first session under stress serves the others; if two sessions read at once,
// the second result is dropped.
func (s *Server) settings() *settings {
	if s.current == nil {
		return s.set
	}
	cfg := s.current()
	if v, ok := s.stressed.Load(cfg); ok {
		return v.(*settings)
	}
	set, err := readSettings(cfg, s.tables)
	if err != nil {
		// The configuration was good without stress; a bad value that only shows
		// under stress must not end the service at its busiest time.
		s.log.Warning("settings under stress: %v", err)
		set = s.set
	}
	v, _ := s.stressed.LoadOrStore(cfg, set)
	return v.(*settings)
}

// ended is told that a session is over. It may be called twice for a session, as
// the engine closes what it has been told to close; only the first call wakes
// ServeConn, which hands the memory to the next client.
func (s *Server) ended(ss *session) {
	s.mu.Lock()
	_, first := s.sessions[ss]
	delete(s.sessions, ss)
	s.mu.Unlock()
	if first {
		ss.over <- struct{}{} // the session is not to be touched after this
	}
}

// Drain ends sessions as soon as they are between two messages: those that wait for
// a command get 421 at once, which RFC 5321 section 3.8 allows at any time. It does
// not wait, and may be called more than once. Sessions that begin afterwards end at
// their first wait.
func (s *Server) Drain() {
	s.draining.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss := range s.sessions {
		if !ss.busy.Load() {
			// A deadline in the past wakes the reader; read tells this from a
			// timeout by draining. A session that has become busy in between sets a
			// deadline of its own with its next read.
			ss.sock.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

// ctx is the context of lookups on behalf of sessions. It has no end of its
// own: everything that is asked bounds its own time.
func (s *Server) ctx() context.Context { return context.Background() }

// engineLog receives the engine's log messages. In practice these are about panics:
// the commands that the engine gets to see do not fail.
type engineLog struct{ log *maillog.Logger }

func (l engineLog) Printf(format string, v ...any) { l.log.Error("transaction engine: "+format, v...) }
func (l engineLog) Println(v ...any)               { l.log.Error("transaction engine: %s", fmt.Sprintln(v...)) }

// flushSite carries out ETRN for a domain whose form has been checked.
func (s *Server) flushSite(ctx context.Context, domain string) *smtpwire.Reply {
	queued, err := s.flush.Flush(ctx, domain)
	return s.flushSiteReply(domain, queued, err)
}
