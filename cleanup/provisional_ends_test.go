package cleanup

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/testwait"
	"posthaste/internal/vfs"
)

// A troubled engine is the log's, and its volatile area, with troubles of their own.
type troubled struct {
	logEngine
	silent atomic.Pointer[error] // the disk does not answer
	keeps  atomic.Pointer[error] // nothing more can be kept, for this reason
	full   atomic.Bool           // the volatile area has no room
	files  atomic.Uint64         // added to the number of the area's file
	ended  chan bool             // of each message that has left the area: whether it was settled
}

func (e *troubled) Silent() error {
	if err := e.silent.Load(); err != nil {
		return *err
	}
	return e.logEngine.Silent()
}

func (e *troubled) Post(b batch, done func(error)) {
	if err := e.keeps.Load(); err != nil {
		done(*err)
		return
	}
	e.logEngine.Post(b, done)
}

func (e *troubled) Stash(m addition) (queue.Entry, error) {
	if e.full.Load() {
		return queue.Entry{}, fmt.Errorf("the area: %w", queue.ErrFull)
	}
	en, err := e.logEngine.Stash(m)
	en.Ref.Segno += e.files.Load() << 32
	return en, err
}

func (e *troubled) Drop(ref queue.Ref, settled bool) {
	ref.Segno &= 1<<32 - 1
	e.logEngine.Drop(ref, settled)
	e.ended <- settled
}

// A waiting server is one with a troubled engine, a queue manager, and clients that wait for deliveries.
type waitingServer struct {
	*server
	engine *troubled
	log    *logText
	life   *life
	q      *fakeQmgr
	client *ipc.Client
}

func newWaiting(t *testing.T) *waitingServer {
	t.Helper()
	disk := vfs.NewMem(4096)
	sp := openProvisional(t, disk)
	w := &waitingServer{engine: &troubled{logEngine: logEngine{Spool: sp}, ended: make(chan bool, 100)}}
	w.server = serveProvisional(t, w.engine)
	w.log = new(logText)
	w.log.l = maillog.New("log", maillog.NewWriter(w.log, maillog.Plain))
	t.Cleanup(func() { w.log.l.Close() })
	w.life = &life{t: t, sp: sp, doubts: newDoubts(disk, "spool", w.log.l)}
	w.opt.Log, w.opt.Doubts = w.log.l, w.life.doubts
	w.q, w.client = attached(t, w.server), served(t, w.server)
	return w
}

// submit brings a message for two recipients whose client waits that long, and gives its queue ID, and the verdict to come.
func (w *waitingServer) submit(t *testing.T, wait time.Duration) (mail.QueueID, chan proto.SubmitReply) {
	t.Helper()
	id := leased(t, w.server, 1)[0]
	return id, bring(t, w.client, id, wait)
}

func bring(t *testing.T, c *ipc.Client, id mail.QueueID, wait time.Duration) chan proto.SubmitReply {
	verdict := make(chan proto.SubmitReply, 1)
	go func() {
		var r proto.SubmitReply
		m := &proto.Submit{Envelope: mail.Envelope{ID: id, Sender: "s@from.test", Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}},
			Wait: wait, Content: []byte("Subject: x\r\n\r\nx\r\n")}
		if err := c.Call(t.Context(), m, &r); err != nil {
			t.Error(err)
		}
		verdict <- r
	}()
	return verdict
}

