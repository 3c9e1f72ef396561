package qmgr

import (
	"context"
	"errors"
	"slices"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
	"posthaste/qmgr/sched"
)

// flushDelay is how long a change waits for company. What a crash loses in
// that time is only the record of deliveries that were just made: it is small
// beside the spool's own patience.
const flushDelay = 2 * time.Millisecond

const (
	// flushOps is the number of changes that do not wait.
	flushOps = 64
	// maxRequest bounds about how many octets a request has, the last item
	// aside, so that it fits into a frame, whatever peers have said about how
	// many recipients.
	maxRequest = ipc.MaxPayload / 16
	// opOctets is what a change takes besides its recipients and outcomes.
	opOctets = 128
)

// maxBatches bounds how many batches of entries wait for the loop. While it is
// busy cleanup is not listened to, and so does not send more.
const maxBatches = 4

// A recorder brings the loop's decisions to cleanup, which writes them to the
// log. Changes keep their order; those of one message within one request are
// merged; what has not been answered is sent again when the connection to
// cleanup was lost. It belongs to the loop.
type recorder struct {
	// All of it belongs to the server's loop.
	s *Server
	// Changes that have been decided and not sent: one for each message, into which later ones
	// are merged. They go when flushOps have come together, or flushDelay after the first.
	ops   []proto.Op
	spare [][]proto.Op         // of requests that have been answered, for ops
	at    map[mail.QueueID]int // position of a message's change in ops
	since time.Time            // when the oldest of ops came
	// Changes are sent to the cleanup that has told of the queue, and to no other: a new one
	// may not know the messages yet.
	conn *ipc.Conn // where the queue was pushed from; nil while there is none
	// After a lost connection all of these are sent again, in the same order. cleanup takes a
	// change twice without harm, which is why none has to say whether it was carried out.
	unacked []*request // sent, in order, and not answered
	// What cleanup pushes and what is recorded pass each other on the wire. Without this a
	// message that has just been removed would be taken for a new one and delivered again.
	gone map[mail.QueueID]int // removals that cleanup may not know of when it tells of the message, by count
	// While it is, removals that become durable go to late instead of out of gone. Both are
	// empty afterwards.
	pushing bool           // the queue as it was when we attached to conn is on its way
	late    []mail.QueueID // removals that are durable since, and may still be in what is on its way
	// Called by the loop, after the sync, in the order in which they came. Empty while nobody
	// waits: most changes may be lost and then are only made twice.
	waiters []func() // told when what is in ops has been recorded
	// cleanup is told of it and then syncs at once, instead of waiting spool_commit_delay.
	urgent bool // somebody waits for that
	// The line "removed" is written when the removal is durable, as an operator takes it for
	// the end of the message.
	removed []mail.QueueID // removals in ops that are to be logged
	// A contradiction between this process and the spool, such as a message that it does not
	// have. It is kept so that an operator's command about the message can fail with the
	// reason. Empty as long as all is well.
	refused map[mail.QueueID]string // messages of which something is not recorded, and why
	// Reports to a sender are queued before the change that says so is durable. Until then the
	// message must not be read again from its record, or the sender would be told twice.
	spoken  map[mail.QueueID]int // messages of which it has not been confirmed who has been told, by count
	leaving []farewell           // recorded removals that are to be logged, oldest first
	// Without spool_exact_doubt this is all that the next start knows of deliveries in
	// progress. At most maxHandOuts, emptied with each request; a delivery that ends before is
	// not recorded.
	handed []handOut // deliveries of which it is not recorded that they go on, oldest first
}

// A farewell is a message that has left the queue.
type farewell struct {
	id mail.QueueID
	at time.Time // when its removal was recorded
}

// farewellDelay is how long "removed" is kept back. The agents' lines about a
// message's recipients were written before, but each process gathers its lines
// for a few milliseconds: those who read the log expect "removed" last.
const farewellDelay = 5 * time.Millisecond

// A request is a Record on its way.
type request struct {
	ops    []proto.Op
	urgent bool
	// Requests are answered in any order, but taken off in order: an answer for a later one
	// waits here.
	acked bool
	// As in recorder, of the changes up to and with these.
	waiters []func()
	removed []mail.QueueID
}

func newRecorder(s *Server) *recorder {
	return &recorder{s: s, at: make(map[mail.QueueID]int), gone: make(map[mail.QueueID]int), refused: make(map[mail.QueueID]string), spoken: make(map[mail.QueueID]int)}
}

// change returns the message's change, to be filled in.
func (r *recorder) change(id mail.QueueID) *proto.Op {
	if i, ok := r.at[id]; ok {
		return &r.ops[i]
	}
	if len(r.ops) == 0 {
		r.since = r.s.now
	}
	r.at[id] = len(r.ops)
	r.ops = append(r.ops, proto.Op{ID: id})
	return &r.ops[len(r.ops)-1]
}

