package verify

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/service"
	"posthaste/internal/submit"
	"posthaste/internal/verify/probesender"
)

// drainTime is how long clients may take when the service stops.
const drainTime = 5 * time.Second

// submitTimeout bounds the queueing of one probe.
const submitTimeout = time.Minute

// maxStack is many times what a goroutine of this service needs.
const maxStack = 16 << 20

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "verify", Exclusive: true, Rank: service.Helper, Confines: true, Sandbox: writes, Run: run}
}

// writes is the directory of address_verify_map.
func writes(cfg *config.Config) (writes []string, ok bool) {
	if path := Path(cfg.String("address_verify_map")); path != "" {
		writes = []string{filepath.Dir(path)}
	}
	return writes, true
}

func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	// A file that is damaged while it is open may have the library call itself
	// without end: that is to take no gigabyte before the process ends.
	debug.SetMaxStack(maxStack)
	store, err := OpenStore(Path(cfg.String("address_verify_map")), func(text string) { env.Log.Warning("%s", text) }, func(text string) {
		env.Log.Fatal("%s", text)
		env.Exit()
	})
	if err != nil {
		return err
	}
	defer store.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	client := ipc.NewClient(env.Public(cfg.String("cleanup_service_name")), nil)
	defer client.Close()
	submitter := submit.New(client)
	defer submitter.Close()
	s := newServer(service.Stopping(ctx), cfg, store, submitter, env.Log)
	stop := s.cleanEvery(cfg.Duration("address_verify_cache_cleanup_interval"))
	defer stop()
	err = env.ServeIPC(ctx, &ipc.Server{Handler: s.handle}, drainTime)
	s.wg.Wait()
	return err
}

func newServer(ctx context.Context, cfg *config.Config, store *Store, submitter *submit.Client, log *maillog.Logger) *server {
	return &server{store: store, times: timesOf(cfg), submit: submitter, log: log, limit: cfg.Int("address_verify_pending_request_limit"),
		sender: probesender.Of(cfg), hostname: cfg.String("myhostname"), mailName: cfg.String("mail_name"),
		autoUTF8: proto.AutoUTF8(cfg.List("smtputf8_autodetect_classes"), "verify"),
		pending:  make(map[string]time.Time), ctx: ctx}
}

func timesOf(cfg *config.Config) Times {
	return Times{
		PositiveExpire:  cfg.Duration("address_verify_positive_expire_time"),
		PositiveRefresh: cfg.Duration("address_verify_positive_refresh_time"),
		NegativeExpire:  cfg.Duration("address_verify_negative_expire_time"),
		NegativeRefresh: cfg.Duration("address_verify_negative_refresh_time"),
		NegativeCache:   cfg.Bool("address_verify_negative_cache"),
	}
}

type server struct {
	store              *Store
	times              Times
	submit             *submit.Client
	log                *maillog.Logger
	limit              int
	sender             probesender.Sender
	hostname, mailName string
	autoUTF8           proto.SubmitFlags
	ctx                context.Context
	wg                 sync.WaitGroup

	mu      sync.Mutex
	pending map[string]time.Time // probes under way, by address, with their start
}

// cleanEvery drops what has expired, now and then, until it is stopped. An interval of
// 0 is never.
func (s *server) cleanEvery(interval time.Duration) (stop func()) {
	if interval <= 0 {
		return func() {}
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(max(interval, time.Minute))
		defer t.Stop()
		for {
			now := time.Now()
			if _, _, err := s.store.Clean(func(r *Record) bool { return r.Dead(&s.times, now) }); err != nil {
				s.log.Warning("address verification cache: %v", err)
			}
			select {
			case <-t.C:
			case <-quit:
				return
			}
		}
	}()
	return func() { close(quit); <-done }
}

func (s *server) handle(_ *ipc.Conn, r *ipc.Request) {
	switch r.Kind {
	case proto.KindProbe:
		q := new(proto.Probe)
		if err := r.Decode(q); err != nil {
			r.Fail("%v", err)
			return
		}
		s.wg.Go(func() { r.Reply(s.query(q.Address, time.Now())) })
	case proto.KindProbed:
		q := new(proto.Probed)
		if err := r.Decode(q); err != nil {
			s.log.Error("verify: %v", err)
			return
		}
		s.wg.Go(func() { s.learn(q, time.Now()) })
	default:
		r.Fail("verify: unknown request %d", r.Kind)
	}
}

