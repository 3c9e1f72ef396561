package cleanup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/doubtful"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// life is one process with a spool on a disk in memory.
type life struct {
	t      *testing.T
	sp     *spool.Spool
	doubts *doubts
	client *ipc.Client
}

func begin(t *testing.T, mem *vfs.Mem, exact bool) *life {
	t.Helper()
	sp, err := spool.Open(spool.Options{FS: mem, Dir: "spool", SegmentSize: 64 << 10, ExactDoubt: exact})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sp.Close() })
	log := maillog.New("postfix/cleanup", maillog.NewWriter(new(strings.Builder), maillog.Classic))
	rd := queueread.Log(spool.NewReader(mem, "spool"))
	t.Cleanup(func() { rd.Close() })
	l := &life{t: t, sp: sp, doubts: newDoubts(mem, "spool", log)}
	en := logEngine{Spool: sp}
	rep := en.Recovery()
	l.doubts.found(en, rd, &rep, exact)
	s := newServer(t.Context(), serverOptions{Engine: en, Log: log, Doubts: l.doubts, Reader: rd, Exact: exact})
	l.client = served(t, s)
	return l
}

// add queues a message.
func (l *life) add(rcpts int) mail.QueueID {
	l.t.Helper()
	n, err := l.sp.Lease(1)
	if err != nil {
		l.t.Fatal(err)
	}
	id := mail.MakeQueueID(time.Unix(1800000000, 0), n)
	env := mail.Envelope{ID: id, Sender: "s@from.test"}
	for i := range rcpts {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: fmt.Sprintf("r%d@to.test", i)})
	}
	var b spool.Batch
	b.Add(spool.Message{ID: id, Envelope: env.Append(nil), NRcpt: rcpts, Recipients: mail.AppendRecipients(nil, env.Recipients), Content: []byte("x\r\n")})
	if err := l.sp.Commit(&b); err != nil {
		l.t.Fatal(err)
	}
	return id
}

func (l *life) call(m ipc.Message) (reply proto.RecordReply) {
	l.t.Helper()
	if err := l.client.Call(l.t.Context(), m, &reply); err != nil {
		l.t.Fatal(err)
	}
	return reply
}

// hands is what a queue manager is told that agents have in hand.
func (l *life) hands() (lines []string) {
	l.t.Helper()
	var reply proto.HandsReply
	if err := l.client.Call(l.t.Context(), &proto.Hands{}, &reply); err != nil {
		l.t.Fatal(err)
	}
	for _, h := range reply.List {
		lines = append(lines, fmt.Sprintf("%s %v %s", h.ID, h.Index, h.Relay))
	}
	return lines
}

// list is what is kept, in short.
func (l *life) list() (lines []string) {
	l.doubts.flush()
	list, err := doubtful.Load(l.doubts.fs, "spool")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range list {
		lines = append(lines, fmt.Sprintf("%d %s %s/%s %s", e.Rcpt, e.Recipient, e.Why, e.Nexthop, e.State))
	}
	return lines
}

