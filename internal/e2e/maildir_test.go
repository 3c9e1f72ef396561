package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
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
// the flush to the last durable file (its line in the log), when the system has delivered a message
// since its reload: what a reload costs is no part of it. Beside it stands what the disk
// can do at best: the same files made and synced by a program that does nothing else.
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
	systems := []*maildirs{{system: ours}, {system: theirs}}
	var bare time.Duration
	total := 0                           // nothing is removed: file systems are slow for a while after that
	order := rand.Perm(len(systems) + 1) // nor is the one always first, who suffers from what was removed before
	for b.Loop() {
		for _, i := range order {
			if i == len(systems) {
				bare += makeMaildirs(b, b.TempDir())
				continue
			}
			s := systems[i]
			total += s.round(source)
			if n := inMaildirs(home); n != total {
				b.Fatalf("%d messages are in the maildirs, and should be %d", n, total)
			}
		}
	}
	rate := func(d time.Duration) float64 { return float64(b.N) * maildirMessages / d.Seconds() }
	b.ReportMetric(rate(systems[1].took), "postfix/s")
	b.ReportMetric(rate(systems[0].took), "ours/s")
	b.ReportMetric(rate(systems[0].took)/rate(systems[1].took), "ratio")
	b.ReportMetric(rate(bare), "bare/s")
	b.ReportMetric(0, "ns/op")
}

// makeMaildirs makes as many files as durably in as many maildirs as the systems do, with as
// many at a time as they may (local_destination_concurrency_limit), and returns how
// long that takes.
func makeMaildirs(b *testing.B, dir string) time.Duration {
	for i := range maildirUsers {
		for _, sub := range []string{"tmp", "new"} {
			if err := os.MkdirAll(fmt.Sprintf("%s/%d/%s", dir, i, sub), 0o700); err != nil {
				b.Fatal(err)
			}
		}
	}
	content := make([]byte, maildirSize)
	start := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 2 * maildirUsers {
		wg.Go(func() {
			for n := next.Add(1); n <= maildirMessages; n = next.Add(1) {
				if err := makeDurably(fmt.Sprintf("%s/%d", dir, n%maildirUsers), n, content); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(start)
}

// makeDurably makes one file of a maildir, with the system calls of local but for
// those for the user's rights.
func makeDurably(maildir string, n int64, content []byte) error {
	f, err := os.OpenFile(fmt.Sprintf("%s/tmp/%d", maildir, n), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), fmt.Sprintf("%s/new/%d", maildir, n)); err != nil {
		return err
	}
	d, err := os.Open(maildir + "/new")
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// inMaildirs is how many messages the users have got.
func inMaildirs(home string) (n int) {
	for i := range maildirUsers {
		list, _ := os.ReadDir(fmt.Sprintf("%s/phbench%d/Maildir/new", home, i))
		n += len(list)
	}
	return n
}

// maildirs is one of the systems that are measured.
type maildirs struct {
	*system
	off  int64 // how much of the log has been read: whoever waits takes its time from who is measured
	took time.Duration
}

// round queues messages, and measures how long their delivery takes. It returns
// how many have been delivered in all.
func (s *maildirs) round(source string) (delivered int) {
	delivered, queued := s.prime("local", "status=deferred")
	s.fill(source)
	queued += s.await("status=deferred", maildirMessages)
	sent, deferred := s.prime("", "status=sent")
	queued += deferred
	s.rest()
	start := time.Now()
	s.operate("", "postqueue", "-f")
	s.await("status=sent", queued)
	s.took += time.Since(start)
	return delivered + sent + queued
}

// prime sets defer_transports and sends one message after the other until what
// happens to one shows that this has come about.
func (s *maildirs) prime(transports, want string) (sent, deferred int) {
	s.operate("", "postconf", "-e", "defer_transports = "+transports)
	s.operate("", "postfix", "reload")
	s.logged("")
	for {
		if err := s.send("a@from.test", []string{"phbench0@local.test"}, "Subject: the first\r\n\r\n"); err != nil {
			s.t.Fatal(err)
		}
		var text []byte
		s.eventually("a message is delivered or deferred", func() bool { text = s.logged("status="); return len(text) > 0 })
		sent += bytes.Count(text, []byte("status=sent"))
		deferred += bytes.Count(text, []byte("status=deferred"))
		if bytes.Contains(text, []byte(want)) {
			return sent, deferred
		}
	}
}

// rest waits until nothing is being done that a reload has begun: we prepare room
// in the spool then, for half a second of the disk's time. It looks at the mail system's
// processes alone, since the machine may be busy with others.
func (s *maildirs) rest() {
	quiet := 0
	s.eventually("the mail system has nothing to do", func() bool {
		before := s.processorTime()
		time.Sleep(200 * time.Millisecond) // what it does meanwhile is what is asked
		if quiet++; s.processorTime()-before > 10*time.Millisecond {
			quiet = 0
		}
		return quiet == 3
	})
}

// await waits for n lines with these words in them.
func (s *maildirs) await(words string, n int) int {
	found := 0
	s.eventually(words, func() bool { found += bytes.Count(s.logged(words), []byte(words)); return found >= n })
	return found
}

// logged is what the log has got since it was last asked, in whole lines, if these words are in it.
func (s *maildirs) logged(words string) []byte {
	f, err := os.Open(s.path("mail.log"))
	if err != nil {
		return nil
	}
	defer f.Close()
	text, _ := io.ReadAll(io.NewSectionReader(f, s.off, 1<<30))
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	s.off += int64(len(text))
	if !bytes.Contains(text, []byte(words)) {
		return nil
	}
	return text
}

// fill queues the messages.
func (s *maildirs) fill(source string) {
	var senders []*exec.Cmd
	for i := range maildirUsers {
		cmd := exec.Command(source, "-d", "-l", fmt.Sprint(maildirSize), "-m", fmt.Sprint(maildirMessages/maildirUsers), "-f", "a@from.test",
			"-t", fmt.Sprintf("phbench%d@local.test", i), s.addr())
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			s.t.Fatal(err)
		}
		senders = append(senders, cmd)
	}
	for _, cmd := range senders {
		if err := cmd.Wait(); err != nil {
			s.t.Fatal(err)
		}
	}
}
