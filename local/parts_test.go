package local

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// partsOf delivers to a recipient and returns what came of it, and what is to
// be said of its parts.
func (s *site) partsOf(trace mail.Trace, notify dsn.Notify, main, to string) (whole string, parts []string) {
	s.t.Helper()
	env := mail.Envelope{ID: mail.MakeQueueID(time.Now(), 7), Sender: "sender@far.test", Arrival: time.Now(), Trace: trace,
		Recipients: []mail.Recipient{{Address: to, Notify: notify}}}
	r := agent.NewTestRequest(env, "example.org", []byte(message), s.sink)
	r.PassBy(s.pass)
	cfg, err := config.LoadString(main)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Configure(cfg, "local")
	s.agent.Deliver(s.t.Context(), r)
	o := r.Outcomes()[0]
	for _, p := range o.Parts {
		text := fmt.Sprintf("%s %s %s", strings.TrimSuffix(p.Address, "@example.org"), p.Action, p.Status)
		if p.Owner != "" {
			text += " for " + p.Owner
		}
		if p.More > 0 {
			text += fmt.Sprintf(" and %d more", p.More)
		}
		parts = append(parts, text)
	}
	return fmt.Sprintf("%s %s", o.Action, o.Status), parts
}

// TestParts: what is said of each destination of an alias, and of the alias.
func TestParts(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 70 {
		many = append(many, fmt.Sprintf("\"|exit 67 # %d\"", i))
	}
	s := newSite(t, `both nosuch, nobody@error.test
mixed joe, "|exit 67", "|exit 75", x@far.test
good joe, x@far.test
one nosuch
self "|exit 65"
list "|exit 67"
owner-list joe
outer list, nosuch
boxes joe, ann
many `+strings.Join(many, ", ")+`, "|exit 75"
`, "mailbox_transport_maps = inline:{ ann=lmtp: }")
	s.other = func(string) (dsn.Action, dsn.Status) { return dsn.Failed, dsn.S(5, 2, 2) }
	const filter = "local_delivery_status_filter = inline:{ {4.3.0 temporary failure=5.3.0 never} }\n"
	everything := append(slices.Repeat([]string{"many failed 5.1.1"}, 50), "many failed 5.1.1 and 20 more", "many delayed 4.3.0 and 1 more")
	for _, tt := range []struct {
		to     string
		trace  mail.Trace
		notify dsn.Notify
		main   string
		whole  string
		parts  []string
	}{
		{"joe", 0, 0, "", "delivered 2.0.0", nil},
		{"nosuch", 0, 0, "", "failed 5.1.1", nil},
		{"good", 0, 0, "", "expanded 2.0.0", nil},
		{"good", 0, dsn.NotifySuccess, "", "expanded 2.0.0", nil},
		{"good", mail.TraceRecord, dsn.NotifySuccess, "", "expanded 2.0.0", []string{"good expanded 2.0.0", "joe delivered 2.0.0", "good expanded 2.0.0"}},
		{"both", 0, 0, "", "failed 5.1.1", []string{"nosuch failed 5.1.1", "both failed 5.1.3"}},
		{"both", 0, 0, "soft_bounce = yes\n", "delayed 4.1.1", []string{"nosuch delayed 4.1.1", "both delayed 4.1.3"}},
		{"both", mail.TraceReport, 0, "", "undeliverable 5.1.1", []string{"nosuch undeliverable 5.1.1", "both undeliverable 5.1.3"}},
		{"both", mail.TraceProbe, 0, "", "deliverable 2.0.0", nil},
		{"one", 0, 0, "", "failed 5.1.1", []string{"nosuch failed 5.1.1"}},
		{"self", 0, 0, "", "failed 5.6.0", nil},
		{"mixed", 0, 0, "", "delayed 4.3.0", []string{"mixed failed 5.1.1", "mixed delayed 4.3.0"}},
		{"mixed", 0, dsn.NotifySuccess, "", "delayed 4.3.0", []string{"mixed expanded 2.0.0", "mixed failed 5.1.1", "mixed delayed 4.3.0"}},
		{"mixed", 0, 0, filter, "failed 5.1.1", []string{"mixed failed 5.1.1", "mixed failed 5.3.0"}},
		{"mixed", mail.TraceRecord, 0, filter, "failed 5.1.1",
			[]string{"joe delivered 2.0.0", "mixed failed 5.1.1", "mixed failed 5.3.0", "mixed expanded 2.0.0"}},
		{"outer", 0, 0, "", "failed 5.1.1", []string{"list failed 5.1.1 for owner-list@example.org", "nosuch failed 5.1.1"}},
		{"boxes", 0, 0, "", "failed 5.2.2", []string{"ann failed 5.2.2"}},
		{"many", 0, 0, "", "delayed 4.3.0", everything},
	} {
		s.queued = nil
		whole, parts := s.partsOf(tt.trace, tt.notify, tt.main, tt.to+"@example.org")
		if whole != tt.whole || !slices.Equal(parts, tt.parts) {
			t.Errorf("%s, %d, %s, %s: %s %q, not %s %q", tt.to, tt.trace, tt.notify, tt.main, whole, parts, tt.whole, tt.parts)
		}
		// What will be tried again, for whatever reason, is not sent on before.
		if later := strings.HasPrefix(whole, "delayed"); tt.to == "mixed" && (len(s.queued) > 0) == later {
			t.Errorf("%s, %s: %d messages are sent on", tt.to, tt.main, len(s.queued))
		}
	}
}

// With soft_bounce nothing fails for good, so that nothing of an alias that has
// a wrong member is sent on, again and again.
func TestSoftMembers(t *testing.T) {
	t.Parallel()
	s := newSite(t, "pair nosuch, x@far.test\n", "")
	if whole, parts := s.partsOf(0, 0, "soft_bounce = yes\n", "pair@example.org"); whole != "delayed 4.1.1" || len(parts) != 1 || len(s.queued) != 0 {
		t.Errorf("%s %q, %d messages are sent on", whole, parts, len(s.queued))
	}
}
