package cleanup

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/event/eventtest"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/testwait"
	"posthaste/internal/vfs"
)

// submitting submits a message of which first may change something, and gives what its client is told, when it is.
func submitting(t *testing.T, client *ipc.Client, id mail.QueueID, first func(*proto.Submit)) <-chan proto.SubmitReply {
	t.Helper()
	q := &proto.Submit{Envelope: mail.Envelope{ID: id, Arrival: time.Now(), Sender: "s@from.test", Recipients: []mail.Recipient{{Address: "r@to.test"}}},
		Content: []byte("Subject: x\r\n\r\nx\r\n")}
	if first != nil {
		first(q)
	}
	replies := make(chan proto.SubmitReply, 1)
	go func() {
		var reply proto.SubmitReply
		if err := client.Call(t.Context(), q, &reply); err != nil {
			t.Error(err)
		}
		replies <- reply
	}()
	return replies
}

// leased gives queue IDs.
func leased(t *testing.T, s *server, n int) (ids []mail.QueueID) {
	t.Helper()
	first, err := s.opt.Engine.Lease(n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		ids = append(ids, mail.MakeQueueID(time.Now(), first+uint64(i)))
	}
	return ids
}

// A looked engine says when somebody has looked at all of the queue, as who attaches is told it.
type looked struct {
	engine
	over chan struct{} // capacity: of a few looks
}

func (l looked) Entries(yield func(queue.Entry) bool) {
	l.engine.Entries(yield)
	l.over <- struct{}{}
}

// The queue manager does not hear of a message before the journal has its event: not even a queue manager that attaches
// in between. It then hears of it once. The client is told 250 when the queue has the message, from which the event can be
// made again; but not that of a message that has a past, of which it could not.
func TestEventBeforeQueueManager(t *testing.T) {
	t.Parallel()
	for _, past := range []bool{false, true} {
		s, journal := eventServer(t)
		all := looked{s.opt.Engine, make(chan struct{}, 10)}
		s.opt.Engine = all
		journal.Shut()
		client, told := toldTo(t, s)
		id := leased(t, s, 1)[0]
		replies := submitting(t, client, id, func(q *proto.Submit) {
			if past {
				q.State = &queue.Change{Set: queue.SetAttempts, Attempts: 1}
			}
		})
		if !past {
			if r := <-replies; r.Code != 250 {
				t.Errorf("the client is told %+v", r)
			}
		}
		testwait.Until(t, "the event is told", func() bool { return slices.Equal(journal.Told(), []string{"received " + string(id)}) })
		if _, ok := s.opt.Engine.Locate(id); !ok {
			t.Error("it is not in the queue yet")
		}
		conn, err := client.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		attached := make(chan error, 1)
		conn.Go(&proto.Attach{}, func(_ []byte, err error) { attached <- err })
		// It has been passed over: a look that comes later would find it announced, and tell it a second time.
		<-all.over
		select {
		case r := <-replies:
			t.Errorf("the client is told %+v", r)
		case e := <-told:
			t.Errorf("the queue manager is told %+v", e)
		default:
		}
		// The goroutine that answers the client takes its own part off after that.
		testwait.Until(t, "who retires would wait for one message", func() bool { return s.storing.Load() == 1 })
		journal.Open()
		if past {
			if r := <-replies; r.Code != 250 {
				t.Errorf("the client is told %+v", r)
			}
		}
		if e := <-told; len(e.List) != 1 || e.List[0].ID != id || e.Complete || (len(e.List[0].Envelope) > 0) == past {
			t.Errorf("the queue manager is told %+v", e)
		}
		if e := <-told; len(e.List) != 0 || !e.Complete {
			t.Errorf("the queue manager is told of it again: %+v", e)
		}
		if err := <-attached; err != nil {
			t.Error(err)
		}
		testwait.Until(t, "nothing is left", func() bool { return !s.isUntold(id) && s.storing.Load() == 0 })
	}
}

// A page of the queue names a message that is new when the queue manager has been told of it, and not before. Else it could be
// removed by then, and would be delivered all the same: the queue manager would take it for a new one.
func TestPageBehindNews(t *testing.T) {
	t.Parallel()
	s, journal := eventServer(t)
	client, told := toldTo(t, s)
	conn, err := client.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Call(t.Context(), &proto.Attach{}, nil); err != nil {
		t.Fatal(err)
	}
	if e := <-told; !e.Complete {
		t.Fatalf("the queue manager is told %+v", e)
	}
	journal.Shut()
	id := leased(t, s, 1)[0]
	if r := <-submitting(t, client, id, nil); r.Code != 250 {
		t.Fatalf("the client is told %+v", r)
	}
	type page struct {
		proto.PageReply
		told int // how often the queue manager had been told something
	}
	pages := make(chan page, 2)
	for _, q := range []*proto.Page{{}, {Numbers: []uint64{id.Number()}}} {
		conn.Go(q, func(payload []byte, err error) {
			p := page{told: len(told)}
			if err == nil {
				err = p.Decode(payload)
			}
			if err != nil {
				t.Error(err)
			}
			pages <- p
		})
	}
	// It has both questions when it has answered this.
	if err := conn.Call(t.Context(), &proto.Lease{N: 1}, nil); err != nil {
		t.Fatal(err)
	}
	left := 2
	select {
	case p := <-pages:
		t.Errorf("a page has %+v before the queue manager is told", p.Entries)
		left--
	default:
	}
	journal.Open()
	for range left {
		if p := <-pages; len(p.Entries) != 1 || p.Entries[0].ID != id || p.told != 1 {
			t.Errorf("a page has %+v, after %d messages", p.Entries, p.told)
		}
	}
	if e := <-told; len(e.List) != 1 || e.List[0].ID != id {
		t.Errorf("the queue manager is told %+v", e)
	}
}

