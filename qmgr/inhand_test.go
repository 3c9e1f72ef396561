package qmgr

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/testwait"
)

// lostOf are the recipients of id that were recorded as lost deliveries.
func (st *stage) lostOf(id mail.QueueID) (rcpts []int) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := range st.ops {
		if op := &st.ops[i]; op.ID == id && op.Lost {
			rcpts = append(rcpts, op.Handed...)
		}
	}
	slices.Sort(rcpts)
	return rcpts
}

// callsEnd has the time that agents have to call be over, when a recipient of id waits for what is in hand. On a busy
// machine that time could be over before the message has been read.
func (st *stage) callsEnd(id mail.QueueID) {
	st.t.Helper()
	testwait.Until(st.t, "a recipient waits for what is in hand", func() (waits bool) {
		st.inLoop(func(s *Server) {
			for _, f := range s.formers[msgID(id)] {
				waits = waits || len(f.waiting) > 0
			}
			if waits {
				s.expectAt = s.now
			}
		})
		return waits
	})
}

// When a queue manager and an agent have died within moments, nobody calls and says that it has the
// delivery in hand. It is on record, so that it is named, and not made at once again. The other
// recipients do not wait.
func TestHandsNobodyClaims(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.callTime = time.Hour
	id := st.fill(many(3, "to.test"))[0]
	st.inHand = [][]proto.Hand{{{ID: id, Index: []int{1}, Relay: "mx.to.test", At: time.Now()}}}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	if !slices.Equal(o.Index, []int{0, 2}) {
		t.Errorf("ordered: %v", o.Index)
	}
	st.callsEnd(id)
	o.answer("ok", "ok")
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if got := st.lostOf(id); !slices.Equal(got, []int{1}) {
		t.Errorf("named: %v", got)
	}
	if text := st.log.String(); strings.Count(text, "in doubt") != 1 || !strings.Contains(text, "recipients number 1 may have it") {
		t.Errorf("logged:\n%s", text)
	}
	st.quiet()
}

// An agent that lives speaks of its deliveries in its own words: of more recipients than are on
// record, since some were refused before the record was made. Its word counts.
func TestHandsClaimed(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, x := range []struct {
		name string
		hand []proto.Hand
		inv  proto.Inventory
		then *proto.Inventory
	}{
		{"goes on", []proto.Hand{{Index: []int{1}, At: at}},
			proto.Inventory{Running: []proto.Delivery{{Index: []int{0, 1}}}},
			&proto.Inventory{Finished: []proto.Finished{{Reply: proto.DeliverReply{Outcomes: said("ok", 0, 1)}}}}},
		{"over", []proto.Hand{{Index: []int{1}, At: at}},
			proto.Inventory{Finished: []proto.Finished{{Reply: proto.DeliverReply{Outcomes: said("ok", 0, 1)}}}}, nil},
		{"two records", []proto.Hand{{Index: []int{1}, At: at}, {Index: []int{0}, At: at}},
			proto.Inventory{Running: []proto.Delivery{{Index: []int{0, 1}}}},
			&proto.Inventory{Finished: []proto.Finished{{Reply: proto.DeliverReply{Outcomes: said("ok", 0, 1)}}}}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			st := newStage(t, "")
			id := st.fill(many(3, "to.test"))[0]
			for i := range x.hand {
				x.hand[i].ID = id
			}
			for _, inv := range []*proto.Inventory{&x.inv, x.then} {
				for i := 0; inv != nil && i < len(inv.Running); i++ {
					inv.Running[i].ID = id
				}
				for i := 0; inv != nil && i < len(inv.Finished); i++ {
					inv.Finished[i].ID = id
				}
			}
			st.inHand = [][]proto.Hand{x.hand, nil}
			smtp := st.agent("smtp", x.inv)
			st.run()
			if x.then != nil {
				st.waitExplain(id, "being delivered")
				smtp.push(x.then)
			}
			o := smtp.next()
			if !slices.Equal(o.Index, []int{2}) {
				t.Errorf("ordered: %v", o.Index)
			}
			o.answer("ok")
			st.waitOp(id, "its removal", removed)
			if got := st.lostOf(id); len(got) > 0 {
				t.Errorf("named: %v", got)
			}
			st.quiet()
		})
	}
}

// What an agent tells of an earlier attempt is no word about the one that is on record.
func TestHandsEarlierAttempt(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.callTime = 10 * time.Second // in which the agent tells it, on a busy machine too
	id := st.fill(many(1, "to.test"))[0]
	st.inHand = [][]proto.Hand{{{ID: id, Index: []int{0}, At: time.Now()}}}
	before := said("defer", 0)
	before[0].When = time.Now().Add(-time.Minute)
	st.agent("smtp", proto.Inventory{Finished: []proto.Finished{{ID: id, Reply: proto.DeliverReply{Outcomes: before}}}})
	st.run()
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	if got := st.lostOf(id); !slices.Equal(got, []int{0}) {
		t.Errorf("named: %v", got)
	}
	st.quiet()
}

// An agent that had not called yet has begun to send after the first question, and has died with it.
// What this queue manager has ordered itself is not taken for that.
func TestHandsLater(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.callTime = 300 * time.Millisecond
	ids := st.fill(many(1, "to.test"), many(1, "to.test"))
	later := []proto.Hand{{ID: ids[0], Index: []int{0}}, {ID: ids[1], Index: []int{0}}}
	st.inHand, st.handsLater = [][]proto.Hand{nil, later}, make(chan struct{})
	st.routes["to.test"] = "smtp:to.test"
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	orders := map[mail.QueueID]order{}
	for range ids {
		o := smtp.next()
		orders[o.Envelope.ID] = o
	}
	first := orders[ids[0]]
	first.answer("defer")
	st.waitOp(ids[0], "its deferral", inQueue(queue.Deferred))
	close(st.handsLater)
	st.until("the deliveries of nobody are named", func() bool { return strings.Contains(st.log.String(), "in doubt") })
	if got := st.lostOf(ids[1]); len(got) > 0 {
		t.Errorf("named, though it is being delivered: %v", got)
	}
	second := orders[ids[1]]
	second.answer("ok")
	st.waitOp(ids[1], "its removal", removed)
	st.quiet()
}
