package qmgr

import (
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

// What an agent goes on with when the queue manager ends: the successor hears of it, if there is one and the agent has said that it will speak to it.
// Everything else is on record as not due for a while, so that nothing is delivered twice. A successor waits for a fraction of a second, however
// long deliveries may take at a stop.
func TestLeave(t *testing.T) {
	t.Parallel()
	const drain = time.Hour
	for name, x := range map[string]struct {
		successor bool
		mute      bool // the agent does not answer
		dies      bool // instead of answering
		lost      bool // there is no place for the handover
		handed    bool // the successor is told
		takes     time.Duration
	}{
		"a stop":                      {takes: drain + recordTime},
		"a reload":                    {successor: true, handed: true, takes: settleTime},
		"a reload, the agent hangs":   {successor: true, mute: true, takes: settleTime + partTime + recordTime},
		"a reload, the agent dies":    {successor: true, dies: true, takes: settleTime + recordTime},
		"a reload, without a place":   {successor: true, lost: true, takes: settleTime + recordTime},
		"a stop, and the agent hangs": {mute: true, takes: drain + partTime + recordTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir, err := statedir.Open(t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				s, lines := still(t)
				s.ctx, s.stopping, s.opt.State, s.now = t.Context(), t.Context().Done(), dir, time.Now()
				near, far := net.Pipe()
				conn := ipc.NewConn(near, nil)
				agent := ipc.NewConn(far, func(c *ipc.Conn, r *ipc.Request) {
					switch {
					case r.Kind != proto.KindDetach:
						t.Errorf("the agent is told %d", r.Kind)
					case x.dies:
						c.Close()
					case !x.mute:
						r.Reply(&proto.RecordReply{})
					}
				})
				m := s.aMessage(2)
				d := &delivery{entry: 1, num: m.num, transport: "smtp", rcpts: []int{0, 1}, index: []int{0, 1}, sent: true, conn: conn, since: s.now}
				s.entries[1] = d
				m.active.rcpts[0].order, m.active.rcpts[1].order = d, d
				if x.lost {
					dir.Close()
				}
				begun := time.Now()
				s.leave(t.Context(), x.successor, drain)
				if took := time.Since(begun); took != x.takes {
					t.Errorf("it takes %v, not %v", took, x.takes)
				}
				conn.Close()
				agent.Wait()
				s.tasks.Wait()
				var running []proto.Delivery
				if !x.lost {
					h, err := findHandover(dir, time.Now())
					if err != nil || (h != nil) != x.successor {
						t.Fatalf("%+v, %v", h, err)
					}
					if h != nil {
						running = h.running
					}
					dir.Close()
				}
				if handed := len(running) == 1 && running[0].ID == m.id && slices.Equal(running[0].Index, []int{0, 1}) && running[0].Active.Equal(m.active.since); handed != x.handed || len(running) > 1 {
					t.Errorf("handed over: %+v", running)
				}
				aside := func(op proto.Op) bool {
					return op.ID == m.id && op.Set == queue.SetQueue|queue.SetNextAttempt && op.Queue == queue.Deferred && op.NextAttempt.After(time.Now())
				}
				if kept := len(s.log.ops) == 1 && aside(s.log.ops[0]); kept == x.handed || len(s.log.ops) > 1 {
					t.Errorf("recorded: %+v", s.log.ops)
				}
				if warned := strings.Contains(strings.Join(lines(), "\n"), "the next queue manager does not know what this one has learnt"); warned != x.lost {
					t.Errorf("the log: %q", lines())
				}
			})
		})
	}
}

// A flush that an operator has ordered is handed over for as many messages as can be recorded in the end, and once.
func TestHandOverBound(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	for i := range handOverLimit + 3 {
		num := sched.MsgID(i + 1)
		s.book.add(num, s.now, queue.Ref{}, 1, false, nil)
		s.sched.Take(s.now, &sched.Event{Kind: sched.EventQueued, ID: num, Arrival: sched.Arrival{Queue: sched.QueueDeferred, Created: s.now, Next: s.now.Add(time.Hour), Rcpts: 1}}, nil)
	}
	s.handOver()
	if len(s.log.ops) != 0 {
		t.Errorf("nothing was ordered, and %d changes are recorded", len(s.log.ops))
	}
	s.step(&sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeAll}, true)
	for range 2 {
		s.handOver()
		if len(s.log.ops) != handOverLimit {
			t.Fatalf("%d messages are handed over, not %d", len(s.log.ops), handOverLimit)
		}
	}
	if op := s.log.ops[0]; op.Set != queue.SetNextAttempt || !op.NextAttempt.Equal(s.now) {
		t.Errorf("recorded: %+v", op)
	}
}