// eventServer is a server that tells a journal of events.
func eventServer(t *testing.T) (*server, *eventtest.Journal) {
	t.Helper()
	s, _ := newTestServer(t, "", "")
	journal, events := eventtest.New(t, "cleanup", nil)
	s.opt.Events = events
	return s, journal
}

// A queue manager that asks for deferred mail does not hear of a message that the journal has not heard of: it is told of it then.
func TestDueWithoutUntold(t *testing.T) {
	t.Parallel()
	s, journal := eventServer(t)
	journal.Shut()
	client, told := toldTo(t, s)
	id := leased(t, s, 1)[0]
	reply := submitting(t, client, id, func(q *proto.Submit) {
		q.State = &queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Deferred, NextAttempt: time.Now()}
	})
	testwait.Until(t, "it is in the queue", func() bool { _, ok := s.opt.Engine.Locate(id); return ok })
	due := func() []proto.Entry {
		t.Helper()
		if err := client.Call(t.Context(), &proto.Due{DueQuery: queue.DueQuery{Limit: 10}}, nil); err != nil {
			t.Fatal(err)
		}
		return (<-told).List
	}
	if list := due(); len(list) != 0 {
		t.Errorf("it is told of %+v", list)
	}
	journal.Open()
	if r := <-reply; r.Code != 250 {
		t.Errorf("the client is told %+v", r)
	}
	if list := due(); len(list) != 1 || list[0].ID != id {
		t.Errorf("it is told of %+v", list)
	}
}

// A probe, of which no event is made, is announced like others: who attaches at that moment is told of it.
func TestProbeIsTold(t *testing.T) {
	t.Parallel()
	s, _ := newTestServer(t, "", "")
	_, s.opt.Events = eventtest.New(t, "cleanup", nil)
	id := leased(t, s, 1)[0]
	defer s.tells(id)()
	s.tellReceived(&mail.Envelope{ID: id, Trace: mail.TraceProbe})
	if s.isUntold(id) {
		t.Error("a queue manager that attaches would not be told of it, nor would it be announced")
	}
}

// While the journal does not answer, no more clients are told 250 than messages are told of again after a crash.
func TestUntoldBound(t *testing.T) {
	t.Parallel()
	s, journal := eventServer(t)
	journal.Shut()
	client, _ := toldTo(t, s)
	ids := leased(t, s, maxUntold+1)
	for _, id := range ids[:maxUntold] {
		if r := <-submitting(t, client, id, nil); r.Code != 250 {
			t.Fatalf("the client is told %+v", r)
		}
	}
	last := submitting(t, client, ids[maxUntold], nil)
	testwait.Until(t, "the last one is in the queue", func() bool {
		_, ok := s.opt.Engine.Locate(ids[maxUntold])
		return ok && s.storing.Load() == maxUntold+1
	})
	select {
	case r := <-last:
		t.Errorf("the client is told %+v", r)
	default:
	}
	journal.Open()
	if r := <-last; r.Code != 250 {
		t.Errorf("the client is told %+v", r)
	}
	testwait.Until(t, "nothing is left", func() bool { return s.storing.Load() == 0 })
	if len(s.untold) != 0 {
		t.Errorf("left: %v", s.untold)
	}
}

