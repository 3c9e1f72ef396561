package qmgr

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/event/eventtest"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

// pendingEvents are those that the scheduler is to be given, in order.
func (s *Server) pendingEvents() (kinds []sched.EventKind) {
	for i := range s.queue {
		if s.queue[i].event != nil {
			kinds = append(kinds, s.queue[i].event.Kind)
		}
	}
	return kinds
}

// piped is a connection, and what comes of it at its other end, until the test ends.
func piped(t *testing.T, handle ipc.Handler) *ipc.Conn {
	t.Helper()
	near, far := net.Pipe()
	conn, other := ipc.NewConn(near, nil), ipc.NewConn(far, handle)
	t.Cleanup(func() {
		conn.Close()
		other.Wait()
	})
	return conn
}

// What an operator orders is told before it is recorded. Mail that is expired leaves the hold queue only when it is released.
func TestCarryOrders(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		kind  sched.EffectKind
		where sched.Queue
		told  string
		op    queue.Change
	}{
		{sched.EffectHold, sched.QueueDeferred, "held", queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Hold}},
		{sched.EffectRelease, sched.QueueHold, "released", queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Deferred}},
		{sched.EffectRemove, sched.QueueHold, "deleted", queue.Change{}},
		{sched.EffectExpire, sched.QueueHold, "", queue.Change{Set: queue.SetExpire | queue.SetNextAttempt, Expire: true}},
		{sched.EffectExpire, sched.QueueDeferred, "", queue.Change{Set: queue.SetExpire | queue.SetNextAttempt | queue.SetQueue, Expire: true, Queue: queue.Deferred}},
	} {
		s, _ := still(t)
		journal, reporter := eventtest.New(t, "qmgr", nil)
		s.opt.Events = reporter
		id := mail.MakeQueueID(s.now, 7)
		s.book.add(7, s.now, queue.Ref{}, 1, false, nil)
		s.sched.Take(s.now, &sched.Event{Kind: sched.EventQueued, ID: 7, Arrival: sched.Arrival{Queue: x.where, Created: s.now, Next: s.now.Add(time.Hour), Rcpts: 1}}, nil)
		s.carry(&sched.Effect{Kind: x.kind, ID: 7}, false)
		s.opt.Events.Wait(t.Context())
		if told := strings.Join(journal.Told(), ","); told != strings.TrimSpace(x.told+" "+string(id)) && x.told != "" || x.told == "" && told != "" {
			t.Errorf("%d: told %q", x.kind, told)
		}
		if ops := s.log.ops; len(ops) != 1 || ops[0].ID != id || ops[0].Set != x.op.Set || ops[0].Queue != x.op.Queue || ops[0].Expire != x.op.Expire || ops[0].Remove != (x.kind == sched.EffectRemove) {
			t.Errorf("%d: recorded %+v", x.kind, ops)
		}
	}
	// A message that has been queued again has an event, too.
	s, _ := still(t)
	journal, reporter := eventtest.New(t, "qmgr", nil)
	s.opt.Events = reporter
	m := s.aMessage(1)
	s.requeued(m.num, "NEW", new(proto.LocateReply), false, nil)
	s.opt.Events.Wait(t.Context())
	if told := journal.Told(); !slices.Equal(told, []string{"requeued " + string(m.id)}) || s.knows(m.num) {
		t.Errorf("told %q", told)
	}
}

// Of the letters that other tools send, F and A mean that mail is to be tried.
func TestTrigger(t *testing.T) {
	t.Parallel()
	for letters, want := range map[string]bool{"F": true, "A": true, "WA": true, "W": false, "ID": false, "": false} {
		s, _ := still(t)
		s.told = true
		if s.trigger([]byte(letters)); (len(s.inbox) > 0) != want {
			t.Errorf("%q: %d inputs", letters, len(s.inbox))
			continue
		}
		for _, in := range s.inbox {
			in.learn()
		}
		if got := s.pendingEvents(); want != slices.Equal(got, []sched.EventKind{sched.EventFlush}) {
			t.Errorf("%q: %v", letters, got)
		}
	}
	// When the loop has ended, nothing is kept for it.
	s, _ := still(t)
	s.shut()
	if s.post(func() {}, sched.Event{}); len(s.inbox) != 0 {
		t.Errorf("%d inputs are kept", len(s.inbox))
	}
}

