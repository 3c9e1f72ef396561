package e2e

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A postscreen line serves sessions with the options, and as many at a time,
// as the line of the service behind it says.
func TestPostscreen(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	s := newSystem(t, options{
		main: "postscreen_greet_wait = 0\npostscreen_access_list =\npostscreen_post_queue_limit = 1\n",
		master: fmt.Sprintf("127.0.0.1:%d inet n - n - 1 postscreen\n", port) +
			"smtpd pass - - n - 2 smtpd -o smtpd_banner=behind.test -o smtpd_helo_required=yes\n",
	})
	dial := func() net.Conn {
		t.Helper()
		var c net.Conn
		s.eventually("postscreen listens", func() (ok bool) {
			var err error
			c, err = net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			return err == nil
		})
		t.Cleanup(func() { c.Close() })
		c.SetDeadline(time.Now().Add(patience))
		return c
	}
	hears := func(c net.Conn, want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("%q, %v; want %q", got, err, want)
		}
	}
	first, second := dial(), dial()
	for _, c := range []net.Conn{first, second} {
		hears(c, "220 behind.test\r\n")
		io.WriteString(c, "MAIL FROM:<a@b.test>\r\n")
		hears(c, "503 5.5.1 ")
	}
	// One more may wait, and no more than one: of these two, one is sent away.
	third, fourth := dial(), dial()
	s.waitLog(`postfix/postscreen\[[0-9]+\]: NOQUEUE: reject: CONNECT from .*: all server ports busy`)
	s.waitLog(`postfix/smtpd\[[0-9]+\]: connect from `)
	first.Close()
	heard := make(chan string, 2)
	for _, c := range []net.Conn{third, fourth} {
		go func() {
			b := make([]byte, 4)
			io.ReadFull(c, b)
			heard <- string(b)
		}()
	}
	if both := <-heard + <-heard; !strings.Contains(both, "220 ") || !strings.Contains(both, "421 ") {
		t.Errorf("those who waited heard %q", both)
	}
}
