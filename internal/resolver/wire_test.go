package resolver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// serve runs a DNS server with a UDP and a TCP socket on one port of loopback.
func serve(t *testing.T, h dns.HandlerFunc) (addr string) {
	t.Helper()
	var pc net.PacketConn
	var l net.Listener
	for range 50 { // a port that is free for both
		var err error
		if pc, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		if l, err = net.Listen("tcp", pc.LocalAddr().String()); err == nil {
			break
		}
		pc.Close()
	}
	if l == nil {
		t.Fatal("no port is free for UDP and TCP")
	}
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: h}, {Listener: l, Handler: h}} {
		ready := make(chan struct{})
		s.NotifyStartedFunc = func() { close(ready) }
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.ActivateAndServe()
		}()
		<-ready
		t.Cleanup(func() { _ = s.Shutdown(); <-done })
	}
	return pc.LocalAddr().String()
}

func confWith(t *testing.T, text string, servers ...string) string {
	t.Helper()
	for _, s := range servers {
		host, port, _ := net.SplitHostPort(s)
		text += fmt.Sprintf("nameserver %s:%s\n", host, port)
	}
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func client(t *testing.T, path string) *Client {
	t.Helper()
	c := New(Options{ResolvConf: path, DNSSEC: true, Hosts: os.DevNull})
	t.Cleanup(c.Close)
	return c
}

func isUDP(w dns.ResponseWriter) bool { _, ok := w.LocalAddr().(*net.UDPAddr); return ok }

// good answers any question for A with 192.0.2.1.
func good(w dns.ResponseWriter, q *dns.Msg) { _ = w.WriteMsg(goodReply(q)) }

func goodReply(q *dns.Msg) *dns.Msg {
	m := new(dns.Msg)
	m.SetReply(q)
	m.Answer = []dns.RR{rr(q.Question[0].Name + " 60 A 192.0.2.1")}
	return m
}

func rr(s string) dns.RR {
	r, err := dns.NewRR(s)
	if err != nil {
		panic(err)
	}
	return r
}

func wantA(t *testing.T, c *Client, want string) {
	t.Helper()
	a, err := c.Addrs(t.Context(), "host.test", IPv4)
	got := fmt.Sprint(a.Records)
	if err != nil {
		got = KindOf(err).String()
	}
	if got != want {
		t.Errorf("got %s (%v), want %s", got, err, want)
	}
}

func TestTruncatedGoesToTCP(t *testing.T) {
	t.Parallel()
	var tcp atomic.Int32
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		for i := range 200 {
			m.Answer = append(m.Answer, rr(fmt.Sprintf("%s 60 A 192.0.2.%d", q.Question[0].Name, i)))
		}
		if isUDP(w) {
			m.Truncate(int(q.IsEdns0().UDPSize()))
		} else {
			tcp.Add(1)
		}
		_ = w.WriteMsg(m)
	})
	a, err := client(t, confWith(t, "", addr)).Addrs(t.Context(), "host.test", IPv4)
	if err != nil || len(a.Records) != maxRecords || tcp.Load() != 1 {
		t.Errorf("%d records over %d TCP queries, error %v; want the first %d", len(a.Records), tcp.Load(), err, maxRecords)
	}
}

func TestTruncatedInTheMiddleOfARecord(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := goodReply(q)
		if !isUDP(w) {
			_ = w.WriteMsg(m)
			return
		}
		m.Truncated = true
		b, _ := m.Pack()
		_, _ = w.Write(b[:len(b)-3])
	})
	wantA(t, client(t, confWith(t, "", addr)), "[192.0.2.1]")
}