// A command that names a queue is for mail in that queue alone.
func TestCommandOfQueue(t *testing.T) {
	t.Parallel()
	for queueName, want := range map[string]int{"": 1, "deferred": 1, "hold": 0} {
		s, _ := still(t)
		id := mail.MakeQueueID(s.now, 7)
		s.book.add(7, s.now, queue.Ref{}, 1, false, nil)
		s.sched.Take(s.now, &sched.Event{Kind: sched.EventQueued, ID: 7, Arrival: sched.Arrival{Queue: sched.QueueDeferred, Created: s.now, Next: s.now.Add(time.Hour), Rcpts: 1}}, nil)
		s.commandOne(new(ipc.Request), &proto.Command{Verb: proto.VerbDelete, ID: id, Queue: queueName}, sched.EventRemove, proto.Unread{})
		if got := s.pendingEvents(); len(got) != want {
			t.Errorf("in queue %q: %v", queueName, got)
		}
	}
}

// One message must fit into a reply, whatever has been said of its recipients. A limit is no reason where the host has given one.
func TestCompleteBounds(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.ctx, s.opt.Resolver = t.Context(), &script{known: true, reply: proto.ResolveReply{Flags: proto.ResolveDefault, Transport: "smtp", Nexthop: "to.test", Recipient: "a@to.test"}}
	var l listed
	env := mail.Envelope{Sender: "s@from.test"}
	rcpts := slices.Repeat([]mail.Recipient{{Address: strings.Repeat("x", 2000) + "@to.test"}}, listRcpts)
	s.complete(&l, &env, rcpts, nil)
	size := 0
	for i := range l.item.Recipients {
		size += l.item.Recipients[i].Size()
	}
	if size < 4*listOctets || size > 4*listOctets+4000 {
		t.Errorf("%d recipients of %d, with %d octets", len(l.item.Recipients), len(rcpts), size)
	}
	limit := aRule(t, 3, "to.test", override.Entry{By: "ann", Most: 2})
	l = listed{limits: newRuleset([]*rule{limit})}
	s.complete(&l, &env, []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}, []mail.Outcome{{Rcpt: 0, Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: "450 full"}})
	if r := l.item.Recipients; len(r) != 2 || r[0].Limited != "to.test" || r[0].Waits != "" || r[0].Reason != "450 full" || r[1].Waits != limit.limitReason() {
		t.Errorf("%+v", r)
	}
}

// What does not go into one reply begins the next, and no message is passed over. A queue ID whose number is another message's is not in the queue.
func TestListPages(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	long := many(1700, strings.Repeat("x", 250)+".test")
	long.Queue = queue.Hold
	ids := st.fill(slices.Repeat([]faketest.Mail{long}, 8)...)
	st.run()
	var got []mail.QueueID
	pages := 0
	for q := (proto.List{N: listPage}); ; pages++ {
		var reply proto.ListReply
		if err := st.tool.Call(t.Context(), &q, &reply); err != nil {
			t.Fatal(err)
		}
		for i := range reply.Items {
			got = append(got, reply.Items[i].ID)
		}
		if q.Cursor = reply.Next; q.Cursor == 0 || pages > 9 {
			break
		}
	}
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(ids))) || pages < 1 {
		t.Errorf("listed on %d pages: %v, want %v", pages+1, got, ids)
	}
	for id, want := range map[mail.QueueID]int{ids[0]: 1, mail.MakeQueueID(created(ids[0]).Add(time.Second), number(ids[0])): 0} {
		var reply proto.ListReply
		if err := st.tool.Call(t.Context(), &proto.List{ID: id, Brief: true}, &reply); err != nil || len(reply.Items) != want {
			t.Errorf("%s: %+v, %v", id, reply.Items, err)
		}
	}
}

