// Deliveries that a former queue manager ordered and that go on after a reload or a
// crash. The rule that all of this serves: while somebody delivers to a recipient, nobody
// else gets an order for it. Without it, each reload would send some mail twice.

package qmgr

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// heardOf takes in what an agent says over conn of deliveries that a former queue manager
// ordered. With all, it is the whole of what the agent has, and may name deliveries that
// are not known here; otherwise it is what came of those.
func (s *Server) heardOf(conn *ipc.Conn, inv *proto.Inventory, all bool) {
	if all {
		for i := range inv.Running {
			s.recognise(inv.Running[i].ID, inv.Running[i].Index, s.now)
			s.goesOn(conn, &inv.Running[i])
		}
	}
	for i := range inv.Finished {
		f := &inv.Finished[i]
		rcpts, when := spokenOf(f)
		s.recognise(f.ID, rcpts, when)
		if s.endFormer(f) || all {
			s.finished(f)
		} else {
			s.opt.Log.Warning("%s: a delivery agent reports a delivery that is not known", printableID(f.ID))
		}
	}
}

// spokenOf are the recipients of which an agent says what has come, and when the last of it came.
func spokenOf(f *proto.Finished) (rcpts []int, when time.Time) {
	for i := range f.Reply.Outcomes {
		o := &f.Reply.Outcomes[i]
		if rcpts = append(rcpts, o.Rcpt); o.When.After(when) {
			when = o.When
		}
	}
	return rcpts, when
}

// printableID is an ID that another process names, fit for the log: anything that is not
// a queue ID becomes "?".
func printableID(id mail.QueueID) mail.QueueID {
	if _, _, err := id.Parse(); err != nil {
		return "?"
	}
	return id
}

// goesOn notes a former delivery. If it is known already, from the handover or over an
// older connection, its outcome is expected over conn from now on.
func (s *Server) goesOn(conn *ipc.Conn, r *proto.Delivery) {
	num := msgID(r.ID)
	m := s.message(num)
	if m != nil && (m.id != r.ID || !m.has(r.Index)) {
		return
	}
	list := s.formers[num]
	if i := slices.IndexFunc(list, func(f *former) bool { return slices.Equal(f.rcpts, r.Index) }); i >= 0 {
		list[i].release()
		list[i].conn, list[i].release, list[i].active = conn, conn.Keep(), r.Active
	} else {
		s.formers[num] = append(list, &former{id: r.ID, rcpts: r.Index, active: r.Active, conn: conn, release: conn.Keep()})
	}
	// The message may be one that need not be in memory, or be gone, or have no number at all:
	// then this is called at once, and the former delivery must be there already.
	if m == nil {
		s.summon([]sched.MsgID{num}, func() { s.verifyFormers(num) })
	}
}

// verifyFormers forgets the former deliveries of a message that does not exist, or that
// does not have such recipients: an agent's word is checked before mail waits for it.
func (s *Server) verifyFormers(num sched.MsgID) {
	m := s.message(num)
	for i := len(s.formers[num]) - 1; i >= 0; i-- {
		if f := s.formers[num][i]; m == nil || m.id != f.id || !m.has(f.rcpts) {
			s.over(num, i)
		}
	}
}

// has says whether rcpts can be recipients of m.
func (m *message) has(rcpts []int) bool {
	return !slices.ContainsFunc(rcpts, func(i int) bool { return i < 0 || i >= int(m.nrcpt) })
}

// setApart keeps the recipients of former deliveries out of requests with others, so that
// only they wait. If a former delivery becomes known only after the load, because a queue
// manager died and left no handover, a request waits as a whole.
func (s *Server) setApart(l *loading) {
	list := s.formers[l.num]
	if len(list) == 0 {
		return
	}
	for i := range l.rcpts {
		r := &l.rcpts[i]
		f := slices.IndexFunc(list, func(f *former) bool { return slices.Contains(f.rcpts, r.Index) })
		r.Apart = uint32(f + 1)
	}
	slices.SortStableFunc(l.rcpts, func(a, b loadedRcpt) int {
		return cmp.Or(strings.Compare(string(a.Transport), string(b.Transport)), strings.Compare(a.Queue, b.Queue), cmp.Compare(a.Apart, b.Apart))
	})
}

// await notes the former deliveries that d must wait for, and says whether there are any.
func (s *Server) await(m *message, d *delivery) bool {
	for _, f := range s.formers[m.num] {
		if slices.ContainsFunc(d.rcpts, func(i int) bool { return slices.Contains(f.rcpts, i) }) {
			f.waiting = append(f.waiting, d)
			d.awaits++
		}
	}
	return d.awaits > 0
}

// awaited says whether the outcome of a former delivery is expected over conn.
func (s *Server) awaited(conn *ipc.Conn) bool {
	for _, list := range s.formers {
		if slices.ContainsFunc(list, func(f *former) bool { return f.conn == conn }) {
			return true
		}
	}
	return false
}

