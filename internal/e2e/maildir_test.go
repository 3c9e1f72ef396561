package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testusers"
)

// Messages and users of BenchmarkMaildir.
const (
	maildirMessages = 4000
	maildirUsers    = 20
	maildirSize     = 4096
)

// BenchmarkMaildir is mail for users' maildirs, delivered by us and by Postfix
// in turn on the same disk: all of it is queued first, while the local
// transport is deferred, and then flushed. What is measured is the time from
// the flush to the last durable file, when the system has delivered a message
// since its reload: what a reload costs is no part of it.
//
//	go test ./internal/e2e -run '^$' -bench Maildir -count 5
func BenchmarkMaildir(b *testing.B) {
	source := need(b, "smtp-source")
	home := b.TempDir()
	for dir := home; dir != "/tmp"; dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	for i := range maildirUsers {
		testusers.Home(b, home, fmt.Sprintf("phbench%d", i))
	}
	if err := os.WriteFile(home+"/aliases", []byte("postmaster phbench0\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	settings := fmt.Sprintf("home_mailbox = Maildir/\nrecipient_delimiter = +\nalias_maps = texthash:%s/aliases\ndefer_transports = local\n", home)
	theirs, ours := newPostfix(b, options{main: settings}), newSystem(b, options{main: settings})
	var took [2]time.Duration
	total := 0 // nothing is removed: file systems are slow for a while after that
	arrived := func() (n int) {
		for i := range maildirUsers {
			n += names(fmt.Sprintf("%s/phbench%d/Maildir/new", home, i))
		}
		return n
	}
	for b.Loop() {
		for i, s := range []*system{ours, theirs} {
			s.operate("", "postconf", "-e", "defer_transports = local")
			s.operate("", "postfix", "reload")
			fillMaildirs(b, s, source)
			s.operate("", "postconf", "-e", "defer_transports =")
			s.operate("", "postfix", "reload")
			if err := s.send("a@from.test", []string{"phbench0@local.test"}, "Subject: the first\r\n\r\n"); err != nil {
				b.Fatal(err)
			}
			total++
			s.eventually("a message is in a maildir", func() bool { return arrived() >= total })
			start := time.Now()
			s.operate("", "postqueue", "-f")
			total += maildirMessages
			s.eventually("all messages are in the maildirs", func() bool { return arrived() >= total })
			took[i] += time.Since(start)
		}
	}
	rate := func(d time.Duration) float64 { return float64(b.N) * maildirMessages / d.Seconds() }
	b.ReportMetric(rate(took[1]), "postfix/s")
	b.ReportMetric(rate(took[0]), "ours/s")
	b.ReportMetric(rate(took[0])/rate(took[1]), "ratio")
	b.ReportMetric(0, "ns/op")
}

// names counts those in a directory without doing more, as it takes its time from
// who is measured.
func names(dir string) int {
	f, err := os.Open(dir)
	if err != nil {
		return 0
	}
	defer f.Close()
	list, _ := f.Readdirnames(-1)
	return len(list)
}

// fillMaildirs queues the messages and waits until all are deferred.
func fillMaildirs(b *testing.B, s *system, source string) {
	before := strings.Count(s.log(), "status=deferred")
	var senders []*exec.Cmd
	for i := range maildirUsers {
		cmd := exec.Command(source, "-d", "-l", fmt.Sprint(maildirSize), "-m", fmt.Sprint(maildirMessages/maildirUsers), "-f", "a@from.test",
			"-t", fmt.Sprintf("phbench%d@local.test", i), s.addr())
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		senders = append(senders, cmd)
	}
	for _, cmd := range senders {
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
	}
	s.eventually("all messages are deferred", func() bool {
		return strings.Count(s.log(), "status=deferred") >= before+maildirMessages
	})
}