// A listing says of mail in the active queue which limit it waits for.
func TestListWaits(t *testing.T) {
	t.Parallel()
	st := newStage(t, limitsOn)
	smtp := st.agent("smtp", proto.Inventory{})
	st.share(func(r *proto.ResolveReply) { r.Provider, r.ProviderLimits = "big", "concurrency=1" }, "a.test", "b.test")
	st.run()
	st.waitAttached(1)
	ids := []mail.QueueID{st.arrive("s@from.test", "x@a.test")}
	o := smtp.next()
	ids = append(ids, st.arrive("s@from.test", "x@b.test"))
	st.waitExplain(ids[1], "limit of provider big")
	done := make(chan listed, 1)
	st.srv.post(func() {
		m := st.srv.message(msgID(ids[1]))
		info, _ := st.srv.sched.Lookup(m.num)
		done <- st.srv.listed(m, info, false)
	}, sched.Event{})
	if l := <-done; !strings.HasPrefix(l.waits[0], "waits for the limit of provider big") {
		t.Errorf("it is said to wait for %v", l.waits)
	}
	o.answer("ok")
	o = smtp.next()
	o.answer("ok")
	st.waitOp(ids[1], "its removal", removed)
	st.quiet()
}

// When changes go to cleanup: many at once, and one after a moment; at once synced if somebody waits. A new cleanup is told again what was not answered, and
// nothing else; an end of its queue that another one told is not the end of what is on its way.
func TestWhenRecorded(t *testing.T) {
	t.Parallel()
	requests := make(chan proto.Record, 9)
	conn := piped(t, func(_ *ipc.Conn, r *ipc.Request) {
		var rec proto.Record
		if err := r.Decode(&rec); err != nil {
			t.Error(err)
		}
		requests <- rec
	})
	s, _ := still(t)
	r := s.log
	r.conn, r.pushing = conn, true
	for i := range flushOps {
		if r.flush(s.now); len(r.unacked) != 0 {
			t.Fatalf("%d changes go at once", i)
		}
		r.change(sched.MsgID(i+1), mail.MakeQueueID(s.now, uint64(i+1))).Done = []int{0}
	}
	r.flush(s.now)
	if rec := <-requests; len(rec.Ops) != flushOps || rec.Urgent {
		t.Errorf("%d changes, urgent %v", len(rec.Ops), rec.Urgent)
	}
	r.change(900, mail.MakeQueueID(s.now, 900)).Done = []int{0}
	r.after(func() {})
	if r.flush(s.now.Add(flushDelay - 1)); len(r.unacked) != 1 {
		t.Error("one change does not wait for others")
	}
	r.flush(s.now.Add(flushDelay))
	if rec := <-requests; len(rec.Ops) != 1 || !rec.Urgent || r.urgent || len(r.waiters) != 0 {
		t.Errorf("%d changes, urgent %v", len(rec.Ops), rec.Urgent)
	}
	r.unacked[1].acked = true
	r.pushed(new(ipc.Conn))
	if !r.pushing {
		t.Error("another cleanup has ended what this one tells")
	}
	r.connected(conn)
	r.change(901, mail.MakeQueueID(s.now, 901)).Done = []int{0}
	r.flush(s.now.Add(time.Hour))
	if rec := <-requests; len(rec.Ops) != flushOps {
		t.Errorf("sent again: %d changes", len(rec.Ops))
	}
	if rec := <-requests; len(rec.Ops) != 1 || msgID(rec.Ops[0].ID) != 901 {
		t.Errorf("behind that: %+v", rec.Ops)
	}
}

