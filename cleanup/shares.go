// The queue manager's shares of limits that hold over several nodes: cleanup alone writes to what the nodes share.

package cleanup

import (
	"posthaste/internal/ipc"
	"posthaste/internal/nodeshare"
	"posthaste/internal/proto"
	"posthaste/internal/storage"
)

// shares exchanges what the queue manager claims of limits for what other nodes leave. The engine waits for its
// storage, and so it has a goroutine of its own. Where there is one node only, it is alone.
//
// An error is not told apart: whether the exchange was made is not known, and the queue manager goes on with what it had
// until that is over. The next exchange has all claims again, so that nothing is lost by it.
func (s *server) shares(r *ipc.Request) {
	var q proto.Shares
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	// A queue manager of another spool_type asks no such thing. At a change of that, the old one may be there
	// for a moment longer.
	en, ok := s.opt.Engine.(storage.Sharer)
	if !ok {
		r.Reply(&proto.SharesReply{Alone: true})
		return
	}
	s.wg.Go(func() {
		reply, err := en.Exchange(&nodeshare.Request{Alone: q.Alone, Claims: q.Claims})
		if err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.SharesReply{Alone: reply.Alone, Grants: reply.Grants})
	})
}