// The loop wakes for each thing that has its time, and for the first of them.
func TestWake(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Server, time.Time){
		"a change to be sent": func(s *Server, at time.Time) {
			s.log.ops, s.log.conn, s.log.since = make([]proto.Op, 1), new(ipc.Conn), at.Add(-flushDelay)
		},
		"an end to be logged":        func(s *Server, at time.Time) { s.log.leaving = []farewell{{"a", at.Add(-farewellDelay)}} },
		"idle connections":           func(s *Server, at time.Time) { s.reap = at },
		"deliveries that hang":       func(s *Server, at time.Time) { s.watchAt = at },
		"agents that have to call":   func(s *Server, at time.Time) { s.expectAt = at },
		"the end of a rule":          func(s *Server, at time.Time) { s.rules.endAt = at },
		"terms to be asked about":    func(s *Server, at time.Time) { s.terms.again = at },
		"what is to be written soon": func(s *Server, at time.Time) { s.ahead = &ahead{used: true, at: at} },
	} {
		s, _ := still(t)
		if at := s.wake(); !at.IsZero() {
			t.Fatalf("it wakes at %v for nothing", at)
		}
		at := s.now.Add(time.Minute)
		if set(s, at); !s.wake().Equal(at) {
			t.Errorf("%s: it wakes at %v, not %v", name, s.wake(), at)
		}
		if s.rules.endAt.IsZero() {
			s.rules.endAt = at.Add(time.Second)
		} else {
			s.reap = at.Add(time.Second)
		}
		if !s.wake().Equal(at) {
			t.Errorf("%s, and something later: it wakes at %v, not %v", name, s.wake(), at)
		}
	}
}

// When a delivery is over that has kept its mail from being tried, what an agent says over a connection that is gone is of no use: nothing is begun
// for it while the process leaves.
func TestLostWhileLeaving(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	conn := new(ipc.Conn)
	a := &agentConn{s: s, transport: "smtp", conn: conn, ready: true, waiting: []*delivery{{entry: 1}}}
	s.leaving = true
	if a.lost(conn); a.dialing || a.conn != nil || a.ready || len(a.waiting) != 1 {
		t.Errorf("%+v", a)
	}
}

// Whether the queue is deep is told when it changes, of all mail that waits, and with a wide margin in between.
func TestDeep(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	var told []bool
	s.opt.Deep = func(deep bool) { told = append(told, deep) }
	var effects []sched.Effect
	take := func(ev sched.Event) { effects = s.sched.Take(s.now, &ev, effects[:0]) }
	n := 0
	upto := func(k int) {
		for ; n < k; n++ {
			take(sched.Event{Kind: sched.EventQueued, ID: sched.MsgID(n + 1), Arrival: sched.Arrival{Queue: []sched.Queue{sched.QueueHold, sched.QueueDeferred}[n%2], Created: s.now, Next: s.now.Add(time.Hour), Rcpts: 1}})
		}
		for ; n > k; n-- {
			take(sched.Event{Kind: sched.EventRemove, Scope: sched.ScopeMessage, ID: sched.MsgID(n)})
		}
		s.thrift()
	}
	for _, x := range []struct {
		n    int
		want []bool
	}{{deepQueue, nil}, {deepQueue + 1, []bool{true}}, {deepQueue, []bool{true}}, {deepQueue/2 + 1, []bool{true}}, {deepQueue / 2, []bool{true, false}}, {deepQueue/2 + 1, []bool{true, false}}} {
		if upto(x.n); !slices.Equal(told, x.want) {
			t.Fatalf("with %d messages: %v, want %v", x.n, told, x.want)
		}
	}
}