// Power fails when the client has been told 250 and the journal has not confirmed the event: it is told after that.
func TestCrashBeforeJournal(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	opened := func(mem *vfs.Mem) logEngine {
		sp, err := spool.Open(spool.Options{FS: mem, Dir: "spool", SegmentSize: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sp.Close() })
		return logEngine{Spool: sp}
	}
	s, journal := eventServer(t)
	s.opt.Engine = opened(mem)
	journal.Shut()
	client, _ := toldTo(t, s)
	id := leased(t, s, 1)[0]
	if r := <-submitting(t, client, id, nil); r.Code != 250 {
		t.Fatalf("the client is told %+v", r)
	}
	mem = mem.Clone()
	mem.Restart()
	en := opened(mem)
	rd := queueread.Log(spool.NewReader(mem, "spool"))
	defer rd.Close()
	next, events := eventtest.New(t, "cleanup", nil)
	found := en.Recovery()
	tellAgain(t.Context(), events, en, &found, rd)
	if got, want := next.Told(), []string{"received " + string(id)}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

// After a crash the messages of which nothing has been tried are told of again, and no others; after an orderly end
// none is.
func TestTellAgain(t *testing.T) {
	t.Parallel()
	for _, clean := range []bool{false, true} {
		mem := vfs.NewMem(512)
		l := begin(t, mem, false)
		fresh, tried := l.add(2), l.add(1)
		var reply proto.RecordReply
		op := proto.Op{ID: tried}
		op.Set, op.Attempts = queue.SetAttempts, 1
		if err := l.client.Call(t.Context(), &proto.Record{Ops: []proto.Op{op}, Urgent: true}, &reply); err != nil {
			t.Fatal(err)
		}
		if clean {
			if err := l.sp.Close(); err != nil {
				t.Fatal(err)
			}
		} else {
			mem = mem.Clone()
			mem.Restart()
		}
		sp, err := spool.Open(spool.Options{FS: mem, Dir: "spool", SegmentSize: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		defer sp.Close()
		journal, events := eventtest.New(t, "cleanup", nil)
		rd := queueread.Log(spool.NewReader(mem, "spool"))
		defer rd.Close()
		en := logEngine{Spool: sp}
		found := en.Recovery()
		tellAgain(t.Context(), events, en, &found, rd)
		want := []string{"received " + string(fresh)}
		if clean {
			want = nil
		}
		if got := journal.Told(); !slices.Equal(got, want) {
			t.Errorf("clean %v: told %q, want %q (%s was tried)", clean, got, strings.Join(want, " "), tried)
		}
		// What is in another part than those that were not closed is passed over.
		at, _ := en.Locate(fresh)
		found.UncleanParts = []int{int(at.Ref.File) + 1}
		tellAgain(t.Context(), events, en, &found, rd)
		if got := journal.Told(); len(got) > len(want) {
			t.Errorf("clean %v: told %q of another part", clean, got)
		}
	}
}

// A crowd is an engine with many messages between the first and the last of the log, which nobody can read.
type crowd struct {
	engine
	n int
}

func (c crowd) Entries(yield func(queue.Entry) bool) {
	var first queue.Entry
	c.engine.Entries(func(e queue.Entry) bool {
		if first.ID == "" || e.Ref.Offset < first.Ref.Offset {
			first = e
		}
		return yield(e)
	})
	e := first
	for i := range c.n {
		e.ID = mail.MakeQueueID(time.Unix(1700000000, 0), uint64(i))
		e.Ref.Offset = first.Ref.Offset + 1
		if !yield(e) {
			return
		}
	}
}

// Of each part of the queue the last messages are told of again, the last ones first: that a part has many with high numbers says
// nothing of the others.
func TestTellAgainParts(t *testing.T) {
	t.Parallel()
	for _, shards := range []bool{false, true} {
		at := func(part, segno, offset int) (e queue.Entry) {
			e.Ref = queue.Ref{File: uint32(offset % 7), Spool: uint8(part), Segno: uint64(segno), Offset: uint32(offset)}
			if shards {
				e.Ref.File, e.Ref.Spool = uint32(part), 0
			}
			return e
		}
		var list []queue.Entry
		for i := range maxAgain + 10 {
			list = append(list, at(1, 1000+i/100, i%100))
		}
		list = append(list, at(2, 3, 7), at(2, 3, 8), at(2, 2, 9))
		got := lastWritten(list, shards)
		var heads []queue.Ref
		for _, e := range got[:6] {
			heads = append(heads, e.Ref)
		}
		want := []queue.Ref{at(1, 1200, 9).Ref, at(2, 3, 8).Ref, at(1, 1200, 8).Ref, at(2, 3, 7).Ref, at(1, 1200, 7).Ref, at(2, 2, 9).Ref}
		if !slices.Equal(heads, want) || len(got) != maxAgain/2+3 {
			t.Errorf("shards %v: %d messages, first %+v", shards, len(got), heads)
		}
	}
	// However many parts there are, each is told of as far as it can have been on its way.
	var list []queue.Entry
	for i := range 30 * 3 * maxUntold {
		list = append(list, queue.Entry{Ref: queue.Ref{Spool: uint8(i % 30), Segno: 1, Offset: uint32(i)}})
	}
	if n := len(lastWritten(list, false)); n != 30*2*maxUntold {
		t.Errorf("of 30 parts %d messages", n)
	}
	if list := lastWritten(nil, false); len(list) != 0 {
		t.Errorf("of nothing: %+v", list)
	}
}

// Of more messages than are told of after a crash it is the last ones that count: the others were told of long before.
func TestTellAgainLast(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	l := begin(t, mem, false)
	l.add(1)
	last := l.add(1)
	journal, events := eventtest.New(t, "cleanup", nil)
	rd := queueread.Log(spool.NewReader(mem, "spool"))
	defer rd.Close()
	en := crowd{logEngine{Spool: l.sp}, maxAgain - 1}
	tellAgain(t.Context(), events, en, &recovery{Unclean: true}, rd)
	if got, want := journal.Told(), []string{"received " + string(last)}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}
