package cleanup

import (
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
)

// record makes the queue manager's decisions durable, with the next commit, or at
// once when somebody waits. Each stands for itself: one that cannot be recorded,
// whatever the reason, must not keep the others, which would be refused again with
// it for ever.
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
		case op.Remove && op.Finished:
			b.Finish(op.ID)
		case op.Remove:
			b.Remove(op.ID)
		case op.Lost:
			s.opt.Doubts.lost(s.opt.Engine, s.opt.Reader, op, s.opt.Exact)
			b.Done(op.ID, nil) // nothing: changes are counted
		case len(op.Handed) > 0:
			b.Handed(op.ID, op.Handed, string(op.Nexthop))
		case op.Changes():
			rec.updated = append(rec.updated, b.Update(op.ID, op.Change))
		default:
			b.Done(op.ID, op.Done)
		}
	}
	urgent := rec.q.Urgent // rec is the spool's from here on
	s.opt.Engine.Post(b, rec.done)
	if urgent {
		s.opt.Engine.Hurry()
	}
}

// recording is a Record on its way, with the memory that it takes, which is
// used again for others. It belongs to server.record until it is posted, and
// then to the spool until done.
type recording struct {
	s       *server
	r       *ipc.Request
	q       proto.Record
	batch   batch
	updated []int // changes whose messages the queue manager is told of
	reply   proto.RecordReply
}

// release gives rec up.
func (rec *recording) release() {
	rec.batch.Reset()
	rec.q.Ops, rec.updated = reuse.Emptied(rec.q.Ops), reuse.Emptied(rec.updated)
	rec.q.Urgent, rec.reply = false, proto.RecordReply{Entries: reuse.Emptied(rec.reply.Entries)}
	rec.r = nil
	rec.s.recordings.Put(rec)
}

// done answers the queue manager.
func (rec *recording) done(err error) {
	defer rec.release()
	if err != nil {
		rec.r.Fail("%v", err)
		return
	}
	rec.s.opt.Doubts.recorded(rec.q.Ops)
	b, reply := rec.batch, &rec.reply
	for i := range rec.q.Ops {
		if err := b.Refused(i); err != nil {
			id := rec.q.Ops[i].ID
			rec.s.opt.Log.Error("%s: a change of the message in the queue is not recorded: %v", id, err)
			reply.Refused = append(reply.Refused, proto.Refusal{ID: id, Reason: err.Error()})
		}
	}
	for _, i := range rec.updated {
		if e, ok := b.Entry(i); ok {
			reply.Entries = append(reply.Entries, e)
		}
	}
	rec.r.Reply(reply)
}
