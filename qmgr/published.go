// What this node's metrics service publishes, for the metrics services of other nodes. The request comes the way of all that nodes
// ask each other (forward.go), and this process alone knows the way; it reads nothing of the answer. So no node needs to
// reach the address that another one publishes its metrics at, which is a loopback address as a rule.

package qmgr

import (
	"context"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// gatherTime is how long the metrics service may take to ask the processes of this node. It gives up those that do not answer
// after half of that.
const gatherTime = 6 * time.Second

// published answers with what the metrics service has.
func (s *Server) published(r *ipc.Request) {
	if s.courier == nil || s.courier.metrics == nil {
		r.Fail("metrics_listen is empty there")
		return
	}
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, gatherTime)
		defer cancel()
		answer := &rawMessage{kind: r.Kind}
		conn, err := s.courier.metrics.Conn(ctx)
		if err == nil {
			err = conn.Call(ctx, answer, answer)
		}
		if err != nil {
			r.Fail("the metrics service does not answer: %v", err)
			return
		}
		answer.kind = proto.KindGatherReply
		r.Reply(answer)
	})
}
