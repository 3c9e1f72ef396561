package qmgr

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
	"posthaste/internal/storage"
)

// leftOnly takes the orders that have been left, as the verbs and messages that they name.
func (f *fakeCluster) leftOnly(t *testing.T) (list []string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.left {
		o := &f.left[i]
		if o.Part != 3 || o.By != byHere || o.Open != strings.HasPrefix(o.What, "flush") {
			t.Errorf("%+v", o)
		}
		text := o.What
		var q proto.Select
		if o.Kind == proto.KindSelect && q.Decode(o.Payload) == nil {
			for _, id := range q.IDs {
				text += " " + string(id)
			}
		}
		list = append(list, text)
	}
	f.left = nil
	return list
}

// What another node has asked of mail that has not been read yet is ordered in the name of who asked it there, and the log says so.
func TestUnreadOrderedForOther(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{third: "a", calls: make(chan func(func(context.Context, storage.Call) ([]byte, error)))}
	st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 later", "a@to.test"))
	for _, e := range st.site.Entries() {
		created, number, _ := e.ID.Parse()
		e.ID = mail.MakeQueueID(created, number+1000)
		f.list = append(f.list, storage.Viewed{Entry: e})
	}
	far := f.list[0].ID
	st.viewer, st.unread, st.steady = f, []int{3}, true
	st.run()
	st.waitAttached(1)
	answered := make(chan error, 1)
	long := strings.Repeat("x", storage.CallBy) // with the node it is more than an order has room for
	for _, by := range []string{"bob", long} {
		f.calls <- func(answer func(context.Context, storage.Call) ([]byte, error)) {
			hold := &proto.Command{Verb: proto.VerbHold, ID: far}
			var reply proto.CommandReply
			b, err := answer(t.Context(), storage.Call{From: "b", By: by, Kind: hold.Kind(), Payload: hold.Append(nil)})
			if err == nil {
				err = reply.Decode(b)
			}
			if err == nil && reply.Ordered == "" {
				err = fmt.Errorf("it is not ordered: %+v", reply)
			}
			answered <- err
		}
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.left) != 2 || f.left[0].By != "node b for bob" || f.left[0].Open || f.left[1].By != ("node b for " + long)[:storage.CallBy] {
		t.Errorf("%+v", f.left)
	}
	if log := st.log.String(); !strings.Contains(log, "ordered by node b for bob of part 3 of the queue, which has not been read yet: hold "+string(far)) {
		t.Errorf("the log:\n%s", log)
	}
}

