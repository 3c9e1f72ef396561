package collate

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// Two clients in one process of smtpd, a delivery that meets a dead server first, a
// report, and a message that stays; the lines of each without the words that do not matter.
const sample = `Nov 23 10:00:00 mx postfix/smtpd[10]: connect from a.test[192.0.2.1]
Nov 23 10:00:01 mx postfix/smtpd[10]: connect from b.test[2001:db8::2]
Nov 23 10:00:01 mx cron[7]: job
Nov 23 10:00:02 mx postfix/smtpd[10]: 4aAAAA1z: client=a.test[192.0.2.1]
Nov 23 10:00:02 mx postfix/cleanup[11]: 4aAAAA1z: message-id=<1@a.test>
Nov 23 10:00:03 mx postfix/qmgr[12]: 4aAAAA1z: from=<x@a.test>, size=300, nrcpt=1 (queue active)
Nov 23 10:00:03 mx postfix/submission/smtpd[10]: 4bBBBB2z: client=b.test[2001:db8::2]
Nov 23 10:00:04 mx postfix/smtpd[10]: disconnect from a.test[192.0.2.1] ehlo=1 mail=1 rcpt=1 data=1 quit=1 commands=5
Nov 23 10:00:05 mx postfix/smtp[13]: connect to dead.test[192.0.2.9]:25: Connection refused
Nov 23 10:00:06 mx postfix/smtp[13]: 4aAAAA1z: to=<y@c.test>, relay=none, status=bounced (connect to dead.test[192.0.2.9]:25: Connection refused)
Nov 23 10:00:06 mx postfix/bounce[14]: 4aAAAA1z: sender non-delivery notification: 4cCCCC3z
Nov 23 10:00:06 mx postfix/qmgr[12]: 4aAAAA1z: removed
2026-11-23T10:00:07.123456+01:00 mx postfix/qmgr[12]: 4cCCCC3z: from=<>, size=900, nrcpt=1 (queue active)
`

func collate(t *testing.T, text string, args ...string) string {
	t.Helper()
	var out, errs strings.Builder
	if status := Command(args, strings.NewReader(text), &out, &errs); status != 0 {
		t.Fatalf("status %d: %s", status, errs.String())
	}
	return out.String()
}

func TestCollate(t *testing.T) {
	t.Parallel()
	lines := strings.SplitAfter(sample, "\n")
	pick := func(numbers ...int) (text string) {
		for _, n := range numbers {
			text += lines[n]
		}
		return text + "\n"
	}
	// The message of b.test came by another service of the same process ID, whose session is unknown.
	want := pick(0, 3, 4, 5, 7, 8, 9, 10, 11) + pick(6) + pick(10, 12)
	if got := collate(t, sample); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(sample), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := collate(t, "", file); got != want {
		t.Errorf("from a file:\n%s", got)
	}
}

// The original's program says the same of a log that its own processes could have made.
func TestAsOriginal(t *testing.T) {
	t.Parallel()
	program := testpeers.Postfix(t, "postfix-collate")
	log := strings.ReplaceAll(sample, "smtpd[10]: connect from b", "smtpd[20]: connect from b")
	log = strings.ReplaceAll(log, "submission/smtpd[10]", "smtpd[20]")
	log = log[:strings.Index(log, "2026-")]
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(log)
	out, err := cmd.Output()
	if got := collate(t, log); err != nil || got != string(out) {
		t.Errorf("got\n%s\nthe original (%v)\n%s", got, err, out)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-x"}, {"/nonexistent"}} {
		var errs strings.Builder
		if status := Command(args, strings.NewReader(""), &errs, &errs); status != 1 || !strings.HasPrefix(errs.String(), "posthaste: fatal: collate: ") {
			t.Errorf("%q: status %d, %s", args, status, errs.String())
		}
	}
	if got := collate(t, strings.Repeat("x", 3<<20)+"\nno log\npostfix/qmgr[1]: 4aAAAA1z: removed"); got != "postfix/qmgr[1]: 4aAAAA1z: removed\n\n" {
		t.Errorf("%q", got)
	}
}
