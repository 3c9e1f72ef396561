package cleanup

import (
	"context"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/proto"
)

// probedTime is how long the verify service may take to be reached. Probes go on to come while it cannot be, as
// many as strangers name addresses, and each keeps its result until then: longer would fill the memory.
const probedTime = 10 * time.Second

// probed tells the verify service of probes that need not go out: for aliases, whose mail
// is taken here. It is best effort, and is not waited for: a result that is lost means that
// the address is probed again.
func (s *server) probed(notices []noticed, within time.Duration) {
	if s.opt.Verify == nil {
		return
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, within)
		defer cancel()
		for i := range notices {
			n := &notices[i]
			m := &proto.Probed{Address: n.Recipient.Orig(), Text: n.Outcome.Reason, Status: proto.ProbeDefer}
			// That it is an alias is all that is found out here. Whatever else is noted of a recipient says nothing of the address.
			if n.Outcome.Action == dsn.Deliverable {
				m.Status = proto.ProbeOK
			}
			conn, err := s.opt.Verify.Conn(ctx)
			if err == nil {
				err = conn.Send(m)
			}
			if err != nil {
				s.opt.Log.Warning("address probe result for %s is lost: %v", m.Address, err)
			}
		}
	})
}
