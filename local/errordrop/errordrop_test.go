package errordrop

import (
	"testing"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

func TestDeliver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		agent   Agent
		nexthop mail.Nexthop
		trace   mail.Trace
		action  dsn.Action
		status  string
		text    string
	}{
		{Agent{}, "5.1.2 not served", 0, dsn.Failed, "5.1.2", "not served"},
		{Agent{}, "not served", 0, dsn.Failed, "5.0.0", "not served"},
		{Agent{}, "4.4.1 odd", 0, dsn.Failed, "5.4.1", "odd"},
		{Agent{}, "5.1.2x odd", 0, dsn.Failed, "5.0.0", "5.1.2x odd"},
		{Agent{}, "", 0, dsn.Failed, "5.0.0", "mail to this address is not delivered by this system"},
		{Agent{Retry: true}, "4.4.1 delivery temporarily suspended: x", 0, dsn.Deferred, "4.4.1", "delivery temporarily suspended: x"},
		{Agent{Retry: true}, "5.1.2 no", 0, dsn.Deferred, "4.1.2", "no"},
		{Agent{Retry: true}, "line down", 0, dsn.Deferred, "4.0.0", "line down"},
		{Agent{}, "5.1.2 not served", mail.TraceProbe, dsn.Undeliverable, "5.1.2", "not served"},
	} {
		env := mail.Envelope{Trace: tt.trace, Recipients: []mail.Recipient{{Address: "a@b"}, {Address: "c@b"}}}
		r := agent.NewTestRequest(env, tt.nexthop, nil, nil)
		tt.agent.Deliver(t.Context(), r)
		for _, o := range r.Outcomes() {
			if o.Action != tt.action || o.Status.String() != tt.status || o.Reason != tt.text || o.Relay != "none" {
				t.Errorf("%q: %+v", tt.nexthop, o)
			}
		}
	}
}
