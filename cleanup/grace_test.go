package cleanup

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// Who waits waits for those who are in, those of earlier calls too, and for nobody who comes in later.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g grace
		waits := func(ctx context.Context) (over chan struct{}) {
			over = make(chan struct{})
			go func() {
				g.wait(ctx)
				close(over)
			}()
			synctest.Wait()
			return over
		}
		isOver := func(over chan struct{}) bool {
			synctest.Wait()
			select {
			case <-over:
				return true
			default:
				return false
			}
		}
		if !isOver(waits(t.Context())) {
			t.Error("it waits for nobody")
		}
		a, b := g.enter(), g.enter()
		first := waits(t.Context())
		later := g.enter()
		g.leave(a)
		if isOver(first) {
			t.Error("it does not wait for the second one")
		}
		ctx, cancel := context.WithCancel(t.Context())
		given := waits(ctx)
		cancel()
		if !isOver(given) {
			t.Error("the end of its context does not end the wait")
		}
		second := waits(t.Context())
		g.leave(later)
		if isOver(second) {
			t.Error("it does not wait for who was in before the first call")
		}
		g.leave(b)
		if !isOver(first) || !isOver(second) {
			t.Error("all have left")
		}
		if g.now.before != nil && g.now.before.before != nil {
			t.Error("periods that are over are kept")
		}
	})
}

// A slowCommit is an engine whose caller hears late that its message is durable, as on a machine that is busy. What has no
// content is not slow.
type slowCommit struct {
	logEngine
	durable, until chan struct{}
}

func (e slowCommit) Commit(b storage.Batch) error {
	err := e.logEngine.Commit(b)
	if _, ok := b.Entry(0); ok {
		e.durable <- struct{}{}
		<-e.until
	}
	return err
}

// A queue manager that attaches while a message is queued is told of it before it hears that it has been told all of the
// queue, however late whoever queued the message comes to run. It remembers until then what it removes: later it would
// take the message for a new one, and have it delivered again.
func TestAnnouncedBeforeComplete(t *testing.T) {
	t.Parallel()
	sp := openProvisional(t, vfs.NewMem(4096))
	engine := slowCommit{logEngine{Spool: sp}, make(chan struct{}), make(chan struct{})}
	s := serveProvisional(t, engine)
	id, submitted := slowly(t, s, engine)
	q := attaching(t, s)
	if e := <-q.entries; e.ID != id {
		t.Errorf("the queue manager is told %+v", e)
	}
	q.decide(t, proto.Op{ID: id, Remove: true, Finished: true})
	select {
	case <-q.complete:
		t.Error("the queue manager is told that this is all, and will be told of the message again")
	default:
	}
	close(engine.until)
	if e := <-q.entries; e.ID != id {
		t.Errorf("the queue manager is told %+v", e)
	}
	<-q.complete
	if err := <-submitted; err != nil {
		t.Error(err)
	}
}

// A cleanup that ends while a message is queued waits for nobody, and does not say that it has told all.
func TestNotCompleteAtTheEnd(t *testing.T) {
	t.Parallel()
	engine := slowCommit{logEngine{Spool: openProvisional(t, vfs.NewMem(4096))}, make(chan struct{}), make(chan struct{})}
	s := serveProvisional(t, engine)
	ctx, stop := context.WithCancel(t.Context())
	s.ctx = ctx
	id, submitted := slowly(t, s, engine)
	client, told := toldTo(t, s)
	attached := make(chan error, 1)
	go func() { attached <- client.Call(t.Context(), &proto.Attach{}, new(proto.RecordReply)) }()
	if e := <-told; len(e.List) != 1 || e.List[0].ID != id || e.Complete {
		t.Errorf("the queue manager is told %+v", e)
	}
	stop()
	if err := <-attached; err == nil {
		t.Error("the queue manager hears that it has been told all")
	}
	close(engine.until)
	if e := <-told; len(e.List) != 1 || e.List[0].ID != id || e.Complete {
		t.Errorf("the queue manager is told %+v", e)
	}
	if err := <-submitted; err != nil {
		t.Error(err)
	}
}

// slowly submits a message, which is durable when slowly returns, and of which who queues it does not know that yet.
func slowly(t *testing.T, s *server, engine slowCommit) (id mail.QueueID, submitted chan error) {
	t.Helper()
	submitter := served(t, s)
	number, err := engine.Lease(1)
	if err != nil {
		t.Fatal(err)
	}
	id, submitted = mail.MakeQueueID(time.Unix(1800000000, 0), number), make(chan error, 1)
	go func() {
		var r proto.SubmitReply
		submitted <- submitter.Call(t.Context(), &proto.Submit{Envelope: mail.Envelope{ID: id, Sender: "s@from.test",
			Recipients: []mail.Recipient{{Address: "a@to.test"}}}, Content: []byte("Subject: x\r\n\r\nx\r\n")}, &r)
	}()
	<-engine.durable
	return id, submitted
}
