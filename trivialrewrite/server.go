package trivialrewrite

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/service"
)

const (
	// staleInterval is how long an answer that came from tables may be kept
	// by those who asked, if the tables may have changed. It is as long as a table file is taken to be
	// unchanged. So often it is seen whether they have, while somebody keeps answers.
	staleInterval = time.Second
	// maxStale is how long such an answer may be kept at most. Mail hosts change, and days of a warm-up begin,
	// without a table.
	maxStale = 10 * time.Second
	// drainTime is how long questions under way may take when the service stops.
	drainTime = 10 * time.Second
)

// Spec declares the service.
func Spec() service.Spec {
	return service.Spec{Process: "trivial-rewrite", Rank: service.Helper, Confines: true, Tries: true, Frugal: true, Sandbox: service.Plain, Run: run}
}

// run serves until ctx ends. Tables are opened before the process confines itself: afterwards it
// reads only what it may read without root.
func run(ctx context.Context, env *service.Env) error {
	r, err := New(env.Config, env.Tables())
	if err != nil {
		return err
	}
	defer r.Close()
	if r.sites.asksDNS() {
		o, err := env.Resolver()
		if err != nil {
			return err
		}
		dns := resolver.New(o)
		defer dns.Close()
		r.sites.dns = dns
	}
	if err := env.Confine(); err != nil {
		return err
	}
	s := newServer(service.Stopping(ctx), r, env.Log, keepingOf(env.Config))
	defer s.Close()
	return env.ServeIPC(ctx, s.IPC(), drainTime)
}

// keeping says for how long answers are good.
type keeping uint8

const (
	keepNot    keeping = iota // they depend on chance
	keepSender                // as keepShort, and for the same sender
	keepShort                 // they depend on tables: until these change, and for maxStale at most
	keepLong                  // they depend on main.cf alone
)

// keepingOf says how long answers are good with this configuration. It looks at the kinds of tables, not at
// the answers: the client keeps one answer for each address, and one bit has to tell all of
// them apart. Lists of plain names, which are most sites', never change while the process lives.
func keepingOf(cfg *config.Config) keeping {
	keep := keepLong
	for _, name := range []string{"transport_maps", "relocated_maps", "sender_dependent_relayhost_maps",
		"sender_dependent_default_transport_maps", "virtual_alias_domains", "virtual_mailbox_domains",
		"relay_domains", "mydestination"} {
		for _, item := range cfg.List(name) {
			if !strings.ContainsAny(item, ":/") { // a name, neither type:table nor a file of names
				continue
			}
			keep = min(keep, keepShort)
			// randmap answers otherwise each time, which is what it is there for: to spread mail over
			// several hosts.
			if strings.Contains(item, "randmap:") {
				return keepNot
			}
			if strings.HasPrefix(name, "sender_dependent_") {
				keep = keepSender
			}
		}
	}
	return keep
}

// A server answers questions over ipc.
type server struct {
	rewriter *Rewriter
	log      *maillog.Logger
	keep     keeping         // of every answer; failures are kept for staleInterval
	ctx      context.Context // bounds lookups; it ends when the service stops
	srv      ipc.Server
	wg       sync.WaitGroup // questions under way; more only come while sockets are open

	mu    sync.Mutex  // guards what follows
	conns []*ipc.Conn // everybody who may keep an answer and has to be told that it is stale
	timer *time.Timer // runs while answers have been given that are not stale yet; else nil
	base  uint64      // while it runs: what the tables were when the first of them was sought
	since time.Time   // and when it was given
	done  bool        // the service stops: nobody is told any more
	short bool        // one of them is to be forgotten with the next look, whatever the tables are
	said  string      // the latest failure that was logged
	when  time.Time   // when that was
}

// newServer makes a server. ctx bounds lookups.
func newServer(ctx context.Context, r *Rewriter, log *maillog.Logger, keep keeping) *server {
	s := &server{rewriter: r, log: log, keep: keep, ctx: ctx}
	s.srv = ipc.Server{Handler: s.handle, OnConn: s.opened, OnClose: s.closed}
	return s
}

// IPC is the server for the service's sockets.
func (s *server) IPC() *ipc.Server { return &s.srv }

// Close waits for what is under way. It is called when the sockets are closed.
func (s *server) Close() {
	s.wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

// opened and closed keep the list of those who are told of stale answers. They are called on a
// connection's goroutine, opened before its first request.
func (s *server) opened(c *ipc.Conn) {
	s.mu.Lock()
	s.conns = append(s.conns, c)
	s.mu.Unlock()
}

func (s *server) closed(c *ipc.Conn) {
	s.mu.Lock()
	s.conns = slices.DeleteFunc(s.conns, func(o *ipc.Conn) bool { return o == c })
	s.mu.Unlock()
}

// handle answers a request. It runs on the connection's reading goroutine, which also has all other
// requests of that client to read: what may wait for a table gets a goroutine of its own, and what is
// computed in a microsecond does not.
func (s *server) handle(_ *ipc.Conn, r *ipc.Request) {
	switch r.Kind {
	case proto.KindRewrite:
		var q proto.Rewrite
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.RewriteReply{Address: s.rewriter.Rewrite(q.Context, q.Address)})
	case proto.KindResolve:
		var q proto.Resolve
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		s.wg.Go(func() { r.Reply(s.resolve(&q)) })
	default:
		r.Fail("trivial-rewrite: unknown request %d", r.Kind)
	}
}