// What cleanup does not have any more because this process has had it removed is on its way out, and not news.
func TestVanishedByUs(t *testing.T) {
	t.Parallel()
	for _, ours := range []bool{false, true} {
		s, lines := still(t)
		m := s.aMessage(1)
		m.provision = &provision{}
		s.sched.Take(s.now, &sched.Event{Kind: sched.EventQueued, ID: m.num, Arrival: sched.Arrival{Queue: sched.QueueDeferred, Created: s.now, Next: s.now.Add(time.Hour), Rcpts: 1}}, nil)
		if ours {
			s.log.finish(m)
		}
		s.log.vanished(m.id)
		s.gone(m.id)
		if m.vanished == ours || (len(lines()) == 0) != ours || (len(s.pendingEvents()) == 0) != ours {
			t.Errorf("removed by us: %v; gone %v, logged %q, %v", ours, m.vanished, lines(), s.pendingEvents())
		}
		e := &queue.Entry{ID: m.id, NRcpt: 1, NPending: 1, Queue: queue.Deferred}
		if _, _, ok := s.view(e); ok == ours {
			t.Errorf("removed by us: %v; it is shown: %v", ours, ok)
		}
		s.forget(m)
		if s.bring(e); s.knows(m.num) == ours {
			t.Errorf("removed by us: %v; it is brought back: %v", ours, s.knows(m.num))
		}
	}
}

// The words of an order that goes to an agent, and what is left of one that does not.
func TestOrderWords(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.ctx = t.Context()
	a := &agentConn{s: s, transport: "smtp"}
	act := &active{rcpts: []*rcpt{{Recipient: mail.Recipient{Address: "a@x", Original: "o@x"}, resolved: "b@x"}, {Recipient: mail.Recipient{Address: "a@x"}, resolved: "b@x"}, {Recipient: mail.Recipient{Address: "a@x"}, resolved: "a@x", rewrite: true}}}
	to, rewrite := a.recipients(act, []int{0, 1, 2})
	if len(to) != 3 || to[0].Original != "o@x" || to[1].Original != "a@x" || to[2].Original != "" || to[0].Address != "b@x" || to[2].Address != "a@x" || !rewrite {
		t.Errorf("%+v, rewritten %v", to, rewrite)
	}
	// An order that an agent did not begin is the successor's, when this process ends.
	m := s.aMessage(1)
	d := &delivery{entry: 1, num: m.num, rcpts: []int{0}, index: []int{0}, sent: true}
	s.leaving = true
	if a.answered(d, new(proto.DeliverReply), nil, ipc.ErrUnsent); a.dialing || d.sent || len(a.waiting) != 1 {
		t.Errorf("%+v", a)
	}
	// It is given up: nobody has it, and nobody is in doubt.
	if s.lose(d); len(s.log.ops) != 0 || !slices.Equal(s.pendingEvents(), []sched.EventKind{sched.EventLost}) {
		t.Errorf("recorded: %+v", s.log.ops)
	}
	// Only so many agents are called ahead.
	s.opt.Agent = func(mail.Transport) ipc.Address {
		return ipc.Func("none", func(context.Context) (net.Conn, error) { return nil, errors.New("none") })
	}
	var list []mail.Transport
	for i := range 2 * maxWarm {
		list = append(list, mail.Transport(rune('a'+i)))
	}
	if s.warm(list); len(s.agents) != maxWarm {
		t.Errorf("%d agents are called", len(s.agents))
	}
}

// Small facts of a message: who is in hand, which address is from elsewhere, and what is known of it early.
func TestMessageFacts(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(4)
	for i, d := range []*delivery{nil, {}, {awaits: 1}, {sent: true}} {
		m.active.rcpts[i].order = d
		if got, want := m.active.out(i), i > 1; got != want {
			t.Errorf("recipient %d is in hand: %v", i, got)
		}
	}
	for i := range m.active.rcpts {
		m.active.rcpts[i].order = &delivery{sent: true}
	}
	for _, complete := range []bool{true, false} {
		if m.active.complete = complete; m.untried() == complete {
			t.Errorf("all is read: %v, and some is to be tried: %v", complete, m.untried())
		}
	}
	for orig, want := range map[string]bool{"": false, "x@to.test": false, "x@TO.test": false, "x@other.test": true} {
		if got := movedDomain(&mail.Recipient{Address: "a@to.test", Original: orig}); got != want {
			t.Errorf("%q is from elsewhere: %v", orig, got)
		}
	}
	entry := func(n uint64) *proto.Entry {
		return &proto.Entry{Entry: queue.Entry{ID: mail.MakeQueueID(s.now, n), NRcpt: 1, NPending: 1, Queue: queue.Deferred}}
	}
	s.early[50] = []*proto.Finished{{ID: mail.MakeQueueID(s.now, 50), Reply: proto.DeliverReply{Outcomes: said("ok", 0)}}}
	s.arrive(entry(50), nil, nil)
	s.arrive(entry(40), nil, nil)
	if s.highest != 50 || len(s.early) != 0 || !s.message(50).isDone(0) || s.message(40).isDone(0) {
		t.Errorf("the highest number is %d, %d are early", s.highest, len(s.early))
	}
}