// done records that nothing more is to be done for these recipients.
func (r *recorder) done(m *message, rcpts []int) {
	if len(rcpts) == 0 {
		return
	}
	op := r.change(m.id)
	op.Done = append(op.Done, rcpts...)
}

// update records a message's state. Fields that set names, and outcomes of the
// same recipients, replace those of an earlier change that has not been sent.
func (r *recorder) update(m *message, set proto.Op) {
	op := r.change(m.id)
	op.Set |= set.Set
	if set.Set&queue.SetQueue != 0 {
		op.Queue = set.Queue
	}
	if set.Set&queue.SetNextAttempt != 0 {
		op.NextAttempt = set.NextAttempt
	}
	if set.Set&queue.SetAttempts != 0 {
		op.Attempts = set.Attempts
	}
	if set.Set&queue.SetWarned != 0 {
		op.Warned = set.Warned
	}
	if set.Set&queue.SetExpire != 0 {
		op.Expire = set.Expire
	}
	for _, o := range set.Outcomes {
		if i := slices.IndexFunc(op.Outcomes, func(old mail.Outcome) bool { return old.Rcpt == o.Rcpt }); i >= 0 {
			op.Outcomes[i] = o
		} else {
			op.Outcomes = append(op.Outcomes, o)
		}
	}
	if slices.ContainsFunc(set.Outcomes, func(o mail.Outcome) bool { return len(o.Parts) > 0 }) {
		id := m.id
		r.spoken[id]++
		r.waiters = append(r.waiters, func() {
			if r.spoken[id]--; r.spoken[id] == 0 {
				delete(r.spoken, id)
			}
		})
	}
}

// unsure says whether the message's record, where the loop believes it to lie,
// may not say yet who has been told of what.
func (r *recorder) unsure(id mail.QueueID) bool { return r.spoken[id] > 0 }

// remove records that a message is gone.
func (r *recorder) remove(m *message) {
	*r.change(m.id) = proto.Op{ID: m.id, Remove: true}
	r.gone[m.id]++
}

// finish records that a message is gone because all is done, which is logged
// when it has been recorded.
func (r *recorder) finish(m *message) {
	r.remove(m)
	r.change(m.id).Finished = true
	r.removed = append(r.removed, m.id)
}

// sayFarewell logs the removals that have been recorded a while ago.
func (r *recorder) sayFarewell(now time.Time, all bool) {
	n := 0
	for n < len(r.leaving) && (all || now.Sub(r.leaving[n].at) >= farewellDelay) {
		r.s.opt.Log.Log(maillog.Removed{ID: string(r.leaving[n].id)})
		n++
	}
	r.leaving = slices.Delete(r.leaving, 0, n)
}

// removing says whether a message's removal has been decided on, and what
// cleanup tells of the message may be from before it knew.
func (r *recorder) removing(id mail.QueueID) bool { return r.gone[id] > 0 }

// after has f called when all that has been decided so far is durable, which
// somebody waits for.
func (r *recorder) after(f func()) {
	// The command's own effects come behind this call, in the same turn.
	r.waiters, r.urgent = append(r.waiters, f), true
}

// due is when flush should be called if nothing else happens.
func (r *recorder) due() (at time.Time) {
	if len(r.ops) > 0 && r.conn != nil {
		at = r.since.Add(flushDelay)
	}
	if len(r.leaving) > 0 {
		if f := r.leaving[0].at.Add(farewellDelay); at.IsZero() || f.Before(at) {
			at = f
		}
	}
	return at
}

// idle says that nothing waits to be recorded.
func (r *recorder) idle() bool { return len(r.ops) == 0 && len(r.unacked) == 0 }

// flush sends what has waited long enough.
func (r *recorder) flush(now time.Time) {
	r.sayFarewell(now, false)
	if len(r.ops) == 0 && len(r.waiters) > 0 {
		r.waitForSent()
	}
	if len(r.ops) == 0 || r.conn == nil || len(r.ops) < flushOps && now.Sub(r.since) < flushDelay {
		return
	}
	r.handedOut()
	parts := splitOps(r.ops) // the last of them may be r.ops itself
	for _, ops := range parts[:len(parts)-1] {
		q := &request{ops: ops, urgent: r.urgent}
		r.unacked = append(r.unacked, q)
		r.send(q)
	}
	q := &request{ops: parts[len(parts)-1], urgent: r.urgent, waiters: r.waiters, removed: r.removed}
	r.ops, r.urgent, r.waiters, r.removed = nil, false, nil, nil
	if n := len(r.spare); n > 0 {
		r.ops, r.spare = r.spare[n-1], r.spare[:n-1]
	}
	clear(r.at)
	r.unacked = append(r.unacked, q)
	r.send(q)
}

