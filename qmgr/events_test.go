package qmgr

import (
	"slices"
	"testing"
	"time"

	"posthaste/internal/event/eventtest"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// A message that an operator deletes is not removed from the queue before the journal has the event of that.
func TestEventBeforeRecord(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	journal, events := eventtest.New(t, "qmgr", nil)
	st.events = events
	id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3,
		Recipients: []mail.Recipient{{Address: "a@to.test"}}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	if o.Attempt != 1 {
		t.Errorf("attempt %d", o.Attempt)
	}
	o.answer("defer")
	removals := func() (n int) {
		for i := range st.ops {
			if st.ops[i].ID == id && st.ops[i].Remove {
				n++
			}
		}
		return n
	}
	st.until("it is deferred", func() bool { return slices.ContainsFunc(st.ops, func(op proto.Op) bool { return op.ID == id }) })
	journal.Shut()
	done := make(chan []mail.QueueID, 1)
	go func() { done <- st.command(proto.Command{Verb: proto.VerbDelete, ID: id}) }()
	st.until("the event is told", func() bool { return slices.Contains(journal.Told(), "deleted "+string(id)) })
	time.Sleep(10 * flushDelay) // in which a queue manager that does not wait would record
	st.mu.Lock()
	n := removals()
	st.mu.Unlock()
	if n != 0 {
		t.Error("it is removed before the journal has the event")
	}
	journal.Open()
	<-done
	st.until("it is removed", func() bool { return removals() == 1 })
}

// The notice of a message that has waited too long is not asked for before the journal has the events of its
// recipients: the bounce service records what it reports. A notice that has to be made again tells the same.
func TestEventsOfExpiry(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	journal, events := eventtest.New(t, "qmgr", nil)
	st.events = events
	id := st.fill(faketest.Mail{Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now(), Sender: "s@from.test", Size: 3,
		Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}}}})[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	for answered := 0; answered < 2; {
		o := smtp.next()
		answered += len(o.Index)
		o.answer("defer", "defer")
	}
	st.until("it is deferred", func() bool { return slices.ContainsFunc(st.ops, func(op proto.Op) bool { return op.ID == id }) })
	journal.Shut()
	st.command(proto.Command{Verb: proto.VerbExpire, ID: id})
	st.command(proto.Command{Verb: proto.VerbFlush, ID: id})
	st.until("the events are told", func() bool {
		n := 0
		for _, e := range journal.Told() {
			if e == "expired "+string(id) {
				n++
			}
		}
		return n == 2
	})
	time.Sleep(10 * flushDelay) // in which a queue manager that does not wait would ask
	st.mu.Lock()
	n := len(st.notices)
	st.mu.Unlock()
	if n != 0 {
		t.Error("the notice is asked for before the journal has the events")
	}
	journal.Open()
	st.until("the notice is asked for", func() bool { return len(st.notices) == 1 && st.notices[0].Notice == proto.NoticeExpired })
}
