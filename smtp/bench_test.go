package smtp

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

// sink is a server that takes everything, with as little work as can be, so
// that what is measured is the client. It answers a flight with one write.
func sink(tb testing.TB) (port string) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveSink(c)
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

func serveSink(c net.Conn) {
	defer c.Close()
	r := bufio.NewReaderSize(c, 64<<10)
	w := bufio.NewWriter(c)
	fmt.Fprint(w, "220 sink ESMTP\r\n")
	data := false
	for {
		if r.Buffered() == 0 && w.Flush() != nil {
			return
		}
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		switch {
		case data:
			if len(line) == 3 && line[0] == '.' {
				data = false
				fmt.Fprint(w, "250 2.0.0 Ok: queued as 1234567890\r\n")
			}
		case bytes.HasPrefix(line, []byte("EHLO")):
			fmt.Fprint(w, "250-sink\r\n250-PIPELINING\r\n250-SIZE 100000000\r\n250-8BITMIME\r\n250-ENHANCEDSTATUSCODES\r\n250 DSN\r\n")
		case bytes.HasPrefix(line, []byte("DATA")):
			data = true
			fmt.Fprint(w, "354 End data with <CR><LF>.<CR><LF>\r\n")
		case bytes.HasPrefix(line, []byte("QUIT")):
			fmt.Fprint(w, "221 2.0.0 Bye\r\n")
			w.Flush()
			return
		default:
			fmt.Fprint(w, "250 2.1.0 Ok\r\n")
		}
	}
}

func tcpAgent(tb testing.TB, main string) *Agent {
	tb.Helper()
	cfg, err := config.LoadString("myhostname = me.test\ninet_interfaces = 127.0.0.1\n" + main)
	if err != nil {
		tb.Fatal(err)
	}
	dns := fakezone.Must("sink.test. MX 10 mx.sink.test.\nmx.sink.test. A 127.0.0.1\n").Resolver()
	a, err := newAgent(deps{Config: cfg, Resolver: dns})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { a.Close(); dns.Close() })
	return a
}

func lmtpAgent(tb testing.TB) *Agent {
	tb.Helper()
	cfg, err := config.LoadString("myhostname = me.test\n")
	if err != nil {
		tb.Fatal(err)
	}
	dns := fakezone.Must("").Resolver()
	a, err := newAgent(deps{Config: cfg, Resolver: dns, LMTP: true})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { a.Close(); dns.Close() })
	return a
}

func envelope(size int) mail.Envelope {
	return mail.Envelope{ID: "4ZqQ1", Arrival: time.Now(), Sender: "from@here.test", Size: int64(size), Body: mail.BodyGauged,
		Recipients: []mail.Recipient{{Address: "to@sink.test"}}}
}

// BenchmarkKept is one 10 KB message after the other over a kept session, with
// a server on the same machine whose time counts as well.
func BenchmarkKept(b *testing.B) {
	a := tcpAgent(b, "")
	next := mail.Nexthop("sink.test:" + sink(b))
	content := []byte(strings.Repeat("Subject: x\r\n", 10) + "\r\n" + strings.Repeat(strings.Repeat("x", 70)+"\r\n", 140))
	env := envelope(len(content))
	b.ReportAllocs()
	for b.Loop() {
		r := agent.NewTestRequest(env, next, content, nil)
		r.CacheLoad, r.CacheKeep = true, true
		a.Deliver(context.Background(), r)
		if o := r.Outcomes()[0]; o.Status.Class != 2 {
			b.Fatal(o)
		}
	}
}

// BenchmarkFresh is a session for each message.
func BenchmarkFresh(b *testing.B) {
	a := tcpAgent(b, "")
	next := mail.Nexthop("sink.test:" + sink(b))
	content := []byte("Subject: x\r\n\r\nhello\r\n")
	env := envelope(len(content))
	for b.Loop() {
		r := agent.NewTestRequest(env, next, content, nil)
		a.Deliver(context.Background(), r)
		if o := r.Outcomes()[0]; o.Status.Class != 2 {
			b.Fatal(o)
		}
	}
}

// BenchmarkDestinations is a message for each of many destinations, each with
// servers on addresses of their own, twenty at a time, with a real name server.
func BenchmarkDestinations(b *testing.B) {
	const hosts = 1000
	port := sinkAll(b)
	var zone strings.Builder
	for i := range hosts {
		fmt.Fprintf(&zone, "d%d.test. MX 10 mx.d%d.test.\nmx.d%d.test. A 127.%d.%d.1\n", i, i, i, 1+i/256, i%256)
	}
	server, err := fakezone.Must(zone.String()).Listen()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { server.Close() })
	conf := filepath.Join(b.TempDir(), "resolv.conf")
	if err := os.WriteFile(conf, []byte("nameserver "+server.Addr+"\n"), 0o644); err != nil {
		b.Fatal(err)
	}
	cfg, err := config.LoadString("myhostname = me.test\ninet_interfaces = 127.0.0.1\nsmtp_tcp_port = " + port)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		dns := resolver.New(resolver.Options{ResolvConf: conf})
		a, err := newAgent(deps{Config: cfg, Resolver: dns})
		if err != nil {
			b.Fatal(err)
		}
		content := []byte("Subject: x\r\n\r\nhello\r\n")
		var wg sync.WaitGroup
		next := make(chan int)
		for range 20 {
			wg.Go(func() {
				for i := range next {
					r := agent.NewTestRequest(envelope(len(content)), mail.Nexthop(fmt.Sprintf("d%d.test", i)), content, nil)
					a.Deliver(context.Background(), r)
					if o := r.Outcomes()[0]; o.Status.Class != 2 {
						b.Error(o)
					}
				}
			})
		}
		for i := range hosts {
			next <- i
		}
		close(next)
		wg.Wait()
		a.Close()
		dns.Close()
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*hosts), "us/message")
}

// sinkAll is a sink on every address of loopback.
func sinkAll(tb testing.TB) (port string) {
	tb.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveSink(c)
		}
	}()
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}