// What an agent asks for is durable when it is answered; after a crash it is in the list, exactly, and
// the list says what becomes of it.
func TestHandExact(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	l := begin(t, mem, true)
	a, b, c := l.add(3), l.add(2), l.add(1)
	untouched := l.add(1)
	for _, h := range []proto.Hand{{ID: a, Index: []int{0, 2}, Relay: "mx1"}, {ID: b, Index: []int{0, 1}, Relay: "mx2"}, {ID: c, Index: []int{0}}} {
		if r := l.call(&h); len(r.Refused) > 0 {
			t.Errorf("%+v", r)
		}
	}
	if r := l.call(&proto.Hand{ID: a, Index: []int{7}}); len(r.Refused) != 1 {
		t.Errorf("an index without a recipient: %+v", r)
	}
	if r := l.call(&proto.Hand{ID: mail.MakeQueueID(time.Unix(1, 0), 1), Index: []int{0}}); len(r.Refused) > 0 {
		t.Errorf("a message that is gone: %+v", r)
	}
	l.call(&proto.Record{Urgent: true, Ops: []proto.Op{{ID: b, Change: queue.Change{Done: []int{1}}}}})
	if got := l.hands(); !slices.Equal(got, []string{string(a) + " [0 2] mx1", string(b) + " [0] mx2", string(c) + " [0] "}) {
		t.Errorf("in hand: %q", got)
	}

	mem = mem.Cut(vfs.Loss{})
	l = begin(t, mem, true)
	if n := l.doubts.unseen(); n != 4 {
		t.Errorf("%d entries have not been seen", n)
	}
	// The new queue manager is not told: they are named.
	if got := l.hands(); len(got) > 0 {
		t.Errorf("in hand after the crash: %q", got)
	}
	want := []string{"0 r0@to.test in hand/mx1 queued", "2 r2@to.test in hand/mx1 queued", "0 r0@to.test in hand/mx2 queued", "0 r0@to.test in hand/ queued"}
	if got := l.list(); !slices.Equal(got, want) {
		t.Errorf("after the crash: %q", got)
	}
	l.call(&proto.Hand{ID: a, Index: []int{1, 2}, Relay: "mx1"})
	l.call(&proto.Record{Urgent: true, Ops: []proto.Op{{ID: a, Change: queue.Change{Done: []int{2}}}, {ID: untouched, Change: queue.Change{Done: []int{0}}},
		{ID: b, Remove: true, Finished: true}, {ID: c, Remove: true}}})
	want = []string{"0 r0@to.test in hand/mx1 queued", "2 r2@to.test in hand/mx1 delivered", "0 r0@to.test in hand/mx2 delivered", "0 r0@to.test in hand/ removed"}
	if got := l.list(); !slices.Equal(got, want) {
		t.Errorf("later: %q", got)
	}
	for i, e := range l.doubts.list { // only that was sent again
		if e.Again != (i == 1) || !e.Exact {
			t.Errorf("%+v", e)
		}
	}
	l.doubts.settled(&proto.Settle{ID: a, Rcpts: []int{0}})
	if got := l.list(); got[0] != "0 r0@to.test in hand/mx1 returned" || l.doubts.some.Load() {
		t.Errorf("at the end: %q", got)
	}
	if err := doubtful.SetSeen(mem, "spool", time.Now()); err != nil {
		t.Fatal(err)
	}
	if n := l.doubts.unseen(); n != 0 {
		t.Errorf("%d entries have not been seen, and all have", n)
	}
}

// That a recipient was not sent to again is only said when it is known: not when the process that would know has
// died, and not when agents do not say what they send.
func TestNotSentAgain(t *testing.T) {
	t.Parallel()
	for _, exact := range []bool{true, false} {
		mem := vfs.NewMem(512)
		l := begin(t, mem, true)
		gone, there := l.add(1), l.add(1)
		for _, id := range []mail.QueueID{gone, there} {
			l.call(&proto.Hand{ID: id, Index: []int{0}, Relay: "mx"})
		}
		mem = mem.Cut(vfs.Loss{})
		l = begin(t, mem, true)
		l.list() // is saved
		mem = mem.Cut(vfs.Loss{})
		l = begin(t, mem, true)
		// It is sent again, and delivered, and the process dies before the list is saved.
		var done spool.Batch
		done.Done(gone, []int{0})
		if err := l.sp.Commit(&done); err != nil {
			t.Fatal(err)
		}
		l = begin(t, mem.Cut(vfs.Loss{}), exact)
		for _, e := range l.doubts.list {
			if want := e.ID == there && exact; e.Exact != want || (e.State == doubtful.Delivered) != (e.ID == gone) {
				t.Errorf("exact %v: %+v", exact, e)
			}
		}
		if len(l.doubts.list) < 2 {
			t.Errorf("%+v", l.doubts.list)
		}
	}
}

