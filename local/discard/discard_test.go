package discard

import (
	"testing"

	"posthaste/internal/agent"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

func TestDeliver(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		nexthop mail.Nexthop
		trace   mail.Trace
		action  dsn.Action
		status  string
		text    string
	}{
		{"nobody reads this", 0, dsn.Delivered, "2.0.0", "nobody reads this"},
		{"2.1.5 gone", 0, dsn.Delivered, "2.1.5", "gone"},
		{"5.1.5 gone", 0, dsn.Delivered, "2.1.5", "gone"},
		{"gone", mail.TraceReport, dsn.Deliverable, "2.0.0", "gone"},
	} {
		env := mail.Envelope{Trace: tt.trace, Recipients: []mail.Recipient{{Address: "a@b"}, {Address: "c@b"}}}
		r := agent.NewTestRequest(env, tt.nexthop, nil, nil)
		Agent{}.Deliver(t.Context(), r)
		for _, o := range r.Outcomes() {
			if o.Action != tt.action || o.Status.String() != tt.status || o.Reason != tt.text || o.Relay != "none" {
				t.Errorf("%q: %+v", tt.nexthop, o)
			}
		}
	}
}
