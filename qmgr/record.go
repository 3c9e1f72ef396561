// How decisions become durable, and how the queue is learnt from cleanup. The two are in
// one file because they share a connection and an order: what cleanup tells, and what it
// is told, pass each other on the wire, and each decision here about the one is about the
// other, too.

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

// flushDelay is how long a change waits for others to share its request. A crash in that
// time loses only the record of deliveries that were just made; the spool itself waits
// longer before it syncs.
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

// A recorder brings the loop's decisions to cleanup, which writes them to the log.
// Changes keep their order. Changes of one message within a request are merged. What was
// not answered when the connection to cleanup broke is sent again. It belongs to the
// loop.
type recorder struct {
	s *Server
	// Changes that have been decided and not sent: one for each message, into which later
	// ones are merged. They go when flushOps have come together, or flushDelay after the
	// first.
	ops   []proto.Op
	spare [][]proto.Op        // of requests that have been answered, for ops
	at    map[sched.MsgID]int // position of a message's change in ops; numbers are found sooner than texts
	since time.Time           // when the oldest of ops came
	// The connection over which the queue was pushed; nil while there is none. Changes
	// are sent to the cleanup that has told of the queue and to no other: a new one may
	// not know the messages yet.
	conn *ipc.Conn
	// Requests that were sent and not answered, in order. After a lost connection they
	// are sent again in the same order; cleanup may get a change twice, which does no
	// harm.
	unacked []*request
	// Removals, by count, that cleanup may not have known of when it last told of the
	// message. What cleanup pushes and what is recorded pass each other; without this, a
	// message that has just been removed would be taken for a new one and delivered
	// again.
	gone map[sched.MsgID]departure
	// The queue as it was when we attached is on its way. Until all of it is here,
	// removals that become durable are moved to late instead of being dropped from gone.
	pushing bool
	// Removals that are durable and still in gone, because something that is on its way
	// from cleanup may be from before them.
	late []mail.QueueID
	// Called when what is in ops is durable, in the order in which they came. Mostly
	// empty: most changes may be lost, and are then made again.
	waiters []func()
	// Somebody waits: cleanup is to sync at once, and not after spool_commit_delay.
	urgent bool
	// Removals in ops that are to be logged. "removed" is logged when the removal is
	// durable, since operators take that line for the end of the message.
	removed []mail.QueueID
	// Messages of which cleanup refused a change, and why: a contradiction between this
	// process and the spool. It is kept so that an operator's command on the message can
	// fail with the reason.
	refused map[mail.QueueID]string
	// Messages, by count of changes, of which it is not durable yet what their sender was
	// told. They must not be read again from their record until it is, or the sender
	// would be told twice.
	spoken map[mail.QueueID]int
	// Removals that are durable and will be logged, oldest first.
	leaving []farewell
	// Deliveries of which it is not recorded that they go on, oldest first; at most
	// maxHandOuts. Without spool_exact_doubt this is all that the next start will know of
	// them. Emptied with each request.
	handed []handOut
}

// A departure is a message whose removal has been decided, so many times. The number stands for the queue ID, unless
// somebody has mixed two queues.
type departure struct {
	id mail.QueueID
	n  int
}

// A farewell is a message that has left the queue.
type farewell struct {
	id mail.QueueID
	at time.Time // when its removal was recorded
}

// farewellDelay is how long "removed" is held back. The agents' lines about the
// recipients were written before it, but each process gathers its lines for a few
// milliseconds, and readers of the log expect "removed" to be last.
const farewellDelay = 5 * time.Millisecond

// A request is a Record on its way.
type request struct {
	ops    []proto.Op
	urgent bool
	// It has been answered. Requests are answered in any order, and taken off in order.
	acked bool
	// As in recorder, of the changes up to and with these.
	waiters []func()
	removed []mail.QueueID
}

// newRecorder makes the recorder of s, which is not connected yet.
func newRecorder(s *Server) *recorder {
	return &recorder{s: s, at: make(map[sched.MsgID]int), gone: make(map[sched.MsgID]departure), refused: make(map[mail.QueueID]string), spoken: make(map[mail.QueueID]int)}
}

