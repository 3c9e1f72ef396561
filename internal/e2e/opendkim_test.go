package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/testproc"
)

// OpenDKIM, as most sites have it, signs what we relay: the filter that cares
// most about seeing exactly what is delivered.
func TestOpenDKIM(t *testing.T) {
	t.Parallel()
	path := need(t, "opendkim")
	next := newSink(t, nil)
	s := newSystem(t, options{unstarted: true})
	out, status := s.tool(nil, "dkim", "genkey", "-d", "from.test", "-s", "s1", "-o", s.path("etc"))
	if status != 0 {
		t.Fatal(out)
	}
	port := freePort(t)
	s.write("etc/opendkim.conf", fmt.Sprintf("Domain from.test\nSelector s1\nKeyFile %s\nSocket inet:%d@127.0.0.1\nMode s\n"+
		"Canonicalization relaxed/relaxed\nBackground no\nInternalHosts 127.0.0.1\nRequireSafeKeys no\n", s.path("etc", "from.test.s1.pem"), port))
	cmd := exec.Command(path, "-f", "-x", s.path("etc", "opendkim.conf"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(testproc.Watch(t, cmd, ""))
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	s.eventually("opendkim listens", func() bool {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	s.configure(next.relayhost()+fmt.Sprintf("smtpd_milters = inet:127.0.0.1:%d\nnon_smtpd_milters = $smtpd_milters\n", port), "")
	s.start()
	s.mustSend("a@from.test", []string{"b@to.test"}, "From: <a@from.test>\nSubject: one\n\tfolded\nTo: b@to.test\n\nbody\n.dot\n")
	s.mustSend("a@from.test", []string{"b@to.test"}, "From: <a@from.test>\nSubject: two\n\n"+strings.Repeat(strings.Repeat("x", 70)+"\n", 4000))
	if out, status := s.tool([]byte("From: <a@from.test>\nSubject: three\n\nbody\n"), "sendmail", "-f", "a@from.test", "b@to.test"); status != 0 {
		t.Fatal(out)
	}
	s.waitLogN(`postfix/qmgr\[\d+\]: \w+: removed`, 3)
	txt := ""
	for _, r := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(out, -1) {
		txt += r[1]
	}
	for _, m := range next.received() {
		if n := goodSignatures(t, m.data, txt); n != 1 {
			t.Errorf("%d good signatures in\n%.800s", n, m.data)
		}
	}
	if strings.Contains(s.log(), "warning: milter") {
		t.Error("the filter and we do not understand each other")
	}
	if n := len(next.received()); n != 3 {
		t.Errorf("%d messages arrived, want 3", n)
	}
}
