package qmgr

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
)

// A script is a Resolver that answers what a test says, without being asked or only then.
type script struct {
	reply    proto.ResolveReply
	known    bool
	hangs    bool
	asked    int
	foreseen []string
}

func (r *script) Resolve(ctx context.Context, sender, addr string) (proto.ResolveReply, error) {
	return r.ResolveFrom(ctx, sender, addr, "")
}

func (r *script) ResolveFrom(ctx context.Context, _, _, _ string) (proto.ResolveReply, error) {
	if r.asked++; r.hangs {
		<-ctx.Done()
		return proto.ResolveReply{}, ctx.Err()
	}
	return r.reply, nil
}

func (r *script) Known(string) (proto.ResolveReply, bool) { return r.reply, r.known }

func (r *script) ForeseeResolve(_ context.Context, _, addr string) {
	r.foreseen = append(r.foreseen, addr)
}

// Where a recipient goes: by a content filter, unless it is a probe; by what the resolver says, if that is what was asked for; and by another next hop, without
// what holds at the first one. Mail to double-bounce is thrown away here, and goes on elsewhere.
func TestPlace(t *testing.T) {
	t.Parallel()
	plain := proto.ResolveReply{Flags: proto.ResolveDefault, Transport: "smtp", Nexthop: "to.test", Recipient: "a@to.test", Provider: "big", ProviderLimits: "concurrency=1"}
	bounce := plain
	bounce.Recipient = "double-bounce@to.test"
	mine := bounce
	mine.Flags = proto.ResolveLocal
	for name, x := range map[string]struct {
		env      mail.Envelope
		reply    proto.ResolveReply
		diverted bool
		waits    bool // the resolver has to be waited for
		thrown   bool
		want     string // transport:nexthop
		terms    bool
		site     string
	}{
		"as it is":                 {reply: plain, want: "smtp:to.test", terms: true, site: "to.test"},
		"filter":                   {env: mail.Envelope{Filter: "scan:host"}, reply: plain, want: "scan:host", site: "to.test"},
		"filter without next hop":  {env: mail.Envelope{Filter: "scan:"}, reply: plain, want: "scan:set.test", site: "to.test"},
		"probe":                    {env: mail.Envelope{Filter: "scan:host", Trace: mail.TraceProbe}, reply: plain, want: "smtp:to.test", terms: true, site: "to.test"},
		"pool":                     {env: mail.Envelope{Pool: "p"}, reply: plain, waits: true},
		"double-bounce":            {reply: mine, thrown: true},
		"double-bounce, elsewhere": {reply: bounce, want: "smtp:to.test", terms: true, site: "to.test"},
		"diverted":                 {reply: plain, diverted: true, want: "smtp:[hub.test]", site: "to.test"},
	} {
		s, _ := still(t)
		set := &s.opt.Settings
		set.limits, set.FilterNexthop = true, "set.test"
		var err error
		if set.flush, err = table.NewList("fast_flush_domains", []string{"to.test"}, table.ListOptions{Kind: table.Domains}); err != nil {
			t.Fatal(err)
		}
		if x.diverted {
			r := aRule(t, 1, "to.test", override.Entry{Nexthop: "[hub.test]"})
			r.to = hop{"", "[hub.test]"}
			s.rules.diversions.Store(newRuleset([]*rule{r}))
		}
		s.ctx, s.opt.Resolver = t.Context(), &script{reply: x.reply, known: true}
		l := &loading{env: x.env, id: "Q", nrcpt: 1, limit: 1}
		if placed := s.place(l, 0, &mail.Recipient{Address: "a@TO.test"}); placed == x.waits {
			t.Errorf("%s: it is to be waited for: %v", name, !placed)
		}
		if x.thrown != slices.Equal(l.discarded, []int{0}) || (len(l.rcpts) == 1) != (x.want != "") {
			t.Errorf("%s: %+v, thrown away %v", name, l.rcpts, l.discarded)
			continue
		}
		if x.want == "" {
			continue
		}
		r := &l.rcpts[0]
		if got := string(r.Transport) + ":" + string(r.Nexthop); got != x.want || (r.Terms != nil) != x.terms || r.away != x.terms || r.Site != x.site {
			t.Errorf("%s: it goes by %s, terms %v, away %v, site %q", name, got, r.Terms != nil, r.away, r.Site)
		}
	}
}

