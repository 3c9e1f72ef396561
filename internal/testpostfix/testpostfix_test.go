package testpostfix

import (
	"strings"
	"testing"

	"posthaste/internal/testwait"
)

const (
	exampleMain = "myhostname = first.test\nmydestination =\ninet_interfaces = 127.0.0.1\nalias_maps =\nmyhostname = mta.test\n" +
		"default_transport = discard\n"
	exampleMaster = `127.0.0.1:{port} inet n - n - - smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
discard unix - - n - - discard
postlog unix-dgram n - n - 1 postlogd
`
)

// An instance delivers, keeps what waits while it is stopped, and takes a new
// configuration.
func TestInstance(t *testing.T) {
	t.Parallel()
	p := New(t)
	p.Configure(exampleMain, exampleMaster)
	p.Start()
	submit := func(to string) { p.Run("Subject: s\n\nbody\n", "sendmail", "-f", "a@from.test", to) }
	await := func(words string) {
		t.Helper()
		testwait.For(t, func() string {
			if log := p.Log(); !strings.Contains(log, words) {
				return "not in the log: " + words + "\n" + log
			}
			return ""
		})
	}
	submit("first@to.test")
	await("to=<first@to.test>, relay=none,")
	if out := p.Run("", "postconf", "-h", "myhostname"); out != "mta.test\n" {
		t.Errorf("myhostname: %q", out)
	}
	p.Stop()
	submit("second@to.test")
	p.Start()
	await("to=<second@to.test>, relay=none,")
	p.Configure(exampleMain+"default_transport = discard:again\n", exampleMaster)
	p.Reload()
	if out := p.Run("", "postconf", "-h", "default_transport"); out != "discard:again\n" {
		t.Errorf("default_transport: %q", out)
	}
	if strings.Contains(p.Log(), "warning: ") {
		t.Errorf("warnings:\n%s", p.Log())
	}
}

func TestLastOfEach(t *testing.T) {
	t.Parallel()
	got := lastOfEach("# a = 1\na = 1\n  more\nb =\n\na = 2\n  # no\n  of it\nc = 3")
	if want := "# a = 1\nb =\na = 2\n  # no\n  of it\nc = 3"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
