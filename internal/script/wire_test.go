package script

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
)

// pipeEnd is a synchronous connection that seems to come from elsewhere.
type pipeEnd struct{ net.Conn }

func (pipeEnd) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(198, 51, 100, 7), Port: 40000} }
func (pipeEnd) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 25), Port: 25} }

// converse sends input in pieces of the given size and returns all that the
// server says, up to the end of the connection. ended is false when the
// server had to be left, after wait: it was in the middle of a chunk.
func converse(t testing.TB, w *world, input []byte, piece int, wait time.Duration) (said string, ended bool) {
	client, server := net.Pipe()
	var done sync.WaitGroup
	done.Go(func() { w.srv.ServeConn(context.Background(), pipeEnd{server}) })
	var out strings.Builder
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.Copy(&out, client)
	}()
	client.SetWriteDeadline(time.Now().Add(patience))
	for len(input) > 0 {
		n := min(piece, len(input))
		if _, err := client.Write(input[:n]); err != nil {
			break // the server has had enough
		}
		input = input[n:]
	}
	// A half-closed pipe there is not: QUIT ends the session in every state
	// but within content, and the end of the connection does there.
	client.SetWriteDeadline(time.Now().Add(patience))
	client.Write([]byte("\r\n.\r\nQUIT\r\n"))
	select {
	case <-read:
		ended = true
	case <-time.After(wait):
		client.Close()
		<-read
	}
	client.Close()
	done.Wait()
	return w.plain(out.String()), ended
}

const wireMain = "smtpd_forbid_unauth_pipelining = no\nsmtpd_hard_error_limit = 1000\nsmtpd_junk_command_limit = 1000\n" +
	"smtpd_sasl_auth_enable = yes\nsmtpd_sasl_type = table\nsmtpd_sasl_path = inline:{a=b}\nsmtpd_client_connection_count_limit = 0\n"

func wireWorld(t testing.TB) *world {
	w := newWorld(t, &txtar.Archive{Files: []txtar.File{{Name: "main.cf", Data: []byte(wireMain)}}})
	w.cleanup.forget = true
	t.Cleanup(w.close)
	return w
}

var wireInputs = []string{
	"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<alice@example.test>\r\nDATA\r\nSubject: x\r\n\r\n..\r\nbody\r\n.\r\nQUIT\r\n",
	"EHLO x\nMAIL FROM:<a@b>\nRCPT TO:<alice@example.test>\nDATA\nx\n.\r\ny\r\n.\r\n",
	"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<alice@example.test>\r\nBDAT 3\r\nabcBDAT 4 LAST\r\n\r\n\r\nNOOP\r\n",
	"HELO x\r\nAUTH LOGIN\r\nYQ==\r\nYg==\r\nAUTH PLAIN =\r\n*\r\nVRFY alice@example.test\r\nETRN site.test\r\n",
	"EHLO x\r\nMAIL FROM:<a@b> SIZE=1 BODY=8BITMIME RET=FULL ENVID=x\r\nRCPT TO:<alice@example.test> NOTIFY=NEVER ORCPT=rfc822;x\r\nRSET\r\nDATA\r\n",
	"\r\n\x00\xff\r\r\n" + strings.Repeat("y", 5000) + "\r\nNOOP\r\nHELP\r\nSTARTTLS\r\nXCLIENT A=b\r\n",
}

// The pieces in which a client sends make no difference to what it is told.
func TestOneByteAtATime(t *testing.T) {
	t.Parallel()
	w := wireWorld(t)
	for _, in := range wireInputs {
		whole, ended := converse(t, w, []byte(in), len(in), patience)
		if !ended {
			t.Errorf("%.60q: the session does not end", in)
		}
		for _, piece := range []int{1, 3, 64} {
			if got, _ := converse(t, w, []byte(in), piece, patience); got != whole {
				t.Errorf("%.60q in pieces of %d: %s", in, piece, diff(whole, got))
			}
		}
		if !strings.HasPrefix(whole, "220 ") {
			t.Errorf("%.60q: %q", in, whole)
		}
	}
}

// Whatever a client sends, the session ends, every line that it is told is a
// reply, and the pieces make no difference.
func FuzzSession(f *testing.F) {
	for _, in := range wireInputs {
		f.Add([]byte(in))
	}
	w := wireWorld(f)
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 8<<10 {
			return
		}
		whole, ended := converse(t, w, in, len(in)+1, 100*time.Millisecond)
		for line := range strings.Lines(whole) {
			if len(line) < 6 || line[0] < '2' || line[0] > '5' || line[3] != ' ' && line[3] != '-' || !strings.HasSuffix(line, "\r\n") {
				t.Fatalf("%q is no reply line", line)
			}
		}
		if !ended {
			return
		}
		if got, _ := converse(t, w, in, 7, patience); got != whole {
			t.Fatalf("in pieces: %s", diff(whole, got))
		}
	})
}