// Once the resolver has not answered in time it is not asked for the other recipients of a load: these are deferred at once, and one warning says why. Nor is
// it asked ahead, for them or for mail that has few questions; who is done, or has failed, is not asked about at all.
func TestResolverHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, lines := still(t)
		r := &script{hangs: true}
		s.ctx, s.opt.Resolver = t.Context(), r
		l := &loading{id: "Q", asks: true, nrcpt: 3, limit: 3, list: many(3, "to.test").Envelope.Recipients}
		begun := time.Now()
		if !s.placeAll(l) || r.asked != 1 || time.Since(begun) != s.opt.ResolveTime || len(l.rcpts) != 3 {
			t.Errorf("asked %d times, within %v", r.asked, time.Since(begun))
		}
		for i := range l.rcpts {
			if x := &l.rcpts[i]; x.Transport != sched.RetryTransport || x.Nexthop != "4.3.0 address resolver failure" {
				t.Errorf("%+v", x.Rcpt)
			}
		}
		if got := lines(); len(got) != 1 {
			t.Errorf("the log: %q", got)
		}
		r.foreseen = nil
		done := func(i int) bool { return i == 0 }
		for _, l := range []*loading{l, {list: l.list, env: mail.Envelope{Pool: "p"}}, {list: l.list, env: mail.Envelope{Filter: "scan:"}}, {list: l.list, env: mail.Envelope{Redirect: "x@y"}}} {
			if s.foresee(l, done); len(r.foreseen) != 0 {
				t.Errorf("%+v: foreseen %q", l.env, r.foreseen)
			}
		}
		if s.foresee(&loading{list: l.list, verdicts: map[int]bool{1: true}}, done); !slices.Equal(r.foreseen, []string{"r002@to.test"}) {
			t.Errorf("foreseen %q", r.foreseen)
		}
	})
}

// Recipients that have failed, and those whose mail is thrown away, count as read: no more are than were asked for.
func TestPlaceAllBound(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.ctx, s.opt.Resolver = t.Context(), &script{known: true, reply: proto.ResolveReply{Flags: proto.ResolveDefault, Transport: "smtp", Nexthop: "to.test", Recipient: "a@to.test"}}
	for name, l := range map[string]*loading{"failed": {verdicts: map[int]bool{0: true, 2: true}}, "thrown away": {env: mail.Envelope{Redirect: "x@to.test"}}} {
		l.nrcpt, l.limit, l.list, l.done = 6, 3, many(6, "to.test").Envelope.Recipients, []byte{1 << 1}
		if !s.placeAll(l) || l.next != 4 || l.unread != 2 || len(l.rcpts)+len(l.failed)+len(l.discarded) != 3 {
			t.Errorf("%s: up to %d, %d are left; %d go, %d have failed, %d are thrown away", name, l.next, l.unread, len(l.rcpts), len(l.failed), len(l.discarded))
		}
	}
}

