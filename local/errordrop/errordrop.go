// Package errordrop is the program behind the transports error and retry: it
// delivers nothing. Every recipient is returned (error) or deferred (retry), and
// the next hop of the transport is the reason.
//
// An administrator can set such a reason in a transport table:
//
//	old.example.org    error:5.1.2 this domain is no longer served
//	far.example.org    retry:4.4.0 the line is down until Monday
//
// and the queue manager sets one for mail that waits for a destination that does
// not answer. The reason may begin with an enhanced status code; the default is
// 5.0.0 or 4.0.0. The class of the code is that of the transport, whatever the
// reason says.
//
// # Diagnostics
//
//	ID: to=<a@b>, relay=none, ..., dsn=4.4.1, status=deferred (TEXT)
//
// Address probes are answered with status=undeliverable.
package errordrop

import (
	"context"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
)

// Agent is the error transport. The zero Agent returns mail to its sender.
type Agent struct {
	Retry bool // the retry transport: mail stays in the queue
}

// Deliver implements agent.Deliverer.
// Hands implements agent.Hander: nothing is delivered.
func (Agent) Hands() {}

// Deliver implements agent.Deliverer.
func (a Agent) Deliver(_ context.Context, r *agent.Request) {
	status, text, ok := dsn.CutStatus(string(r.Nexthop))
	if !ok {
		status = dsn.S(5, 0, 0)
	}
	if text == "" {
		text = "mail to this address is not delivered by this system"
	}
	for i := range r.Envelope.Recipients {
		if a.Retry {
			r.Defer(i, status, text, agent.Detail{})
		} else {
			r.Bounce(i, status, text, agent.Detail{})
		}
	}
}