// A server may answer over UDP with more than was asked for, in one datagram that
// does not say so, and over TCP.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	for records, want := range map[int]int32{100: 0, 400: 1} { // 1.6 KB, 6.4 KB
		var tcp atomic.Int32
		addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
			if !isUDP(w) {
				tcp.Add(1)
			}
			m := new(dns.Msg)
			m.SetReply(q)
			m.Compress = true
			for i := range records {
				m.Answer = append(m.Answer, rr(fmt.Sprintf("%s 60 A 192.0.%d.%d", q.Question[0].Name, i/200, i%200)))
			}
			_ = w.WriteMsg(m)
		})
		a, err := client(t, confWith(t, "options attempts:1\n", addr)).Addrs(t.Context(), "host.test", IPv4)
		if err != nil || len(a.Records) != maxRecords || tcp.Load() != want {
			t.Errorf("%d records: %d over %d TCP queries, error %v; want %d over %d", records, len(a.Records), tcp.Load(), err, maxRecords, want)
		}
	}
}

// A reply that cannot be read to its end may be well over TCP.
func TestMalformed(t *testing.T) {
	t.Parallel()
	for text, overTCP := range map[string]bool{"[192.0.2.1]": true, TempFail.String(): false} {
		addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
			if overTCP && !isUDP(w) {
				good(w, q)
				return
			}
			b, _ := goodReply(q).Pack()
			_, _ = w.Write(b[:len(b)-3])
		})
		wantA(t, client(t, confWith(t, "options attempts:1\n", addr)), text)
	}
}

// Some networks lose what is larger than a datagram must be.
func TestLargeRepliesAreLost(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := goodReply(q)
		if isUDP(w) {
			if q.IsEdns0().UDPSize() > plainSize {
				return
			}
			if !q.IsEdns0().Do() {
				t.Error("the second question does not ask for validation")
			}
			m.Answer, m.Truncated = nil, true
		}
		_ = w.WriteMsg(m)
	})
	wantA(t, client(t, confWith(t, "options timeout:5\n", addr)), "[192.0.2.1]")
}

func TestForgeriesAreSkipped(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !isUDP(w) {
			return
		}
		forge := func(change func(m *dns.Msg)) {
			m := goodReply(q)
			m.Answer = []dns.RR{rr(q.Question[0].Name + " 60 A 192.0.2.66")}
			change(m)
			_ = w.WriteMsg(m)
		}
		_, _ = w.Write([]byte("what?"))
		forge(func(m *dns.Msg) { m.Id++ })
		forge(func(m *dns.Msg) { m.Response = false })
		forge(func(m *dns.Msg) { m.Question[0].Name = "other.test." })
		forge(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeMX })
		forge(func(m *dns.Msg) { m.Question = nil })
		good(w, q)
	})
	wantA(t, client(t, confWith(t, "", addr)), "[192.0.2.1]")
}

func TestRecordsOfOtherNamesDoNotCount(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		m.Answer = []dns.RR{rr("victim.test. 60 A 192.0.2.66"), rr("host.test. 60 CNAME b.test."), rr("B.test. 60 A 192.0.2.1"), rr("c.test. 60 A 192.0.2.67")}
		_ = w.WriteMsg(m)
	})
	wantA(t, client(t, confWith(t, "", addr)), "[192.0.2.1]")
}

func TestAliasIntoAnotherReply(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg)
		m.SetReply(q)
		switch q.Question[0].Name {
		case "host.test.":
			m.Answer = []dns.RR{rr("host.test. 60 CNAME b.test.")}
		case "b.test.":
			m.Answer = []dns.RR{rr("b.test. 60 A 192.0.2.1")}
		}
		_ = w.WriteMsg(m)
	})
	wantA(t, client(t, confWith(t, "", addr)), "[192.0.2.1]")
}