// resolve answers a question. A table that fails is logged here, and not by those who ask: they
// are many, and know only that they have to ask again.
func (s *server) resolve(q *proto.Resolve) *proto.ResolveReply {
	revision := s.rewriter.changes.Revision()
	res, keep, err := s.find(q)
	if err != nil {
		s.complain(err.Error(), time.Now())
		keep = min(keep, keepShort) // a failure is no longer good than any answer that comes from tables
	}
	reply := Reply(res, err)
	// Probes go other ways than mail, and those who keep answers do not tell the two apart.
	if !q.Verify {
		reply.Fixed, reply.FixedSender = keep > keepSender, keep == keepSender
	}
	if keep == keepShort || keep == keepSender {
		s.expire(revision, err != nil)
	}
	return &reply
}

// find finds the answer, and says how it may be kept.
func (s *server) find(q *proto.Resolve) (res Result, keep keeping, err error) {
	keep = s.keep
	res, err = s.rewriter.Resolve(s.ctx, q.Sender, q.Address, q.Verify)
	if err != nil || !q.Limits {
		return res, keep, err
	}
	// Mail hosts change, and limits come from tables.
	if s.rewriter.sites != nil {
		keep = min(keep, keepShort)
		if s.rewriter.sites.due() {
			s.wg.Go(func() { s.rewriter.sites.findPeers(s.ctx) })
		}
		if res.share, err = s.rewriter.sites.share(s.ctx, &res); err != nil {
			return res, keep, err
		}
	}
	if s.rewriter.egressPools.dependsOnSender() {
		keep = min(keep, keepSender)
	}
	// The pool that the envelope names comes from a table of somebody else's, who keeps the answer by its name.
	if err = s.rewriter.egress(s.ctx, q.Sender, q.Pool, &res); err != nil {
		return res, keep, err
	}
	// With a pool what the files say is said of each source.
	if res.share.unit != "" && res.pool == "" {
		s.rewriter.sites.shape(&res.share)
	}
	return res, keep, nil
}

// complain logs a failure, once if several ask the same question one after
// another, as for one recipient they do.
func (s *server) complain(text string, now time.Time) {
	s.mu.Lock()
	again := text == s.said && now.Sub(s.when) < staleInterval
	if !again {
		s.said, s.when = text, now
	}
	s.mu.Unlock()
	if !again {
		s.log.Warning("%s", text)
	}
}

// Reply is the result of Rewriter.Resolve as others are told of it.
func Reply(res Result, err error) proto.ResolveReply {
	if err != nil {
		return proto.ResolveReply{Flags: proto.ResolveFail}
	}
	x := &res.share
	return proto.ResolveReply{Transport: string(res.Transport), Nexthop: string(res.Nexthop), Recipient: res.Recipient, Flags: res.Flags,
		Site: x.site, Provider: x.provider, Alone: x.alone, OwnLimits: x.own, SiteLimits: x.siteLimits, ProviderLimits: x.providerLimits,
		Pool: res.pool, Members: res.members, Hop: x.hop, Advice: x.advice}
}

// expire sees to it that the answer that is about to be given is forgotten in time. revision is what the tables were
// before it was sought. short says that it is not kept beyond the next look.
func (s *server) expire(revision uint64, short bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A timer that runs already ends sooner than asked for, which is no harm: the answer
	// is asked for once more. Nothing runs while nobody asks.
	if s.timer == nil && !s.done {
		s.base, s.since, s.short = revision, time.Now(), false
		s.timer = time.AfterFunc(staleInterval, s.look)
	}
	s.short = s.short || short || revision != s.base
}

// look has everybody forget the answers that came from tables if the tables, or what else they depend on, may have
// changed. One word for all of them costs less than a time for each, and a change of a table is seen by all services at
// once.
func (s *server) look() {
	changes := s.rewriter.changes
	revision, blind := changes.Look(), changes.Blind()
	s.mu.Lock()
	defer s.mu.Unlock()
	// The service stopped while the files were looked at.
	if s.done {
		return
	}
	// Less than staleInterval is left of the time: it would be over before the next look.
	old := time.Since(s.since) > maxStale-staleInterval
	if !blind && !s.short && !old && revision == s.base {
		s.timer.Reset(staleInterval)
		return
	}
	s.timer = nil
	for _, c := range s.conns {
		c.Push(&proto.Stale{})
	}
}
