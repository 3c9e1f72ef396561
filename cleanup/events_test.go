package cleanup

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/event/eventtest"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/testwait"
	"posthaste/internal/vfs"
)

// Neither the client nor the queue manager hears of a message before the journal has its event: not even a queue
// manager that attaches in between. It then hears of it once.
func TestEventBeforeReply(t *testing.T) {
	t.Parallel()
	s, _ := newTestServer(t, "", "")
	journal, events := eventtest.New(t, "cleanup", nil)
	s.opt.Events = events
	journal.Shut()
	client, told := toldTo(t, s)
	first, err := s.opt.Engine.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Now(), first)
	replies := make(chan proto.SubmitReply, 1)
	go func() {
		var reply proto.SubmitReply
		if err := client.Call(t.Context(), &proto.Submit{Envelope: mail.Envelope{ID: id, Arrival: time.Now(), Sender: "s@from.test",
			Recipients: []mail.Recipient{{Address: "r@to.test"}}}, Content: []byte("Subject: x\r\n\r\nx\r\n")}, &reply); err != nil {
			t.Error(err)
		}
		replies <- reply
	}()
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
	testwait.Until(t, "a queue manager is attached", func() bool { return s.attachedNow() != nil })
	select {
	case r := <-replies:
		t.Errorf("the client is told %+v", r)
	case e := <-told:
		t.Errorf("the queue manager is told %+v", e)
	default:
	}
	journal.Open()
	if r := <-replies; r.Code != 250 {
		t.Errorf("the client is told %+v", r)
	}
	if e := <-told; len(e.List) != 1 || e.List[0].ID != id || e.Complete {
		t.Errorf("the queue manager is told %+v", e)
	}
	if e := <-told; len(e.List) != 0 || !e.Complete {
		t.Errorf("the queue manager is told of it again: %+v", e)
	}
	if err := <-attached; err != nil {
		t.Error(err)
	}
	if len(s.untold) != 0 {
		t.Errorf("left: %v", s.untold)
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