func TestNextServer(t *testing.T) {
	t.Parallel()
	bad := func(rcode int) dns.HandlerFunc {
		return func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg)
			_ = w.WriteMsg(m.SetRcode(q, rcode))
		}
	}
	silent := func(dns.ResponseWriter, *dns.Msg) {}
	for _, tt := range []struct {
		name    string
		servers []dns.HandlerFunc
		want    string
	}{
		{"SERVFAIL then good", []dns.HandlerFunc{bad(dns.RcodeServerFailure), good}, "[192.0.2.1]"},
		{"REFUSED then good", []dns.HandlerFunc{bad(dns.RcodeRefused), good}, "[192.0.2.1]"},
		{"silent then good", []dns.HandlerFunc{silent, good}, "[192.0.2.1]"},
		{"NXDOMAIN counts", []dns.HandlerFunc{bad(dns.RcodeNameError), good}, "Host not found"},
		{"all SERVFAIL", []dns.HandlerFunc{bad(dns.RcodeServerFailure), bad(dns.RcodeServerFailure)}, "Host not found, try again"},
		{"all REFUSED", []dns.HandlerFunc{bad(dns.RcodeRefused)}, "Host not found, try again"},
		{"all FORMERR", []dns.HandlerFunc{bad(dns.RcodeFormatError)}, "Non-recoverable error"},
		{"FORMERR, and one is silent", []dns.HandlerFunc{bad(dns.RcodeFormatError), silent}, "Host not found, try again"},
		{"all silent", []dns.HandlerFunc{silent}, "Host not found, try again"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var addrs []string
			for _, h := range tt.servers {
				addrs = append(addrs, serve(t, h))
			}
			wantA(t, client(t, confWith(t, "options timeout:5 attempts:1\n", addrs...)), tt.want)
		})
	}
}

func TestServerWithoutEDNS(t *testing.T) {
	t.Parallel()
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if q.IsEdns0() == nil {
			good(w, q)
			return
		}
		m := new(dns.Msg)
		m.SetRcode(q, dns.RcodeFormatError)
		m.Question = nil
		_ = w.WriteMsg(m)
	})
	wantA(t, client(t, confWith(t, "", addr)), "[192.0.2.1]")
}

func TestRetryAfterSilence(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if n.Add(1) > 1 {
			good(w, q)
		}
	})
	wantA(t, client(t, confWith(t, "options timeout:5 attempts:2\n", addr)), "[192.0.2.1]")
}

func TestAuthenticatedDataIsBelievedOnlyWhereItIsSafe(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		server string
		trust  bool
		want   bool
	}{{"127.0.0.1:53", false, true}, {"[::1]:53", false, true}, {"192.0.2.1:53", false, false}, {"192.0.2.1:53", true, true}} {
		if got := (&conf{trustAD: tt.trust}).trusts(tt.server); got != tt.want {
			t.Errorf("%v: %v", tt, got)
		}
	}
	addr := serve(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := goodReply(q)
		m.AuthenticatedData = q.AuthenticatedData && q.IsEdns0().Do()
		_ = w.WriteMsg(m)
	})
	path := confWith(t, "", addr)
	a, err := client(t, path).Addrs(t.Context(), "host.test", IPv4)
	if err != nil || !a.Secure {
		t.Errorf("over loopback: secure=%v, %v", a.Secure, err)
	}
	plain := New(Options{ResolvConf: path})
	t.Cleanup(plain.Close)
	if a, err := plain.Addrs(t.Context(), "host.test", IPv4); err != nil || a.Secure {
		t.Errorf("without DNSSEC: secure=%v, %v", a.Secure, err)
	}
}

func TestCloseEndsQueries(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 10)
	addr := serve(t, func(dns.ResponseWriter, *dns.Msg) { asked <- struct{}{} })
	c := New(Options{ResolvConf: confWith(t, "options timeout:30\n", addr)})
	failed := make(chan error)
	go func() {
		_, err := c.Addrs(t.Context(), "host.test", IPv4)
		failed <- err
	}()
	<-asked
	c.Close()
	if err := <-failed; KindOf(err) != TempFail {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Addrs(ctx, "other.test", IPv4); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context was of no consequence: %v", err)
	}
}

