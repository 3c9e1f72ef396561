package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/service"
	"posthaste/internal/spool"
)

var queueSize = flag.Int("queue.n", 2000, "deferred messages in TestDeepQueue")

// A deep deferred queue: the mail system starts with it, mail that is due is
// tried at once, and the tools answer. What it took is printed:
//
//	go test ./internal/e2e -run TestDeepQueue -queue.n 1000000 -v
func TestDeepQueue(t *testing.T) {
	t.Parallel()
	const due = 5
	n := *queueSize
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost(), unstarted: true})
	fillDeferred(t, s, n, due)

	began := time.Now()
	s.start()
	s.waitLogN(`status=sent `, 1)
	t.Logf("from the start to the first delivery: %v", time.Since(began).Round(time.Millisecond))
	s.waitLogN(`status=sent `, due)
	s.waitLogN(`: removed$`, due)
	qmgr := s.processes("qmgr")
	if len(qmgr) != 1 {
		t.Fatalf("%d queue managers", len(qmgr))
	}
	t.Logf("after the start: qmgr %v", memory(t, qmgr[0]))

	for range 4 {
		out, took := s.timed("qshape", "-n", "3", "deferred")
		if !regexp.MustCompile(fmt.Sprintf(`TOTAL +%d `, n-due)).MatchString(out) {
			t.Errorf("qshape does not count %d:\n%s", n-due, out)
		}
		t.Logf("qshape deferred: %v; qmgr %v", took, memory(t, qmgr[0]))
	}
	if out, took := s.timed("qshape", "-s", "deferred"); !strings.Contains(out, "from.test ") {
		t.Errorf("qshape -s:\n%s", out)
	} else {
		t.Logf("qshape -s deferred: %v", took)
	}
	out, took := s.timed("mailq")
	if !strings.HasSuffix(out, fmt.Sprintf(" in %d Requests.\n", n-due)) {
		t.Errorf("mailq ends %q", out[max(0, len(out)-100):])
	}
	t.Logf("mailq: %v; qmgr %v", took, memory(t, qmgr[0]))
}

// Selections in a deep queue, with the mail system running and down. Mail comes in and goes out all
// the while. What they took is printed:
//
//	go test ./internal/e2e -run TestDeepSelections -queue.n 1000000 -v -timeout 1h
func TestDeepSelections(t *testing.T) {
	t.Parallel()
	n := *queueSize
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost(), unstarted: true})
	fillDeferred(t, s, n, 0)
	s.start()
	f := s.follow()
	share := n / 50 // of one sender's domain
	const few = -1
	s.eventually("mail comes in", func() bool { return f.count() >= 20 })
	t.Logf("before%s", f)
	const sender, other = "--sender=@s1.from.test", "--sender=@s3.from.test"
	s.selections(f, []selectionStep{
		{[]string{"list", sender}, share}, {[]string{"list", "-j", sender, "--larger=1k"}, share},
		{[]string{"hold", sender, "--dry-run"}, share}, {[]string{"hold", sender}, share}, {[]string{"delete", sender, "--queue=hold"}, share},
		{[]string{"hold", "--domain=d3.to.test"}, few}, {[]string{"hold", "--reply=mx17.to"}, few}, {[]string{"hold", "--nexthop=d4.to.test"}, 0},
		{[]string{"hold", "ALL"}, -1}, {[]string{"release", other}, share},
	})
	worst, sent := f.end()
	t.Logf("%d messages meanwhile: the slowest was accepted within %v", sent, worst)
	s.eventually("what was released, and what came meanwhile and was not held, has left", func() bool {
		return !strings.Contains(s.mustTool("qshape", "-n", "1", "incoming", "active", "deferred"), "test")
	})
	for _, name := range []string{"qmgr", "cleanup"} {
		t.Logf("in the end: %s %v", name, memory(t, s.processes(name)[0]))
	}
	s.mustTool("stop")
	t.Log("down")
	left := n - 2*share // and what was held of what came
	const third = "--sender=@s5.from.test"
	s.selections(nil, []selectionStep{
		{[]string{"list", third}, share}, {[]string{"release", third, "--dry-run"}, share}, {[]string{"release", third}, share},
		{[]string{"delete", sender}, 0}, {[]string{"delete", third, "--queue=deferred"}, share}, {[]string{"release", "--domain=to.test"}, 0},
		{[]string{"release", "--domain=.to.test"}, left - share}, {[]string{"hold", "--queue=deferred"}, left - share}, {[]string{"release", "ALL"}, -1},
	})
}

// A selectionStep is a command, and how many messages it is for; under 0: more than none.
type selectionStep struct {
	args []string
	want int
}

func (s *system) selections(f *follower, steps []selectionStep) {
	s.t.Helper()
	for _, step := range steps {
		out, took := s.timed(append([]string{"queue"}, step.args...)...)
		got := counted(out)
		s.t.Logf("%s: %d messages in %s%s", strings.Join(step.args, " "), got, took, f)
		if got != step.want && (step.want >= 0 || got == 0) {
			s.t.Errorf("%v: %d messages, want %d: %.300s", step.args, got, step.want, out[max(0, len(out)-300):])
		}
	}
}

// counted is the number of messages that a tool says, or lists.
func counted(out string) int {
	if strings.HasPrefix(out, "{") {
		return strings.Count(out, "\n")
	}
	if m := regexp.MustCompile(`(\d+) (?:messages?|Requests?)\.?\s*$`).FindStringSubmatch(out); m != nil {
		n, _ := strconv.Atoi(m[1])
		return n
	}
	return 0
}