// change is the message's change in ops, to be filled in. The pointer is valid until the
// next call.
func (r *recorder) change(num sched.MsgID, id mail.QueueID) *proto.Op {
	if i, ok := r.at[num]; ok && r.ops[i].ID == id {
		return &r.ops[i]
	}
	if len(r.ops) == 0 {
		r.since = r.s.now
	}
	r.at[num] = len(r.ops)
	r.ops = append(r.ops, proto.Op{ID: id})
	return &r.ops[len(r.ops)-1]
}

// done records that nothing more is to be done for these recipients of m.
func (r *recorder) done(m *message, rcpts []int) {
	if len(rcpts) == 0 {
		return
	}
	op := r.change(m.num, m.id)
	op.Done = append(op.Done, rcpts...)
}

// update records a part of a message's state. Fields that set names replace those of an
// earlier change that has not been sent, and so do outcomes of the same recipients.
func (r *recorder) update(m *message, set proto.Op) {
	op := r.change(m.num, m.id)
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
	// Parts say what the sender was told: see spoken.
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

// unsure says whether the message's record may not say yet what its sender was told. A
// load of the message waits then.
func (r *recorder) unsure(id mail.QueueID) bool { return len(r.spoken) > 0 && r.spoken[id] > 0 }

// remove records that a message is gone. Whatever else was to be recorded of it is
// dropped. Of one that another node has now, for all that is known here, nothing is
// recorded: this node may get that part of the queue back before cleanup hears of the
// removal, which would lose a message that nobody has delivered.
func (r *recorder) remove(m *message) {
	if !m.vanished || r.s.opt.Settings.Node == "" {
		r.removal(m)
	}
}

// removal is the change that remove makes.
func (r *recorder) removal(m *message) *proto.Op {
	op := r.change(m.num, m.id)
	*op = proto.Op{ID: m.id, Remove: true}
	g := r.gone[m.num]
	if g.id != m.id {
		g = departure{id: m.id}
	}
	g.n++
	r.gone[m.num] = g
	return op
}

// finish is remove for a message that is done with, which is logged when it is durable.
func (r *recorder) finish(m *message) {
	r.removal(m).Finished = true
	r.removed = append(r.removed, m.id)
}

// sayFarewell logs the removals that became durable a while ago; with all, every one.
func (r *recorder) sayFarewell(now time.Time, all bool) {
	n := 0
	for n < len(r.leaving) && (all || now.Sub(r.leaving[n].at) >= farewellDelay) {
		r.s.opt.Log.Log(maillog.Removed{ID: string(r.leaving[n].id)})
		n++
	}
	r.leaving = slices.Delete(r.leaving, 0, n)
}

// removing says whether the message's removal has been decided, so that what cleanup
// tells of it may be out of date.
func (r *recorder) removing(id mail.QueueID) bool { return r.departs(msgID(id), id) }

// departs is removing for who knows the number.
func (r *recorder) departs(num sched.MsgID, id mail.QueueID) bool {
	g, ok := r.gone[num]
	return ok && g.id == id
}

// after has f called by the loop when all that has been decided so far, and in the rest
// of this turn, is durable.
func (r *recorder) after(f func()) {
	// The command's own effects come behind this call, in the same turn.
	r.waiters, r.urgent = append(r.waiters, f), true
}

// due is when flush should be called if nothing else happens; zero: need not be.
func (r *recorder) due() (at time.Time) {
	// What came last in a turn, behind flush, may have made somebody wait for nothing.
	if len(r.ops) == 0 && len(r.waiters) > 0 {
		return r.s.now
	}
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

// idle says that no change waits to be sent or answered.
func (r *recorder) idle() bool { return len(r.ops) == 0 && len(r.unacked) == 0 }

// flush sends the changes when there are enough of them, or the oldest has waited long
// enough. The loop calls it at the end of every turn.
func (r *recorder) flush(now time.Time) {
	r.sayFarewell(now, false)
	if len(r.ops) == 0 && len(r.waiters) > 0 {
		r.waitForSent()
	}
	if len(r.ops) == 0 || r.conn == nil || len(r.ops) < flushOps && now.Sub(r.since) < flushDelay {
		return
	}
	// Last, so that a delivery that has ended in this turn is not recorded as going on.
	r.handedOut()
	parts := splitOps(r.ops) // the last of them may be r.ops itself
	// Waiters hang on the last part. Requests are taken off in order, so by then all
	// parts are durable.
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

// waitForSent hangs those who wait on the last request that was sent; when there is none,
// all is durable already.
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

// maxSpare bounds the slices of changes that are kept for use again. It is as many as
// there are requests on their way at once.
const maxSpare = 16

// release keeps the storage of changes that nobody looks at any more, unless it is
// unusually large.
func (r *recorder) release(ops []proto.Op) {
	if len(r.spare) < maxSpare && cap(ops) <= 4*flushOps {
		clear(ops)
		r.spare = append(r.spare, reuse.Truncated(ops))
	}
}

// opsOctets is roughly the size of changes in a request.
func opsOctets(ops []proto.Op) (n int) {
	for i := range ops {
		n += opOctets + 8*(len(ops[i].Done)+len(ops[i].Handed))
		for j := range ops[i].Outcomes {
			n += outcomeOctets(&ops[i].Outcomes[j])
		}
	}
	return n
}

// splitOps spreads changes over requests of bounded size, in order. Where one message's
// change is split, its change of queue goes with its last outcomes, so that a crash in
// between leaves it where it was. Changes that fit into one request, as nearly always,
// are not copied.
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

// outcomeOctets is roughly the size of an outcome in a request.
func outcomeOctets(o *mail.Outcome) int {
	n := 100 + len(o.Reason) + len(o.Relay) + len(o.MTA) + len(o.DiagText) + len(o.Owner)
	for i := range o.Parts {
		n += o.Parts[i].Octets()
	}
	return n
}

// send sends a request over the present connection, when the events of what it records are on stable
// storage, if anybody is told of events: requests then go later, in the same order. answered is called in any case.
func (r *recorder) send(q *request) {
	s, conn := r.s, r.conn
	record := &proto.Record{Ops: q.ops, Urgent: q.urgent}
	s.opt.Events.Then(func() {
		conn.Go(record, func(payload []byte, err error) {
			var reply proto.RecordReply
			if err == nil {
				err = reply.Decode(payload)
			}
			s.post(func() { r.answered(q, &reply, err) }, sched.Event{})
		})
	})
}

// answered takes in that changes are durable, or that they are not.
//
// After a lost connection nothing is done: connected sends the request again. What
// cleanup cannot record it leaves out and logs; it is a contradiction, which another
// attempt would not mend. This process goes on as if it were recorded, because forgetting
// that a recipient is done would have the message delivered again and again. An operator
// who asks is told.
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
	for i := range q.ops {
		// What was refused of it before is of no interest any more, unless this is refused as well.
		if q.ops[i].Remove && len(r.refused) > 0 {
			delete(r.refused, q.ops[i].ID)
		}
		switch id := q.ops[i].ID; {
		case !q.ops[i].Remove:
		// Something from before this removal may still be on its way.
		case r.telling():
			r.late = append(r.late, id)
		default:
			r.ended(id)
		}
	}
	// Behind that: an operator is not to be told that a message is deleted which is still there.
	for _, f := range reply.Refused {
		r.refused[f.ID] = f.Reason
	}
	// A change may have moved the message's record.
	for i := range reply.Entries {
		r.s.located(msgID(reply.Entries[i].ID), reply.Entries[i].Ref)
	}
	for _, id := range reply.Gone {
		r.vanished(id)
	}
	r.release(q.ops)
	q.ops = nil
	// A message that waited for this may be free to be forgotten.
	r.s.away.look = true
	r.takeOff()
}

// vanished drops a message that cleanup does not have any more, unless that has been decided
// here: the bounce service has recorded that it is done, and died before it said so. What is
// left of it in the log must not be delivered. Where nodes share the queue cleanup has only this
// node's part of it: the message may as well be another node's now, which delivers it, and so it
// is not called removed.
func (r *recorder) vanished(id mail.QueueID) {
	m := r.s.message(msgID(id))
	if m == nil || m.id != id || r.removing(id) {
		return
	}
	if _, ok := r.s.sched.Lookup(m.num); ok { // else it is being queued again
		if r.s.opt.Settings.Node != "" {
			r.s.opt.Log.Log(maillog.Elsewhere{ID: string(id)})
		} else {
			r.s.opt.Log.Log(maillog.Removed{ID: string(id)})
		}
		r.s.vanish(m)
	}
}

// takeOff ends the requests that have been answered, in order: whoever waits does so for
// the changes of earlier requests, too.
func (r *recorder) takeOff() {
	for len(r.unacked) > 0 && r.unacked[0].acked {
		q := r.unacked[0]
		r.unacked[0] = nil
		r.unacked = r.unacked[1:]
		for _, f := range q.waiters {
			f()
		}
		for _, id := range q.removed {
			r.leaving = append(r.leaving, farewell{id, r.s.now})
		}
	}
}

// telling says whether something is on its way from cleanup that may be from before a
// change.
func (r *recorder) telling() bool { return r.pushing || r.s.away.telling() }

// unrecorded are the messages with a change that is not durable.
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

// ended counts one removal less that must be remembered.
func (r *recorder) ended(id mail.QueueID) {
	num := msgID(id)
	switch g := r.gone[num]; {
	case g.id != id: // its number is another's
	case g.n > 1:
		r.gone[num] = departure{id, g.n - 1}
	default:
		delete(r.gone, num)
	}
}

// connected takes in a new connection: the queue will be pushed over it, and what was not
// answered is sent again.
func (r *recorder) connected(conn *ipc.Conn) {
	r.conn, r.pushing = conn, true
	for _, q := range r.unacked {
		if !q.acked {
			r.send(q)
		}
	}
}

// pushed takes in that all of the incoming queue has come over conn. Answers may overtake
// batches that cleanup had made before, so removals had to be remembered up to here.
func (r *recorder) pushed(conn *ipc.Conn) {
	if r.conn != conn {
		return
	}
	r.pushing = false
	r.settleLate()
	r.s.dropUnknown(conn)
}

// settleLate drops removals from gone when nothing that is on its way can be from before
// them.
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

// attach keeps this process attached to cleanup until ctx ends. It is a goroutine of its
// own, since dialling waits.
func (s *Server) attach(ctx context.Context) {
	for first := true; ctx.Err() == nil; {
		conn, err := s.cleanup.Conn(ctx)
		if err != nil {
			continue
		}
		s.post(func() {
			s.log.connected(conn)
			s.attached()
		}, sched.Event{})
		if first {
			s.askHands(conn)
			first = false
		}
		// cleanup pushes the incoming queue in answer, and from then on every new
		// message.
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

// news is a batch of entries that cleanup has pushed, on its way to the loop.
type news struct {
	conn  *ipc.Conn
	batch proto.Entries
	ready []*loading // of the entries that are prepared, in order; nil for one that is not: see prepare
	room  bool       // it takes one of s.room
}

// keptFrame is how long the frame of a new message may be for its entry to keep pointing
// into it: such a frame has little else in it. What is needed of a longer frame is
// copied.
const keptFrame = 1 << 10

// fromCleanup takes in what cleanup pushes. It runs on the connection's reading
// goroutine, and blocks when the loop has maxBatches to take in: then cleanup is not read
// from, and does not send more. New messages come one at a time and are not held up by
// that.
func (s *Server) fromCleanup(conn *ipc.Conn, r *ipc.Request) {
	if r.Kind != proto.KindEntries {
		return
	}
	n := s.oldNews.Get()
	n.conn = conn
	if err := r.Decode(&n.batch); err != nil {
		s.opt.Log.Error("malformed reply from cleanup: %v", err)
		return
	}
	switch {
	case len(n.batch.Gone) > 0: // few, and it is what others wait for
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
	if !n.batch.Known && len(n.batch.List) <= maxPrepared {
		for i := range n.batch.List {
			n.ready = append(n.ready, s.prepare(&n.batch.List[i]))
		}
	}
	s.postInput(input{news: n})
}

// hear takes in a batch. Nothing of n is kept but the frame that entries point into: n is
// used again.
func (s *Server) hear(n *news) {
	s.heard = s.now
	for i := range n.batch.List {
		// An answer to a question; what is in memory is newer.
		if n.batch.Known {
			s.bring(&n.batch.List[i].Entry)
		} else {
			var l *loading
			if i < len(n.ready) && n.ready[i] != nil {
				l = n.ready[i]
				s.aheadRcpts.Add(-int64(l.nrcpt))
			}
			s.arrive(&n.batch.List[i], n.conn, l)
		}
	}
	for _, id := range n.batch.Gone {
		s.gone(id)
	}
	if n.batch.Complete {
		s.log.pushed(n.conn)
		s.counted(&n.batch)
		s.queueTold()
	}
	if n.room {
		<-s.room
	}
	*n = news{batch: proto.Entries{List: reuse.Emptied(n.batch.List)}, ready: reuse.Emptied(n.ready)}
	s.oldNews.Put(n)
}
