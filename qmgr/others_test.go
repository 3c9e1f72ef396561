package qmgr

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// A fakeCluster is the nodes that share a queue with the queue manager of a stage: their parts are in the stage's own spool.
type fakeCluster struct {
	storage.Reader
	list  []storage.Viewed
	asked chan storage.Call
	begun atomic.Int64                                                   // calls of Ask
	calls chan func(func(context.Context, storage.Call) ([]byte, error)) // what other nodes ask
	fails error                                                          // what Leave and Waits come to; nil: they succeed
	third string                                                         // who has part 3; "": there is none; "a" is this node
	moves func()                                                         // called when a part is looked at, which cannot be; nil: it can

	mu     sync.Mutex
	left   []storage.Order // by Leave
	orders []storage.Order // that wait for this node
}

func (f *fakeCluster) Leave(_ context.Context, list []storage.Order) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails != nil {
		return f.fails
	}
	f.left = append(f.left, list...)
	return nil
}

func (f *fakeCluster) Carry(ctx context.Context, parts func() ([]int, error), do func(context.Context, *storage.Order) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.orders) == 0 {
		return nil
	}
	own, err := parts()
	for i := 0; i < len(f.orders) && err == nil; {
		o := &f.orders[i]
		if o.Part != 0 && !slices.Contains(own, o.Part) {
			i++
			continue
		}
		if err = do(ctx, o); err == nil {
			f.orders = slices.Delete(f.orders, i, i+1)
		}
	}
	return err
}

func (f *fakeCluster) Waits(_ context.Context, part int) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.orders, func(o storage.Order) bool { return o.Part == part }), nil
}

// give leaves orders for this node, and waiting is how many of them wait.
func (f *fakeCluster) give(list ...storage.Order) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, list...)
}

func (f *fakeCluster) waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.orders)
}

func (f *fakeCluster) Parts() ([]storage.Part, error) {
	list := []storage.Part{{ID: 1, Node: "a", Own: true, Alive: true}, {ID: 2, Node: "b"}}
	if f.third != "" {
		list = append(list, storage.Part{ID: 3, Node: f.third, Own: f.third == "a", Alive: f.third == "a"})
	}
	return list, nil
}

func (f *fakeCluster) View(_ context.Context, part int, after, upto uint64, n int) (list []storage.Viewed, next uint64, err error) {
	if f.moves != nil {
		f.moves()
		return nil, 0, errors.New("the database does not answer")
	}
	for _, v := range f.list {
		if num := uint64(msgID(v.ID)); part >= 2 && num > after && (upto == 0 || num <= upto) {
			if len(list) == n {
				return list, uint64(msgID(list[n-1].ID)), nil
			}
			list = append(list, v)
		}
	}
	return list, 0, nil
}

func (f *fakeCluster) Nodes() ([]storage.Member, error) {
	return []storage.Member{{Name: "a", Own: true, Alive: true}, {Name: "b"}}, nil
}

func (f *fakeCluster) Ask(_ context.Context, node string, c storage.Call) ([]byte, error) {
	if node != "b" {
		return nil, storage.ErrNotCarriedOut("it does not answer")
	}
	f.begun.Add(1)
	f.asked <- c
	return (&proto.CommandReply{IDs: []mail.QueueID{"x"}}).Append(nil), nil
}

func (f *fakeCluster) Attend(ctx context.Context, answer func(context.Context, storage.Call) ([]byte, error), _ func(string, ...any)) {
	for {
		select {
		case call := <-f.calls:
			call(answer)
		case <-ctx.Done():
			return
		}
	}
}

