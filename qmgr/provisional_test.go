package qmgr

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// waitFor has cleanup announce a new message whose client waits, and returns its entry.
func (st *stage) waitFor(sender string, rcpts ...string) proto.Entry {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.number++
	env := mail.Envelope{Arrival: time.Now(), Sender: sender, Size: 100}
	env.ID = mail.MakeQueueID(env.Arrival, st.number)
	for _, r := range rcpts {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: r})
	}
	e := proto.Entry{Entry: queue.Entry{ID: env.ID, Ref: queue.Ref{Segno: 1, Length: 100}, Size: 100, NRcpt: len(rcpts), NPending: len(rcpts),
		Null: sender == ""}, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, env.Recipients), Provisional: true}
	st.cleanup.Push(&proto.Entries{List: []proto.Entry{e}})
	return e
}

// stored has cleanup say that a message is on stable storage now.
func (st *stage) stored(e proto.Entry) {
	st.mu.Lock()
	defer st.mu.Unlock()
	e.Provisional, e.Ref, e.Envelope, e.Recipients = false, queue.Ref{Segno: 9, Length: 100}, nil, nil
	st.queue.add(e.Entry)
	st.cleanup.Push(&proto.Entries{List: []proto.Entry{e}})
}

// isGone has cleanup say that it does not have a message.
func (st *stage) isGone(id mail.QueueID) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.cleanup.Push(&proto.Entries{Gone: []mail.QueueID{id}})
}

// wanted is how often cleanup was asked to keep a message.
func (st *stage) wanted(id mail.QueueID) (n int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := range st.ops {
		if st.ops[i].ID == id && st.ops[i].Keep {
			n++
		}
	}
	return n
}

func keeps(op *proto.Op) bool { return op.Keep }

// settled waits until the queue manager has nothing left to decide or record, which it learns of another message.
func (st *stage) settled(smtp *fakeAgent) {
	st.t.Helper()
	id := st.arrive("s@from.test", "last@last.test")
	o := smtp.next()
	if o.Envelope.ID != id {
		st.t.Fatalf("%s is ordered", o.Envelope.ID)
	}
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
}

// Of a message whose client waits, and that all get, nothing is wanted of cleanup but to hear so.
func TestProvisionalDelivered(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	e := st.waitFor("s@from.test", "a@one.test", "b@two.test")
	for range 2 {
		o := smtp.next()
		if o.Ref != e.Ref {
			t.Errorf("ordered at %+v, and it is at %+v", o.Ref, e.Ref)
		}
		o.answer("ok")
	}
	st.waitOp(e.ID, "its removal", func(op *proto.Op) bool { return op.Remove && op.Finished })
	if n := st.wanted(e.ID); n > 0 {
		t.Errorf("it is to be kept, %d times", n)
	}
	st.quiet()
}

// A message that cannot be tried at once is kept at once, and only once. Those that are tried are not.
func TestProvisionalWaits(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(st *stage){
		"the window is full":       func(st *stage) { st.main += "smtp_destination_concurrency_limit = 1\n" },
		"the active queue is full": func(st *stage) { st.main += "qmgr_message_active_limit = 1\n" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			set(st)
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			st.waitAttached(1)
			first := st.waitFor("s@from.test", "a@to.test")
			o := smtp.next()
			second := st.waitFor("s@from.test", "b@to.test")
			st.waitOp(second.ID, "the wish that it be kept", keeps)
			st.stored(second)
			o.answer("ok")
			st.waitOp(first.ID, "its removal", removed)
			o = smtp.next()
			if o.Envelope.ID != second.ID {
				t.Errorf("ordered: %s", o.Envelope.ID)
			}
			o.answer("ok")
			st.waitOp(second.ID, "its removal", removed)
			if st.wanted(first.ID) != 0 || st.wanted(second.ID) != 1 {
				t.Errorf("asked %d and %d times to keep them, want 0 and 1", st.wanted(first.ID), st.wanted(second.ID))
			}
			st.quiet()
		})
	}
}

// A message of which one recipient is tried and another waits is kept, although it is delivered meanwhile.
func TestProvisionalHalf(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_concurrency_limit = 1\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	busy := st.waitFor("s@from.test", "a@busy.test")
	held := smtp.next()
	e := st.waitFor("s@from.test", "b@busy.test", "c@free.test")
	o := smtp.next()
	if o.Nexthop != "free.test" {
		t.Fatalf("ordered for %s", o.Nexthop)
	}
	st.waitOp(e.ID, "the wish that it be kept", keeps)
	o.answer("ok")
	st.waitOp(e.ID, "who has it", func(op *proto.Op) bool { return slices.Equal(op.Done, []int{1}) })
	held.answer("ok")
	st.waitOp(busy.ID, "its removal", removed)
	o = smtp.next()
	o.answer("ok")
	st.waitOp(e.ID, "its removal", removed)
	st.quiet()
}

