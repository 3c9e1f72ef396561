package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// Threads by main.cf: with one agent, a destination that takes its time has it, another one waits
// for its turn, explain says so of both, and all mail arrives.
func TestThreadScheduler(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	var once sync.Once
	open := func() { once.Do(func() { close(release) }) }
	t.Cleanup(open) // or the sink would wait for ever
	slow := newSink(t, func(line string) string {
		if line == "." {
			<-release
		}
		return ""
	})
	quick := newSink(t, nil)
	s := newSystem(t, options{main: fmt.Sprintf("default_scheduler = thread\ntransport_maps = inline:{slow.test=smtp:[127.0.0.1]:%d, quick.test=smtp:[127.0.0.1]:%d}\n", slow.port(), quick.port()),
		master: "smtp unix - - n - 1 smtp\n"})
	says := func(port int, want string) {
		t.Helper()
		s.eventually(fmt.Sprintf("port %d: %s", port, want), func() bool {
			out, _ := s.tool(nil, "explain", fmt.Sprintf("[127.0.0.1]:%d", port))
			return strings.Contains(out, want)
		})
	}
	s.mustSend("a@from.test", []string{"x@slow.test"}, "Subject: one\n\none\n")
	says(slow.port(), "1 deliveries under way, 0 wait; window ")
	says(slow.port(), "; its thread has 1 agent(s)\n")
	s.mustSend("a@from.test", []string{"y@quick.test"}, "Subject: two\n\ntwo\n")
	says(quick.port(), "; its thread waits for an agent, as 0 other(s) do, for at most ")
	if n := len(quick.received()); n != 0 {
		t.Errorf("%d messages went without an agent", n)
	}
	open()
	s.eventually("all mail arrives", func() bool { return len(slow.received()) == 1 && len(quick.received()) == 1 })
	s.waitLog(`to=<x@slow\.test>, .*status=sent`)
	s.waitLog(`to=<y@quick\.test>, .*status=sent`)
}