// Sites are looked for together in what is not in memory, once, and only deferred mail is read for that.
func TestFlushAwayReads(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.ctx = t.Context()
	var mu sync.Mutex
	var read []mail.QueueID
	s.opt.Open = func(_ context.Context, _ queue.Ref, id mail.QueueID) (queueread.Stored, error) {
		mu.Lock()
		defer mu.Unlock()
		read = append(read, id)
		return nil, errors.New("no")
	}
	s.away.deferred = 2
	s.flushSite("a.test")
	if s.flushSite("b.test"); len(s.sites.next) != 1 || !s.sites.under || len(s.away.reads) != 1 {
		t.Fatalf("%q wait, %d pages are wanted", s.sites.next, len(s.away.reads))
	}
	page := new(proto.PageReply)
	for i, q := range []queue.Name{queue.Hold, queue.Deferred, queue.Incoming, queue.Corrupt} {
		page.Entries = append(page.Entries, queue.Placed{Entry: queue.Entry{ID: mail.MakeQueueID(s.now, uint64(i+1)), Queue: q, NRcpt: 1, NPending: 1}})
	}
	s.away.reads[0].take(page)
	s.tasks.Wait()
	if !slices.Equal(read, []mail.QueueID{mail.MakeQueueID(s.now, 2)}) {
		t.Errorf("read: %v", read)
	}
}

// Former deliveries, one step at a time.
func TestFormerSteps(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(2)
	at := s.now.Add(-time.Minute)
	released := 0
	f := &former{id: m.id, rcpts: []int{0}, release: func() { released++ }}
	s.formers[m.num] = []*former{f}
	conn := piped(t, nil)
	s.goesOn(conn, &proto.Delivery{ID: m.id, Index: []int{0}, Active: at})
	if len(s.formers[m.num]) != 1 || f.conn != conn || !f.active.Equal(at) || released != 1 {
		t.Errorf("%+v, released %d times", f, released)
	}
	s.leaving = true
	if s.silent(conn); len(s.formers[m.num]) != 1 {
		t.Error("it is given up, and the successor would hear of it")
	}
	s.leaving = false
	// What is known of a part of an order counts, when nobody will say more.
	d := &delivery{entry: 3, num: m.num, rcpts: []int{0, 1}, awaits: 1, reply: proto.DeliverReply{Outcomes: said("ok", 0)}}
	s.entries[3], m.active.rcpts[0].order, m.active.rcpts[1].order, f.waiting = d, d, d, []*delivery{d}
	s.silent(conn)
	if got := s.pendingEvents(); !slices.Equal(got, []sched.EventKind{sched.EventDone}) || !m.isDone(0) || m.isDone(1) || len(s.entries) != 0 {
		t.Errorf("%v, done %b", got, m.done)
	}
	// An order that was given up is not sent when its wait is over.
	if s.goOn(&delivery{entry: 4, num: m.num, awaits: 1}); len(s.agents) != 0 {
		t.Error("it is sent")
	}
	// What is on record of another message with this number is not meant.
	other := &former{id: mail.MakeQueueID(s.now.Add(time.Hour), uint64(m.num)), rcpts: []int{1}, onRecord: true}
	s.formers[m.num] = []*former{other}
	if s.recognise(m.id, []int{1}, s.now); !other.onRecord {
		t.Error("another message's delivery is recognised")
	}
	// Nobody is in doubt who has begun between two answers.
	h := &proto.Hand{ID: m.id, Index: []int{1}}
	before := len(s.log.ops)
	if s.orphaned(map[handKey]*proto.Hand{{m.num, 1}: h}, map[handKey]*proto.Hand{{m.num, 0}: h}); len(s.log.ops) != before {
		t.Errorf("recorded: %+v", s.log.ops[before:])
	}
	// Mail that waited for a former delivery is tried for those who are left, unless it has just failed for some of them.
	for _, later := range []bool{false, true} {
		s, _ := still(t)
		s.book.add(9, s.now, queue.Ref{}, 2, false, nil)
		fin := &proto.Finished{ID: mail.MakeQueueID(s.now, 9), Reply: proto.DeliverReply{Outcomes: said("ok", 0)}}
		if later {
			fin.Reply.Outcomes = append(fin.Reply.Outcomes, said("defer", 1)...)
		}
		if s.finished(fin); slices.Contains(s.pendingEvents(), sched.EventFlush) == later || !s.message(9).isDone(0) {
			t.Errorf("one has failed: %v; %v", later, s.pendingEvents())
		}
	}
}