// What a load has found is taken in: the scheduler hears of failures that are on record and of mail that goes to one recipient at a time; what is known
// here of recipients is newer than the record; what is thrown away is recorded, and who has the message by the record is done.
func TestLearn(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		env    mail.Envelope
		single bool
	}{{mail.Envelope{Sender: "s@x"}, false}, {mail.Envelope{Sender: "s@x", VERP: "+="}, true}, {mail.Envelope{Sender: "s@x", List: "news"}, true}, {mail.Envelope{VERP: "+="}, false}, {mail.Envelope{List: "news"}, false}} {
		s, lines := still(t)
		m := s.aMessage(6)
		m.active = &active{outcomes: map[int]mail.Outcome{4: {Rcpt: 4, Reason: "now"}}}
		one := func(i int) loadedRcpt { return loadedRcpt{Rcpt: sched.Rcpt{Index: i}} }
		l := &loading{num: m.num, env: x.env, first: true, nrcpt: 6, next: 6, rcpts: []loadedRcpt{one(4)}, failed: []loadedRcpt{one(3)}, discarded: []int{1}, told: []int{2},
			success: []mail.Outcome{{Rcpt: 0, Action: dsn.Delivered}}, outcomes: []mail.Outcome{{Rcpt: 4, Reason: "before"}, {Rcpt: 5, Reason: "other"}}}
		var ev sched.Event
		if s.learn(l, &ev) != m || ev.Kind != sched.EventLoaded || ev.ID != m.num || !ev.Failed || ev.Single != x.single || ev.Next != 6 || ev.Unread != 0 || len(ev.Rcpts) != 1 {
			t.Errorf("%+v", ev)
		}
		if !m.isDone(0) || !m.isDone(1) || !m.isDone(2) || m.isDone(3) || m.isDone(4) || len(m.active.success) != 1 || !m.active.complete {
			t.Errorf("done: %b, to be told: %+v", m.done, m.active.success)
		}
		if m.active.outcomes[4].Reason != "now" || m.active.outcomes[5].Reason != "other" || m.active.rcpt(3) == nil || m.active.rcpt(4) == nil {
			t.Errorf("%+v", m.active)
		}
		if ops := s.log.ops; len(ops) != 1 || !slices.Equal(ops[0].Done, []int{1}) || len(lines()) != 1 {
			t.Errorf("recorded: %+v; logged %q", ops, lines())
		}
		// A further part of the recipients is not a new stay.
		ev = sched.Event{}
		s.learn(&loading{num: m.num, env: x.env, next: 6, unread: 1}, &ev)
		if ev.Failed || !m.active.complete || len(lines()) != 1 {
			t.Errorf("%+v, complete %v, logged %q", ev, m.active.complete, lines())
		}
	}
}

// A load that had to wait until it was recorded who was told of what goes by who is done then.
func TestUnsureLoad(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.ctx, s.opt.Resolver = t.Context(), &script{known: true, reply: proto.ResolveReply{Transport: "smtp", Nexthop: "to.test", Recipient: "a@to.test"}}
	m := s.aMessage(2)
	env := mail.Envelope{ID: m.id, Sender: "s@from.test", Arrival: s.now}
	m.inline = inline{env.Append(nil), mail.AppendRecipients(nil, many(2, "to.test").Envelope.Recipients)}
	s.log.spoken[m.id] = 1
	s.load(m, &sched.Effect{Kind: sched.EffectLoad, ID: m.num, First: true, Max: 9, Attempts: 2, Warned: true, Origin: sched.QueueDeferred})
	if len(s.log.waiters) != 1 || len(s.queue) != 0 || s.moved != 0 {
		t.Fatalf("%d wait; %d messages have left the incoming queue", len(s.log.waiters), s.moved)
	}
	if a := m.active; !a.again || !a.old || !a.warned || !a.since.Equal(s.now) {
		t.Errorf("%+v", a)
	}
	m.setDone(0)
	m.ref = queue.Ref{Segno: 8}
	s.log.waiters[0]()
	s.tasks.Wait()
	if len(s.inbox) != 1 || s.inbox[0].load == nil {
		t.Fatalf("%+v", s.inbox)
	}
	if l := s.inbox[0].load; l.ref != m.ref || !slices.Equal(l.done, m.done) || len(l.rcpts) != 1 || l.rcpts[0].Index != 1 {
		t.Errorf("loaded: %+v", l)
	}
}

