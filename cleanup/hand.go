// With spool_exact_doubt, no delivery is made before it is on stable storage that it is
// about to be. Then the list of doubtful messages after a crash has exactly those that
// may have arrived, at the price of one more sync for each delivery.

package cleanup

import (
	"errors"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// hand records that an agent is about to make a delivery. The agent waits for the answer.
// Those that ask at the same time share a sync. What cannot be recorded is refused, and
// the agent then defers the message: what was sent without the record could arrive twice
// without being in the list.
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
	// With an engine of several nodes this is also where a node notices that the message is not its own any more:
	// the change is refused, and so nothing is delivered that another node may have delivered.
	//
	// Without this the post would wait for spool_commit_delay, and the delivery with it.
	s.opt.Engine.Hurry()
}

// hands answers a queue manager that asks what agents have in hand. With more than a reply has room
// for, the rest is not named; so many deliveries are not under way.
func (s *server) hands(r *ipc.Request) {
	var reply proto.HandsReply
	rcpts := 0
	s.opt.Engine.Hands(func(d queue.Doubt) bool {
		if len(reply.List) == proto.HandsLimit || rcpts+len(d.Rcpts) > proto.HandsRcpts {
			reply.More = true
			return false
		}
		rcpts += len(d.Rcpts)
		reply.List = append(reply.List, proto.Hand{ID: d.ID, Index: d.Rcpts, Relay: d.Nexthop, At: d.At})
		return true
	})
	r.Reply(&reply)
}