// Agents of which a handover speaks have their time to call.
func TestTakeOverExpects(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	var err error
	if s.opt.State, err = statedir.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	defer s.opt.State.Close()
	h := handover{written: s.now, running: []proto.Delivery{{ID: mail.MakeQueueID(s.now, 5), Index: []int{2}}}}
	if err := h.leave(s.opt.State); err != nil {
		t.Fatal(err)
	}
	if s.takeOver(s.now); !s.expectAt.Equal(s.now.Add(s.callTime)) || len(s.formers[5]) != 1 || !s.goingTo(5, 2) {
		t.Errorf("they are expected at %v: %+v", s.expectAt, s.formers)
	}
}

// Questions to cleanup, and what is forgotten meanwhile.
func TestAwaySteps(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	a := &s.away
	late := mail.MakeQueueID(s.now, 77)
	remember := func() { s.log.late, s.log.gone[77] = []mail.QueueID{late}, departure{late, 1} }
	// Only the answer to the last question counts. With it, nothing is on its way any more.
	f, old := new(sched.Fetch), new(sched.Fetch)
	a.fetch = f
	remember()
	if s.fetched(old, new(proto.DueReply), nil); a.fetch != f || len(s.queue) != 0 || len(s.log.late) != 1 {
		t.Error("an answer to a former question counts")
	}
	if s.fetched(f, new(proto.DueReply), nil); a.fetch != nil || len(s.log.late)+len(s.log.gone) != 0 {
		t.Errorf("remembered: %v", s.log.gone)
	}
	// A page likewise; who only waits for a turn is not called before.
	conn, turn, pages := new(ipc.Conn), 0, 0
	s.readPage(&proto.Page{}, func(*proto.PageReply) { pages++ })
	s.inTurnOfReads(func() { turn++ })
	a.conn = conn
	remember()
	if s.wasRead(conn, a.reads[0], new(proto.PageReply), nil); turn != 0 || pages != 1 || len(a.reads) != 1 || len(s.log.late)+len(s.log.gone) != 0 {
		t.Errorf("%d pages, %d turns, remembered: %v", pages, turn, s.log.gone)
	}
	a.reads = nil
	if s.inTurnOfReads(func() { turn++ }); turn != 1 {
		t.Error("it waits for nothing")
	}
	// A caller that asks for more than a page has room for is called once, behind the last one.
	s.queue = nil
	var ids []sched.MsgID
	for i := range 2*proto.PageNumbers + 1 {
		ids = append(ids, sched.MsgID(1000+i))
	}
	s.summon(ids, func() {})
	for i, r := range a.reads {
		if r.take(new(proto.PageReply)); (len(s.queue) == 1) != (i == 2) {
			t.Errorf("after page %d: called %d times", i, len(s.queue))
		}
	}
	if len(a.reads) != 3 {
		t.Errorf("%d pages", len(a.reads))
	}
	// What cleanup has besides is counted once.
	s, _ = still(t)
	a = &s.away
	s.counted(&proto.Entries{Deferred: 7, Hold: 2, OldestHold: s.now, OldestDeferred: s.now})
	if s.counted(&proto.Entries{Deferred: 9, Hold: 3}); a.deferred != 7 || a.hold != 2 || !a.oldestHold.Equal(s.now) || !a.oldestDeferred.Equal(s.now) {
		t.Errorf("%d deferred, %d on hold", a.deferred, a.hold)
	}
	for i := range uint64(2) {
		s.bring(&queue.Entry{ID: mail.MakeQueueID(s.now, i+5), NRcpt: 1, NPending: 1, Queue: queue.Hold})
	}
	if a.hold != 0 || !a.oldestHold.IsZero() {
		t.Errorf("%d on hold, since %v", a.hold, a.oldestHold)
	}
	// What is in memory has been flushed, and is not met again by a flush of all mail.
	s.queue = nil
	a.pass = new(pass)
	s.goOnPassing()
	a.reads[len(a.reads)-1].take(&proto.PageReply{Entries: []queue.Placed{{Entry: queue.Entry{ID: mail.MakeQueueID(s.now, 5), NRcpt: 1, NPending: 1, Queue: queue.Deferred}}}})
	if got := s.pendingEvents(); !slices.Equal(got, []sched.EventKind{sched.EventPassed}) || a.pass != nil {
		t.Errorf("%v", got)
	}
}

