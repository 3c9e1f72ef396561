package agent

import (
	"strings"
	"testing"

	"posthaste/internal/bounceclass"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
)

// Failures are logged with their class, by the server's reply or else by our own words, and others with none.
func TestClass(t *testing.T) {
	t.Parallel()
	rules, err := bounceclass.Open([]string{bounceclass.Builtin})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	log := maillog.New("smtp", new(logLines))
	log.Observe(func(_ maillog.Level, _ bool, e maillog.Event) {
		if d, ok := e.(*maillog.Delivery); ok {
			got = append(got, d.Status+" "+d.Class)
		}
	})
	for _, classes := range []*bounceclass.Rules{rules, nil} {
		r := NewTestRequest(mail.Envelope{ID: "Q", Recipients: make([]mail.Recipient, 5)}, "b.test", nil, log)
		r.Classify(classes)
		r.Bounce(0, dsn.S(5, 0, 0), "host x said: 552-5.2.2 over 552 5.2.2 quota (in reply to RCPT TO)", Detail{DiagType: "smtp", DiagText: "552-5.2.2 over 552 5.2.2 quota"})
		r.Defer(1, dsn.S(4, 4, 1), "connect to x[192.0.2.1]:25: Connection refused", Detail{})
		r.Defer(2, dsn.S(4, 0, 0), "what nobody knows", Detail{DiagType: "x-unix", DiagText: "552 5.2.2 mailbox full"})
		r.Sent(3, dsn.S(2, 0, 0), "250 mailbox is not full", Detail{DiagType: "smtp", DiagText: "250 mailbox is full"})
		r.Bounce(4, dsn.S(5, 1, 1), "unknown user: \"joe\"", Detail{})
	}
	want := "bounced QuotaIssues,deferred NoAnswerFromHost,deferred Uncategorized,sent ,bounced InvalidRecipient," +
		"bounced ,deferred ,deferred ,sent ,bounced "
	if s := strings.Join(got, ","); s != want {
		t.Errorf("%s\nwant\n%s", s, want)
	}
}