// endFormer takes note that a former delivery has ended, and says whether it was known.
// Orders of ours that waited for it get its outcomes before finished does: finished marks
// recipients as done, and an order that found them done would not learn what came of
// them.
func (s *Server) endFormer(fin *proto.Finished) bool {
	num := msgID(fin.ID)
	list := s.formers[num]
	i := slices.IndexFunc(list, func(f *former) bool {
		return f.id == fin.ID && !f.onRecord && f.is(fin.Active) && len(fin.Reply.Outcomes) > 0 && slices.Contains(f.rcpts, fin.Reply.Outcomes[0].Rcpt)
	})
	if i < 0 {
		return false
	}
	f := list[i]
	fin.Reply.Outcomes = slices.DeleteFunc(fin.Reply.Outcomes, func(o mail.Outcome) bool { return !slices.Contains(f.rcpts, o.Rcpt) })
	s.over(num, i)
	for _, d := range f.waiting {
		for _, o := range fin.Reply.Outcomes {
			if slices.Contains(d.rcpts, o.Rcpt) && !about(&d.reply, o.Rcpt) {
				d.reply.Outcomes = append(d.reply.Outcomes, o)
			}
		}
		// What is known of the destination counts for the order that waited.
		if d.reply.SiteStatus.IsZero() {
			d.reply.SiteStatus, d.reply.SiteReason, d.reply.SitePartly = fin.Reply.SiteStatus, fin.Reply.SiteReason, fin.Reply.SitePartly
		}
		s.goOn(d)
	}
	// What somebody has waited for is judged there.
	fin.Reply.Outcomes = slices.DeleteFunc(fin.Reply.Outcomes, func(o mail.Outcome) bool {
		return slices.ContainsFunc(f.waiting, func(d *delivery) bool { return slices.Contains(d.rcpts, o.Rcpt) })
	})
	return true
}

// is says whether f is the attempt that was begun when the message was taken up at that time. An
// outcome of an earlier one must not end it: the agent still delivers.
func (f *former) is(active time.Time) bool {
	return f.active.IsZero() || active.IsZero() || f.active.Equal(active)
}

// over drops former delivery i of a message.
func (s *Server) over(num sched.MsgID, i int) {
	f := s.formers[num][i]
	f.release()
	if list := slices.Delete(s.formers[num], i, i+1); len(list) > 0 {
		s.formers[num] = list
	} else {
		delete(s.formers, num)
	}
	for _, ev := range f.after {
		s.operate(ev)
	}
}

// goOn sends d when nothing is left that it waits for.
func (s *Server) goOn(d *delivery) {
	if d.awaits--; d.awaits > 0 || s.entries[d.entry] != d {
		return
	}
	if m := s.messages[d.num]; m != nil && m.active != nil {
		s.order(m, d)
	}
}

// silent gives up the former deliveries whose outcome was expected over conn, which is
// gone; nil stands for agents that should have called and have not. What came of them
// will be told by another way, or nobody knows. Orders that waited for them end as lost,
// so that nothing is tried at once that may just have been delivered.
func (s *Server) silent(conn *ipc.Conn) {
	if s.leaving {
		return // it will be told to our successor
	}
	named := make(map[handKey]bool)
	var lost []*delivery
	for _, num := range slices.Sorted(maps.Keys(s.formers)) {
		list := s.formers[num]
		for i := len(list) - 1; i >= 0; i-- {
			if f := list[i]; f.conn == conn {
				lost = append(lost, f.waiting...)
				for _, r := range f.rcpts {
					named[handKey{num, r}] = true
				}
				s.over(num, i)
				s.summon([]sched.MsgID{num}, func() { s.inDoubt(num, f) })
			}
		}
	}
	for _, d := range lost {
		switch {
		case s.entries[d.entry] != d:
		case len(d.reply.Outcomes) > 0: // of the others nothing has been said
			s.completed(d, &d.reply, nil)
		default:
			s.lose(d)
		}
	}
	if conn == nil && s.lookAgain {
		s.lookAgain = false
		s.lookForHands(named)
	}
}

// inDoubt names a former delivery of which nobody will say any more what came of it: in the
// log, and in the list of what may have arrived twice. Its message is in memory now if there
// is one.
func (s *Server) inDoubt(num sched.MsgID, f *former) {
	m := s.message(num)
	if m == nil || m.id != f.id || !m.has(f.rcpts) {
		return // an agent has made it up, or it is over
	}
	d := &delivery{num: num, index: slices.DeleteFunc(slices.Clone(f.rcpts), m.isDone)}
	if len(d.index) == 0 {
		return
	}
	if d.nexthop = mail.Nexthop(f.nexthop); len(f.waiting) > 0 {
		d.nexthop = f.waiting[0].nexthop
	}
	s.opt.Log.Warning("%s: in doubt: the delivery agent has not said what came of a delivery that the previous queue manager ordered: recipients number %s may have it, and may get it again",
		m.id, recipientNumbers(d.index))
	s.log.lost(d)
}

// recipientNumbers names recipients in the log. A line must not grow with a mailing list.
func recipientNumbers(rcpts []int) string {
	return strings.Trim(fmt.Sprint(rcpts[:min(len(rcpts), maxNamed)]), "[]")
}