// What the scheduler is told of a message that comes.
func TestArrivalOf(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, x := range map[string]struct {
		entry queue.Entry
		trace mail.Trace
		queue sched.Queue
		flags sched.Flags
	}{
		"new":            {entry: queue.Entry{Queue: queue.Incoming}, queue: sched.QueueIncoming},
		"deferred":       {entry: queue.Entry{Queue: queue.Deferred, Attempts: 2}, queue: sched.QueueDeferred},
		"on hold":        {entry: queue.Entry{Queue: queue.Hold}, queue: sched.QueueHold},
		"a notice":       {entry: queue.Entry{Queue: queue.Incoming, Null: true}, queue: sched.QueueIncoming, flags: sched.FlagNullSender},
		"late":           {entry: queue.Entry{Queue: queue.Deferred, Warned: true, Attempts: 1}, queue: sched.QueueDeferred, flags: sched.FlagWarned},
		"expired":        {entry: queue.Entry{Queue: queue.Deferred, Expire: true}, queue: sched.QueueDeferred, flags: sched.FlagExpire},
		"traced":         {trace: mail.TraceRecord, queue: sched.QueueIncoming, flags: sched.FlagNoDelayNotice | sched.FlagTrace},
		"traced, again":  {entry: queue.Entry{Attempts: 1}, trace: mail.TraceReport, queue: sched.QueueIncoming, flags: sched.FlagNoDelayNotice},
		"only a probing": {trace: mail.TraceProbe, queue: sched.QueueIncoming, flags: sched.FlagNoDelayNotice},
	} {
		e := &proto.Entry{Entry: x.entry}
		e.Trace, e.NPending, e.Size, e.Tenant, e.NextAttempt = x.trace, 3, 9, "acme", at.Add(time.Hour)
		want := sched.Arrival{Queue: x.queue, Created: at, Next: e.NextAttempt, Size: 9, Rcpts: 3, Attempts: x.entry.Attempts, Tenant: "acme", Flags: x.flags}
		if got := arrivalOf(e, at); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// What is found out of new mail before its turn has memory of its own, and mail that came before goes first.
func TestLoadFacts(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.ctx, s.opt.Resolver = t.Context(), &script{known: true, reply: proto.ResolveReply{Transport: "smtp", Nexthop: "to.test", Recipient: "a@to.test"}}
	env := mail.Envelope{ID: mail.MakeQueueID(s.now, 5), Sender: "s@from.test", Arrival: s.now}
	e := &proto.Entry{Entry: queue.Entry{ID: env.ID, NRcpt: 2, NPending: 1, Done: []byte{1}, Queue: queue.Incoming}, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, many(2, "to.test").Envelope.Recipients)}
	l := s.prepare(e)
	if e.Done[0] |= 2; l == nil || !slices.Equal(l.done, []byte{1}) || len(l.rcpts) != 1 || l.rcpts[0].Index != 1 {
		t.Errorf("prepared: %+v", l)
	}
	for turns, want := range []bool{true, false} {
		s.turns = turns
		if got := s.atOnce(&loading{in: inline{e.Envelope, e.Recipients}, nrcpt: 2, limit: 2, fresh: true}); got != want {
			t.Errorf("with %d before it: looked at at once: %v", turns, got)
		}
		if !s.atOnce(&loading{in: inline{e.Envelope, e.Recipients}, nrcpt: 2, limit: 2}) {
			t.Error("mail that is not new waits for new mail")
		}
	}
	// The room of an envelope is given back once its message rests, or has left; of a message in the book it is not known any more for whom it is.
	for _, leave := range []func(*message){s.rest, s.forget} {
		m := &message{id: mail.MakeQueueID(s.now, 6), num: 6, nrcpt: 2, inline: inline{e.Envelope, e.Recipients}}
		s.inlined, s.messages[6] = m.inline.size(), m
		if leave(m); s.inlined != 0 || s.messages[6] != nil {
			t.Errorf("%d octets are left", s.inlined)
		}
	}
	p := s.book.add(7, s.now, queue.Ref{}, 2, false, nil)
	s.book.setDomains(p, "s@from.test", map[string]int{"to.test": 2})
	m := s.message(7)
	m.setDone(0)
	if s.rest(m); p.sender != 0 || len(s.book.names.ids) != 0 || !s.message(7).isDone(0) {
		t.Errorf("%+v, %v", p, s.book.names.ids)
	}
}
