// What comes back of mail, to another node than the one that has sent it. Each node
// records what it has sent under the suppression list, in its suppress service: so the
// comeback service of the other one asks this one's, which message a return path was
// made for, and then tells it of the bounce or complaint.
//
// Why this process: the request comes the way of all that nodes ask each other
// (forward.go), so that no node needs to reach a socket of another one, and goes on as it
// is. Nothing is ordered of a node that does not answer: the report waits in the queue
// there, and is read again.

package qmgr

import (
	"context"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// comebackTime is how long the suppress service may take. Its clients here have as much
// patience.
const comebackTime = 10 * time.Second

// cameBack answers with what the suppress service answers. Where no mail is under the
// list nothing is recorded, which is an answer, too: a report does not wait for that.
func (s *Server) cameBack(r *ipc.Request) {
	if err := decodes(r); err != nil {
		r.Fail("%v", err)
		return
	}
	if s.suppress == nil {
		if r.Kind == proto.KindReturnPath {
			r.Reply(&proto.ReturnPathReply{Problem: "no mail is under the suppression list there"})
			return
		}
		r.Fail("no mail is under the suppression list there")
		return
	}
	kind := uint16(proto.KindReturnPathReply)
	if r.Kind == proto.KindSuppressTell {
		kind = proto.KindSuppressTold
	}
	// The loop waits for nobody, and the request's memory is the connection's.
	asked := &rawMessage{kind: r.Kind, octets: append([]byte(nil), r.Payload...)}
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, comebackTime)
		defer cancel()
		answer := &rawMessage{kind: kind}
		if err := s.suppress.CallAgain(ctx, asked, answer); err != nil {
			r.Fail("the suppress service does not answer: %v", err)
			return
		}
		r.Reply(answer)
	})
}

// decodes says what is wrong with such a request.
func decodes(r *ipc.Request) error {
	if r.Kind == proto.KindReturnPath {
		return r.Decode(new(proto.ReturnPath))
	}
	return r.Decode(new(proto.SuppressTell))
}