// Whose message cannot be kept is told so. It may have been delivered, and is named for that, once: by this process when the
// message is gone for good, and then the queue manager forgets it; by the next one when it may be in the log all the same.
func TestProvisionalNotKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		silent, keeps error
		code          int
		gone          bool // for good
	}{
		"full":   {keeps: queue.ErrFull, code: 452, gone: true},
		"silent": {silent: queue.ErrSilent, code: 451, gone: true},
		"broken": {keeps: fmt.Errorf("%w: input/output error", queue.ErrBroken), code: 451},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWaiting(t)
			id, verdict := w.submit(t, time.Hour)
			if e := <-w.q.entries; e.ID != id || !e.Provisional {
				t.Errorf("the queue manager is told %+v", e)
			}
			if c.silent != nil {
				w.engine.silent.Store(&c.silent)
			}
			if c.keeps != nil {
				w.engine.keeps.Store(&c.keeps)
			}
			w.keepProvisional(nil) // as when the queue manager or the process goes
			if r := <-verdict; r.Code != c.code {
				t.Errorf("the client is told %+v", r)
			}
			if n := w.waits.n.Load(); n != 0 {
				t.Errorf("%d messages are provisional", n)
			}
			text, named := w.log.String(), string(id)+": in doubt: it may have been delivered while its client waited, who is told 451, and may send it again"
			if strings.Contains(text, named) == c.gone {
				t.Errorf("logged\n%s", text)
			}
			if got := strings.Contains(text, string(id)+": withdrawn: "); got != c.gone {
				t.Errorf("withdrawn: %v\n%s", got, text)
			}
			var want []string
			if c.gone {
				want = []string{"-1 a@to.test withdrawn/ left"}
			}
			if got := w.life.list(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("the list has %q, want %q", got, want)
			}
			if len(w.engine.ended) != map[bool]int{true: 1}[c.gone] || c.gone && <-w.engine.ended {
				t.Error("what the next start is to find is not left, or what it is not to find is")
			}
			// What is pushed comes before what is answered later.
			if err := w.q.client.Call(t.Context(), &proto.Lease{N: 1}, new(proto.LeaseReply)); err != nil {
				t.Fatal(err)
			}
			if got := len(w.q.gone); got != map[bool]int{true: 1}[c.gone] || got > 0 && <-w.q.gone != id {
				t.Errorf("the queue manager is told %d times to forget it", got)
			}
		})
	}
}

// With no room in the volatile area a message is queued as others are, and those that came first are kept, so that the area can
// be used again. The others wait on.
func TestProvisionalRelieved(t *testing.T) {
	t.Parallel()
	w := newWaiting(t)
	var ids []mail.QueueID
	var verdicts []chan proto.SubmitReply
	for i := range 4 {
		w.engine.files.Store(uint64(i/2) + 5) // two in each file
		id, verdict := w.submit(t, time.Hour)
		if e := <-w.q.entries; e.ID != id || !e.Provisional {
			t.Errorf("the queue manager is told %+v", e)
		}
		ids, verdicts = append(ids, id), append(verdicts, verdict)
	}
	// The second has no need of being kept any more.
	w.q.decide(t, proto.Op{ID: ids[1], Change: queue.Change{Done: []int{0, 1}}})
	if r := <-verdicts[1]; r.Code != 250 {
		t.Errorf("the client is told %+v", r)
	}
	w.engine.full.Store(true)
	id, verdict := w.submit(t, time.Hour)
	if r := <-verdict; r.Code != 250 {
		t.Errorf("the client is told %+v", r)
	}
	if r := <-verdicts[0]; r.Code != 250 {
		t.Errorf("the first client is told %+v", r)
	}
	for i, want := range []bool{true, false, false, false} {
		if _, ok := w.life.sp.Locate(ids[i]); ok != want {
			t.Errorf("message %d is in the log: %v", i, ok)
		}
	}
	if _, ok := w.life.sp.Locate(id); !ok {
		t.Error("it was acknowledged, and is not in the log")
	}
	if n := w.waits.n.Load(); n != 2 {
		t.Errorf("%d messages are provisional", n)
	}
	for i := 2; i < 4; i++ {
		w.q.decide(t, proto.Op{ID: ids[i], Remove: true, Finished: true})
		if r := <-verdicts[i]; r.Code != 250 {
			t.Errorf("client %d is told %+v", i, r)
		}
	}
	// None is left: there is nothing to keep.
	w.relieve()
}