// An agent that ends in the middle of a delivery leaves it in doubt: with the exact record, if it had begun.
func TestLostAgent(t *testing.T) {
	t.Parallel()
	for _, exact := range []bool{false, true} {
		l := begin(t, vfs.NewMem(512), exact)
		id := l.add(3)
		if exact {
			l.call(&proto.Hand{ID: id, Index: []int{1}, Relay: "mx"})
		}
		l.call(&proto.Record{Urgent: true, Ops: []proto.Op{{ID: id, Handed: []int{0, 1}, Nexthop: "to.test", Lost: true}}})
		want := []string{"0 r0@to.test agent/to.test queued", "1 r1@to.test agent/to.test queued"}
		if exact {
			want = want[1:]
		}
		if got := l.list(); !slices.Equal(got, want) {
			t.Errorf("exact %v: %q", exact, got)
		}
	}
}

// What the engine has refused to record has not happened: the message stays in doubt.
func TestDoubtRefused(t *testing.T) {
	t.Parallel()
	l := begin(t, vfs.NewMem(512), false)
	id := l.add(2)
	l.call(&proto.Record{Urgent: true, Ops: []proto.Op{{ID: id, Handed: []int{0}, Nexthop: "to.test", Lost: true}}})
	for _, c := range []struct {
		done []int
		want string
	}{{[]int{0, 9}, "queued"}, {[]int{0}, "delivered"}} {
		reply := l.call(&proto.Record{Urgent: true, Ops: []proto.Op{{ID: id, Change: queue.Change{Done: c.done}}}})
		if refused := len(reply.Refused) > 0; refused != (c.want == "queued") {
			t.Errorf("%v: %+v", c.done, reply)
		}
		if got := l.list(); !slices.Equal(got, []string{"0 r0@to.test agent/to.test " + c.want}) {
			t.Errorf("%v: %q", c.done, got)
		}
	}
}

// What qmgr says of deliveries that go on rides with other changes, and is in the list after a
// crash; new mail is, too; and what left the queue before that was noted has ended.
func TestHandedOut(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	l := begin(t, mem, false)
	a, b, fresh := l.add(2), l.add(1), l.add(25)
	deferred := proto.Op{Change: queue.Change{Set: queue.SetQueue, Queue: queue.Deferred}}
	for _, id := range []mail.QueueID{a, b} {
		op := deferred
		op.ID = id
		l.call(&proto.Record{Urgent: true, Ops: []proto.Op{op}})
	}
	l.call(&proto.Record{Urgent: true, Ops: []proto.Op{{ID: a, Handed: []int{1}, Nexthop: "to.test"}, {ID: b, Change: queue.Change{Done: []int{0}}}}})
	mem = mem.Cut(vfs.Loss{})
	l = begin(t, mem, false)
	got := l.list()
	if len(got) != 1+doubtful.MaxRcpts || got[0] != "1 r1@to.test in hand/to.test queued" || got[1] != "0 r0@to.test new/ queued" {
		t.Errorf("%q", got)
	}
	if last := l.doubts.list[len(got)-1]; last.More != 5 || last.ID != fresh {
		t.Errorf("%+v", last)
	}
	// The next process dies before it has saved that a has gone.
	var done spool.Batch
	done.Done(a, []int{0, 1})
	if err := l.sp.Commit(&done); err != nil {
		t.Fatal(err)
	}
	l = begin(t, mem.Cut(vfs.Loss{}), false)
	if got := l.list(); !slices.Contains(got, "1 r1@to.test in hand/to.test delivered") {
		t.Errorf("%q", got)
	}
}

