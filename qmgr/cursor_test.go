package qmgr

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/qmgr/sched"
)

// A cursor says all of a message number, whichever spool has given it, in the order of numbers, and is positive. One that a tool
// has made up is one, too.
func TestCursor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string) uint64 {
			return rapid.Uint64Range(0, 31).Draw(t, name+"'s spool")<<queue.SpoolShift | rapid.Uint64Range(1, 1<<heldShift-1).Draw(t, name)
		}
		a, b, list := number("a"), number("b"), held(rapid.IntRange(0, 2).Draw(t, "list"))
		at, bt := cursorOf(a, list), cursorOf(b, list)
		if got, of := fromCursor(at); got != a || of != list || at <= 0 || (a < b) != (at < bt) {
			t.Fatalf("%x of list %d: cursor %x is %x of list %d; %x: %x", a, list, at, got, of, b, bt)
		}
		fromCursor(rapid.Int().Draw(t, "made up"))
	})
	if c := cursorOf(0, heldToo); c != 0 {
		t.Errorf("the end is %x", c)
	}
}

// Where the queue is in several directories message numbers begin with that of the directory. Each list and count has each message
// once, and something is done to each, a page at a time.
func TestNumbersOfSpools(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	var mails []faketest.Mail
	for i := range 24 {
		m := deferredMail(queue.Deferred, time.Hour, "s@from.test", "450 no", fmt.Sprintf("r@d%d.test", i%3))
		if i%6 == 5 {
			m = deferredMail(queue.Hold, time.Hour, "s@from.test", "", fmt.Sprintf("r@d%d.test", i%3))
		}
		m.Bits = uint64([]int{0, 1, 15, 16, 31}[i%5]) << queue.SpoolShift
		mails = append(mails, m)
	}
	ids := st.fill(mails...)
	slices.SortFunc(ids, byID)
	st.queue.perPage = 4
	st.run()
	st.waitAttached(1)
	// pages calls ask until it returns 0, which it must some time.
	pages := func(what string, ask func(cursor int) int) {
		for cursor, n := ask(0), 0; cursor != 0; cursor = ask(cursor) {
			if n++; n > len(ids) {
				t.Fatalf("%s: there is no end", what)
			}
		}
	}
	ch := make(chan bool)
	st.until("all domains are known", func() bool {
		st.srv.post(func() { ch <- st.srv.told && st.srv.book.unknown == 0 }, sched.Event{})
		return <-ch
	})
	where := func(words ...string) []string { return append([]string{fmt.Sprint(time.Now().UnixMicro())}, words...) }
	for _, after := range []int{1, lookAfter} {
		st.srv.post(func() { st.srv.looks = lookSizes{after, 7, 7}; ch <- true }, sched.Event{})
		<-ch
		for _, q := range []proto.Select{{Where: where(), Items: true, Most: 3}, {Where: where("sender=@from.test"), Items: true, Most: 3}, {Where: where()}} {
			var got []mail.QueueID
			pages(fmt.Sprintf("%q", q.Where), func(cursor int) int {
				var reply proto.SelectReply
				if q.Cursor = cursor; st.tool.Call(t.Context(), &q, &reply) != nil {
					t.Fatal("no answer")
				}
				got = append(got, reply.IDs...)
				return reply.Next
			})
			if slices.SortFunc(got, byID); !slices.Equal(got, ids) {
				t.Errorf("%q, looked for after %d: %d messages are found, want %d", q.Where, after, len(got), len(ids))
			}
		}
	}
	for _, brief := range []bool{false, true} {
		var got []mail.QueueID
		pages("list", func(cursor int) int {
			var reply proto.ListReply
			if err := st.tool.Call(t.Context(), &proto.List{N: 3, Cursor: cursor, Brief: brief}, &reply); err != nil {
				t.Fatal(err)
			}
			for i := range reply.Items {
				got = append(got, reply.Items[i].ID)
			}
			return reply.Next
		})
		if !slices.Equal(got, ids) {
			t.Errorf("brief %v: %d messages are listed, want %d", brief, len(got), len(ids))
		}
	}
	if got := st.selected(proto.VerbDelete, "sender=@from.test"); len(got) != len(ids) {
		t.Errorf("%d messages are deleted, want %d", len(got), len(ids))
	}
}
