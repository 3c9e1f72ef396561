package script

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// serve starts a server on loopback for benchmarks.
func serve(t testing.TB, main string) (w *world, addr string) {
	w = newWorld(t, &txtar.Archive{Files: []txtar.File{{Name: "main.cf", Data: []byte(main)}}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.srv.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		w.close()
	})
	return w, l.Addr().String()
}

const benchMain = "smtpd_client_connection_count_limit = 0\nsmtpd_peername_lookup = no\n"

var benchMessage = "Subject: test\r\n\r\n" + strings.Repeat(strings.Repeat("x", 74)+"\r\n", 135) + ".\r\n"

type benchClient struct {
	t  testing.TB
	c  net.Conn
	br *bufio.Reader
}

func dialBench(t testing.TB, addr string) *benchClient {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	b := newBenchClient(t, c)
	b.replies(1)
	return b
}

func newBenchClient(t testing.TB, c net.Conn) *benchClient {
	return &benchClient{t, c, bufio.NewReader(c)}
}

func (b *benchClient) send(s string) {
	if _, err := b.c.Write([]byte(s)); err != nil {
		b.t.Fatal(err)
	}
}

func (b *benchClient) replies(n int) {
	for n > 0 {
		line, err := b.br.ReadSlice('\n')
		if err != nil {
			b.t.Fatal(err)
		}
		if line[0] > '3' {
			b.t.Fatalf("%s", line)
		}
		if line[3] == ' ' {
			n--
		}
	}
}

func (b *benchClient) message() {
	b.send("MAIL FROM:<a@client.test>\r\nRCPT TO:<alice@example.test>\r\nDATA\r\n")
	b.replies(3)
	b.send(benchMessage)
	b.replies(1)
}

// BenchmarkMessage is a 10 KB message over an open connection, client and a
// cleanup that keeps everything included.
func BenchmarkMessage(b *testing.B) {
	w, addr := serve(b, benchMain)
	w.cleanup.forget = true
	c := dialBench(b, addr)
	c.send("EHLO client.test\r\n")
	c.replies(1)
	b.ReportAllocs()
	for b.Loop() {
		c.message()
	}
	c.c.Close()
}

// BenchmarkConnect is a connection for each message.
func BenchmarkConnect(b *testing.B) {
	w, addr := serve(b, benchMain)
	w.cleanup.forget = true
	b.ReportAllocs()
	for b.Loop() {
		c := dialBench(b, addr)
		c.send("EHLO client.test\r\n")
		c.replies(1)
		c.message()
		c.send("QUIT\r\n")
		c.replies(1)
		c.c.Close()
	}
}

// BenchmarkIdle reports what an idle session costs in memory.
func BenchmarkIdle(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchIdle(b, benchMain, false) })
	b.Run("TLS", func(b *testing.B) {
		benchIdle(b, benchMain+"smtpd_tls_security_level = may\nsmtpd_tls_chain_files = $dir/cert.pem\n", true)
	})
}

func benchIdle(b *testing.B, main string, encrypt bool) {
	_, addr := serve(b, main)
	const n = 500
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var conns []net.Conn // without what the client's end of TLS takes
	for range n {
		c := dialBench(b, addr)
		conns = append(conns, c.c)
		if encrypt {
			c.send("STARTTLS\r\n")
			c.replies(1)
			c.c = tls.Client(c.c, &tls.Config{InsecureSkipVerify: true})
			c.br = bufio.NewReader(c.c)
		}
		c.send("EHLO client.test\r\n")
		c.replies(1)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	for b.Loop() {
	}
	b.ReportMetric(float64(after.HeapInuse+after.StackInuse-before.HeapInuse-before.StackInuse)/n, "B/session")
	b.ReportMetric(float64(after.StackInuse-before.StackInuse)/n, "B-stack/session")
	for _, c := range conns {
		c.Close()
	}
}
