package pffile

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/spooltool/plain"
)

// Whatever is in a defer file, only recipients that are pending get an outcome,
// and only such as can be recorded.
func FuzzReadLog(f *testing.F) {
	f.Add("\n<a@to.test>: x\nrecipient=a@to.test\noffset=1\nstatus=4.4.1\naction=delayed\nreason=x\n\n")
	f.Add("recipient=b@to.test\nstatus=4.4.1\naction=delayed\n\nrecipient=c@to.test\nstatus=5.0.0\naction=failed\n")
	f.Add("recipient=c@to.test\nstatus=4.0.0\naction=delayed\nreason==\n=\n<=\nrecipient=")
	f.Add("recipient=a@to.test\nstatus=4.4.1\nreason=" + strings.Repeat("x", 3*maxLogLine) + "\naction=delayed\n\n")
	f.Fuzz(func(t *testing.T, log string) {
		m := &plain.Message{Envelope: mail.Envelope{Recipients: []mail.Recipient{{Address: "a@to.test"}, {Address: "b@to.test"}, {Address: "c@to.test"}, {Address: "c@to.test"}}},
			Done: map[int]bool{1: true}, Outcomes: map[int]mail.Outcome{}}
		when := time.Unix(1700000000, 0)
		if err := ReadLog(strings.NewReader(log), m, when); err != nil {
			t.Fatal(err)
		}
		for i, o := range m.Outcomes {
			if i == 1 || i > 3 || o.Rcpt != i || o.Action != dsn.Deferred || o.Status.IsZero() || !o.When.Equal(when) {
				t.Errorf("recipient %d: %+v", i, o)
			}
			if back, ok := m.Outcomes[5-i]; i > 1 && (!ok || back.Status != o.Status) {
				t.Errorf("the same address has another outcome: %+v, %+v", o, back)
			}
		}
	})
}
