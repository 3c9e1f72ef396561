package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// need is the path of a foreign program. Where it is not installed the test is
// skipped, and says so; with PEERS_REQUIRED set that is a failure.
func need(t testing.TB, program string) string {
	t.Helper()
	return testpeers.Program(t, program)
}

func TestSwaks(t *testing.T) {
	t.Parallel()
	swaks := need(t, "swaks")
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	out, err := exec.Command(swaks, "--server", s.addr(), "--from", "a@from.test", "--to", "b@to.test", "--pipeline").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.waitLog(`to=<b@to\.test>, .*status=sent`)
	if n := len(next.received()); n != 1 {
		t.Errorf("%d messages arrived", n)
	}
}

// Many messages from Postfix's own load generator arrive whole.
func TestSMTPSource(t *testing.T) {
	t.Parallel()
	source := need(t, "smtp-source")
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	const messages = 500
	out, err := exec.Command(source, "-s", "20", "-l", "10240", "-m", fmt.Sprint(messages), "-f", "a@from.test", "-t", "b@to.test", s.addr()).CombinedOutput()
	if err != nil || strings.Contains(string(out), "fatal") {
		t.Fatalf("%v\n%s", err, out)
	}
	s.waitLogN(`status=sent`, messages)
	s.waitLogN(`: removed$`, messages)
	got := next.received()
	if len(got) != messages {
		t.Fatalf("%d of %d messages arrived", len(got), messages)
	}
	for _, m := range got {
		if len(m.data) < 10240 {
			t.Errorf("a message arrived with %d octets, 10240 were sent", len(m.data))
		}
	}
}