// Mail on hold that is returned with all mail, and has not been read yet, is released when that is carried out, as what has been read is.
func TestUnreadReturnedFromHold(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{third: "a"}
	st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 later", "a@to.test"))
	for _, e := range st.site.Entries() {
		created, number, _ := e.ID.Parse()
		for i, q := range []queue.Name{queue.Deferred, queue.Hold} {
			e.ID, e.Queue = mail.MakeQueueID(created, number+1000+uint64(i)), q
			f.list = append(f.list, storage.Viewed{Entry: e})
		}
	}
	st.viewer, st.unread, st.steady = f, []int{3}, true
	st.run()
	st.waitAttached(1)
	var reply proto.SelectReply
	if err := st.tool.Call(t.Context(), &proto.Select{Verb: proto.VerbExpire, Now: true}, &reply); err != nil {
		t.Fatal(err)
	}
	soft, held := string(f.list[0].ID), string(f.list[1].ID)
	want := []string{"expire 2 messages, the first of them " + soft + " " + soft + " " + held, "release 1 messages, the first of them " + held + " " + held}
	if got := f.leftOnly(t); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What is meant of mail that this node has taken over and not read yet is ordered, and what has been read of it is changed at once: one
// message, some, or all. While orders wait for the part, what has been read is ordered, too.
func TestUnreadOrdered(t *testing.T) {
	t.Parallel()
	st := newStage(t, "fast_flush_domains = flush.test\n")
	f := &fakeCluster{third: "a"}
	here := st.fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 later", "a@to.test"), deferredMail(queue.Hold, time.Minute, "s@from.test", "450 later", "a@to.test"))
	for _, e := range st.site.Entries() {
		f.list = append(f.list, storage.Viewed{Entry: e})
	}
	slices.SortFunc(f.list, func(a, b storage.Viewed) int { return cmp.Compare(msgID(a.ID), msgID(b.ID)) })
	far := f.list[0]
	created, number, _ := far.ID.Parse() // it is one of ours
	far.ID, far.Queue = mail.MakeQueueID(created, number+1000), queue.Deferred
	f.list = append(f.list, far)
	st.viewer, st.unread, st.steady = f, []int{3}, true
	st.run()
	st.waitAttached(1)
	other := mail.MakeQueueID(created, number+2000)
	one := func(verb proto.Verb, id mail.QueueID) []string {
		t.Helper()
		var reply proto.CommandReply
		if err := st.tool.Call(t.Context(), &proto.Command{Verb: verb, ID: id, All: id == ""}, &reply); err != nil || reply.Omitted != "" {
			t.Fatalf("%+v, %v", reply, err)
		}
		list := f.leftOnly(t)
		if (reply.Ordered != "") != (len(list) > 0) || verb != proto.VerbFlush && slices.Contains(here, id) != (len(reply.IDs) == 1) || reply.Denied != "" && id != other {
			t.Errorf("%+v", reply)
		}
		return list
	}
	expect := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	name := string(far.ID)
	expect("one that is here", one(proto.VerbHold, here[0]))
	expect("one that is not", one(proto.VerbHold, far.ID), "hold "+name)
	expect("none", one(proto.VerbHold, other))
	expect("a flush", one(proto.VerbFlush, far.ID), "flush "+name)
	expect("a flush of none", one(proto.VerbFlush, other))
	expect("a flush of all", one(proto.VerbFlush, ""), "flush all mail")
	var flush proto.CommandReply
	if err := st.tool.Call(t.Context(), &proto.Command{Verb: proto.VerbFlush, Site: "other.test"}, &flush); err != nil || flush.Denied == "" || len(f.leftOnly(t)) != 0 {
		t.Errorf("a flush of a site that has none: %+v, %v", flush, err)
	}
	all := func(q *proto.Select, conditions ...string) (reply proto.SelectReply, left []string) {
		t.Helper()
		where := selection.New(time.Now())
		for _, c := range conditions {
			name, value, _ := strings.Cut(c, "=")
			if err := where.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		q.Where = where.Encode()
		if err := st.tool.Call(t.Context(), q, &reply); err != nil {
			t.Fatal(err)
		}
		return reply, f.leftOnly(t)
	}
	reply, left := all(&proto.Select{Verb: proto.VerbRelease})
	if expect("all", left, "release 1 messages, the first of them "+name+" "+name); len(reply.IDs) != 2 || !strings.Contains(reply.Ordered, "part 3 of the queue has not been read yet. This is ordered: release 1 messages") {
		t.Errorf("%+v", reply)
	}
	reply, left = all(&proto.Select{Verb: proto.VerbHold, IDs: []mail.QueueID{here[1], far.ID}})
	if expect("some", left, "hold 1 messages, the first of them "+name+" "+name); !slices.Equal(reply.IDs, here[1:]) {
		t.Errorf("%+v", reply)
	}
	// Where mail goes that is not here is not known; what is here is changed all the same.
	reply, left = all(&proto.Select{Verb: proto.VerbHold}, "nexthop=nowhere.test")
	if expect("by next hop", left); reply.Ordered != "" || !strings.Contains(reply.Omitted, "part 3 of the queue has not been read yet, and nothing is ordered of it: where its mail goes") {
		t.Errorf("%+v", reply)
	}
	if reply, left = all(&proto.Select{}); len(left) != 0 || reply.Ordered != "" || reply.Omitted != "" || len(reply.IDs) != 2 {
		t.Errorf("a listing: %+v", reply)
	}
	f.give(storage.Order{Part: 3})
	reply, left = all(&proto.Select{Verb: proto.VerbDelete, IDs: here[:1]})
	if expect("while another order waits", left, "delete 1 messages, the first of them "+string(here[0])+" "+string(here[0])); !slices.Equal(reply.IDs, here[:1]) {
		t.Errorf("%+v", reply)
	}
}

// What is asked of a node that is down is ordered of the parts that it had when it was looked up, also when it has them no more.
func TestOrdersOfMovedParts(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	f := &fakeCluster{third: "a"} // who has just taken it over from c
	st.site.Fill(deferredMail(queue.Deferred, time.Minute, "s@from.test", "450 later", "a@to.test"))
	var id mail.QueueID
	for _, e := range st.site.Entries() {
		id = e.ID
		f.list = append(f.list, storage.Viewed{Entry: e})
	}
	st.viewer = f
	st.run()
	st.waitAttached(1)
	var reply proto.ForwardReply
	q := &proto.Forward{Node: "c", By: "ann", Asked: proto.KindCommand, Payload: (&proto.Command{Verb: proto.VerbHold, ID: id}).Append(nil), Parts: []int{3}}
	if err := st.tool.Call(t.Context(), q, &reply); err != nil || reply.Ordered == "" || len(f.left) != 1 || f.left[0].Part != 3 {
		t.Errorf("%+v, %v, %+v", reply, err, f.left)
	}
}