// query answers what is known of addr, and sends a probe when it is time.
func (s *server) query(addr string, now time.Time) *proto.ProbeReply {
	reply := &proto.ProbeReply{Status: proto.ProbeTodo, Text: "Address verification in progress"}
	r, err := s.store.Get(addr)
	if r.Known(&s.times, now) {
		reply.Status, reply.Text = r.Status, r.Text
	}
	if err == nil && r.WantsProbe(&s.times, now) {
		err = s.probe(addr, now)
	}
	if errors.Is(err, errTooMany) {
		if reply.Status == proto.ProbeTodo {
			return &proto.ProbeReply{Status: proto.ProbeDefer, Text: "Too many address verification requests"}
		}
		return reply // what is known is not refreshed now
	}
	if err != nil {
		s.log.Warning("address verification cache: %v", err)
		return &proto.ProbeReply{Status: proto.ProbeDefer, Text: "Address verification cache error"}
	}
	return reply
}

// errTooMany says that as many probes are under way as may be.
var errTooMany = errors.New("too many probes are under way")

// probe has a probe sent, if one more may be under way (errTooMany) and nobody
// else has had one sent meanwhile.
func (s *server) probe(addr string, now time.Time) error {
	if ok, err := s.admit(addr, now); !ok {
		return err
	}
	wanted := false
	err := s.store.Change(addr, func(r *Record) bool {
		if wanted = r.WantsProbe(&s.times, now); wanted {
			r.Probed = now
		}
		return true
	})
	if err != nil || !wanted {
		s.done(addr)
		return err
	}
	s.wg.Go(func() {
		if err := s.send(addr, now); err != nil {
			s.log.Warning("probe for <%s> not sent: %v", s.log.Address(addr), err)
			s.done(addr)
		}
	})
	return nil
}

// admit says whether a probe for addr is to be sent: not when one is under way,
// and with errTooMany not when too many others are.
func (s *server) admit(addr string, now time.Time) (bool, error) {
	key := strings.ToLower(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.pending[key]; ok && now.Sub(at) < probeTime {
		return false, nil
	}
	if len(s.pending) >= s.limit {
		for a, at := range s.pending { // those that nothing was heard of
			if now.Sub(at) >= probeTime {
				delete(s.pending, a)
			}
		}
		if len(s.pending) >= s.limit {
			return false, errTooMany
		}
	}
	s.pending[key] = now
	return true, nil
}

func (s *server) done(addr string) {
	s.mu.Lock()
	delete(s.pending, strings.ToLower(addr))
	s.mu.Unlock()
}

// learn takes in what a probe came to.
func (s *server) learn(q *proto.Probed, now time.Time) {
	s.done(q.Address)
	if err := s.store.Change(q.Address, func(r *Record) bool { return r.Learn(&s.times, now, q.Status, q.Text) }); err != nil {
		s.log.Warning("address verification cache: %v", err)
	}
}

// send queues a probe: a message that agents do not deliver.
func (s *server) send(addr string, now time.Time) error {
	ctx, cancel := context.WithTimeout(s.ctx, submitTimeout)
	defer cancel()
	id, err := s.submit.NewID(ctx, now)
	if err != nil {
		return err
	}
	env := &mail.Envelope{ID: id, Arrival: now, Sender: s.sender.At(now), Trace: mail.TraceProbe, RewriteContext: "local",
		Recipients: []mail.Recipient{{Address: addr, Notify: dsn.NotifyNever}}}
	m := s.submit.Open(env, submit.Options{Flags: proto.SubmitMap | proto.SubmitNoReceive | s.autoUTF8})
	fmt.Fprintf(m, "Received: by %s (%s)\r\n\tid %s; %s\r\nSubject: probe\r\n\r\n", s.hostname, s.mailName, id, rfc5322.Date(now))
	reply, err := m.Commit(ctx)
	if err != nil {
		return err
	}
	if reply.Code != 250 {
		return fmt.Errorf("%d %s %s", reply.Code, reply.Status, reply.Text)
	}
	return nil
}

// A Client asks the verify service. Its method may be called concurrently.
type Client struct{ ipc *ipc.Client }

// NewClient makes a client of the service at that address.
func NewClient(at ipc.Address) *Client { return &Client{ipc.NewClient(at, nil)} }

// Probe returns what is known of addr, and has it found out when nothing is.
func (c *Client) Probe(ctx context.Context, addr string) (status proto.ProbeStatus, text string, err error) {
	var reply proto.ProbeReply
	err = c.ipc.CallAgain(ctx, &proto.Probe{Address: addr}, &reply)
	return reply.Status, reply.Text, err
}

// Close closes the connection.
func (c *Client) Close() { c.ipc.Close() }
