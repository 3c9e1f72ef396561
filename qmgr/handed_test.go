package qmgr

import (
	"slices"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
)

func handed(op *proto.Op) bool { return len(op.Handed) > 0 && !op.Lost }

func lostOp(op *proto.Op) bool { return op.Lost }

// Deliveries of deferred mail that go on are recorded with the changes that go to cleanup anyhow;
// those of new mail are not, and neither is any when agents ask themselves.
func TestHandOut(t *testing.T) {
	t.Parallel()
	for _, exact := range []bool{false, true} {
		main := ""
		if exact {
			main = "spool_exact_doubt = yes\n"
		}
		st := newStage(t, main+"destination_recipient_limit = 10\n")
		smtp := st.agent("smtp", proto.Inventory{})
		due := time.Now().Add(-time.Minute)
		old := st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: due, Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now().Add(-time.Hour),
			Sender: "s@from.test", Size: 3, Recipients: []mail.Recipient{{Address: "a@old.test"}, {Address: "b@old.test"}}}})[0]
		st.run()
		st.waitAttached(1)
		late := smtp.next()
		if late.Envelope.ID != old || late.Exact != exact {
			t.Fatalf("%+v", late.Deliver)
		}
		fresh := st.arrive("s@from.test", "a@to.test")
		o := smtp.next()
		other := st.arrive("s@from.test", "b@third.test")
		smtp.next() // goes on
		o.answer("ok")
		end := st.waitOp(fresh, "its end", removed)
		if !end.Finished {
			t.Errorf("%+v", end)
		}
		if !exact {
			op := st.waitOp(old, "that it goes on", handed)
			if !slices.Equal(op.Handed, []int{0, 1}) || op.Nexthop != "old.test" || op.Changes() || op.Remove || len(op.Done) > 0 {
				t.Errorf("%+v", op)
			}
		}
		late.answer("ok", "defer")
		st.waitOp(old, "its deferral", inQueue(queue.Deferred))
		st.mu.Lock()
		for i := range st.ops {
			if op := &st.ops[i]; handed(op) && (exact || op.ID == fresh || op.ID == other) {
				t.Errorf("exact %v: recorded: %+v", exact, op)
			}
		}
		st.mu.Unlock()
	}
}

// A delivery whose agent ends in the middle of it is told to cleanup, before anything else of
// the message: it may have been made.
func TestLostIsTold(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	id := st.arrive("s@from.test", "a@to.test")
	smtp.next()
	smtp.stop()
	op := st.waitOp(id, "that it is lost", lostOp)
	if !slices.Equal(op.Handed, []int{0}) || op.Nexthop != "to.test" {
		t.Errorf("%+v", op)
	}
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	st.mu.Lock()
	defer st.mu.Unlock()
	lost := slices.IndexFunc(st.ops, func(op proto.Op) bool { return op.ID == id && op.Lost })
	deferred := slices.IndexFunc(st.ops, func(op proto.Op) bool { return op.ID == id && op.Set != 0 })
	if lost > deferred {
		t.Errorf("told after its deferral: %+v", st.ops)
	}
}

// Old outcomes of recipients that an agent has in hand are not recorded again: they would say that this
// delivery has failed.
func TestOutcomesInHand(t *testing.T) {
	t.Parallel()
	d := &delivery{sent: true}
	a := &active{outcomes: map[int]mail.Outcome{0: {Rcpt: 0}, 1: {Rcpt: 1}, 2: {Rcpt: 2}},
		rcpts: []*rcpt{{order: d}, {}, {order: &delivery{}}}}
	var got []int
	for _, o := range a.pendingOutcomes(&message{nrcpt: 3}) {
		got = append(got, o.Rcpt)
	}
	if !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v", got)
	}
}
