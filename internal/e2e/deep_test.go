package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
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

// timed runs a tool that must succeed, says how long it took, wall clock and
// processor, and how much memory.
func (s *system) timed(args ...string) (string, string) {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(binDir, "posthaste"), append([]string{"-c", s.path("etc")}, args...)...)
	start := time.Now()
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %v\n%s", args, err, out)
	}
	st := cmd.ProcessState
	return string(out), fmt.Sprintf("%v (cpu %v, %s)", time.Since(start).Round(time.Millisecond),
		(st.UserTime() + st.SystemTime()).Round(time.Millisecond), maxRSS(st))
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
	dir := s.path("spool", spool.Subdir)
	sp, err := spool.Open(spool.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	body := []byte(strings.Repeat("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd\r\n", 64))
	now := time.Now()
	b := new(spool.Batch)
	for i := range n {
		number, err := sp.Lease(1)
		if err != nil {
			t.Fatal(err)
		}
		env := mail.Envelope{Sender: fmt.Sprintf("u%d@s%d.from.test", i, i%50), Arrival: now.Add(-time.Duration(i%36000) * time.Second), Size: int64(len(body))}
		if i%50 == 0 {
			env.Sender = fmt.Sprintf("u%d@from.test", i)
		}
		env.ID = mail.MakeQueueID(env.Arrival, number)
		rcpts := []mail.Recipient{{Address: fmt.Sprintf("r%d@d%d.to.test", i, i%5000)}}
		at := now.Add(20*time.Hour + time.Duration(i%3600)*time.Second)
		if i < due {
			at = now
		}
		b.Add(spool.Message{ID: env.ID, Envelope: env.Append(nil), Recipients: mail.AppendRecipients(nil, rcpts), NRcpt: 1, Content: body})
		b.Update(env.ID, spool.Change{Set: spool.SetQueue | spool.SetNextAttempt | spool.SetAttempts, Queue: spool.Deferred, Attempts: 1,
			NextAttempt: at, Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Relay: "none", When: now,
				Reason: fmt.Sprintf("connect to mx%d.to.test[192.0.2.1]:25: Connection timed out", i%5000)}}})
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
	debug.FreeOSMemory() // a child's peak counts from ours
	if os.Getuid() == 0 {
		owner, _ := mailOwner(t)
		u, err := user.Lookup(owner)
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Chown(path, uid, gid)
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func maxRSS(st *os.ProcessState) string {
	if ru, ok := st.SysUsage().(*syscall.Rusage); ok {
		return fmt.Sprintf("%d MB", ru.Maxrss/1024)
	}
	return "?"
}
