package qmgr

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
	"posthaste/internal/spooltool/faketest"
)

// deferredMail is a message that waits, with the reply to its last attempt.
func deferredMail(q queue.Name, age time.Duration, sender, reply string, rcpts ...string) faketest.Mail {
	m := faketest.Mail{Queue: q, Next: time.Now().Add(time.Hour), Attempts: 1, Content: "x\r\n",
		Envelope: mail.Envelope{Arrival: time.Now().Add(-age), Sender: sender, Size: 3}}
	for i, r := range rcpts {
		m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: r})
		m.Outcomes = append(m.Outcomes, mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: reply, Relay: "none", When: time.Now()})
	}
	return m
}

// selected has something done to what words select, page by page.
func (st *stage) selected(verb proto.Verb, words string) (ids []mail.QueueID) {
	st.t.Helper()
	return st.selectedAs(&proto.Select{Verb: verb, Items: verb == 0}, words)
}

// selectedBriefly is what words select, without a list of it.
func (st *stage) selectedBriefly(words string) []mail.QueueID {
	st.t.Helper()
	return st.selectedAs(new(proto.Select), words)
}

func (st *stage) selectedAs(q *proto.Select, words string) (ids []mail.QueueID) {
	st.t.Helper()
	where := selection.New(time.Now())
	for _, w := range strings.Fields(words) {
		name, value, _ := strings.Cut(w, "=")
		if err := where.Set(name, value); err != nil {
			st.t.Fatal(err)
		}
	}
	q.Where = where.Encode()
	for first := true; first || q.Cursor != 0; first = false {
		var reply proto.SelectReply
		if err := st.tool.Call(st.t.Context(), q, &reply); err != nil {
			st.t.Fatal(err)
		}
		if len(reply.Failed) > 0 || reply.Refused != "" || q.Items && len(reply.Items) != len(reply.IDs) {
			st.t.Errorf("%s: %+v", words, reply)
		}
		ids = append(ids, reply.IDs...)
		q.Cursor = reply.Next
	}
	return ids
}

// Mail is selected by what is in memory, in the spool, and by where it goes.
func TestSelect(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_recipient_limit = 1\n")
	st.routes["relayed.test"] = "relay:[hub.test]:25"
	ids := st.fill(
		deferredMail(queue.Deferred, time.Hour, "news@list.test", "450 greylisted", "a@one.test"),
		deferredMail(queue.Deferred, time.Minute, "", "452 full", "b@one.test", "c@relayed.test"),
		deferredMail(queue.Hold, time.Hour, "news@list.test", "", "d@relayed.test"))
	st.run()
	st.waitAttached(1)
	names := func(list []mail.QueueID) (s string) {
		for i, id := range ids {
			if slices.Contains(list, id) {
				s += fmt.Sprint(i)
			}
		}
		return s
	}
	for _, c := range []struct{ words, want string }{
		{"", "012"},
		{"sender=news@list.test", "02"},
		{"sender=<>", "1"},
		{"domain=one.test", "01"},
		{"domain=one.test all-recipients", "0"},
		{"recipient=@relayed.test queue=hold", "2"},
		{"transport=relay", "12"},
		{"nexthop=[hub.test]:25 reply=full", "1"},
		{"nexthop=one.test", "01"},
		{"reply=/4[56]0/", "0"},
		{"reply=greylisted domain=relayed.test", ""},
		{"larger=2 smaller=4", "012"},
		{"larger=3", ""},
	} {
		if got := names(st.selected(0, c.words)); got != c.want {
			t.Errorf("%s selects %q, not %q", c.words, got, c.want)
		}
	}
	if got := names(st.selected(proto.VerbHold, "nexthop=[hub.test]:25")); got != "1" {
		t.Errorf("put on hold: %q", got)
	}
	if got := names(st.selected(proto.VerbDelete, "queue=hold sender=<>")); got != "1" {
		t.Errorf("deleted: %q", got)
	}
	if got := names(st.selected(0, "")); got != "02" {
		t.Errorf("left: %q", got)
	}
	if got := st.selected(proto.VerbFlush, "sender=news@list.test queue=deferred"); names(got) != "0" {
		t.Errorf("flushed: %q", names(got))
	}
}