// A message is not forgotten while cleanup may tell what was before, nor if a change of it was refused: only this process knows of that.
func TestLetGoSteps(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		set  func(*Server, mail.QueueID)
		goes bool
	}{
		"nothing keeps it": {func(*Server, mail.QueueID) {}, true},
		"cleanup tells":    {func(s *Server, _ mail.QueueID) { s.log.pushing = true }, false},
		"refused":          {func(s *Server, id mail.QueueID) { s.log.refused[id] = "no" }, false},
		"not recorded":     {func(s *Server, id mail.QueueID) { s.log.change(9, id).Done = []int{0} }, false},
	} {
		s, _ := still(t)
		s.book.add(9, s.now, queue.Ref{}, 1, false, nil)
		s.away.leaving, s.away.look = []sched.MsgID{9}, true
		x.set(s, mail.MakeQueueID(s.now, 9))
		if s.letGo(); (len(s.pendingEvents()) == 1) != x.goes || (len(s.away.leaving) == 0) != x.goes {
			t.Errorf("%s: %v, %v wait", name, s.pendingEvents(), s.away.leaving)
		}
	}
}

// Provisional messages, one step at a time: what waits until one is kept is not begun when the process leaves, and only those that another cleanup has told of
// are in question.
func TestProvisionalSteps(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	old, conn := new(ipc.Conn), new(ipc.Conn)
	s.log.conn = conn
	m := s.aMessage(noticeRcpts + 1)
	m.provision = &provision{conn: old}
	for i := range m.active.rcpts {
		m.active.noted(&mail.Outcome{Rcpt: i, Action: dsn.Failed, Status: dsn.S(5, 1, 1)})
	}
	s.notifyKept(m, sched.NoticeFailure)
	if ops := s.log.ops; len(ops) != 1 || !ops[0].Keep || len(ops[0].Outcomes) != 0 || !m.provision.asked {
		t.Errorf("what does not go into one notice is recorded in part: %d changes", len(ops))
	}
	s.orderKept(m, &delivery{entry: 1, num: m.num, transport: "smtp"})
	m.active = nil
	s.leaving = true
	if s.kept(m.num); len(s.agents) != 0 || len(s.queue) != 0 || m.provision != nil {
		t.Errorf("%d agents are called, %v", len(s.agents), s.pendingEvents())
	}
	mine, theirs := s.aMessage(1), s.aMessage(1)
	mine.provision, theirs.provision = &provision{conn: conn}, &provision{conn: old}
	s.dropUnknown(conn)
	if r := s.away.reads; len(r) != 1 || !slices.Equal(r[0].q.Numbers, []uint64{uint64(theirs.num)}) {
		t.Errorf("%d pages are asked for", len(r))
	}
}

