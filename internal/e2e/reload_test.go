package e2e

import (
	"flag"
	"fmt"
	"os/exec"
	"testing"

	"posthaste/internal/testproc"
)

var reloads = flag.Int("reloads", 10, "how often TestReloads reloads")

// While the mail system is told to reload again and again, each time with
// another setting, no client is refused or sent away, no message is lost or
// comes twice, and no process stays behind.
//
//	go test ./internal/e2e -run TestReloads -reloads 200 -timeout 0
func TestReloads(t *testing.T) {
	t.Parallel()
	source := need(t, "smtp-source")
	next := newSink(t, nil)
	s := newSystem(t, options{main: next.relayhost()})
	const batch = 25
	for i := range *reloads {
		s.mustTool("postconf", "-e", fmt.Sprintf("smtpd_banner = $myhostname ESMTP %d", i))
		// A session for each message, and a recipient of its own.
		clients := exec.Command(source, "-s", "5", "-l", "2000", "-m", fmt.Sprint(batch), "-N", "-f", "a@from.test", "-t", fmt.Sprintf("b%d@to.test", i), s.addr())
		var said testproc.Output
		clients.Stdout, clients.Stderr = &said, &said
		if err := clients.Start(); err != nil {
			t.Fatal(err)
		}
		s.mustTool("reload")
		if err := clients.Wait(); err != nil || said.String() != "" {
			t.Fatalf("reload %d: smtp-source: %v\n%s", i, err, said.String())
		}
	}
	s.waitLogN(`: reload -- version`, *reloads)
	s.waitLogN(`: removed$`, *reloads*batch)
	got := map[string]int{}
	for _, m := range next.received() {
		got[fmt.Sprint(m.to)]++
	}
	if len(got) != *reloads*batch || len(next.received()) != len(got) {
		t.Errorf("%d messages arrived, for %d recipients; %d were sent, one to each", len(next.received()), len(got), *reloads*batch)
	}
	for _, name := range []string{"smtpd", "cleanup", "qmgr", "trivial-rewrite", "smtp", "pickup", "postlogd"} {
		s.eventually("who served under older settings has ended: "+name, func() bool { return len(s.processes(name)) <= 1 })
	}
}
