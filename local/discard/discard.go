// Package discard is the program behind the transport discard: it discards mail
// and reports it as sent. The sender is told only if NOTIFY requested a success
// notice. The next hop of the transport is logged as the reason:
//
//	spamtrap.example.org    discard:nobody reads this
//
// The reason may begin with an enhanced status code of class 2; the default is
// 2.0.0.
//
// # Diagnostics
//
//	ID: to=<a@b>, relay=none, ..., dsn=2.0.0, status=sent (TEXT)
//
// Address probes are answered with status=deliverable.
package discard

import (
	"context"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
)

// Agent is the discard transport.
type Agent struct{}

// Deliver implements agent.Deliverer.
// Hands implements agent.Hander: nothing is delivered.
func (Agent) Hands() {}

// Deliver implements agent.Deliverer.
func (Agent) Deliver(_ context.Context, r *agent.Request) {
	status, text, ok := dsn.CutStatus(string(r.Nexthop))
	if !ok {
		status = dsn.S(2, 0, 0)
	}
	for i := range r.Envelope.Recipients {
		r.Sent(i, status.WithClass(2), text, agent.Detail{})
	}
}
