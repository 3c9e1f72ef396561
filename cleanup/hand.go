package cleanup

import (
	"errors"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// hand makes it durable that an agent is about to make a delivery (spool_exact_doubt). The
// agent waits for it; those that ask at the same time share a sync. One that cannot be recorded
// is refused, and the agent then defers the message: what was sent without the record could arrive
// twice and not be in the list.
func (s *server) hand(r *ipc.Request) {
	var q proto.Hand
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.opt.Doubts.handed(q.ID, q.Index)
	b := s.opt.Engine.NewBatch()
	b.Apart()
	b.Handed(q.ID, q.Index, q.Relay)
	s.opt.Engine.Post(b, func(err error) {
		if err == nil {
			err = b.Refused(0)
		}
		var reply proto.RecordReply
		switch {
		case errors.Is(err, queue.ErrInvalid), errors.Is(err, queue.ErrTooLarge):
			reply.Refused = append(reply.Refused, proto.Refusal{ID: q.ID, Reason: err.Error()})
		case err != nil:
			r.Fail("%v", err)
			return
		}
		r.Reply(&reply)
	})
	s.opt.Engine.Hurry()
}