func TestConf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", "[127.0.0.1:53] 5s 2 false false false"},
		{"# nameserver 1.1.1.1\n; x\nnameserver 192.0.2.1\nnameserver ::1\nsearch a b\n", "[192.0.2.1:53 [::1]:53] 5s 2 false false false"},
		{"nameserver fe80::1%eth0\nnameserver nonsense\nnameserver [::1]:5353\n", "[[fe80::1%eth0]:53 [::1]:5353] 5s 2 false false false"},
		{"options timeout:3 attempts:9 rotate use-vc trust-ad ndots:4\n", "[127.0.0.1:53] 3s 5 true true true"},
		{"options timeout:0 attempts:x timeout:99\n", "[127.0.0.1:53] 30s 2 false false false"},
		{strings.Repeat("nameserver 192.0.2.1\n", 5), "[192.0.2.1:53 192.0.2.1:53 192.0.2.1:53] 5s 2 false false false"},
	} {
		c := parseConf(strings.NewReader(tt.text))
		if got := fmt.Sprint(c.servers, c.timeout, c.attempts, c.rotate, c.useVC, c.trustAD); got != tt.want {
			t.Errorf("%q:\ngot  %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

func TestConfChanges(t *testing.T) {
	t.Parallel()
	path := confWith(t, "nameserver 192.0.2.1\n")
	changed := 0
	f := newConfFile(path, func() { changed++ })
	now := time.Unix(1_000_000, 0)
	first := f.get(now)
	if err := os.WriteFile(path, []byte("nameserver 192.0.2.22\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if f.get(now.Add(recheck-1)) != first || changed != 0 {
		t.Error("looked again too early")
	}
	if got := f.get(now.Add(recheck)).servers[0]; got != "192.0.2.22:53" || changed != 1 {
		t.Errorf("%s, changed %d times", got, changed)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := f.get(now.Add(2 * recheck)).servers[0]; got != "192.0.2.22:53" {
		t.Errorf("after the file went: %s", got)
	}
}

func FuzzConf(f *testing.F) {
	f.Add("nameserver 192.0.2.1\noptions timeout:3 rotate\n")
	f.Fuzz(func(t *testing.T, s string) {
		c := parseConf(strings.NewReader(s))
		if n := len(c.servers); n < 1 || n > maxServers || c.timeout < time.Second || c.timeout > maxTimeout*time.Second || c.attempts < 1 || c.attempts > maxAttempts {
			t.Errorf("%+v", c)
		}
		parseHosts(strings.NewReader(s))
	})
}

func FuzzUnescape(f *testing.F) {
	f.Add(`a\"b\012\\`)
	f.Fuzz(func(t *testing.T, s string) {
		if got := unescape(s); len(got) > len(s) {
			t.Errorf("%q grew to %q", s, got)
		}
	})
}

// FuzzReceive feeds replies that any server may send: none may be taken for
// the answer to another question.
func FuzzReceive(f *testing.F) {
	q := new(dns.Msg)
	q.SetQuestion("host.test.", dns.TypeA)
	q.Id = 7
	b, _ := goodReply(q).Pack()
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		m := new(dns.Msg)
		if m.Unpack(b) != nil || answers(m, q) != nil {
			return
		}
		if m.Id != 7 {
			t.Error("wrong identifier")
		}
		r := &reply{name: "host.test", ttl: maxTTL}
		r.collect(m, dns.TypeA, 0)
	})
}

func BenchmarkExchange(b *testing.B) {
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(good)}
	ready := make(chan struct{})
	s.NotifyStartedFunc = func() { close(ready) }
	go func() { _ = s.ActivateAndServe() }()
	<-ready
	defer s.Shutdown()
	q := new(dns.Msg)
	q.SetQuestion("host.test.", dns.TypeA)
	q.SetEdns0(ednsSize, false)
	c := parseConf(strings.NewReader(""))
	for b.Loop() {
		if _, err := ask(b.Context(), pc.LocalAddr().String(), q, c); err != nil {
			b.Fatal(err)
		}
	}
}