// What other nodes have is listed page by page as it is on record, requests go to them and come from them, and who asked is in the log.
// What is no request of a tool goes neither way.
func TestOthers(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	mails := []queue.Name{queue.Deferred, queue.Hold, queue.Corrupt, queue.Incoming}
	f := &fakeCluster{asked: make(chan storage.Call, 1), calls: make(chan func(func(context.Context, storage.Call) ([]byte, error)))}
	for i, name := range mails {
		st.site.Fill(deferredMail(name, time.Duration(9-i)*time.Minute, "s@from.test", "450 later", "a@to.test"))
	}
	for _, e := range st.site.Entries() {
		f.list = append(f.list, storage.Viewed{Entry: e, InHand: e.Queue == queue.Incoming || e.Queue == queue.Hold})
	}
	slices.SortFunc(f.list, func(a, b storage.Viewed) int { return cmp.Compare(msgID(a.ID), msgID(b.ID)) })
	st.viewer = f
	st.run()
	st.waitAttached(1)
	queues := map[string]int{}
	for q := (proto.List{N: 1, Part: 2}); ; {
		var reply proto.ListReply
		if err := st.tool.Call(t.Context(), &q, &reply); err != nil {
			t.Fatal(err)
		}
		for _, it := range reply.Items {
			queues[it.Queue]++
			if it.Node != "b" || !it.Down || it.Sender != "s@from.test" || len(it.Recipients) != 1 || it.Recipients[0].Address != "a@to.test" {
				t.Errorf("%+v", it)
			}
		}
		if q.Cursor = reply.Next; q.Cursor == 0 {
			break
		}
	}
	if len(queues) != 3 || queues["deferred"] != 1 || queues["hold"] != 1 || queues["active"] != 1 {
		t.Errorf("%v", queues)
	}
	var nodes proto.NodesReply
	if err := st.tool.Call(t.Context(), &proto.Nodes{}, &nodes); err != nil || len(nodes.Parts) != 2 || !nodes.Parts[0].Own || !nodes.Parts[1].Down || len(nodes.Nodes) != 2 {
		t.Errorf("%+v, %v", nodes, err)
	}

	hold := &proto.Command{Verb: proto.VerbHold, ID: "4k9XSc0000z3"}
	var reply proto.ForwardReply
	if err := st.tool.Call(t.Context(), &proto.Forward{Node: "b", By: "ann", Asked: hold.Kind(), Payload: hold.Append(nil)}, &reply); err != nil || reply.Failed != "" {
		t.Fatal(reply, err)
	}
	if c := <-f.asked; c.By != "ann" || c.Kind != hold.Kind() || string(c.Payload) != string(hold.Append(nil)) {
		t.Errorf("%+v", c)
	}
	if err := st.tool.Call(t.Context(), &proto.Forward{Node: "c", Asked: hold.Kind(), Payload: hold.Append(nil)}, &reply); err != nil || reply.Failed != "" || len(f.left) != 0 { // it has nothing
		t.Error(reply, err)
	}
	if err := st.tool.Call(t.Context(), &proto.Gather{}, &proto.GatherReply{}); err == nil || !strings.Contains(err.Error(), "metrics_listen is empty") {
		t.Error(err)
	}
	inventory := &proto.Inventory{}
	var refused ipc.RemoteError
	if err := st.tool.Call(t.Context(), &proto.Forward{Node: "b", Asked: inventory.Kind()}, &reply); !errors.As(err, &refused) {
		t.Error(err)
	}

	answered := make(chan error, 2)
	f.calls <- func(answer func(context.Context, storage.Call) ([]byte, error)) {
		b, err := answer(t.Context(), storage.Call{From: "b", By: "bob", Kind: hold.Kind(), Payload: hold.Append(nil)})
		var reply proto.CommandReply
		if err == nil {
			err = reply.Decode(b)
		}
		answered <- err
		_, err = answer(t.Context(), storage.Call{From: "b", Kind: inventory.Kind()})
		answered <- err
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := <-answered; err == nil {
		t.Error("an inventory of another node was taken")
	}
	for _, want := range []string{"asked of node b by ann: hold 4k9XSc0000z3", "asked by node b for bob: hold 4k9XSc0000z3"} {
		if log := st.log.String(); !strings.Contains(log, want) {
			t.Errorf("the log has no %q:\n%s", want, log)
		}
	}
}

// Of a part that this node has just taken over a listing has what is not among its own messages yet; a message that is asked for is found
// in any case.
func TestUnreadPart(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{third: "a"}
	for i := range 3 {
		st.site.Fill(deferredMail(queue.Deferred, time.Duration(9-i)*time.Minute, "s@from.test", "450 later", "a@to.test"))
	}
	for _, e := range st.site.Entries() {
		f.list = append(f.list, storage.Viewed{Entry: e})
		st.queue.add(e)
	}
	slices.SortFunc(f.list, func(a, b storage.Viewed) int { return cmp.Compare(msgID(a.ID), msgID(b.ID)) })
	unread := f.list[2]
	created, number, _ := unread.ID.Parse() // it is one of ours
	unread.ID = mail.MakeQueueID(created, number+1000)
	f.list = append(f.list, unread)
	st.viewer, st.unread = f, []int{3}
	st.run()
	st.waitAttached(1)
	var nodes proto.NodesReply
	if err := st.tool.Call(t.Context(), &proto.Nodes{}, &nodes); err != nil || len(nodes.Parts) != 3 || nodes.Parts[0].Unread || nodes.Parts[1].Unread || !nodes.Parts[2].Unread {
		t.Errorf("%+v, %v", nodes, err)
	}
	var ids []mail.QueueID
	for q := (proto.List{N: 2, Part: 3, Brief: true}); ; {
		var reply proto.ListReply
		if err := st.tool.Call(t.Context(), &q, &reply); err != nil {
			t.Fatal(err)
		}
		for _, it := range reply.Items {
			ids = append(ids, it.ID)
		}
		if q.Cursor = reply.Next; q.Cursor == 0 {
			break
		}
	}
	if !slices.Equal(ids, []mail.QueueID{unread.ID}) {
		t.Errorf("%v, want %v", ids, unread.ID)
	}
	var one proto.ListReply
	if err := st.tool.Call(t.Context(), &proto.List{N: 1, Part: 3, Brief: true, ID: f.list[0].ID}, &one); err != nil || len(one.Items) != 1 {
		t.Errorf("%+v, %v", one, err)
	}
}

// However many flushes wait for a node that does not answer, what an operator asks of another one is asked.
func TestFlushesElsewhere(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{asked: make(chan storage.Call)}
	st.viewer = f
	st.run()
	st.waitAttached(1)
	flush, hold := &proto.Command{Verb: proto.VerbFlush, All: true}, &proto.Command{Verb: proto.VerbHold, ID: "4k9XSc0000z3"}
	var flushing sync.WaitGroup
	for range maxForwards + 1 {
		flushing.Go(func() {
			var reply proto.ForwardReply
			if err := st.tool.Call(t.Context(), &proto.Forward{Node: "b", Asked: flush.Kind(), Payload: flush.Append(nil)}, &reply); err != nil || reply.Failed != "" {
				t.Error(reply, err)
			}
		})
	}
	testwait.Until(t, "the flushes wait", func() bool { return f.begun.Load() == maxForwards })
	var reply proto.ForwardReply
	if err := st.tool.Call(t.Context(), &proto.Forward{Node: "c", Asked: hold.Kind(), Payload: hold.Append(nil)}, &reply); err != nil || reply.Failed != "" || len(f.left) != 0 { // it has nothing
		t.Error(reply, err)
	}
	for range maxForwards + 1 {
		<-f.asked
	}
	flushing.Wait()
}
