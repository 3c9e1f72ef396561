package e2e

import (
	"flag"
	"fmt"
	"net/smtp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

var outboundSessions = flag.Int("outbound.n", 200, "sessions at once in TestOutboundSessions")

// maxSessionMemory bounds what a delivery that waits for its next hop costs the SMTP client's processes.
const maxSessionMemory = 48 << 10

// Many deliveries are under way at once, each in a session of its own with a next hop that takes its time. All of them
// end well, each message is delivered once, and mail for others passes beside them. What they cost is printed:
//
//	go test ./internal/e2e -run TestOutboundSessions -outbound.n 10000 -v
func TestOutboundSessions(t *testing.T) {
	t.Parallel()
	n := *outboundSessions
	var waiting atomic.Int64
	release := make(chan struct{})
	slow := newSink(t, func(line string) string {
		if line == "." {
			waiting.Add(1)
			<-release
		}
		return ""
	})
	quick := newSink(t, nil)
	s := newSystem(t, options{main: fmt.Sprintf(`transport_maps = inline:{ slow.test=smtp:[127.0.0.1]:%d, quick.test=smtp:[127.0.0.1]:%d }
default_process_limit = %d
default_destination_concurrency_limit = %d
initial_destination_concurrency = %d
qmgr_message_active_limit = %d
smtp_destination_recipient_limit = 1
`, slow.port(), quick.port(), n+100, n+100, n+100, n+1000)})
	s.mustSend("a@from.test", []string{"warm@quick.test"}, "Subject: up\n\nx\n")
	s.eventually("the first message has passed", func() bool { return len(quick.received()) == 1 })
	names := []string{"smtp", "qmgr", "cleanup"}
	before := s.residentAll(names)
	began := time.Now()
	c, err := smtp.Dial(s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i := range n {
		if err := transaction(c, "a@from.test", []string{fmt.Sprintf("u%d@slow.test", i)}, "Subject: x\n\n"+strings.Repeat("content\n", 100)); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually("all deliveries are under way", func() bool { return waiting.Load() == int64(n) })
	after := s.residentAll(names)
	t.Logf("%d sessions after %v", n, time.Since(began).Round(time.Millisecond))
	for _, name := range names {
		t.Logf("%s: %d MB of memory, %d MB without them, %d KB a session", name, after[name]>>20, before[name]>>20, (after[name]-before[name])/int64(n)>>10)
	}
	// The collector may be in arrears by as much as there is.
	if most := 2*before["smtp"] + int64(n)*maxSessionMemory; !underRace && after["smtp"] > most {
		t.Errorf("%d sessions: the SMTP client has %d octets of memory, want %d at most", n, after["smtp"], most)
	}
	s.mustSend("a@from.test", []string{"b@quick.test"}, "Subject: beside them\n\nx\n")
	s.eventually("mail passes beside them", func() bool { return len(quick.received()) == 2 })
	close(release)
	s.eventually("all have been delivered", func() bool { return len(slow.received()) >= n })
	s.idle()
	var to []string
	for _, m := range slow.received() {
		to = append(to, m.to...)
	}
	slices.Sort(to)
	if distinct := slices.Compact(slices.Clone(to)); len(to) != n || len(distinct) != n {
		t.Errorf("%d messages were delivered, %d of them different; want %d", len(to), len(distinct), n)
	}
}

// residentAll is the resident memory of all processes of each of these services, in octets.
func (s *system) residentAll(names []string) map[string]int64 {
	sum := make(map[string]int64)
	for _, name := range names {
		for _, pid := range s.processes(name) {
			sum[name] += resident(s.t, pid)
		}
	}
	return sum
}
