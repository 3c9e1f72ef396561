package cleanup

import (
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// A fakeQmgr is attached as the queue manager, and hands on what it is told.
type fakeQmgr struct {
	conn    *ipc.Conn
	client  *ipc.Client
	entries chan proto.Entry
	gone    chan mail.QueueID
	// Closed when it has been told all of the queue.
	complete chan struct{}
}

// attached makes one that has been told all of the queue.
func attached(t *testing.T, s *server) *fakeQmgr {
	q := attaching(t, s)
	<-q.complete
	return q
}

// attaching makes one that is being told.
func attaching(t *testing.T, s *server) *fakeQmgr {
	q := &fakeQmgr{entries: make(chan proto.Entry, 100), gone: make(chan mail.QueueID, 100), complete: make(chan struct{})}
	q.client = servedTo(t, s, func(_ *ipc.Conn, r *ipc.Request) {
		var list proto.Entries
		if r.Kind != proto.KindEntries || r.Decode(&list) != nil {
			t.Error("cleanup says something else")
		}
		for _, e := range list.List {
			q.entries <- e
		}
		for _, id := range list.Gone {
			q.gone <- id
		}
	})
	var err error
	if q.conn, err = q.client.Conn(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.conn.Go(&proto.Attach{}, func(_ []byte, err error) {
		if err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		close(q.complete)
	})
	return q
}

// decide records a decision.
func (q *fakeQmgr) decide(t *testing.T, op proto.Op) {
	t.Helper()
	var reply proto.RecordReply
	if err := q.client.Call(t.Context(), &proto.Record{Ops: []proto.Op{op}, Urgent: true}, &reply); err != nil || len(reply.Refused) > 0 {
		t.Errorf("%v, %+v", err, reply.Refused)
	}
}

// openProvisional opens a spool that is closed at the end of the test.
func openProvisional(t *testing.T, disk vfs.FS) *spool.Spool {
	t.Helper()
	sp, err := spool.Open(spool.Options{FS: disk, Dir: "spool", SegmentSize: 1 << 20, InlineLimit: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sp.Close() })
	return sp
}

// serveProvisional makes a server over an engine.
func serveProvisional(t *testing.T, engine storage.Engine) *server {
	t.Helper()
	log := new(logText)
	log.l = maillog.New("postfix/cleanup", maillog.NewWriter(log, maillog.Format(0)))
	t.Cleanup(func() { log.l.Close() })
	return newServer(t.Context(), serverOptions{Core: newCore(t, "", func(text string) { t.Error(text) }), Engine: engine, Log: log.l,
		Token: func() bool { return true }, BufferLimit: 1 << 20})
}

// Messages that are delivered while their clients wait cost no sync. In all other cases the message is in the log before
// its client is told 250, with what was done, and the queue manager is told so.
func TestProvisional(t *testing.T) {
	t.Parallel()
	disk := vfs.NewMem(4096)
	sp := openProvisional(t, disk)
	s := serveProvisional(t, logEngine{Spool: sp})
	q, submitter := attached(t, s), served(t, s)
	number, err := sp.Lease(100)
	if err != nil {
		t.Fatal(err)
	}
	// submit brings a message, and gives the entry that the queue manager is told, and the verdict to come.
	submit := func(wait time.Duration, refuse bool) (proto.Entry, chan proto.SubmitReply) {
		t.Helper()
		id := mail.MakeQueueID(time.Unix(1800000000, 0), number)
		number++
		verdict := make(chan proto.SubmitReply, 1)
		m := &proto.Submit{Envelope: mail.Envelope{ID: id, Sender: "s@from.test", Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}},
			Wait: wait, Refuse: refuse, Content: []byte("Subject: x\r\n\r\nx\r\n")}
		go func() {
			var r proto.SubmitReply
			if err := submitter.Call(t.Context(), m, &r); err != nil {
				t.Error(err)
			}
			verdict <- r
		}()
		e := <-q.entries
		if e.ID != id || e.Provisional != (wait > 0) {
			t.Errorf("the queue manager is told %+v", e)
		}
		return e, verdict
	}
	kept := func(name string, e proto.Entry, verdict chan proto.SubmitReply, pending int) {
		t.Helper()
		if r := <-verdict; r.Code != 250 {
			t.Errorf("%s: %+v", name, r)
		}
		if at, ok := sp.Locate(e.ID); !ok || at.NPending != pending {
			t.Errorf("%s: it was acknowledged, and the log has %v, %+v", name, ok, at)
		}
		if again := <-q.entries; again.ID != e.ID || again.Provisional || again.Ref == e.Ref {
			t.Errorf("%s: the queue manager is told %+v", name, again)
		}
	}

	before := sp.Stats()
	for range 20 {
		e, verdict := submit(time.Hour, false)
		if at, ok := s.waits.entryOf(e.ID); !ok || at.Ref != e.Ref || at.NPending != 2 {
			t.Errorf("where it is: %v, %+v", ok, at)
		}
		q.decide(t, proto.Op{ID: e.ID, Change: queue.Change{Done: []int{1}}})
		q.decide(t, proto.Op{ID: e.ID, Remove: true, Finished: true})
		if r := <-verdict; r.Code != 250 {
			t.Errorf("%+v", r)
		}
		if _, ok := s.waits.entryOf(e.ID); ok {
			t.Error("it is still there")
		}
	}
	// A batch of the log is a sync. One may promise, when nothing happens, what the start has written.
	if now := sp.Stats(); now.Batches-before.Batches > 1 || now.Added != 0 {
		t.Errorf("20 messages that were delivered at once cost %d syncs, and %d were added to the log", now.Batches-before.Batches, now.Added)
	}

	later := queue.Change{Set: queue.SetQueue, Queue: queue.Deferred}
	e, verdict := submit(time.Hour, true)
	q.decide(t, proto.Op{ID: e.ID, Change: queue.Change{Done: []int{0}}})
	q.decide(t, proto.Op{ID: e.ID, Change: later})
	kept("deferred", e, verdict, 1)
	if at, _ := sp.Locate(e.ID); at.Queue != queue.Deferred {
		t.Errorf("it is in the queue %v", at.Queue)
	}
	e, verdict = submit(time.Millisecond, false)
	kept("the time is up", e, verdict, 2)
	e, verdict = submit(time.Hour, false)
	q.decide(t, proto.Op{ID: e.ID, Keep: true})
	kept("wanted", e, verdict, 2)
	// The next queue manager asks what an agent speaks of, before it is told the queue.
	e, verdict = submit(time.Hour, false)
	var page proto.PageReply
	_, asked, _ := e.ID.Parse()
	if err := submitter.Call(t.Context(), &proto.Page{Numbers: []uint64{asked}}, &page); err != nil || len(page.Entries) != 1 || page.Entries[0].ID != e.ID {
		t.Errorf("another queue manager asks for it, and is told %+v, %v", page, err)
		return // and it is not kept
	}
	kept("another queue manager asks", e, verdict, 2)
	failed := []mail.Outcome{{Rcpt: 0, Action: dsn.Failed, Status: dsn.S(5, 1, 1), DiagText: "550 5.1.1 who?"}, {Rcpt: 1, Action: dsn.Failed, Status: dsn.S(5, 1, 2)}}
	e, verdict = submit(time.Hour, false)
	q.decide(t, proto.Op{ID: e.ID, Keep: true, Change: queue.Change{Outcomes: failed}})
	kept("failed, to be bounced", e, verdict, 2)

	e, verdict = submit(time.Hour, true)
	q.decide(t, proto.Op{ID: e.ID, Keep: true, Change: queue.Change{Outcomes: failed}})
	if r := <-verdict; r.Code != 550 || r.Status != dsn.S(5, 1, 1) || r.Text != "who?" {
		t.Errorf("refused with %+v", r)
	}
	if _, ok := sp.Locate(e.ID); ok || <-q.gone != e.ID {
		t.Error("what was refused is in the queue, or the queue manager is not told")
	}
	// If the process were killed now, the client might not hear of it. Nobody has it, and there is nothing to name.
	next, err := spool.Open(spool.Options{FS: disk.Clone(), Dir: "spool", SegmentSize: 1 << 20, InlineLimit: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range next.Recovery().Withdrawn {
		if w.ID == e.ID {
			t.Errorf("what was refused is named: %+v", w)
		}
	}
	next.Close()

	// The queue manager goes, and the next one is told of what the last one had.
	e, verdict = submit(time.Hour, false)
	q.conn.Close()
	if r := <-verdict; r.Code != 250 {
		t.Errorf("%+v", r)
	}
	if _, ok := sp.Locate(e.ID); !ok {
		t.Error("it was acknowledged, and is not in the log")
	}
	if n := s.waits.n.Load(); n != 0 {
		t.Errorf("%d messages are provisional at the end", n)
	}
}

// A slowEnd is an engine with which the end of a wait takes its time, as on a machine that is busy.
type slowEnd struct {
	logEngine
	until chan struct{}
}

func (e slowEnd) Drop(ref queue.Ref, settled bool) {
	<-e.until
	e.logEngine.Drop(ref, settled)
}

// The queue manager hears that a message is kept before it hears that what it has decided since is recorded, however
// late whoever waits for the message comes to run: it knows then that this is out of date. Later it would take a message
// that it has removed for a new one.
func TestKeptBeforeRemoved(t *testing.T) {
	t.Parallel()
	sp := openProvisional(t, vfs.NewMem(4096))
	engine := slowEnd{logEngine{Spool: sp}, make(chan struct{})}
	s := serveProvisional(t, engine)
	q, submitter := attached(t, s), served(t, s)
	number, err := sp.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Unix(1800000000, 0), number)
	verdict := make(chan proto.SubmitReply, 1)
	go func() {
		var r proto.SubmitReply
		m := &proto.Submit{Envelope: mail.Envelope{ID: id, Sender: "s@from.test", Recipients: []mail.Recipient{{Address: "a@to.test"}}},
			Wait: time.Hour, Content: []byte("Subject: x\r\n\r\nx\r\n")}
		if err := submitter.Call(t.Context(), m, &r); err != nil {
			t.Error(err)
		}
		verdict <- r
	}()
	if e := <-q.entries; e.ID != id || !e.Provisional {
		t.Errorf("the queue manager is told %+v", e)
	}
	q.decide(t, proto.Op{ID: id, Keep: true})
	q.decide(t, proto.Op{ID: id, Remove: true, Finished: true})
	// What is pushed is taken in on the goroutine that reads the answers.
	select {
	case e := <-q.entries:
		if e.ID != id || e.Provisional {
			t.Errorf("the queue manager is told %+v", e)
		}
	default:
		t.Error("the queue manager is told that the message is removed, and not yet that it is kept")
	}
	close(engine.until)
	if r := <-verdict; r.Code != 250 {
		t.Errorf("%+v", r)
	}
	// The answer to the submitter comes after all that is said of the message.
	q.decide(t, proto.Op{ID: id})
	if n := len(q.entries); n > 0 {
		t.Errorf("the queue manager is told %d times more that the message is kept", n)
	}
}
