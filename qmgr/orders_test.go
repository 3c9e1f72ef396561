package qmgr

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
	"posthaste/internal/storage"
	"posthaste/internal/testwait"
)

// forwarded is what a tool is answered that has asked for something of another node.
func (st *stage) forwarded(node string, kind uint16, payload []byte) (reply proto.ForwardReply) {
	st.t.Helper()
	if err := st.tool.Call(st.t.Context(), &proto.Forward{Node: node, By: "ann", Asked: kind, Payload: payload}, &reply); err != nil {
		st.t.Fatal(err)
	}
	return reply
}

// queued is what cleanup has of a message; nil: it has none.
func (st *stage) queued(id mail.QueueID) *queue.Entry {
	st.mu.Lock()
	defer st.mu.Unlock()
	e := st.queue.find(uint64(msgID(id)))
	if e == nil {
		return nil
	}
	c := *e
	return &c
}

// What is asked of a node that does not answer becomes orders: with the queue IDs of what is meant at that moment, and corrupt mail by itself.
func TestOrdersLeft(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{third: "c"}
	names := []queue.Name{queue.Deferred, queue.Hold, queue.Corrupt}
	for i, name := range names {
		st.site.Fill(deferredMail(name, time.Duration(9-i)*time.Minute, name.String()+"@from.test", "450 later", "a@to.test"))
	}
	ids := map[queue.Name]mail.QueueID{}
	for _, e := range st.site.Entries() {
		f.list = append(f.list, storage.Viewed{Entry: e})
		ids[e.Queue] = e.ID
	}
	// The database lists them so; the spool in any order.
	slices.SortFunc(f.list, func(a, b storage.Viewed) int { return strings.Compare(string(a.ID), string(b.ID)) })
	st.viewer = f
	st.run()
	st.waitAttached(1)
	text := func(o *storage.Order) string {
		var q proto.Select
		if o.Kind != proto.KindSelect || q.Decode(o.Payload) != nil {
			return o.What
		}
		s := o.What
		for _, id := range q.IDs {
			s += " " + string(id)
		}
		if len(q.Where) > 0 {
			s += " " + strings.Join(q.Where[1:], " ")
		}
		return s
	}
	sel := func(verb proto.Verb, conditions ...string) []byte {
		where := selection.New(time.Now())
		for _, c := range conditions {
			name, value, _ := strings.Cut(c, "=")
			if err := where.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		return (&proto.Select{Verb: verb, Where: where.Encode()}).Append(nil)
	}
	d, h, c := string(ids[queue.Deferred]), string(ids[queue.Hold]), string(ids[queue.Corrupt])
	for _, test := range []struct {
		kind    uint16
		payload []byte
		want    string // the orders
		failed  string
	}{
		{proto.KindSelect, sel(proto.VerbHold), "hold 2 messages, the first of them " + d + " " + d + " " + h, ""},
		{proto.KindSelect, sel(proto.VerbRelease, "queue=hold", "sender=hold@from.test"), "release 1 messages, the first of them " + h + " " + h, ""},
		{proto.KindSelect, sel(proto.VerbDelete, "queue=hold", "queue=corrupt"), "delete 1 messages, the first of them " + h + " " + h + "|delete 1 messages, the first of them " + c + " " + c + " queue=corrupt", ""},
		{proto.KindSelect, sel(proto.VerbHold, "queue=corrupt"), "", ""},
		{proto.KindSelect, sel(proto.VerbDelete, "sender=nobody@from.test"), "", ""},
		{proto.KindSelect, sel(proto.VerbDelete, "nexthop=hub.test"), "", "where its mail goes, or what it waits for, is not known"},
		{proto.KindSelect, sel(0), "", "it does not answer"},
		{proto.KindCommand, (&proto.Command{Verb: proto.VerbExpire, ID: mail.QueueID(d)}).Append(nil), "expire " + d, ""},
		{proto.KindCommand, (&proto.Command{Verb: proto.VerbHold, ID: "4k9XSc0000zzz"}).Append(nil), "", ""},
		{proto.KindCommand, (&proto.Command{Verb: proto.VerbFlush, All: true}).Append(nil), "flush all mail", ""},
		{proto.KindOverride, (&proto.Override{Op: proto.OverridePut, Entry: proto.OverrideEntry{Of: "suspension", Target: "to.test"}}).Append(nil), "suspension of to.test begins", ""},
		{proto.KindOverride, (&proto.Override{Op: proto.OverrideList}).Append(nil), "", "it does not answer"},
	} {
		f.left = nil
		reply := st.forwarded("c", test.kind, test.payload)
		var got []string
		for i := range f.left {
			o := &f.left[i]
			got = append(got, text(o))
			if part := map[bool]int{true: 0, false: 3}[test.kind == proto.KindOverride]; o.Part != part || o.Node != "c" || o.By != "ann" || o.Open != strings.HasPrefix(o.What, "flush") {
				t.Errorf("%+v", o)
			}
		}
		if strings.Join(got, "|") != test.want || (reply.Ordered != "") != (test.want != "") || !strings.Contains(reply.Failed, test.failed) || (test.failed == "") != (reply.Failed == "") {
			t.Errorf("%+v: %q, want %q", reply, got, test.want)
		}
	}
}

// The bound on what one request may mean holds for all parts of a node together, and what is beyond it is refused as a whole.
func TestOrdersBound(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{third: "b"} // who has part 2 as well, with the same mail
	st.viewer = f
	st.run()
	now := time.Now()
	orders := func(n int) ([]storage.Order, error) {
		for len(f.list) < n {
			id := mail.MakeQueueID(now, uint64(len(f.list)+1))
			f.list = append(f.list, storage.Viewed{Entry: queue.Entry{ID: id, Queue: queue.Deferred, NRcpt: 1, NPending: 1}})
		}
		q := &proto.Select{Verb: proto.VerbHold}
		return st.srv.selectOrders(t.Context(), storage.Order{Call: storage.Call{Kind: proto.KindSelect, Payload: q.Append(nil)}, Node: "b"}, &places{parts: []int{2, 3}})
	}
	if list, err := orders(maxOrdered / 2); err != nil || len(list) != maxOrdered/proto.SelectIDs {
		t.Errorf("%d orders, %v", len(list), err)
	}
	if list, err := orders(maxOrdered/2 + 1); err == nil || !strings.Contains(err.Error(), "nothing is ordered") || list != nil {
		t.Errorf("%d orders, %v", len(list), err)
	}
}

// An order about one message goes to the part that has it, whichever of the node's it is.
func TestOrdersPart(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	id := mail.MakeQueueID(time.Unix(1800000000, 0), 1)
	// Part 1 has nothing.
	st.viewer = &fakeCluster{third: "b", list: []storage.Viewed{{Entry: queue.Entry{ID: id, Queue: queue.Deferred, NRcpt: 1, NPending: 1}}}}
	st.run()
	for verb, want := range map[proto.Verb][]int{proto.VerbHold: {2, 3}, proto.VerbFlush: {2, 3}} {
		q := &proto.Command{Verb: verb, ID: id}
		list, err := st.srv.commandOrders(t.Context(), storage.Order{Call: storage.Call{Kind: proto.KindCommand, Payload: q.Append(nil)}, Node: "b"}, &places{parts: []int{1, 2, 3}})
		var parts []int
		for i := range list {
			parts = append(parts, list[i].Part)
		}
		if err != nil || !slices.Equal(parts, want) {
			t.Errorf("%s: parts %d, want %d; %v", verbWords[verb], parts, want, err)
		}
	}
}

// Orders are carried out one after the other, before anything that is ordered later; one that is refused again and again is given up, and
// one for a part that was handed on meanwhile stays.
func TestOrdersCarried(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.steady = true
	ids := st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 later", "a@to.test"), deferredMail(queue.Corrupt, time.Minute, "s@from.test", "450 later", "a@to.test"))
	f := new(fakeCluster)
	st.viewer = f
	order := func(part int, kind uint16, payload []byte) storage.Order {
		return storage.Order{Call: storage.Call{From: "b", By: "bob", Kind: kind, Payload: payload}, Number: int64(kind), Part: part, What: "it"}
	}
	hold := order(1, proto.KindSelect, (&proto.Select{IDs: ids[:1], Verb: proto.VerbHold}).Append(nil))
	f.give(order(7, proto.KindCommand, nil), hold)
	st.run()
	st.waitAttached(1)
	// A command that comes first is carried out behind it all the same.
	var reply proto.CommandReply
	if err := st.tool.Call(t.Context(), &proto.Command{Verb: proto.VerbRelease, ID: ids[0]}, &reply); err != nil || len(reply.IDs) != 1 {
		t.Errorf("%+v, %v", reply, err)
	}
	if n := f.waiting(); n != 1 {
		t.Errorf("%d orders wait, one is for another node", n)
	}
	if e := st.queued(ids[0]); e == nil || e.Queue != queue.Deferred {
		t.Errorf("%+v", e)
	}

	f.give(order(1, proto.KindSelect, (&proto.Select{IDs: ids, Verb: proto.VerbDelete, Where: selection.Corrupt().Encode()}).Append(nil)))
	testwait.Until(t, "it is deleted", func() bool { return f.waiting() == 1 })
	if st.queued(ids[1]) != nil {
		t.Error("corrupt mail was not deleted")
	}
	if st.queued(ids[0]) == nil {
		t.Error("other mail was deleted")
	}
	f.give(order(1, proto.KindCommand, []byte("\xff")))
	testwait.Until(t, "it is given up", func() bool { return f.waiting() == 1 })
	if log := st.log.String(); !strings.Contains(log, "it: done to 1") || !strings.Contains(log, "by bob on node b: it: it is given up: qmgr: an order that changes nothing") {
		t.Errorf("the log: %s", log)
	}

	st.mu.Lock()
	st.steady = false // the part is handed on, and comes back, all the time
	st.mu.Unlock()
	f.give(hold)
	testwait.Until(t, "that is seen", func() bool {
		return strings.Contains(st.log.String(), "wait: part 1 of the queue was handed on meanwhile")
	})
	if n := f.waiting(); n != 2 {
		t.Errorf("%d orders wait", n)
	}
}

// What came of an order is in the log: to how many it was done, or that it was refused. What is not recorded, or cannot be read, is an error.
func TestCarriedText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind   uint16
		answer ipc.Message
		want   string
		err    string
	}{
		{proto.KindCommand, &proto.CommandReply{IDs: []mail.QueueID{"x"}}, "it: done", ""},
		{proto.KindCommand, &proto.CommandReply{Denied: "no such message"}, "it: refused: no such message", ""},
		{proto.KindSelect, &proto.SelectReply{IDs: []mail.QueueID{"x", "y"}}, "it: done to 2", ""},
		{proto.KindSelect, &proto.SelectReply{IDs: []mail.QueueID{"x"}, Failed: []string{"y: no", "z: no"}}, "it", "not all of it is recorded: y: no"},
		{proto.KindOverride, &proto.OverrideReply{}, "it: done", ""},
		{proto.KindOverride, &proto.OverrideReply{Refused: "too many"}, "it: refused: too many", ""},
		{proto.KindCommand, &rawMessage{octets: []byte{0xff}}, "it", "pack"},
		{proto.KindSelect, &rawMessage{octets: []byte{0xff}}, "it", "pack"},
		{proto.KindOverride, &rawMessage{octets: []byte{0xff}}, "it", "pack"},
	} {
		got, err := carriedText("it", c.kind, c.answer.Append(nil))
		if got != c.want || (err == nil) != (c.err == "") || err != nil && c.err != "pack" && err.Error() != c.err {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		if errors.Is(err, errUnrecorded) != strings.HasPrefix(c.err, "not all") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// An order whose mail is to be queued again is done when that mail has left the queue, each message of it, and not before.
func TestRequeuedAll(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.viewer = new(fakeCluster)
	ids := st.fill(deferredMail(queue.Hold, time.Minute, "s@from.test", "450 later", "a@to.test"), deferredMail(queue.Hold, time.Minute, "s@from.test", "450 later", "a@to.test"))
	st.run()
	st.waitAttached(1)
	of := func(kind uint16, m ipc.Message) *storage.Order {
		return &storage.Order{Call: storage.Call{Kind: kind, Payload: m.Append(nil)}}
	}
	all := func(present ...mail.QueueID) {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.located, st.locates = map[mail.QueueID]bool{}, 0
		for _, id := range present {
			st.located[id] = true
		}
	}
	some, one := of(proto.KindSelect, &proto.Select{IDs: ids, Verb: proto.VerbRequeue}), of(proto.KindCommand, &proto.Command{ID: ids[0], Verb: proto.VerbRequeue})
	for _, o := range []*storage.Order{some, one} {
		all()
		if err := st.srv.requeuedAll(t.Context(), o); err != nil || st.locates == 0 {
			t.Errorf("%v, asked %d times", err, st.locates)
		}
	}
	// What is done otherwise is not waited for, even if it is still there.
	all(ids...)
	for _, o := range []*storage.Order{of(proto.KindSelect, &proto.Select{IDs: ids, Verb: proto.VerbHold}), of(proto.KindCommand, &proto.Command{ID: ids[0], Verb: proto.VerbHold}),
		of(proto.KindSelect, &rawMessage{octets: []byte{0xff}}), of(proto.KindCommand, &rawMessage{octets: []byte{0xff}})} {
		if err := st.srv.requeuedAll(t.Context(), o); err != nil || st.locates != 0 {
			t.Errorf("%v, asked %d times", err, st.locates)
		}
	}
	// It leaves after a while: the last one, the only one.
	for o, left := range map[*storage.Order]mail.QueueID{some: ids[1], one: ids[0]} {
		all(left)
		done := make(chan error, 1)
		go func() { done <- st.srv.requeuedAll(t.Context(), o) }()
		st.until("it is asked for again", func() bool { return st.locates > 2 })
		select {
		case err := <-done:
			t.Errorf("it is in the queue: %v", err)
		default:
		}
		all()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	// What stays is refused for now.
	all(ids[0])
	var refused ipc.RemoteError
	if err := st.srv.requeuedAll(t.Context(), some); !errors.As(err, &refused) || !strings.Contains(err.Error(), string(ids[0])+" is still in the queue") || st.locates != requeueLooks+1 {
		t.Errorf("%v, asked %d times", err, st.locates)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := st.srv.requeuedAll(ended, some); err == nil {
		t.Error("nobody has answered, and it is done")
	}
}

// Nothing is ordered when it is not known what would be, or whether it can be kept; and who asked is told so.
func TestOrdersNotLeft(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	id := mail.MakeQueueID(time.Unix(1800000000, 0), 1)
	f := &fakeCluster{third: "b", list: []storage.Viewed{{Entry: queue.Entry{ID: id, Queue: queue.Deferred, NRcpt: 1, NPending: 1}}}}
	st.viewer = f
	st.run()
	st.waitAttached(1)
	ask := func(kind uint16, m ipc.Message) (*proto.ForwardReply, error) {
		return st.srv.leaveOrder(t.Context(), &proto.Forward{Node: "b", By: "ann", Asked: kind, Payload: m.Append(nil)}, "why", "hold it", false)
	}
	command, all := &proto.Command{Verb: proto.VerbHold, ID: id}, &proto.Select{Verb: proto.VerbHold}
	garbage := &rawMessage{octets: []byte{0xff}}
	for _, c := range []struct {
		kind uint16
		q    ipc.Message
	}{{proto.KindCommand, garbage}, {proto.KindSelect, garbage}, {proto.KindOverride, garbage}, {proto.KindList, garbage}, {proto.KindCommand, &proto.Command{Verb: proto.VerbHold}},
		{proto.KindSelect, &proto.Select{Verb: proto.VerbHold, Where: []string{"x"}}}} {
		if reply, err := ask(c.kind, c.q); err == nil || reply != nil {
			t.Errorf("%d %+v: %+v", c.kind, c.q, reply)
		}
	}
	f.fails = errors.New("the disk is full")
	for kind, q := range map[uint16]ipc.Message{proto.KindCommand: command, proto.KindSelect: all} {
		if reply, err := ask(kind, q); err == nil || reply != nil {
			t.Errorf("%+v", reply)
		}
	}
	f.fails, f.moves = nil, func() {}
	for kind, q := range map[uint16]ipc.Message{proto.KindCommand: command, proto.KindSelect: all} {
		if reply, err := ask(kind, q); err == nil || reply != nil {
			t.Errorf("%+v", reply)
		}
	}
	if len(f.left) != 0 {
		t.Errorf("%+v", f.left)
	}
	// And when all is well, in two parts, it says so.
	f.moves = nil
	reply, err := ask(proto.KindCommand, command)
	if want := "why. This is ordered: hold it, and 1 more such orders; it is carried out when another node has its part of the queue, or it is back"; err != nil || reply.Ordered != want || len(f.left) != 2 {
		t.Errorf("%+v, %v", reply, err)
	}
	f.left = nil
	reply, err = ask(proto.KindOverride, &proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Until: time.Unix(1900000000, 0)}})
	if want := "why. This is ordered: hold it; it is carried out when it is back"; err != nil || reply.Ordered != want || len(f.left) != 1 || f.left[0].Part != 0 || !f.left[0].Until.Equal(time.Unix(1900000000, 0)) {
		t.Errorf("%+v, %v, %+v", reply, err, f.left)
	}
	// Only a flush of a message that is nowhere is refused: the others have nothing to do.
	for want, q := range map[string]ipc.Message{noSuchMessage: &proto.Command{Verb: proto.VerbFlush, ID: "4k9XSc0000zzz"}, "": &proto.Command{Verb: proto.VerbHold, ID: "4k9XSc0000zzz"}} {
		reply, err := ask(proto.KindCommand, q)
		var c proto.CommandReply
		if err != nil || c.Decode(reply.Payload) != nil || c.Denied != want || reply.Ordered != "" {
			t.Errorf("%+v, %v: %+v, want %q", reply, err, c, want)
		}
	}
	none, _ := still(t)
	if reply, err := none.leaveOrder(t.Context(), &proto.Forward{Node: "b", Asked: proto.KindCommand, Payload: command.Append(nil)}, "why", "hold it", false); err == nil || reply != nil {
		t.Errorf("%+v", reply)
	}
}