// about says whether r has an outcome of recipient i.
func about(r *proto.DeliverReply, i int) bool {
	return slices.ContainsFunc(r.Outcomes, func(o mail.Outcome) bool { return o.Rcpt == i })
}

// finished takes in the outcome of a former delivery that no order waits for: the message
// lies in the book, or these recipients' turn has not come. Recipients that have the
// message are marked, so that they do not get it again.
func (s *Server) finished(f *proto.Finished) {
	m := s.message(msgID(f.ID))
	if num := msgID(f.ID); m == nil && num != 0 { // cleanup has not come to it, or it need not be in memory
		s.early[num] = append(s.early[num], f)
		s.summon([]sched.MsgID{num}, func() { delete(s.early, num) })
		return
	}
	if m == nil || m.id != f.ID {
		return
	}
	// A failure is not taken over: the recipient is tried again, which finds out whether
	// it still fails. Not so that of a recipient that was expanded: some of its members have
	// the message.
	arrived, later := false, false
	for _, o := range f.Reply.Outcomes {
		switch {
		case !m.has([]int{o.Rcpt}) || m.isDone(o.Rcpt) || s.ordered(m.num, o.Rcpt):
		case o.Action == dsn.Delivered || o.Action == dsn.Relayed || o.Action == dsn.Expanded:
			m.setDone(o.Rcpt)
			arrived = true
			if o.Passed {
				s.log.done(m, []int{o.Rcpt})
				break
			}
			// The bounce service knows whether the sender is to be told.
			s.log.update(m, proto.Op{Change: queue.Change{Outcomes: []mail.Outcome{o}}})
			if m.active != nil {
				m.active.success = append(m.active.success, o)
			}
		case o.Action == dsn.Failed && len(o.Parts) > 0:
			s.verdicts[m.num] = append(s.verdicts[m.num], o)
			arrived = true
		default:
			later = true
		}
	}
	if !arrived {
		return
	}
	if s.messages[m.num] == nil {
		s.rest(m) // it lies in the book, with fewer recipients now
		if !later {
			// It has waited for this: what is left of it is to be tried, or nothing is.
			s.then(sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeMessage, ID: m.num})
		}
	}
}

// applyVerdicts gives an order the verdicts on its recipients that a former delivery has come to.
// From here on they are treated as if an agent had just answered with them.
func (s *Server) applyVerdicts(d *delivery) {
	if len(s.verdicts) == 0 {
		return
	}
	list := slices.DeleteFunc(s.verdicts[d.num], func(o mail.Outcome) bool {
		mine := slices.Contains(d.rcpts, o.Rcpt)
		if mine && !about(&d.reply, o.Rcpt) {
			d.reply.Outcomes = append(d.reply.Outcomes, o)
		}
		return mine
	})
	if len(list) > 0 {
		s.verdicts[d.num] = list
	} else {
		delete(s.verdicts, d.num)
	}
}

// ordered says whether an agent has an order of this process for the recipient.
func (s *Server) ordered(num sched.MsgID, i int) bool {
	for _, d := range s.entries {
		if d.num == num && d.sent && slices.Contains(d.rcpts, i) {
			return true
		}
	}
	return false
}

// fromAgent takes in the call of an agent that delivers for a former queue manager. It
// calls by itself because nobody would ask it: it has a successor. It may end once it has
// the reply, so the reply waits until all that follows from the call is durable.
func (s *Server) fromAgent(c *ipc.Conn, r *ipc.Request) {
	inv := new(proto.Inventory)
	if err := r.Decode(inv); err != nil {
		r.Fail("%v", err)
		return
	}
	s.post(func() { s.heardOf(c, inv, true) }, sched.Event{})
	s.ask(r, func() {
		s.inTurnOfReads(func() { s.log.after(func() { r.Reply(&proto.RecordReply{}) }) })
	})
}

// leaveBehind records that messages with deliveries under way are to be left alone for
// minimal_backoff_time. The successor hears of the deliveries from the agents, but
// perhaps not before it would order the same again. A delivery that is handed over needs
// that only in one case: when outcomes of other recipients must be put on record and none
// is left to be tried now.
func (s *Server) leaveBehind(handedOver bool) {
	for _, d := range s.entries {
		m := s.messages[d.num]
		if m == nil || m.active == nil || !d.sent && d.awaits == 0 {
			continue
		}
		known := handedOver && (d.awaits > 0 || s.parted[d.conn])
		if known && (m.untried() || len(m.active.outcomes) == 0) {
			continue
		}
		op := proto.Op{Change: queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Deferred,
			NextAttempt: s.now.Add(s.opt.Settings.Sched.MinimalBackoff), Outcomes: m.active.pendingOutcomes(m)}}
		if m.active.aside {
			op.Queue = queue.Hold
		}
		s.log.update(m, op)
	}
}

// untried says whether some recipient has not had its turn in this stay in the active
// queue.
func (m *message) untried() bool {
	a := m.active
	if !a.complete {
		return true
	}
	for i, r := range a.rcpts {
		if r == nil || m.isDone(i) {
			continue
		}
		if _, tried := a.outcomes[i]; !tried && (r.order == nil || !r.order.sent && r.order.awaits == 0) {
			return true
		}
	}
	return false
}