// A disk that fails refuses what agents ask for: they must not deliver.
func TestHandFails(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	var failing atomic.Bool
	sp, err := spool.Open(spool.Options{FS: &vfs.Faulty{FS: mem, Hook: func(op vfs.Op) error {
		if failing.Load() && op.Kind == vfs.OpSync {
			return syscall.EIO
		}
		return nil
	}}, Dir: "spool", SegmentSize: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer sp.Close()
	log := maillog.New("postfix/cleanup", maillog.NewWriter(new(strings.Builder), maillog.Classic))
	l := &life{t: t, sp: sp}
	l.client = served(t, newServer(t.Context(), serverOptions{Engine: logEngine{Spool: sp}, Log: log}))
	id := l.add(1)
	failing.Store(true)
	var reply proto.RecordReply
	if err := l.client.Call(t.Context(), &proto.Hand{ID: id, Index: []int{0}}, &reply); err == nil || errors.Is(err, ipc.ErrLost) {
		t.Errorf("%v, %+v", err, reply)
	}
}

// A handed engine has so much in hand.
type handedEngine struct {
	stub
	list []queue.Doubt
}

func (e *handedEngine) Hands(yield func(queue.Doubt) bool) {
	for _, d := range e.list {
		if !yield(d) {
			return
		}
	}
}

// What agents have in hand is named as far as one answer has room, and the answer says when there is more.
func TestHandsBound(t *testing.T) {
	t.Parallel()
	many := func(n, rcpts int) (list []queue.Doubt) {
		for i := range n {
			list = append(list, queue.Doubt{ID: mail.MakeQueueID(time.Unix(1800000000, 0), uint64(i)), Rcpts: make([]int, rcpts), Nexthop: "mx.test", At: time.Unix(1800000000, 0)})
		}
		return list
	}
	for _, c := range []struct {
		list []queue.Doubt
		want int
	}{
		{nil, 0},
		{many(proto.HandsLimit, 1), proto.HandsLimit},
		{many(proto.HandsLimit+1, 1), proto.HandsLimit},
		{many(2, proto.HandsRcpts/2), 2},
		{append(many(2, proto.HandsRcpts/2), many(3, 1)...), 2},
		{many(3, proto.HandsRcpts/2), 2},
	} {
		s, _ := newTestServer(t, "", "")
		s.opt.Engine = &handedEngine{list: c.list}
		var reply proto.HandsReply
		if err := served(t, s).Call(t.Context(), &proto.Hands{}, &reply); err != nil {
			t.Fatal(err)
		}
		if len(reply.List) != c.want || reply.More != (len(c.list) > c.want) {
			t.Errorf("of %d: %d, more: %v", len(c.list), len(reply.List), reply.More)
		}
		for i, h := range reply.List {
			if d := c.list[i]; h.ID != d.ID || len(h.Index) != len(d.Rcpts) || h.Relay != "mx.test" || !h.At.Equal(d.At) {
				t.Errorf("number %d is %+v", i, h)
			}
		}
	}
}

// A sharedEngine is one of a queue that nodes share.
type sharedEngine struct {
	logEngine
	reading []int
}

func (e *sharedEngine) Owned() []storage.Ownership { return nil }
func (e *sharedEngine) Reading() []int             { return e.reading }

// Where nodes share the queue, what is not here has not been delivered for that: it may be in what is still being read, or in a part that
// another node has. It may come back, and then it is heard of again.
func TestDoubtShared(t *testing.T) {
	t.Parallel()
	mem := vfs.NewMem(512)
	l := begin(t, mem, true)
	here := l.add(1)
	away := mail.MakeQueueID(time.Unix(1800000000, 0), 1<<30)
	en := &sharedEngine{logEngine: logEngine{Spool: l.sp}, reading: []int{2}}
	rd := queueread.Log(spool.NewReader(mem, "spool"))
	defer rd.Close()
	rep := recovery{Exact: true, InDoubt: []queue.Doubt{{ID: here, Rcpts: []int{0}}, {ID: away, Rcpts: []int{0}}}}
	l.doubts.found(en, rd, &rep, true)
	states := func() (list [2]string) {
		for i, e := range l.doubts.list {
			list[i] = e.State
		}
		return list
	}
	look := func(want ...string) {
		t.Helper()
		l.doubts.found(en, rd, new(recovery), true)
		if got := states(); got != [2]string(want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	look(doubtful.Queued, doubtful.Queued)
	en.reading = nil
	look(doubtful.Queued, doubtful.Away)
	l.doubts.recorded([]proto.Op{{ID: away, Change: queue.Change{Done: []int{0}}}}, en.NewBatch())
	if got := states(); got[1] != doubtful.Delivered {
		t.Errorf("it has come back, and been delivered: %v", got)
	}
	l.doubts.list[1].State = doubtful.Away
	l.doubts.list[1].ID = here
	look(doubtful.Queued, doubtful.Queued)
}
