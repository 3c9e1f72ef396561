package e2e

import (
	"fmt"
	"io"
	"net"
	"net/textproto"
	"testing"
	"time"
)

// What smtpd has counted is told by the anvil service, in Postfix's protocol.
func TestAnvil(t *testing.T) {
	t.Parallel()
	s := newSystem(t, options{})
	client, err := textproto.Dial("tcp", s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for code, lines := 220, []string{"EHLO client.test", "MAIL FROM:<a@from.test>", "RCPT TO:<b@local.test>", "RCPT TO:<c@local.test>"}; ; code = 250 {
		if _, text, err := client.ReadResponse(code); err != nil {
			t.Fatal(text, err)
		}
		if len(lines) == 0 {
			break
		}
		if err := client.PrintfLine("%s", lines[0]); err != nil {
			t.Fatal(err)
		}
		lines = lines[1:]
	}
	conn, err := net.Dial("unix", s.path("spool/private/anvil"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	want := "protocol=anvil_protocol\n\nstatus=0\ncount=1\nrate=1\nmail=1\nrcpt=2\nnewtls=0\nauth=0\n\n"
	fmt.Fprintf(conn, "request=lookup\nident=127.0.0.1:%d:127.0.0.1\n\n", s.port)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Errorf("%v: got\n%s\nwant\n%s", err, got, want)
	}
}
