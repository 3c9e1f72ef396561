package pffile

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/spooltool/plain"
)

// TestWriteLog: what is written as Postfix's defer service would is read as it was, but for
// what that service does not keep.
func TestWriteLog(t *testing.T) {
	t.Parallel()
	when := time.Unix(1700000000, 0)
	m := &plain.Message{Envelope: mail.Envelope{Recipients: []mail.Recipient{{Address: "a b@to.test", Original: "alias@to.test", ORCPT: "rfc822;alias@to.test", Notify: dsn.NotifyNever},
		{Address: "done@to.test"}, {Address: "c@to.test"}, {Address: "new@to.test"}}}, Done: map[int]bool{1: true},
		Outcomes: map[int]mail.Outcome{
			0: {Rcpt: 0, Action: dsn.Deferred, Status: dsn.S(4, 2, 1), Reason: "host mx.to.test[192.0.2.9] said: 451 4.2.1 not today", MTA: "mx.to.test", DiagType: "smtp", DiagText: "451 4.2.1 not today", When: when},
			1: {Rcpt: 1, Action: dsn.Deferred, Status: dsn.S(4, 0, 0), Reason: "gone", When: when},
			2: {Rcpt: 2, Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "two\nlines", When: when.Add(-time.Hour)},
		}}
	var log strings.Builder
	n, last, err := WriteLog(&log, m)
	if err != nil || n != 2 || !last.Equal(when) {
		t.Fatal(n, last, err)
	}
	const want = `
<"a b"@to.test>: host mx.to.test[192.0.2.9] said: 451 4.2.1 not today
recipient="a b"@to.test
original_recipient=alias@to.test
dsn_orig_rcpt=rfc822;alias@to.test
dsn_notify=1
status=4.2.1
action=delayed
diag_type=smtp
diag_text=451 4.2.1 not today
mta_type=dns
mta_mname=mx.to.test
reason=host mx.to.test[192.0.2.9] said: 451 4.2.1 not today


<c@to.test>: two lines
recipient=c@to.test
status=4.4.1
action=delayed
reason=two lines

`
	if log.String() != want {
		t.Errorf("%s", log.String())
	}
	back := &plain.Message{Envelope: m.Envelope, Done: m.Done, Outcomes: map[int]mail.Outcome{}}
	if err := ReadLog(strings.NewReader(log.String()), back, when); err != nil {
		t.Fatal(err)
	}
	if o := back.Outcomes[0]; len(back.Outcomes) != 2 || o.Status != m.Outcomes[0].Status || o.Reason != m.Outcomes[0].Reason || o.DiagText != m.Outcomes[0].DiagText || o.MTA != m.Outcomes[0].MTA {
		t.Errorf("read back as %+v", back.Outcomes)
	}
}

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
