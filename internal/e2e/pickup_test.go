package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// What cleanup cannot take from pickup goes back to its sender and does not stay
// in maildrop: there is no client who could be told.
func TestPickupReturns(t *testing.T) {
	t.Parallel()
	const settings = reportSettings + "notify_classes =\n"
	theirs, ours := newPostfix(t, options{main: settings, unstarted: true}), newSystem(t, options{main: settings, unstarted: true})
	drop := func(s *system, text string) {
		t.Helper()
		s.operate(text, "sendmail", "-f", "box@local.test", "a@far.test")
	}
	returned := func(s *system, n int) {
		t.Helper()
		s.start()
		s.eventually("the mail goes back", func() bool { return len(s.reported()) >= n })
		s.eventually("nothing is left", func() bool {
			left, err := os.ReadDir(s.path("spool", "maildrop"))
			return s.original != nil || err == nil && len(left) == 0
		})
	}
	if _, status := ours.tool(nil, "check"); status != 1 { // makes directories, and misses the aliases
		t.Errorf("check: status %d", status)
	}
	for _, s := range []*system{theirs, ours} {
		setUpReports(s)
		drop(s, "Subject: large\n\n"+strings.Repeat("a line of many\n", 300))
		drop(s, strings.Repeat("Received: again\n", 60)+"Subject: hops\n\nx\n")
		s.operate("", "postconf", "-e", "message_size_limit = 4000")
		returned(s, 2)
	}
	sameReports(t, theirs, ours, 2)

	// A header of which no list is made, to be signed.
	ours.stop()
	ours.operate("", "postconf", "-e", "message_size_limit = 4000000")
	ours.operate("", "postconf", "-e", "dkim_sign_maps = inline:{ {else.test=s1:/nonexistent} }")
	drop(ours, strings.Repeat("X: y\n", 10001)+"Subject: fields\n\nx\n")
	returned(ours, 3)
	if text := strings.Join(ours.reported(), "\n"); !strings.Contains(text, "\nStatus: 5.3.4\nDiagnostic-Code: X-Postfix; the message header is too long\n") {
		t.Errorf("reported:\n%s", text)
	}
}

// What was in maildrop when a pickup process died is named as mail that may be queued twice, in a chroot as well. What is
// there after a stop is not.
func TestPickupDied(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost(), master: "pickup unix n - y 60 1 pickup\n"})
	doubt := regexp.MustCompile(`in doubt: a pickup process that died may have queued it already`)
	for n, dies := range []bool{false, true, false} {
		s.stop()
		if _, err := os.Stat(s.path("data", "pickup", "running")); err == nil {
			t.Errorf("after end %d: pickup has not come to its end", n)
		}
		if dies { // as if it had not
			s.write("data/pickup/running", "")
		}
		s.operate("Subject: x\n\nx\n", "sendmail", "-f", "a@from.test", "b@to.test")
		s.start()
		s.eventually("it arrives, and that is recorded", func() bool { return strings.Count(s.log(), ": removed") == n+1 })
		want := 0
		if n > 0 {
			want = 1
		}
		got := 0
		s.eventually("it is named, by a process that gathers its lines", func() bool {
			got = len(doubt.FindAllString(s.log(), -1))
			return got >= want
		})
		if got != want {
			t.Errorf("after end %d: %d messages in doubt, want %d", n, got, want)
		}
	}
}

// A message for more recipients than the spool can record as one is delivered
// to all of them.
func TestPickupSplits(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{main: "spool_segment_size = 1m\ndefault_transport = discard\n", unstarted: true})
	s.operate("", "check") // makes directories
	const recipients = 2000
	to := []string{"sendmail", "-f", "box@local.test"}
	domain := strings.Repeat(strings.Repeat("x", 63)+".", 3) + "test"
	for i := range recipients {
		to = append(to, fmt.Sprintf("%s%d@%s", strings.Repeat("r", 60), i, domain))
	}
	s.operate("Subject: many\n\nx\n", to...)
	s.start()
	s.waitLog(`message with 2000 recipients was queued as several, with at most \d+ each`)
	s.eventually("all mail is delivered", func() bool { return strings.Count(s.log(), " status=sent ") >= recipients })
	if left, err := os.ReadDir(s.path("spool", "maildrop")); err != nil || len(left) != 0 {
		t.Errorf("%d files are left in maildrop, %v", len(left), err)
	}
	if n := strings.Count(s.log(), " status=sent "); n != recipients {
		t.Errorf("delivered to %d recipients, want %d", n, recipients)
	}
}