// A message that was written down as having reached a recipient is not delivered to that one again, and its sender hears of it, once, when the rest
// has been tried.
func TestSuccessOnRecord(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	m := many(2, "to.test")
	m.Queue, m.Attempts, m.Next = queue.Deferred, 1, time.Now()
	m.Envelope.Recipients[0].Notify = 1 // success
	m.Outcomes = said("ok", 0)
	id := st.fill(m)[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	if !slices.Equal(o.Index, []int{1}) {
		t.Errorf("ordered for %v", o.Index)
	}
	o.answer("ok")
	st.waitOp(id, "its removal", removed)
	st.mu.Lock()
	if len(st.notices) != 1 || st.notices[0].Notice != proto.NoticeSuccess || len(st.notices[0].Outcomes) != 1 || st.notices[0].Outcomes[0].Rcpt != 0 {
		t.Errorf("told: %+v", st.notices)
	}
	st.mu.Unlock()
	st.quiet()
}

// Agents see recipients in the order of their domains, those that have none last.
func TestRecipientOrder(t *testing.T) {
	t.Parallel()
	var list []loadedRcpt
	for _, addr := range []string{"postmaster", "b@b.test", "a@B.test", "x@a.test", "admin"} {
		list = append(list, loadedRcpt{rcpt: rcpt{resolved: addr}})
	}
	slices.SortStableFunc(list, compareRcpt)
	var got []string
	for i := range list {
		got = append(got, list[i].rcpt.resolved)
	}
	if want := []string{"x@a.test", "a@B.test", "b@b.test", "admin", "postmaster"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A provisional message for whose envelope there is no room takes a while: it is kept at once.
func TestProvisionalNoRoom(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.inlined = maxInline
	env := mail.Envelope{Sender: "s@from.test", Arrival: s.now}
	e := proto.Entry{Entry: queue.Entry{ID: mail.MakeQueueID(s.now, 5), NRcpt: 1, NPending: 1, Queue: queue.Incoming}, Envelope: env.Append(nil), Provisional: true}
	s.arrive(&e, nil, nil)
	if len(s.log.ops) != 1 || s.log.ops[0].ID != e.ID || !s.log.ops[0].Keep || !s.log.urgent || s.inlined != maxInline || s.messages[5] != nil {
		t.Errorf("recorded: %+v, at once: %v; %d octets of envelopes", s.log.ops, s.log.urgent, s.inlined)
	}
}

// An order that is given up is nobody's any more, and is not sent when what it has waited for ends.
func TestGivenUpForgotten(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(1)
	s.opt.Settings.DeliveryTime = time.Hour
	old, young := &delivery{entry: 1, num: m.num, transport: "smtp", rcpts: []int{0}, awaits: 1, since: s.now.Add(-time.Hour)}, &delivery{entry: 2, num: m.num, transport: "smtp", since: s.now}
	f := &former{id: m.id, rcpts: []int{0}, waiting: []*delivery{old, young}, release: func() {}}
	s.entries[1], s.entries[2], s.formers[m.num] = old, young, []*former{f}
	a := &agentConn{s: s, transport: "smtp", waiting: []*delivery{young, old}}
	s.agents["smtp"] = a
	s.giveUpOverdue()
	if !slices.Equal(f.waiting, []*delivery{young}) || !slices.Equal(a.waiting, []*delivery{young}) || s.entries[1] != nil || s.entries[2] != young {
		t.Errorf("%d wait for the former delivery, %d for the agent, %d are known", len(f.waiting), len(a.waiting), len(s.entries))
	}
	if !s.watchAt.Equal(s.now.Add(watchPeriod)) {
		t.Errorf("they are looked at again at %v", s.watchAt)
	}
}

// A change may have moved the record of a message: it is found where it lies now. What cleanup has refused of a message that is removed after all
// is nobody's business any more.
func TestAnsweredMoves(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(1)
	rest := s.book.add(9, s.now, queue.Ref{Segno: 1}, 1, false, nil)
	at := func(n uint64) queue.Ref { return queue.Ref{Segno: n, Length: 7} }
	s.log.refused = map[mail.QueueID]string{m.id: "no", "other": "no"}
	q := &request{ops: []proto.Op{{ID: m.id, Remove: true}}}
	s.log.unacked = []*request{q}
	s.log.gone[m.num] = departure{m.id, 1}
	s.log.answered(q, &proto.RecordReply{Entries: []queue.Entry{{ID: m.id, Ref: at(5)}, {ID: mail.MakeQueueID(s.now, 9), Ref: at(6)}}}, nil)
	if m.ref != at(5) || rest.ref() != at(6) {
		t.Errorf("they lie at %+v and %+v", m.ref, rest.ref())
	}
	if _, ok := s.log.refused[m.id]; ok || len(s.log.refused) != 1 || len(s.log.gone) != 0 || !s.away.look || !s.log.idle() {
		t.Errorf("refused: %v, removed: %v", s.log.refused, s.log.gone)
	}
}

// A question that was refused because cleanup said nothing is not answered later as well, and one that nobody waits for stays.
func TestAskedLate(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.opt.Patience, s.heard = time.Minute, s.now
	answered := ""
	s.asked = []*question{{new(ipc.Request), func() { answered += "a" }}, {nil, func() { answered += "b" }}, {new(ipc.Request), func() { answered += "c" }}}
	ctx := t.Context()
	s.ctx = ctx
	refused := s.asked[0]
	if s.late(refused); len(s.asked) != 3 {
		t.Error("it is refused while cleanup tells")
	}
	s.now = s.now.Add(time.Minute)
	s.late(refused)
	s.late(s.asked[0])
	s.queueTold()
	s.followUp(true)
	if answered != "bc" || len(s.asked) != 0 {
		t.Errorf("answered: %s, %d wait", answered, len(s.asked))
	}
}
