package local

import (
	"net"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// TestBiff: comsat is told where in the mailbox each message begins, and
// nothing of maildirs.
func TestBiff(t *testing.T) {
	t.Parallel()
	comsat, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer comsat.Close()
	s := newSite(t, "", "")
	s.agent.biff.addr = comsat.LocalAddr().String()
	heard := func() string {
		b := make([]byte, 100)
		comsat.SetReadDeadline(time.Now().Add(testwait.Patience))
		n, _, err := comsat.ReadFrom(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	s.write("spool/joe", "1234567\n", s.users["joe"]) // an empty line is put before what comes next
	for _, to := range []struct{ addr, want string }{{"joe", "joe@9"}, {"ann", "ann@0"}} {
		s.expect(s.deliver(to.addr+"@example.org"), "delivered 2.0.0 delivered to mailbox")
		if got := heard(); got != to.want {
			t.Errorf("told %q, expected %q", got, to.want)
		}
	}
	silent := newSite(t, "", "biff = no")
	silent.expect(silent.deliver("joe@example.org"), "delivered 2.0.0 delivered to mailbox")
	home := newSite(t, "", "home_mailbox = Maildir/")
	home.agent.biff.addr = comsat.LocalAddr().String()
	home.expect(home.deliver("joe@example.org"), "delivered 2.0.0 delivered to maildir")
	home.agent.biff.notify("last", 1) // what the maildir's delivery said would be before this
	if got := heard(); got != "last@1" || silent.agent.biff != nil {
		t.Errorf("told %q", got)
	}
}
