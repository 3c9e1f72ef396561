package e2e

import (
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
	sendmailMessages = 400
	sendmailParallel = 10
)

// BenchmarkSendmail is mail submitted by sendmail to us and to Postfix in turn,
// a process for each message. What is measured is the time from the first
// process to the last message's delivery, which discards it.
//
//	go test ./internal/e2e -run '^$' -bench Sendmail -benchtime 3x
func BenchmarkSendmail(b *testing.B) {
	settings := options{main: "transport_maps = inline:{ sunk.test=discard: }\n"}
	theirs, ours := newPostfix(b, settings), newSystem(b, settings)
	sendmail := map[*system][]string{
		theirs: theirs.original.Command(b.Context(), "sendmail").Args,
		ours:   {filepath.Join(binDir, "posthaste"), "-c", ours.path("etc"), "sendmail"},
	}
	message := "Subject: x\n\n" + strings.Repeat("a line of the text of an ordinary message\n", 50)
	var took [2]time.Duration
	total := 0
	for b.Loop() {
		total += sendmailMessages
		for i, s := range []*system{ours, theirs} {
			start := time.Now()
			var wg sync.WaitGroup
			for range sendmailParallel {
				wg.Go(func() {
					for range sendmailMessages / sendmailParallel {
						args := append(slices.Clone(sendmail[s]), "-oi", "-f", "a@from.test", "b@sunk.test")
						cmd := exec.Command(args[0], args[1:]...)
						cmd.Stdin = strings.NewReader(message)
						if out, err := cmd.CombinedOutput(); err != nil {
							b.Errorf("%v: %v %s", args, err, out)
							return
						}
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