// waitForSent has those who wait told when what has been sent is durable.
func (r *recorder) waitForSent() {
	waiters, urgent := r.waiters, r.urgent
	r.waiters, r.urgent = nil, false
	if len(r.unacked) == 0 {
		for _, f := range waiters {
			f()
		}
		return
	}
	last := r.unacked[len(r.unacked)-1]
	if urgent && !last.urgent && r.conn != nil { // it was not known then that somebody would wait
		last = &request{urgent: true}
		r.unacked = append(r.unacked, last)
		r.send(last)
	}
	last.waiters = append(last.waiters, waiters...)
}

// maxSpare bounds how many slices of changes are kept for use again: as many
// requests as are on their way to cleanup at once, and no larger than usual.
const maxSpare = 16

// release keeps the memory of changes that nobody looks at any more.
func (r *recorder) release(ops []proto.Op) {
	if len(r.spare) < maxSpare && cap(ops) <= 4*flushOps {
		clear(ops)
		r.spare = append(r.spare, reuse.Truncated(ops))
	}
}

// opsOctets is about what changes take in a request.
func opsOctets(ops []proto.Op) (n int) {
	for i := range ops {
		n += opOctets + 8*(len(ops[i].Done)+len(ops[i].Handed))
		for j := range ops[i].Outcomes {
			n += outcomeOctets(&ops[i].Outcomes[j])
		}
	}
	return n
}

// splitOps spreads changes over requests of bounded length, in order; a
// message's change of queue goes with its last outcomes. Those that fit into
// one request, and so nearly all, are not copied.
func splitOps(ops []proto.Op) (parts [][]proto.Op) {
	if opsOctets(ops) <= maxRequest {
		return [][]proto.Op{ops}
	}
	part, left := make([]proto.Op, 0, len(ops)), maxRequest
	for _, op := range ops {
		for left -= opOctets; ; left = maxRequest - opOctets {
			done, outcomes := 0, 0
			for ; done < len(op.Done) && left > 0; done++ {
				left -= 8
			}
			for ; outcomes < len(op.Outcomes) && left > 0; outcomes++ {
				left -= outcomeOctets(&op.Outcomes[outcomes])
			}
			if done == len(op.Done) && outcomes == len(op.Outcomes) {
				part = append(part, op)
				break
			}
			if done+outcomes > 0 {
				part = append(part, proto.Op{ID: op.ID, Change: queue.Change{Done: op.Done[:done], Outcomes: op.Outcomes[:outcomes]}})
				op.Done, op.Outcomes = op.Done[done:], op.Outcomes[outcomes:]
			}
			parts, part = append(parts, part), nil
		}
	}
	return append(parts, part)
}

// outcomeOctets is about what an outcome takes in a request.
func outcomeOctets(o *mail.Outcome) int {
	n := 100 + len(o.Reason) + len(o.Relay) + len(o.MTA) + len(o.DiagText) + len(o.Owner)
	for i := range o.Parts {
		n += o.Parts[i].Octets()
	}
	return n
}

func (r *recorder) send(q *request) {
	s, conn := r.s, r.conn
	conn.Go(&proto.Record{Ops: q.ops, Urgent: q.urgent}, func(payload []byte, err error) {
		var reply proto.RecordReply
		if err == nil {
			err = reply.Decode(payload)
		}
		s.post(func() { r.answered(q, &reply, err) }, sched.Event{})
	})
}

// answered: the changes are durable, or the connection broke, in which case
// they are sent again over the next one. What cleanup cannot record of a
// request it leaves out, and logs: a contradiction, which asking again would
// not mend. It is believed here all the same, as to forget that a recipient is
// done would have the message delivered again and again; whoever asks is told.
func (r *recorder) answered(q *request, reply *proto.RecordReply, err error) {
	switch {
	case err == nil:
	case errors.Is(err, ipc.ErrUnsent), errors.Is(err, ipc.ErrLost):
		return
	case errors.Is(err, ipc.ErrTooLarge):
		// splitOps is wrong. It would be as wrong the next time, and tools wait.
		r.s.opt.Log.Error("recording %d changes in the queue failed: %v", len(q.ops), err)
	default:
		// cleanup's log is broken: it ends, and its successor is told again.
		r.s.opt.Log.Warning("recording in the queue failed: %v; trying again", err)
		return
	}
	q.acked = true
	for len(r.unacked) > 0 && r.unacked[0].acked {
		r.unacked = r.unacked[1:]
	}
	for _, f := range reply.Refused {
		r.refused[f.ID] = f.Reason
	}
	for i := range q.ops {
		if q.ops[i].Remove {
			delete(r.refused, q.ops[i].ID)
		}
		switch id := q.ops[i].ID; {
		case !q.ops[i].Remove:
		case r.telling():
			r.late = append(r.late, id)
		default:
			r.ended(id)
		}
	}
	for i := range reply.Entries {
		r.s.located(msgID(reply.Entries[i].ID), reply.Entries[i].Ref)
	}
	for _, f := range q.waiters {
		f()
	}
	for _, id := range q.removed {
		r.leaving = append(r.leaving, farewell{id, r.s.now})
	}
	r.release(q.ops)
	q.ops = nil
	r.s.away.look = true
}

