package e2e

import (
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Whatever process dies, and when all die at once, no message that was
// answered with 250 is lost.
func TestKill(t *testing.T) {
	t.Parallel()
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost() + quick})
	load := startLoad(s, 6)
	for _, victim := range []string{"cleanup", "qmgr", "smtp", "smtpd", "trivial-rewrite", "pickup", "bounce", "postlogd"} {
		load.waitAccepted(60)
		s.kill(victim)
	}
	load.waitAccepted(60)
	load.end()
	s.allArrived(next, load)

	load = startLoad(s, 6)
	load.waitAccepted(60)
	syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	for _, pid := range s.processes() {
		syscall.Kill(pid, syscall.SIGKILL)
	}
	load.end()
	<-s.done
	s.eventually("all processes are gone", func() bool { return len(s.processes()) == 0 })
	s.start()
	s.allArrived(next, load)
}

// kill kills the processes of one service without a warning.
func (s *system) kill(names ...string) {
	for _, pid := range s.processes(names...) {
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// allArrived waits until every message that was accepted is at its next hop.
func (s *system) allArrived(next *sink, l *load) {
	s.t.Helper()
	var missing []int
	subject := regexp.MustCompile(`(?m)^Subject: load-(\d+)-(\d+)$`)
	s.eventually("every acknowledged message arrives", func() bool {
		there := map[string]bool{}
		for _, m := range next.received() {
			if g := subject.FindStringSubmatch(m.data); g != nil {
				there[g[0]] = true
			}
		}
		missing = missing[:0]
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, n := range l.accepted {
			if !there[fmt.Sprintf("Subject: load-%d-%d", l.run, n)] {
				missing = append(missing, n)
			}
		}
		return len(missing) == 0
	})
	if len(missing) > 0 {
		s.t.Errorf("%d of %d acknowledged messages are lost", len(missing), len(l.accepted))
	}
}

// A load is a number of clients that send without pause, and remember what
// was accepted.
type load struct {
	s     *system
	run   int64
	stop  chan struct{}
	wg    sync.WaitGroup
	count atomic.Int64 // accepted
	// refused counts those that were answered otherwise, code is the last such
	// answer's.
	refused, code atomic.Int64

	mu       sync.Mutex
	accepted []int
}

var loadRuns atomic.Int64

func startLoad(s *system, clients int) *load {
	return startLoadOf(s, clients, []string{"x@to.test"}, func(run int64, n int) string { return fmt.Sprintf("Subject: load-%d-%d\n\nbody\n", run, n) })
}

// startLoadOf is startLoad with messages of the test's own.
func startLoadOf(s *system, clients int, to []string, content func(run int64, n int) string) *load {
	l := &load{s: s, run: loadRuns.Add(1), stop: make(chan struct{})}
	var serial atomic.Int64
	for range clients {
		l.wg.Go(func() {
			for {
				select {
				case <-l.stop:
					return
				default:
				}
				n := int(serial.Add(1))
				err := s.send("load@from.test", to, content(l.run, n))
				if code := replyCode(err); code != 0 {
					l.code.Store(int64(code))
					l.refused.Add(1)
				}
				if err != nil {
					time.Sleep(5 * time.Millisecond) // whoever was killed is being replaced
					continue
				}
				l.mu.Lock()
				l.accepted = append(l.accepted, n)
				l.mu.Unlock()
				l.count.Add(1)
			}
		})
	}
	return l
}

// waitAccepted waits until n more messages have been accepted.
func (l *load) waitAccepted(n int64) {
	l.s.t.Helper()
	want := l.count.Load() + n
	l.s.eventually(fmt.Sprintf("%d more messages are accepted", n), func() bool { return l.count.Load() >= want })
}

func (l *load) end() {
	close(l.stop)
	l.wg.Wait()
}
