package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// All processes are killed at once, again and again, with spool_exact_doubt: every message that arrives twice
// was named, before the next start and after it; what was named is delivered in the end, and the
// list says so.
func TestDoubtful(t *testing.T) {
	t.Parallel()
	var held atomic.Int64
	var gate sync.RWMutex // locked: no message gets a reply, so that some are in hand when the end comes
	next := newSink(t, func(line string) string {
		if line == "." {
			held.Add(1)
			defer held.Add(-1)
			gate.RLock()
			defer gate.RUnlock()
		}
		return ""
	})
	s := newSystem(t, options{main: next.relayhost() + quick + "spool_segment_size = 1m\nspool_exact_doubt = yes\nspool_commit_delay = 200ms\nspool_scrub_period = 20s\n"})
	named := map[string]bool{}
	var loads []*load
	for range 3 {
		load := startLoad(s, 6)
		load.waitAccepted(60)
		func() {
			gate.Lock()
			defer gate.Unlock()
			s.eventually("a message is at the next hop, without a reply", func() bool { return held.Load() > 0 })
			s.killAll()
		}()
		load.end()
		loads = append(loads, load)
		for _, e := range s.doubtful() {
			named[e.ID] = true
		}
		s.start()
	}
	for _, load := range loads {
		s.allArrived(next, load)
	}
	s.idle()
	arrived := map[string]int{}
	for _, m := range next.received() {
		if id := regexp.MustCompile(`\bid ([0-9A-Za-z]+)`).FindStringSubmatch(m.data); id != nil && strings.Contains(m.data, "Subject: load-") {
			arrived[id[1]]++
		}
	}
	twice, log := 0, s.log()
	for id, n := range arrived {
		if n > 1 {
			twice++
			if !named[id] || !strings.Contains(log, id+": in doubt: it was being delivered to ") {
				t.Errorf("%s arrived %d times, and is not named", id, n)
			}
		}
	}
	for id := range named {
		if arrived[id] == 0 {
			t.Errorf("%s is named, and did not arrive", id)
		}
	}
	s.eventually("the list says that all are delivered", func() bool {
		list := s.doubtful()
		for _, e := range list {
			if e.Why == "in hand" && (e.State != "delivered" || e.Sender == "" || e.Recipient == "" || e.Nexthop == "") {
				return false
			}
		}
		return len(list) > 0 || len(named) == 0
	})
	t.Logf("%d messages, %d named, %d twice", len(arrived), len(named), twice)
	s.eventually("a part of the queue has been read over", func() bool {
		_, err := os.Stat(s.path("spool", "spool", "scrub"))
		return err == nil
	})
	if len(named) == 0 || twice == 0 {
		t.Error("nothing was in hand: the test shows little")
	}
	if out, status := s.tool(nil, "spool", "doubtful", "-s"); status != 0 || !strings.Contains(out, "delivered again") {
		t.Errorf("%d %s", status, out)
	}
	if list := s.doubtful(); len(list) > 0 {
		t.Errorf("seen, and listed again: %v", list)
	}
	s.stop()
	if list := s.doubtful(); len(list) > 0 {
		t.Errorf("after a clean end: %v", list)
	}
	s.consistent()
}

// doubt is an entry of the list.
type doubt struct {
	ID        string `json:"queue_id"`
	Sender    string `json:"sender"`
	Recipient string `json:"recipient"`
	Nexthop   string `json:"nexthop"`
	Why       string `json:"why"`
	State     string `json:"state"`
}

// doubtful is what posthaste spool doubtful lists, whether or not the mail system runs.
func (s *system) doubtful() (list []doubt) {
	s.t.Helper()
	out, status := s.tool(nil, "spool", "doubtful", "-j")
	if status != 0 {
		s.t.Fatalf("%d %s", status, out)
	}
	for line := range strings.Lines(out) {
		var d doubt
		if err := json.Unmarshal([]byte(line), &d); err != nil {
			s.t.Fatalf("%v in %q", err, line)
		}
		list = append(list, d)
	}
	return list
}

// BenchmarkExactDoubt is what spool_exact_doubt costs: 10 KB messages relayed by two systems in turns, so that
// whatever else the machine does is the same for both.
func BenchmarkExactDoubt(b *testing.B) {
	source, sink := need(b, "smtp-source"), startSMTPSink(b)
	systems := map[string]*system{}
	for _, name := range []string{"no", "yes"} {
		systems[name] = newSystem(b, options{main: fmt.Sprintf("relayhost = [127.0.0.1]:%d\nsmtp_destination_concurrency_limit = 100\n"+
			"default_process_limit = 200\nspool_exact_doubt = %s\n", sink, name)})
	}
	took, used, sent := map[string]time.Duration{}, map[string]time.Duration{}, map[string]int{}
	round := func(name string, sessions, messages int) {
		s := systems[name]
		cpu, start := s.processorTime(), time.Now()
		out, err := exec.Command(source, "-d", "-s", fmt.Sprint(sessions), "-l", fmt.Sprint(relaySize), "-m", fmt.Sprint(messages),
			"-f", "a@from.test", "-t", "b@to.test", s.addr()).CombinedOutput()
		if err != nil {
			b.Fatalf("smtp-source: %v\n%s", err, out)
		}
		sent[name] += messages
		s.eventually("all mail is delivered", func() bool { return strings.Count(s.log(), ": removed\n") >= sent[name] })
		key := fmt.Sprintf("%s-%d", name, sessions)
		took[key] += time.Since(start)
		used[key] += s.processorTime() - cpu
	}
	for name := range systems {
		round(name, relaySessions, 200)
	}
	clear(took)
	clear(used)
	const few = relayMessages / 10
	for b.Loop() {
		for _, name := range []string{"no", "yes"} {
			round(name, relaySessions, relayMessages)
			round(name, 1, few)
		}
	}
	for _, name := range []string{"no", "yes"} {
		many, one := fmt.Sprintf("%s-%d", name, relaySessions), name+"-1"
		b.ReportMetric(float64(b.N*relayMessages)/took[many].Seconds(), name+"/s")
		b.ReportMetric(float64(used[many].Microseconds())/float64(b.N*relayMessages), name+"-cpu-µs")
		b.ReportMetric(float64(took[one].Microseconds())/float64(b.N*few), name+"-one-µs")
	}
	b.ReportMetric(0, "ns/op")
}
