// The queue manager's decisions on their way to stable storage. They come hundreds at a
// time and all the time, so the memory of one request is used again for the next.

package cleanup

import (
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
)

// record makes the queue manager's decisions durable, with the next commit, or at once
// when somebody waits (Urgent). Each change stands for itself: a change that cannot be
// recorded must not keep the others from being recorded, or it would be refused together
// with them again and again.
func (s *server) record(r *ipc.Request) {
	rec := s.recordings.Get()
	rec.r = r
	if err := r.Decode(&rec.q); err != nil {
		rec.release()
		r.Fail("%v", err)
		return
	}
	b := rec.batch
	b.Apart()
	for i := range rec.q.Ops {
		op := &rec.q.Ops[i]
		switch {
		case s.provisionally(op):
			b.Done(op.ID, nil) // as below
		// Finish and Remove differ for the list of doubtful messages, and for the log of
		// the spool.
		case op.Remove && op.Finished:
			b.Finish(op.ID)
		case op.Remove:
			b.Remove(op.ID)
		case op.Lost:
			s.opt.Doubts.lost(s.opt.Engine, s.opt.Reader, op, s.opt.Exact)
			// It changes nothing. Refused and Entry go by the index of a change, and so
			// each op makes one.
			b.Done(op.ID, nil) // nothing: changes are counted
		// Not durable before the delivery, unlike hand: this is for the report of a crash
		// only.
		case len(op.Handed) > 0:
			b.Handed(op.ID, op.Handed, string(op.Nexthop))
		case op.Changes():
			rec.updated = append(rec.updated, b.Update(op.ID, op.Change))
		default:
			b.Done(op.ID, op.Done)
		}
	}
	// From Post on, rec is the engine's, which may have called done already.
	urgent := rec.q.Urgent
	s.opt.Engine.Post(b, rec.done)
	if urgent || s.ending.Load() { // after Post: hasten may have come before it
		s.opt.Engine.Hurry()
	}
}

// A recording is a Record on its way, with the memory that it takes. It belongs to
// server.record until it is posted, and then to the engine until done.
type recording struct {
	s       *server
	r       *ipc.Request
	q       proto.Record
	batch   batch
	updated []int // changes whose messages the queue manager is told of
	reply   proto.RecordReply
}

// release gives rec back for other requests.
func (rec *recording) release() {
	rec.batch.Reset()
	rec.q.Ops, rec.updated = reuse.Emptied(rec.q.Ops), reuse.Emptied(rec.updated)
	rec.q.Urgent, rec.reply = false, proto.RecordReply{Entries: reuse.Emptied(rec.reply.Entries)}
	rec.r = nil
	rec.s.recordings.Put(rec)
}

// done answers the queue manager. The engine calls it when the batch is durable, or with
// the error that kept it from becoming so; it must not wait for anything.
func (rec *recording) done(err error) {
	defer rec.release()
	if err != nil {
		rec.r.Fail("%v", err)
		return
	}
	rec.s.opt.Doubts.recorded(rec.q.Ops, rec.batch)
	b, reply := rec.batch, &rec.reply
	for i := range rec.q.Ops {
		if err := b.Refused(i); err != nil {
			id := rec.q.Ops[i].ID
			// An error, because queue manager and queue disagree: a person should look.
			rec.s.opt.Log.Error("%s: a change of the message in the queue is not recorded: %v", id, err)
			reply.Refused = append(reply.Refused, proto.Refusal{ID: id, Reason: err.Error()})
		}
	}
	for _, i := range rec.updated {
		// A state may be written at another place, and the queue manager must know where.
		if e, ok := b.Entry(i); ok {
			reply.Entries = append(reply.Entries, e)
		} else if b.Refused(i) == nil {
			reply.Gone = append(reply.Gone, rec.q.Ops[i].ID)
		}
	}
	rec.r.Reply(reply)
}