// A notice that has too little room for all goes on with another one, which says so. If that cannot be made the sender has been warned all the same; and nothing
// goes on for a message that has left the active queue.
func TestNoticeGoesOn(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		fails int // which notice fails: 1, 2; 0: none
		rests bool
		want  string
		ok    bool
	}{"two": {0, false, "first 5000,continued 1", true}, "the second fails": {2, false, "first 5000,continued 1", true}, "the first fails": {1, false, "first 5000", false}, "it rests": {0, true, "first 5000", true}} {
		s, _ := still(t)
		s.ctx = t.Context()
		var mu sync.Mutex
		var got []string
		conn := func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			ipc.NewConn(far, func(_ *ipc.Conn, r *ipc.Request) {
				var n proto.Notify
				if err := r.Decode(&n); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				got = append(got, map[bool]string{false: "first ", true: "continued "}[n.Continued]+strconv.Itoa(len(n.Outcomes)))
				if len(got) == x.fails {
					r.Fail("no")
				} else {
					r.Reply(new(proto.NotifyReply))
				}
			})
			return near, nil
		}
		s.bounce = ipc.NewClient(ipc.Func("bounce", conn), nil)
		m := s.aMessage(noticeRcpts + 1)
		for i := range m.active.rcpts {
			m.active.noted(&mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 2, 0)})
		}
		s.notify(m, sched.NoticeDelay, 0)
		for range 2 {
			s.tasks.Wait()
			if x.rests {
				m.active = nil
			}
			s.mu.Lock()
			list := s.inbox
			s.inbox = nil
			s.mu.Unlock()
			for _, in := range list { // which may have it go on
				in.learn()
			}
		}
		s.bounce.Close()
		if len(s.queue) != 1 || s.queue[0].event.Kind != sched.EventNotified || s.queue[0].event.OK != x.ok || strings.Join(got, ",") != x.want {
			t.Errorf("%s: notices %q, events %v", name, got, s.pendingEvents())
		}
	}
	// An outcome is never split, however large.
	huge := mail.Outcome{Rcpt: 3, Reason: strings.Repeat("x", noticeBytes)}
	if part, n := fitting([]mail.Outcome{huge, {Rcpt: 4}}); len(part) != 1 || n != 1 {
		t.Errorf("%d outcomes, the next is %d", len(part), n)
	}
	if part, n := fitting([]mail.Outcome{huge}); len(part) != 1 || n != 0 {
		t.Errorf("%d outcomes, the next is %d", len(part), n)
	}
	// What has come since a notice was made is what is kept, with what the notice has told.
	s, _ := still(t)
	m := s.aMessage(1)
	newer := parted(dsn.Deferred, "a!", "b?")
	m.active.outcomes = map[int]mail.Outcome{0: newer}
	if o := m.tell(parted(dsn.Deferred, "a!"), false); !slices.Equal(words(&o), []string{"a!.", "b?"}) {
		t.Errorf("%q", words(&o))
	}
}

// A message whose sender was told something that is not on record yet is not queued again before that is.
func TestRequeueUnsure(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.ctx = t.Context()
	m := s.aMessage(1)
	s.log.spoken[m.id] = 1
	opened := 0
	s.opt.Open = func(context.Context, queue.Ref, mail.QueueID) (queueread.Stored, error) {
		opened++
		return nil, errors.New("no")
	}
	s.requeue(m, false)
	s.tasks.Wait()
	if opened != 0 || len(s.log.waiters) != 1 {
		t.Errorf("it is opened %d times", opened)
	}
}