// A queue manager that takes the place of another one is told, before it hears that this is all, of what the other was told of
// before it was durable, and then it is durable, with what was done. The client hears 250.
func TestProvisionalNextQmgr(t *testing.T) {
	t.Parallel()
	w := newWaiting(t)
	id, verdict := w.submit(t, time.Hour)
	<-w.q.entries
	w.q.decide(t, proto.Op{ID: id, Change: queue.Change{Done: []int{1}}})
	if at, ok := w.waits.entryOf(id); !ok || at.NPending != 1 || len(at.Done) != 1 || at.Done[0] != 2 {
		t.Errorf("where it is: %v, %+v", ok, at)
	}
	next := attached(t, w.server)
	told := 0
	for len(next.entries) > 0 {
		e := <-next.entries
		if told++; e.ID != id || e.Provisional || e.NPending != 1 {
			t.Errorf("the next queue manager is told %+v", e)
		}
	}
	if told == 0 {
		t.Error("the next queue manager is told that this is all, and not of the message")
	}
	if r := <-verdict; r.Code != 250 {
		t.Errorf("the client is told %+v", r)
	}
	next.decide(t, proto.Op{ID: id, Remove: true, Finished: true})
	if err := next.client.Call(t.Context(), &proto.Lease{N: 1}, new(proto.LeaseReply)); err != nil {
		t.Fatal(err)
	}
	if n := len(next.entries); n > 0 {
		t.Errorf("%d times more it is told of what it has removed", n)
	}
}

// Without a queue manager nobody waits for deliveries: the message is queued as others are.
func TestProvisionalNobodyDelivers(t *testing.T) {
	t.Parallel()
	w := newWaiting(t)
	w.q.conn.Close()
	<-w.q.conn.Done()
	testwait.Until(t, "the queue manager is gone", func() bool { return w.attachedNow() == nil })
	id, verdict := w.submit(t, time.Hour)
	if r := <-verdict; r.Code != 250 {
		t.Errorf("the client is told %+v", r)
	}
	if _, ok := w.life.sp.Locate(id); !ok || len(w.engine.ended) > 0 {
		t.Errorf("it is in the log: %v; it was in the area: %v", ok, len(w.engine.ended) > 0)
	}
}

// A client whose message cannot be delivered hears what was said of its first recipient, without the code and the status that
// are those of its own reply.
func TestRefusalOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		diag, reason string
		status       dsn.Status
		want         string
	}{
		{"550 5.1.1 who?", "host x said: 550 5.1.1 who?", dsn.S(5, 1, 1), "550 5.1.1 who?"},
		{"550-5.1.1 who?", "", dsn.S(5, 1, 1), "550 5.1.1 who?"},
		{"550 5.1.2 who?", "", dsn.S(5, 1, 1), "550 5.1.1 5.1.2 who?"},
		{"552 too much", "", dsn.S(5, 2, 2), "550 5.2.2 too much"},
		{"550", "", dsn.S(5, 1, 1), "550 5.1.1 550"},
		{"5.1.1 who?", "", dsn.S(5, 1, 1), "550 5.1.1 5.1.1 who?"},
		{"450 4.2.1 later", "", dsn.S(4, 2, 1), "550 5.0.0 450 4.2.1 later"},
		{"", "unknown user", dsn.S(5, 1, 1), "550 5.1.1 unknown user"},
		{"550 5.1.1 ", "unknown user", dsn.S(5, 1, 1), "550 5.1.1 unknown user"},
		{"", "odd", dsn.Status{}, "550 5.0.0 odd"},
	} {
		r := refusalOf(&mail.Outcome{Action: dsn.Failed, Status: c.status, DiagText: c.diag, Reason: c.reason})
		if got := fmt.Sprint(r.Code, " ", r.Status, " ", r.Text); got != c.want {
			t.Errorf("%q, %q: %s, want %s", c.diag, c.reason, got, c.want)
		}
	}
}
