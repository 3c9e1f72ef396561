// Mail that is not in memory: asking cleanup for it, and letting go of it. It is a file
// of its own because its rules are about two processes whose messages pass each other,
// which nothing else here has to think of.

package qmgr

import (
	"errors"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// Most deferred mail of a deep queue, and all that is on hold, is known to cleanup alone. What is due
// next is asked for (the scheduler says when), and so is what a tool names.
//
// What cleanup tells is what was durable when it was asked. Nothing may be believed of it
// that has changed since: while an answer is on its way no message is forgotten, and no
// removal, so that whatever has changed is still known here, and better. Pages are asked for one
// at a time, and forgetting has its turn between them.

const (
	// keptPerActive is how many deferred messages are in memory for each place in the active queue.
	//
	// Deferred mail becomes due while the active queue is worked off; five queues' worth
	// means that the next fetch is answered long before it is needed.
	keptPerActive = 5
	// passDue is how many messages that are flushed may wait for a place in the active
	// queue before more are asked for.
	passDue = 1000
)

// away is what concerns mail that is not in memory. It belongs to the loop.
type away struct {
	// Messages that only cleanup has, counted so that metrics and "explain" can say how
	// many are left out. Nothing is decided by them.
	deferred, hold             int       // messages
	oldestDeferred, oldestHold time.Time // when the first of them came, as far as is known; zero: there is none

	// What the scheduler does not want in memory any more (EffectLeave). look says that
	// something was recorded since the list was last gone through, so that one of them
	// may be free to go.
	leaving []sched.MsgID
	look    bool // one of these can perhaps be forgotten now
	// Messages that the scheduler wants back (EffectRecall). They are asked for at the
	// end of the turn, all together.
	recalls []sched.Effect
	// The scheduler's question about what is due next, until it is answered; over a new
	// connection it is asked again by the scheduler.
	fetch *sched.Fetch
	// Pages that are wanted, in order. conn is where the first of them has been asked;
	// nil: it has not been.
	reads []*pageRead
	conn  *ipc.Conn // where the first of them has been asked; nil: it has not
	// A flush of all mail that goes on in what is not in memory; nil: there is none.
	pass  *pass
	known bool // cleanup has said how many there are
}

// A pageRead is a page of the queue that is wanted, and what is to be done with it. Pages
// are read one at a time: a request for a million messages must not come in all at once.
type pageRead struct {
	q *proto.Page // nil: nothing is wanted but its turn
	// called by the loop with the page
	take func(*proto.PageReply)
}

// A pass is a flush of all mail on its way through what is not in memory.
type pass struct {
	cursor uint64
	under  bool // a page has been asked for
}

// attached tells the scheduler that there is a cleanup to ask. What its predecessor was
// asked is void: the new one knows nothing of it.
func (s *Server) attached() {
	a := &s.away
	a.conn, a.fetch = nil, nil
	s.then(sched.Event{Kind: sched.EventAttached})
}

// telling says whether an answer of cleanup is on its way that may be from before
// something has changed. While it is, nothing may be forgotten.
func (a *away) telling() bool { return a.fetch != nil || a.conn != nil }

// fetchDue asks cleanup for the messages that are due next. They are pushed as entries,
// and the reply comes behind them.
func (s *Server) fetchDue(f *sched.Fetch) {
	s.away.fetch = f
	conn := s.log.conn
	if conn == nil {
		return // it is asked when there is one
	}
	q := &proto.Due{DueQuery: queue.DueQuery{After: queue.Mark{Next: f.After.Next, Number: uint64(f.After.ID)}, Limit: f.Max, Sane: f.Sane, Amnesty: f.Amnesty}}
	conn.Go(q, func(payload []byte, err error) {
		reply := new(proto.DueReply)
		if err == nil {
			err = reply.Decode(payload)
		}
		s.post(func() { s.fetched(f, reply, err) }, sched.Event{})
	})
}

// fetched takes in the reply: all that was asked for has been told of before. A reply to
// a question that has been dropped is ignored.
func (s *Server) fetched(f *sched.Fetch, reply *proto.DueReply, err error) {
	a := &s.away
	if a.fetch != f {
		return
	}
	// Over the next connection, attached has the scheduler ask from the beginning.
	if err != nil {
		if !errors.Is(err, ipc.ErrLost) && !errors.Is(err, ipc.ErrUnsent) {
			s.opt.Log.Error("cleanup does not list the messages that are due: %v", err)
		}
		return
	}
	a.fetch = nil
	if reply.Whole {
		a.deferred, a.oldestDeferred = 0, time.Time{}
	}
	s.then(sched.Event{Kind: sched.EventFetched, OK: reply.Whole, Mark: &sched.Mark{Next: reply.Last.Next, ID: sched.MsgID(reply.Last.Number)}})
	s.log.settleLate()
}

// readPage has take called with a page, when its turn comes. A q of nil is a place in the
// line and asks for nothing.
func (s *Server) readPage(q *proto.Page, take func(*proto.PageReply)) {
	s.away.reads = append(s.away.reads, &pageRead{q, take})
}

// nextRead asks for the first page in the line, unless one is on its way or cleanup is
// away.
func (s *Server) nextRead() {
	a := &s.away
	for len(a.reads) > 0 && a.conn == nil && s.log.conn != nil {
		r, conn := a.reads[0], s.log.conn
		if r.q == nil {
			a.reads = a.reads[1:]
			// Not called here: nextRead may be called in the middle of a turn.
			s.queue = append(s.queue, input{learn: func() { r.take(nil) }})
			continue
		}
		a.conn = conn
		conn.Go(r.q, func(payload []byte, err error) {
			reply := new(proto.PageReply)
			if err == nil {
				err = reply.Decode(payload)
			}
			s.post(func() { s.wasRead(conn, r, reply, err) }, sched.Event{})
		})
	}
}

// wasRead takes a page in. Only the answer to the page that is waited for counts, over
// the connection that it was asked on.
func (s *Server) wasRead(conn *ipc.Conn, r *pageRead, reply *proto.PageReply, err error) {
	a := &s.away
	if a.conn != conn || len(a.reads) == 0 || a.reads[0] != r {
		return
	}
	if errors.Is(err, ipc.ErrLost) || errors.Is(err, ipc.ErrUnsent) {
		return // it is asked for again
	}
	if err != nil {
		// The reader gets the empty page, and so an end: a tool must not wait for ever.
		s.opt.Log.Error("cleanup does not give a page of the queue: %v", err)
	}
	a.conn = nil
	a.reads[0] = nil
	a.reads = a.reads[1:]
	r.take(reply)
	s.log.settleLate()
}

// lookAway does what concerns mail that is not in memory, at the end of a turn. A process
// that drains leaves it to its successor.
func (s *Server) lookAway(draining bool) {
	if !draining {
		s.callBack()
		s.goOnPassing()
		s.letGo()
		s.followUp(false)
	}
}

// bring makes a message known that cleanup has told of because it was asked. What is
// known here is newer than what cleanup says, and is left alone.
func (s *Server) bring(e *queue.Entry) {
	if s.knows(msgID(e.ID)) || s.log.removing(e.ID) {
		return
	}
	a := &s.away
	switch e.Queue {
	case queue.Deferred:
		a.deferred = max(a.deferred-1, 0)
	case queue.Hold:
		if a.hold = max(a.hold-1, 0); a.hold == 0 {
			a.oldestHold = time.Time{}
		}
	}
	s.arrive(&proto.Entry{Entry: *e}, nil, nil)
}

// summon has the messages of ids known, as far as they exist, and then calls then. What
// then wants of them it must do in the same turn: in the next one they may be forgotten
// again.
func (s *Server) summon(ids []sched.MsgID, then func()) {
	var unknown []uint64
	for _, id := range ids {
		if id != 0 && !s.knows(id) {
			unknown = append(unknown, uint64(id))
		}
	}
	if len(unknown) == 0 {
		then()
		return
	}
	// Pages are answered in order, so that then comes behind the last of them.
	for len(unknown) > 0 {
		n := min(len(unknown), proto.PageNumbers)
		part, last := unknown[:n], n == len(unknown)
		unknown = unknown[n:]
		s.readPage(&proto.Page{Numbers: part}, func(reply *proto.PageReply) {
			for i := range reply.Entries {
				s.bring(&reply.Entries[i].Entry)
			}
			if last {
				s.queue = append(s.queue, input{learn: then})
			}
		})
	}
}

// inTurnOfReads calls f when all pages that are wanted so far have been taken in.
func (s *Server) inTurnOfReads(f func()) {
	if len(s.away.reads) == 0 {
		f()
		return
	}
	s.readPage(nil, func(*proto.PageReply) { f() })
}

// callBack asks for the messages that the scheduler wants back, and gives it the events
// that it waits for.
func (s *Server) callBack() {
	list := s.away.recalls
	if len(list) == 0 {
		return
	}
	s.away.recalls = nil
	ids := make([]sched.MsgID, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	for len(ids) > 0 { // each part is dealt with in the turn in which it comes
		n := min(len(ids), proto.PageNumbers)
		part := list[:n]
		s.summon(ids[:n], func() {
			for i := range part {
				if part[i].Flush {
					s.then(sched.Event{Kind: sched.EventFlush, Scope: sched.ScopeMessage, ID: part[i].ID})
				} else {
					s.then(sched.Event{Kind: sched.EventRecalled, ID: part[i].ID, Early: part[i].Early})
				}
			}
		})
		ids, list = ids[n:], list[n:]
	}
}

// goOnPassing flushes one more page of what is not in memory, when few flushed messages
// still wait for a place. So a flush of a million messages neither fills the memory nor
// holds up new mail.
func (s *Server) goOnPassing() {
	p := s.away.pass
	if p == nil || p.under || s.sched.Due() > passDue {
		return
	}
	p.under = true
	s.readPage(&proto.Page{Cursor: p.cursor}, func(reply *proto.PageReply) {
		if s.away.pass != p {
			return // it has begun anew
		}
		for i := range reply.Entries {
			e := &reply.Entries[i].Entry
			// What is in memory has been flushed by the scheduler.
			if e.Queue == queue.Deferred && !s.knows(msgID(e.ID)) {
				s.bring(e)
				s.then(sched.Event{Kind: sched.EventRecalled, ID: msgID(e.ID), Now: true})
			}
		}
		if p.cursor, p.under = reply.Next, false; p.cursor == 0 {
			s.away.pass = nil
			s.then(sched.Event{Kind: sched.EventPassed})
		}
	})
}

// letGo has messages forgotten that need not be in memory, once everything that was
// decided on them is recorded: from then on cleanup can tell all that is known here.
func (s *Server) letGo() {
	a := &s.away
	if len(a.leaving) == 0 || !a.look || s.log.telling() {
		return
	}
	a.look = false
	busy := s.log.unrecorded()
	kept := a.leaving[:0]
	var ids []sched.MsgID
	for _, num := range a.leaving {
		m := s.message(num)
		if m == nil {
			continue
		}
		// Of a change that cleanup refused only this process knows.
		if _, refused := s.log.refused[m.id]; refused || busy[m.id] {
			kept = append(kept, num)
			continue
		}
		ids = append(ids, num)
	}
	if a.leaving = kept; len(kept) == 0 {
		a.leaving = nil
	}
	if len(ids) > 0 {
		s.then(sched.Event{Kind: sched.EventForget, IDs: ids})
	}
}

// forgotten is the end of a message here that goes on to exist: the scheduler has
// forgotten it, and cleanup knows it.
func (s *Server) forgotten(m *message, from sched.Queue) {
	a := &s.away
	created, _, _ := m.id.Parse()
	if from == sched.QueueHold {
		a.hold++
		a.oldestHold = earlier(a.oldestHold, created)
	} else {
		a.deferred++
		a.oldestDeferred = earlier(a.oldestDeferred, created)
	}
	s.forget(m)
}

// earlier is the earlier of two times; the zero time is none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// counted takes in how many messages cleanup has that it has not told of, which it says
// once, with the end of the incoming queue.
func (s *Server) counted(batch *proto.Entries) {
	a := &s.away
	if a.known {
		return
	}
	a.known = true
	a.hold, a.oldestHold = a.hold+batch.Hold, batch.OldestHold
	if a.fetch != nil || !s.sched.Whole() {
		a.deferred = max(0, batch.Deferred-s.sched.Stats().Deferred)
		a.oldestDeferred = batch.OldestDeferred
	}
}

// view is a message of a page as it is known best: from memory, else from the page. ok is
// false when it must not be shown: it is being removed, or is corrupt.
func (s *Server) view(e *queue.Entry) (m *message, info sched.Info, ok bool) {
	num := msgID(e.ID)
	if s.log.removing(e.ID) || e.Queue == queue.Corrupt {
		return nil, info, false
	}
	if m = s.message(num); m != nil {
		info, ok = s.sched.Lookup(num)
		return m, info, ok
	}
	created, _, err := e.ID.Parse()
	info = sched.Info{ID: num, Queue: sched.QueueIncoming, Created: created, Next: e.NextAttempt, Size: e.Size, Pending: e.NPending, Attempts: e.Attempts,
		Flags: flagIf(e.Expire, sched.FlagExpire)}
	switch e.Queue {
	case queue.Deferred:
		info.Queue = sched.QueueDeferred
	case queue.Hold:
		info.Queue = sched.QueueHold
	}
	return &message{id: e.ID, num: num, ref: e.Ref, nrcpt: int32(e.NRcpt), null: e.Null, done: e.Done}, info, err == nil
}

// numbers are the scheduler's numbers of messages.
func numbers(ids ...mail.QueueID) []sched.MsgID {
	list := make([]sched.MsgID, len(ids))
	for i, id := range ids {
		list[i] = msgID(id)
	}
	return list
}

// carryAway is carry for the effects that concern mail that is not in memory.
func (s *Server) carryAway(m *message, e *sched.Effect) {
	a := &s.away
	switch e.Kind {
	case sched.EffectFetch:
		s.fetchDue(e.Fetch)
	case sched.EffectLeave:
		a.leaving, a.look = append(a.leaving, e.ID), true
	case sched.EffectForget:
		s.forgotten(m, e.Origin)
	case sched.EffectPass:
		a.pass = new(pass)
	}
}