// telling says whether something is on its way from cleanup that may be from
// before a change.
func (r *recorder) telling() bool { return r.pushing || r.s.away.telling() }

// unrecorded are the messages of which a change has been decided on and is not recorded.
func (r *recorder) unrecorded() map[mail.QueueID]bool {
	list := make(map[mail.QueueID]bool)
	for i := range r.ops {
		list[r.ops[i].ID] = true
	}
	for _, q := range r.unacked {
		for i := range q.ops {
			list[q.ops[i].ID] = true
		}
	}
	return list
}

// ended is the end of a removal.
func (r *recorder) ended(id mail.QueueID) {
	if r.gone[id]--; r.gone[id] == 0 {
		delete(r.gone, id)
	}
}

// connected: the queue will be pushed over conn, and changes go there.
func (r *recorder) connected(conn *ipc.Conn) {
	r.conn, r.pushing = conn, true
	for _, q := range r.unacked {
		if !q.acked {
			r.send(q)
		}
	}
}

// pushed: all of the incoming queue as it was has come over conn. An answer overtakes
// the batches that cleanup has made and that wait to be sent, so that removals
// must be remembered up to here.
func (r *recorder) pushed(conn *ipc.Conn) {
	if r.conn != conn {
		return
	}
	r.pushing = false
	r.settleLate()
}

// settleLate forgets removals when nothing that is on its way can be from before them.
func (r *recorder) settleLate() {
	if r.telling() {
		return
	}
	for _, id := range r.late {
		r.ended(id)
	}
	r.late = nil
	r.s.away.look = true
}

// attach keeps us attached to cleanup until ctx ends.
func (s *Server) attach(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := s.cleanup.Conn(ctx)
		if err != nil {
			continue
		}
		s.post(func() {
			s.log.connected(conn)
			s.attached()
		}, sched.Event{})
		conn.Go(&proto.Attach{}, func([]byte, error) {})
		select {
		case <-conn.Done():
		case <-ctx.Done():
			return
		}
		s.post(func() {
			if s.log.conn == conn {
				s.log.conn = nil
			}
		}, sched.Event{})
	}
}

// news is what cleanup has pushed over a connection, on its way to the loop.
type news struct {
	conn  *ipc.Conn
	batch proto.Entries
	room  bool // it takes one of s.room
}

// keptFrame is how long the frame of one new message may be to be kept with it:
// there is little else in it. A longer one is used again.
const keptFrame = 1 << 10

// fromCleanup takes in what cleanup pushes. It runs on the connection's
// reading goroutine.
func (s *Server) fromCleanup(conn *ipc.Conn, r *ipc.Request) {
	if r.Kind != proto.KindEntries {
		return
	}
	n := s.oldNews.Get()
	n.conn = conn
	if err := r.Decode(&n.batch); err != nil {
		s.opt.Log.Error("cleanup sends what cannot be read: %v", err)
		return
	}
	switch {
	case len(n.batch.List) != 1:
		select {
		case s.room <- struct{}{}:
			n.room = true
		case <-s.ctx.Done():
			return
		}
	case len(r.Payload) > keptFrame:
		e := &n.batch.List[0]
		e.Envelope, e.Recipients = slices.Clone(e.Envelope), slices.Clone(e.Recipients)
		r.Free()
	}
	s.postInput(input{news: n})
}

// hear takes in what cleanup has told. Of n nothing is kept but the frame that
// entries point into: its memory is for what comes next.
func (s *Server) hear(n *news) {
	s.heard = s.now
	for i := range n.batch.List {
		if n.batch.Known {
			s.bring(&n.batch.List[i].Entry)
		} else {
			s.arrive(&n.batch.List[i])
		}
	}
	if n.batch.Complete {
		s.log.pushed(n.conn)
		s.counted(&n.batch)
		s.queueTold()
	}
	if n.room {
		<-s.room
	}
	*n = news{batch: proto.Entries{List: reuse.Emptied(n.batch.List)}}
	s.oldNews.Put(n)
}
