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
	keptPerActive = 5
	// passDue is how many messages that are flushed may wait for a place in the active
	// queue before more are asked for.
	passDue = 1000
)

// away is what concerns mail that is not in memory. It belongs to the loop.
type away struct {
	deferred, hold             int       // messages
	oldestDeferred, oldestHold time.Time // when the first of them came, as far as is known; zero: there is none

	leaving []sched.MsgID // that need not be in memory
	look    bool          // one of these can perhaps be forgotten now
	recalls []sched.Effect
	fetch   *sched.Fetch // not answered yet
	reads   []*pageRead  // in order
	conn    *ipc.Conn    // where the first of them has been asked; nil: it has not
	pass    *pass        // nil: there is none
	known   bool         // cleanup has said how many there are
}

// A pageRead is a page that is wanted, and what is to be done with it.
type pageRead struct {
	q    *proto.Page // nil: nothing is wanted but its turn
	take func(*proto.PageReply)
}

// A pass is a flush of all mail on its way through what is not in memory.
type pass struct {
	cursor uint64
	under  bool // a page has been asked for
}

// attached: there is a cleanup to ask, and it knows nothing of what its
// predecessor was asked.
func (s *Server) attached() {
	a := &s.away
	a.conn, a.fetch = nil, nil
	s.then(sched.Event{Kind: sched.EventAttached})
}

// telling says whether cleanup's answer is on its way to something that may have
// changed.
func (a *away) telling() bool { return a.fetch != nil || a.conn != nil }

// fetchDue asks for what is due next.
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

// fetched: what was asked for has been told of before. When the connection was lost all is
// asked for again over the next one.
func (s *Server) fetched(f *sched.Fetch, reply *proto.DueReply, err error) {
	a := &s.away
	if a.fetch != f {
		return
	}
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

// readPage asks for a page, when its turn comes.
func (s *Server) readPage(q *proto.Page, take func(*proto.PageReply)) {
	s.away.reads = append(s.away.reads, &pageRead{q, take})
}

// nextRead asks for the next page, unless one is on its way.
func (s *Server) nextRead() {
	a := &s.away
	for len(a.reads) > 0 && a.conn == nil && s.log.conn != nil {
		r, conn := a.reads[0], s.log.conn
		if r.q == nil {
			a.reads = a.reads[1:]
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

// wasRead takes a page in.
func (s *Server) wasRead(conn *ipc.Conn, r *pageRead, reply *proto.PageReply, err error) {
	a := &s.away
	if a.conn != conn || len(a.reads) == 0 || a.reads[0] != r {
		return
	}
	if errors.Is(err, ipc.ErrLost) || errors.Is(err, ipc.ErrUnsent) {
		return // it is asked for again
	}
	if err != nil {
		s.opt.Log.Error("cleanup does not give a page of the queue: %v", err)
	}
	a.conn = nil
	a.reads[0] = nil
	a.reads = a.reads[1:]
	r.take(reply)
	s.log.settleLate()
}

// lookAway does what concerns mail that is not in memory. It is the end of a turn.
func (s *Server) lookAway(draining bool) {
	if !draining {
		s.callBack()
		s.goOnPassing()
		s.letGo()
		s.followUp(false)
	}
}

// bring makes a message known that cleanup has told of when it was asked.
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
	s.arrive(&proto.Entry{Entry: *e})
}

// summon has messages known that exist, and then calls then, which must do in this turn of the loop
// what it wants of them.
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

// callBack asks for the messages that the scheduler wants back.
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
					s.then(sched.Event{Kind: sched.EventRecalled, ID: part[i].ID})
				}
			}
		})
		ids, list = ids[n:], list[n:]
	}
}

// goOnPassing flushes more of what is not in memory, when there is room.
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

// letGo has messages forgotten that need not be in memory, once everything is
// recorded of them.
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

// forgotten: the scheduler does not know a message any more.
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

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// counted takes in how many messages cleanup has not told of.
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

// view is a message of a page, as it is known best; false when it is none to be seen.
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

// numbers are those of messages.
func numbers(ids ...mail.QueueID) []sched.MsgID {
	list := make([]sched.MsgID, len(ids))
	for i, id := range ids {
		list[i] = msgID(id)
	}
	return list
}

// carryAway carries out effects that concern mail that is not in memory.
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
