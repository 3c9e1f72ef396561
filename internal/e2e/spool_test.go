//go:build linux

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"posthaste/internal/vfs/disktest"
)

// quick makes a mail system that mends itself and tries again soon.
const quick = "minimal_backoff_time = 1s\nmaximal_backoff_time = 2s\nqueue_run_delay = 1s\ntransport_retry_time = 1s\nservice_throttle_time = 1s\n"

// own gives what is below dir to the mail system's user.
func (s *system) own(dir string) {
	s.t.Helper()
	name, _ := mailOwner(s.t)
	u, err := user.Lookup(name)
	if err != nil {
		s.t.Fatal(err)
	}
	uid, err := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	err = errors.Join(err, gerr, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, uid, gid))
	}))
	if err != nil {
		s.t.Fatal(err)
	}
}

// consistent looks at every checksum of the spool.
func (s *system) consistent() {
	s.t.Helper()
	if out, status := s.tool(nil, "spool", "check"); status != 0 || !strings.HasSuffix(out, "\nconsistent\n") {
		s.t.Errorf("posthaste spool check: status %d\n%s", status, out)
	}
}

// idle waits until nothing is queued.
func (s *system) idle() {
	s.t.Helper()
	s.eventually("the queue is empty", func() bool {
		out, status := s.tool(nil, "postqueue", "-p")
		return status == 0 && strings.Contains(out, "Mail queue is empty")
	})
}

// stopIfStarted stops the system before what it stands on goes.
func (s *system) stopIfStarted() {
	if s.done != nil {
		s.stop()
	}
}

// A small disk fills up. Clients are told to come again, deliveries go on,
// nothing that was acknowledged is lost, and when there is room mail is taken
// again.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	var open atomic.Bool
	next := newSink(t, func(line string) string {
		if strings.HasPrefix(line, "MAIL") && !open.Load() {
			return "450 4.3.0 not now"
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost() + quick + "spool_segment_size = 1m\nmessage_size_limit = 2m\n", unstarted: true})
	disktest.MountAt(t, s.path("spool"), "-t", "tmpfs", "-o", "size=32m", "tmpfs")
	t.Cleanup(s.stopIfStarted)
	s.start()
	acked := map[string]bool{}
	full := false
	for i := 0; i < 400 && !full; i++ {
		size := []int{2_000, 60_000, 300_000}[i%3] // in the log, the same, in a file of its own
		subject := fmt.Sprintf("Subject: full-%d", i)
		err := s.send("a@from.test", []string{"b@to.test"}, subject+"\n\n"+strings.Repeat(strings.Repeat("x", 63)+"\n", size/64))
		switch code := replyCode(err); {
		case err == nil:
			acked[subject] = true
		case code == 452 || code == 451:
			full = true
			t.Logf("after %d messages: %v", len(acked), err)
		default:
			t.Fatalf("message %d: %v", i, err)
		}
	}
	if !full || len(acked) < 20 {
		t.Fatalf("full: %v after %d messages", full, len(acked))
	}
	open.Store(true)
	s.eventually("mail is taken again", func() bool {
		return s.send("a@from.test", []string{"b@to.test"}, "Subject: after\n\nx\n") == nil
	})
	acked["Subject: after"] = true
	s.arrivedOnce(next, acked)
	s.idle()
	s.stop()
	s.consistent()
}

// arrivedOnce waits until everything has arrived, and looks that nothing came
// twice.
func (s *system) arrivedOnce(next *sink, subjects map[string]bool) {
	s.t.Helper()
	counts := map[string]int{}
	s.eventually("what was acknowledged arrives", func() bool {
		clear(counts)
		for _, m := range next.received() {
			if g := regexp.MustCompile(`(?m)^Subject: \S+$`).FindString(m.data); subjects[g] {
				counts[g]++
			}
		}
		return len(counts) == len(subjects)
	})
	for subject, n := range counts {
		if n > 1 {
			s.t.Errorf("%s arrived %d times", subject, n)
		}
	}
}