// What is done is done to exactly what was selected, over many pages, and what
// comes while it is done is left alone.
func TestSelectPages(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	const n = 3*listPage + 11
	var mails []faketest.Mail
	for i := range n {
		mails = append(mails, deferredMail(queue.Hold, time.Hour, fmt.Sprintf("s%d@from.test", i%2), "", "r@to.test"))
	}
	ids := st.fill(mails...)
	st.run()
	st.waitAttached(1)
	got := st.selected(proto.VerbDelete, "sender=s1@from.test")
	slices.Sort(got)
	if len(got) != n/2 || len(slices.Compact(got)) != n/2 {
		t.Fatalf("%d deleted, %d different ones, want %d", len(got), len(slices.Compact(got)), n/2)
	}
	for i, id := range ids {
		if slices.Contains(got, id) != (i%2 == 1) {
			t.Fatalf("message %d: deleted is %v", i, i%2 == 0)
		}
	}
	if left := st.selected(0, "queue=hold"); len(left) != n-n/2 {
		t.Errorf("%d left, want %d", len(left), n-n/2)
	}
	// Each answer waits until what was done is on stable storage: it is one for many pages.
	where := selection.New(time.Now())
	if err := where.Set("sender", "s0@from.test"); err != nil {
		t.Fatal(err)
	}
	var reply proto.SelectReply
	if err := st.tool.Call(t.Context(), &proto.Select{Where: where.Encode(), Verb: proto.VerbDelete}, &reply); err != nil {
		t.Fatal(err)
	}
	if len(reply.IDs) != n-n/2 || reply.Next != 0 {
		t.Errorf("%d deleted by one request, which ends at %d", len(reply.IDs), reply.Next)
	}
}

// A message that was judged as deferred and is on hold by the time something
// would be done to it is judged again.
func TestSelectChanging(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(deferredMail(queue.Deferred, time.Hour, "s@from.test", "450 x", "r@to.test"))
	gate := make(chan struct{})
	st.gate = gate
	st.run()
	st.waitAttached(1)
	result := make(chan []mail.QueueID, 1)
	go func() { result <- st.selected(proto.VerbDelete, "queue=deferred sender=s@from.test") }()
	st.until("the message is being read, for the survey and for the selection", func() bool { return st.reading > 1 })
	if got := st.command(proto.Command{Verb: proto.VerbHold, ID: ids[0]}); len(got) != 1 {
		t.Fatalf("put on hold: %v", got)
	}
	close(gate)
	if got := <-result; len(got) != 0 {
		t.Errorf("deleted: %v, which is not in the queue deferred", got)
	}
	if left := st.selected(0, "queue=hold"); !slices.Equal(left, ids) {
		t.Errorf("left: %v", left)
	}
}

// Messages are selected by their queue IDs, without any condition: those that are meant, and no others.
func TestSelectIDs(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	ids := st.fill(
		deferredMail(queue.Hold, time.Hour, "a@one.test", "", "x@to.test"),
		deferredMail(queue.Hold, time.Minute, "b@one.test", "", "x@to.test"),
		deferredMail(queue.Hold, 0, "c@one.test", "", "x@to.test"))
	st.run()
	st.waitAttached(1)
	for _, want := range [][]mail.QueueID{{ids[1]}, {ids[0], ids[2]}} {
		for _, verb := range []proto.Verb{0, proto.VerbRelease} {
			var reply proto.SelectReply
			if err := st.tool.Call(st.t.Context(), &proto.Select{IDs: append(want, "4jWn4F1YhnzSshsm4"), Verb: verb}, &reply); err != nil {
				t.Fatal(err)
			}
			slices.Sort(reply.IDs)
			slices.Sort(want)
			if !slices.Equal(reply.IDs, want) {
				t.Errorf("verb %d: %q, want %q", verb, reply.IDs, want)
			}
		}
	}
}