// The sender of a message that has failed is told when it is on stable storage, and not if it was refused to its client.
func TestProvisionalFailed(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	kept, gone := st.waitFor("s@from.test", "a@one.test", "b@two.test"), st.waitFor("s@from.test", "c@one.test")
	for range 3 {
		o := smtp.next()
		o.answer("fail")
	}
	for _, e := range []proto.Entry{kept, gone} {
		op := st.waitOp(e.ID, "the wish that it be kept, with what has failed", keeps)
		if len(op.Outcomes) != e.NRcpt || op.Outcomes[0].Action != dsn.Failed {
			t.Errorf("%s: told %+v", e.ID, op.Outcomes)
		}
	}
	st.isGone(gone.ID)
	st.until("it is forgotten", func() bool {
		st.mu.Unlock()
		defer st.mu.Lock()
		return st.explain(gone.ID) == ""
	})
	st.settled(smtp)
	st.mu.Lock()
	if len(st.notices) > 0 {
		t.Errorf("told of what is on no disk: %+v", st.notices)
	}
	st.mu.Unlock()
	st.stored(kept)
	st.until("the sender is told", func() bool { return len(st.notices) == 1 })
	st.waitOp(kept.ID, "its removal", removed)
}

// A message that is queued again is kept first; its copy takes the place of one that there is.
func TestProvisionalRequeued(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_concurrency_limit = 1\n")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	first := st.waitFor("s@from.test", "a@to.test")
	o := smtp.next()
	e := st.waitFor("s@from.test", "b@to.test")
	st.waitOp(e.ID, "the wish that it be kept", keeps)
	st.command(proto.Command{Verb: proto.VerbRequeue, ID: e.ID})
	o.answer("ok")
	st.waitOp(first.ID, "its removal", removed)
	if text := st.log.String(); strings.Contains(text, "requeued") {
		t.Errorf("it was queued again, and is on no disk:\n%s", text)
	}
	// What it is copied from is not there, so that cleanup is asked which of the two it has, and has the copy.
	st.stored(e)
	st.until("it is queued again", func() bool { return strings.Contains(st.log.String(), string(e.ID)+": requeued") })
}

// When cleanup goes away, what it has not kept may be gone with it. Nothing more is begun with it, until the next cleanup
// knows it or the queue was told without it.
func TestProvisionalCleanupDies(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]string{"told": "told", "asked for": "asked", "unknown": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "smtp_destination_concurrency_limit = 1\n")
			smtp := st.agent("smtp", proto.Inventory{})
			st.run()
			st.waitAttached(1)
			first := st.waitFor("s@from.test", "a@to.test")
			held := smtp.next()
			e := st.waitFor("s@from.test", "b@to.test")
			st.waitOp(e.ID, "the wish that it be kept", keeps)
			// The next cleanup says nothing of the queue before it is told to.
			told := make(chan struct{})
			st.mu.Lock()
			stored := e
			stored.Provisional = false
			switch known {
			case "told":
				st.entries = append(st.entries, stored)
				st.queue.add(stored.Entry)
			case "asked":
				stored.Queue = queue.Deferred
				st.queue.add(stored.Entry)
			}
			entries := &proto.Entries{List: slices.Clone(st.entries), Complete: true}
			var asked chan struct{} = make(chan struct{}, 10)
			st.stream = func(c *ipc.Conn) {
				asked <- struct{}{}
				<-told
				c.Push(entries)
			}
			st.cleanup.Close()
			st.mu.Unlock()
			<-asked
			held.answer("ok")
			// The place in the window is free, and the order must not be given: nobody knows whether there is a message.
			st.until("an order waits", func() bool {
				st.mu.Unlock()
				defer st.mu.Lock()
				waits := make(chan bool)
				st.srv.post(func() {
					m := st.srv.message(msgID(e.ID))
					waits <- m != nil && m.provision != nil && len(m.provision.after) > 0
				}, sched.Event{})
				return <-waits || len(smtp.orders) > 0
			})
			select {
			case o := <-smtp.orders:
				t.Errorf("ordered while nobody knows whether there is a message: %s", o.Envelope.ID)
			default:
			}
			close(told)
			if known == "" {
				st.until("they are forgotten", func() bool {
					st.mu.Unlock()
					defer st.mu.Lock()
					return st.explain(e.ID) == "" && st.explain(first.ID) == ""
				})
				st.mu.Lock()
				defer st.mu.Unlock()
				if len(smtp.orders) > 0 {
					t.Error("what is gone is ordered")
				}
				return
			}
			o := smtp.next()
			if o.Envelope.ID != e.ID {
				t.Errorf("ordered: %s", o.Envelope.ID)
			}
			o.answer("ok")
			st.waitOp(e.ID, "its removal", removed)
		})
	}
}

// A queue manager that ends has all kept: its successor hears of mail on stable storage only.
func TestProvisionalAtEnd(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.drain = patience
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	e := st.waitFor("s@from.test", "a@to.test")
	o := smtp.next()
	st.retire()
	st.waitOp(e.ID, "the wish that it be kept", keeps)
	if n := st.wanted(e.ID); n != 1 {
		t.Errorf("asked %d times", n)
	}
	o.answer("ok")
}