// queue_minfree is what has to be free before mail is taken.
func TestQueueMinFree(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + quick + "spool_segment_size = 1m\nqueue_minfree = 20m\nmessage_size_limit = 2m\n", unstarted: true})
	disktest.MountAt(t, s.path("spool"), "-t", "tmpfs", "-o", "size=64m", "tmpfs")
	t.Cleanup(s.stopIfStarted)
	s.start()
	s.eventually("it takes mail", func() bool {
		return s.send("a@from.test", []string{"b@to.test"}, "Subject: one\n\nx\n") == nil
	})
	filler := s.path("spool", "filler")
	f, err := os.Create(filler)
	if err == nil {
		_, err = f.Write(make([]byte, 50<<20))
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	replies := s.dialogue(t, "", "EHLO client.test", "MAIL FROM:<a@from.test>")
	if !strings.HasPrefix(replies[2], "452 4.3.1 Insufficient system storage") {
		t.Errorf("MAIL FROM with too little free space: %q", replies[2])
	}
	disktest.Free(t, filler)
	s.mustSend("a@from.test", []string{"b@to.test"}, "Subject: two\n\nx\n")
	s.arrivedOnce(next, map[string]bool{"Subject: one": true, "Subject: two": true})
}

// All processes are killed at once under load, again and again. The spool they
// leave is consistent, and nothing that was acknowledged is lost.
func TestKillAll(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + quick + "spool_segment_size = 1m\n"})
	var loads []*load
	for range 3 {
		load := startLoad(s, 6)
		load.waitAccepted(80)
		s.killAll()
		load.end()
		loads = append(loads, load)
		s.consistent()
		s.start()
	}
	for _, load := range loads {
		s.allArrived(next, load)
	}
	s.idle()
	s.stop()
	s.consistent()
}

// killAll kills everything at once and waits until it is gone.
func (s *system) killAll() {
	s.t.Helper()
	syscall.Kill(s.cmd.Process.Pid, syscall.SIGKILL) // master first: it would start others
	s.kill()
	<-s.done
	s.eventually("all processes are gone", func() bool {
		s.kill()
		return len(s.processes()) == 0
	})
}

// cleanup and the queue manager die, each alone, in either order, under load.
// The one that is left goes on or connects again, and every message arrives,
// once, but for those that the log names as in doubt.
func TestRestarts(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + quick + "spool_segment_size = 1m\n"})
	load := startLoad(s, 6)
	for _, victim := range []string{"cleanup", "qmgr", "qmgr", "cleanup", "cleanup", "qmgr"} {
		load.waitAccepted(60)
		before := s.processes(victim)
		s.kill(victim)
		s.eventually("another "+victim+" is there and works", func() bool {
			now := s.processes(victim)
			return len(now) == 1 && len(before) == 1 && now[0] != before[0]
		})
		arrived := len(next.received())
		s.eventually("deliveries go on", func() bool { return len(next.received()) >= arrived+20 })
	}
	load.end()
	s.allArrived(next, load)
	s.idle()
	ids := map[string][]string{}
	for _, m := range next.received() {
		subject := regexp.MustCompile(`(?m)^Subject: load-\d+-\d+$`).FindString(m.data)
		id := regexp.MustCompile(`\bid ([0-9A-Za-z]+)`).FindStringSubmatch(m.data)
		if subject == "" || id == nil {
			continue // postmaster is told of sessions that went wrong
		}
		ids[subject] = append(ids[subject], id[1])
	}
	s.stop() // and all of the log is written
	log, twice := s.log(), 0
	for subject, list := range ids {
		if len(list) > 1 {
			twice++
			if !strings.Contains(log, list[0]+": in doubt") {
				t.Errorf("%s arrived %d times, and the log does not name it as in doubt: %v", subject, len(list), list)
			}
		}
	}
	t.Logf("%d messages, %d of them twice", len(ids), twice)
	s.consistent()
}

