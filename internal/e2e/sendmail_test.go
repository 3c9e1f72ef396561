package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Messages, and processes at once, of BenchmarkSendmail.
const (
	sendmailMessages = 1000
	sendmailParallel = 10
)

// TestSendmailProgram: the program that is started for each message sends, and
// leaves everything else to the one that has it.
func TestSendmailProgram(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{main: "defer_transports = smtp\nalias_database = texthash:{dir}/etc/aliases\n"})
	run := func(stdin string, args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(filepath.Join(binDir, "sendmail"), append([]string{"-C", s.path("etc")}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, c := range []struct {
		stdin, args string
		status      int
		out         string
	}{
		{"To: b@to.test\nSubject: one\n\nx\n", "-t -f a@from.test", 0, ""},
		{"x", "-f a@from.test", 75, ": Recipient addresses must be specified"},
		{"x", "-%", 75, "sendmail: fatal: unknown option -%"},
		{"HELO x\r\nMAIL FROM:<c@from.test>\r\nRCPT TO:<d@to.test>\r\nDATA\r\nSubject: two\r\n\r\nx\r\n.\r\nQUIT\r\n", "-bs", 0, "250 2.0.0 Ok: queued as "},
		{"", "-q", 0, ""},
		{"", "-bd", 1, "already running"},
	} {
		out, status := run(c.stdin, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out, c.out) || c.out == "" && out != "" {
			t.Errorf("sendmail %s: exit status %d, %q", c.args, status, out)
		}
	}
	s.waitLogN("status=deferred", 2)
	if out, status := run("", "-bp"); status != 0 || !strings.Contains(out, "a@from.test") || !strings.Contains(out, " in 2 Requests.") {
		t.Errorf("sendmail -bp: exit status %d\n%s", status, out)
	}
}

// BenchmarkSendmail is mail submitted by sendmail to us and to Postfix in turn,
// a process for each message. What is measured is the time from the first
// process to the last message's delivery, which discards it.
//
//	go test ./internal/e2e -run '^$' -bench Sendmail -count 5
func BenchmarkSendmail(b *testing.B) {
	settings := options{main: "transport_maps = inline:{ sunk.test=discard: }\n"}
	theirs, ours := newPostfix(b, settings), newSystem(b, settings)
	sendmail := map[*system][]string{
		theirs: theirs.original.Command(b.Context(), "sendmail").Args,
		ours:   {filepath.Join(binDir, "sendmail"), "-C", ours.path("etc")},
	}
	message := filepath.Join(b.TempDir(), "message") // a file: what feeds a pipe would be measured, too
	if err := os.WriteFile(message, []byte("Subject: x\n\n"+strings.Repeat("a line of the text of an ordinary message\n", 50)), 0o600); err != nil {
		b.Fatal(err)
	}
	var took [2]time.Duration
	total := 0
	for b.Loop() {
		total += sendmailMessages
		for i, s := range []*system{ours, theirs} {
			start := time.Now()
			var wg sync.WaitGroup
			for range sendmailParallel {
				wg.Go(func() {
					if err := submitAll(message, append(slices.Clone(sendmail[s]), "-oi", "-f", "a@from.test", "b@sunk.test")); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			s.eventually("all mail is delivered", func() bool { return strings.Count(s.log(), "status=sent") >= total })
			took[i] += time.Since(start)
		}
	}
	rate := func(d time.Duration) float64 { return float64(b.N) * sendmailMessages / d.Seconds() }
	b.ReportMetric(rate(took[1]), "postfix/s")
	b.ReportMetric(rate(took[0]), "ours/s")
	b.ReportMetric(rate(took[0])/rate(took[1]), "ratio")
	b.ReportMetric(0, "ns/op")
}

// submitAll runs a command again and again with a file as its input. A shell
// starts it: Go starts one process at a time, which would be what is measured.
func submitAll(name string, args []string) error {
	const script = `file=$1 n=$2; shift 2; while [ $n -gt 0 ]; do "$@" <"$file" || exit; n=$((n-1)); done`
	cmd := exec.Command("sh", append([]string{"-c", script, "sh", name, fmt.Sprint(sendmailMessages / sendmailParallel)}, args...)...)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w", args, err)
	}
	return nil
}