// A follower sends mail one by one all the time.
type follower struct {
	stop  chan struct{}
	ended chan struct{}
	sent  int
	mu    sync.Mutex
	worst time.Duration // that a message took to be accepted
	since time.Duration // as worst, since it was asked for last
}

func (s *system) follow() *follower {
	f := &follower{stop: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for {
			select {
			case <-f.stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			start := time.Now()
			if err := s.send("a@new.test", []string{"b@to.test"}, "Subject: x\n\nx\n"); err != nil {
				s.t.Errorf("while the queue was looked at: %v", err)
				return
			}
			took := time.Since(start)
			f.mu.Lock()
			f.sent++
			f.worst, f.since = max(f.worst, took), max(f.since, took)
			f.mu.Unlock()
		}
	}()
	return f
}

// String is how long a message took at most since String was called last.
func (f *follower) String() string {
	if f == nil {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	worst := f.since
	f.since = 0
	return fmt.Sprintf("; mail was accepted within %v", worst.Round(time.Millisecond))
}

func (f *follower) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent
}

func (f *follower) end() (worst time.Duration, sent int) {
	close(f.stop)
	<-f.ended
	return f.worst.Round(time.Millisecond), f.sent
}

// timed runs a tool that must succeed, says how long it took, wall clock and
// processor, and how much memory.
func (s *system) timed(args ...string) (string, string) {
	s.t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(filepath.Join(binDir, "posthaste"), append([]string{"-c", s.path("etc")}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	start := time.Now()
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	stop, peak := make(chan struct{}), make(chan string)
	go peakMemory(cmd.Process.Pid, stop, peak)
	err := cmd.Wait()
	close(stop)
	most := <-peak
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
	st := cmd.ProcessState
	return out.String(), fmt.Sprintf("%v (cpu %v, %s)", time.Since(start).Round(time.Millisecond),
		(st.UserTime() + st.SystemTime()).Round(time.Millisecond), most)
}

// peakMemory looks at a process until stop, and says the most that it had. (What wait4 tells is
// ours, if we have more: the child begins as a copy.)
func peakMemory(pid int, stop <-chan struct{}, peak chan<- string) {
	most := "?"
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			peak <- most
			return
		case <-tick.C:
		}
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if m := regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB`).FindSubmatch(b); m != nil {
			kb, _ := strconv.Atoi(string(m[1]))
			most = fmt.Sprintf("%d MB", kb/1024)
		}
	}
}

// memory is what /proc tells of a process.
func memory(t testing.TB, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var parts []string
	for _, m := range regexp.MustCompile(`(?m)^Vm(RSS|HWM):\s+(\d+) kB`).FindAllStringSubmatch(string(b), -1) {
		kb, _ := strconv.Atoi(m[2])
		parts = append(parts, fmt.Sprintf("%s %d MB", m[1], kb/1024))
	}
	return strings.Join(parts, ", ")
}

// fillDeferred makes a spool of n deferred messages of 4 KB, of which some are
// due.
func fillDeferred(t testing.TB, s *system, n, due int) {
	t.Helper()
	body := strings.Repeat("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n", 64)
	fillQueue(t, s, n, body, func(i int) deferredMail {
		m := deferredMail{sender: fmt.Sprintf("u%d@s%d.from.test", i, i%50), rcpt: fmt.Sprintf("r%d@d%d.to.test", i, i%5000), host: fmt.Sprintf("mx%d.to.test", i%5000),
			age: time.Duration(i%36000) * time.Second, due: i < due}
		if i%50 == 0 {
			m.sender = fmt.Sprintf("u%d@from.test", i)
		}
		return m
	})
}

// deferredMail is a message that waits in the queue, since a host could not be reached.
type deferredMail struct {
	sender, rcpt, host string
	age                time.Duration
	due                bool // it is tried at once, and not in hours
}

// fillQueue makes a spool of n such messages with one body, for a mail system that is not started yet.
func fillQueue(t testing.TB, s *system, n int, body string, of func(i int) deferredMail) {
	t.Helper()
	dir := s.path("spool", spool.Subdir)
	sp, err := spool.Open(spool.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	content, now, b := []byte(body), time.Now(), new(spool.Batch)
	for i := range n {
		number, err := sp.Lease(1)
		if err != nil {
			t.Fatal(err)
		}
		m := of(i)
		env := mail.Envelope{Sender: m.sender, Arrival: now.Add(-m.age), Size: int64(len(body))}
		env.ID = mail.MakeQueueID(env.Arrival, number)
		at := now.Add(20*time.Hour + time.Duration(i%3600)*time.Second)
		if m.due {
			at = now
		}
		b.Add(spool.Message{ID: env.ID, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, []mail.Recipient{{Address: m.rcpt}}), NRcpt: 1, Content: content})
		b.Update(env.ID, queue.Change{Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts, Queue: queue.Deferred, Attempts: 1, NextAttempt: at,
			Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Relay: "none", When: now, Reason: "connect to " + m.host + "[192.0.2.1]:25: Connection timed out"}}})
		if i%200 == 199 || i == n-1 {
			if err := sp.Commit(b); err != nil {
				t.Fatal(err)
			}
			b.Reset()
		}
	}
	if err := sp.Close(); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() != 0 {
		return
	}
	name, _ := mailOwner(t)
	owner, err := service.LookupAccount(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Chown(path, owner.UID, owner.GID)
	}); err != nil {
		t.Fatal(err)
	}
}