// A queue that is exported and imported somewhere else is what it was, but for
// its queue IDs.
func TestExportImport(t *testing.T) {
	t.Parallel()
	nobody := freePort(t)
	main := fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", nobody)
	from := newSystem(t, options{main: main})
	for i := range 3 {
		subject := fmt.Sprintf("Subject: move-%d\n\n%s\n", i, strings.Repeat("x\n", 100_000*(i/2)))
		from.eventually("it takes mail", func() bool {
			return from.send("a@from.test", []string{"b@to.test", "c@to.test"}, subject) == nil
		})
	}
	from.waitLogN(`status=deferred`, 6)
	id := queueID.FindStringSubmatch(from.waitLog(`to=<b@to\.test>.*status=deferred`))[1]
	if out, status := from.tool(nil, "postsuper", "-h", id); status != 0 {
		t.Fatalf("postsuper: %s", out)
	}
	before := from.exported(3)
	if n := strings.Count(before, " Outcome: delayed 4.4.1 "); n != 6 {
		t.Errorf("%d outcomes in what was exported", n)
	}
	from.stop()
	if again := from.exported(3); again != before { // the last records may have been on their way
		t.Logf("while it ran:\n%s\nand afterwards:\n%s", before, again)
		before = again
	}

	to := newSystem(t, options{main: main})
	to.eventually("the import goes in", func() bool {
		out, status := to.tool(nil, "spool", "import", from.path("exported"))
		return status == 0 && strings.HasPrefix(out, "3 messages imported")
	})
	if after := to.exported(3); after != before {
		t.Errorf("exported:\n%s\nafter the import:\n%s", before, after)
	}
}

var (
	queueID  = regexp.MustCompile(`\]: (\w+): `)
	identity = regexp.MustCompile(`(?m)^(Queue-ID|Log-Ident): .*\n`)
)

// exported exports the queue into a directory, and returns what of the
// messages does not have to do with queue IDs, by subject.
func (s *system) exported(n int) string {
	s.t.Helper()
	dir := s.path("exported")
	if err := os.RemoveAll(dir); err != nil {
		s.t.Fatal(err)
	}
	if out, status := s.tool(nil, "spool", "export", "-a", dir); status != 0 || !strings.HasPrefix(out, fmt.Sprint(n, " messages")) {
		s.t.Fatalf("export: status %d, %s", status, out)
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.msg"))
	var texts []string
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			s.t.Fatal(err)
		}
		envelope, content, _ := strings.Cut(string(text), "\n\n")
		subject := regexp.MustCompile(`(?m)^Subject: \S+$`).FindString(content)
		texts = append(texts, fmt.Sprintf("%s, %d octets\n%s\n", subject, len(content), identity.ReplaceAllString(envelope, "")))
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n")
}

// A site moves with its queue: mail that the original has deferred is imported
// with its age, the time of its next attempt, and the reason of the last.
func TestImportFromPostfix(t *testing.T) {
	t.Parallel()
	main := fmt.Sprintf("relayhost = [127.0.0.1]:%d\n", freePort(t))
	original := newPostfix(t, options{main: main})
	original.eventually("the original takes mail", func() bool {
		return original.send("a@from.test", []string{"b@to.test", "c@to.test"}, "Subject: moved\n\nx\n") == nil
	})
	original.waitLogN(`status=deferred`, 2)
	deferred := ""
	original.eventually("it is in the deferred queue", func() bool {
		list, _ := filepath.Glob(original.path("spool", "deferred", "*", "*"))
		log, _ := filepath.Glob(original.path("spool", "defer", "*", "*"))
		if len(list) != 1 || len(log) != 1 {
			return false
		}
		deferred = list[0]
		return true
	})
	st, err := os.Stat(deferred)
	if err != nil {
		t.Fatal(err)
	}
	queue := t.TempDir() // the original is still at work on its own
	for _, q := range []string{"incoming", "active", "deferred", "defer", "hold"} {
		if err := os.CopyFS(filepath.Join(queue, q), os.DirFS(original.path("spool", q))); err != nil {
			t.Fatal(err)
		}
	}
	copied := filepath.Join(queue, "deferred", filepath.Base(filepath.Dir(deferred)), filepath.Base(deferred))
	if err := errors.Join(os.Chmod(copied, st.Mode()), os.Chtimes(copied, st.ModTime(), st.ModTime())); err != nil {
		t.Fatal(err)
	}
	s := newSystem(t, options{main: main})
	s.eventually("the import goes in", func() bool {
		out, status := s.tool(nil, "spool", "import", queue)
		return status == 0 && strings.HasPrefix(out, "1 messages imported")
	})
	text := s.exported(1)
	for _, want := range []string{"Queue: deferred\n", "Next-Attempt: " + st.ModTime().UTC().Format("2006-01-02T15:04:05"), "Attempts: 1\n",
		"Recipient: <b@to.test>\n", "Recipient: <c@to.test>\n", " Outcome: delayed 4.4.1 ", ": Connection refused\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing after the import:\n%s", want, text)
		}
	}
}
