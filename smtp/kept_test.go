package smtp

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/quickio"
	"posthaste/internal/resolver/fakezone"
)

// Scripts of servers for TestKeptEnded: what is said before the first message,
// a message, and the last one of a connection.
const (
	keptHello   = "S: 220 x ESMTP\nC: EHLO me.test\nS: 250-x\nS: 250 PIPELINING\n"
	keptTLS     = "S: 220 x ESMTP\nC: EHLO me.test\nS: 250-x\nS: 250 STARTTLS\nC: STARTTLS\nS: 220 go\ntls good\nC: EHLO me.test\nS: 250-x\nS: 250 PIPELINING\n"
	keptMessage = "C: MAIL FROM:<from@here.test>\nC: RCPT TO:<to@sink.test>\nC: DATA\nd: 250 ok\ns: 250 ok\\r\\n354 go\\r\\n\nC* .\nS: 250 done\n"
)

// A kept session that its server has ended, or over which it has said something,
// is found out before anything is sent over it, and is replaced without a word.
// What comes over TLS may be TLS's own: there only the end counts.
func TestKeptEnded(t *testing.T) {
	t.Parallel()
	const again = keptMessage + "C: QUIT\n"
	for name, test := range map[string]struct {
		first  string // what the first connection's server does after the first message
		event  int16  // what is seen of that before the second
		second bool   // the second message takes a second connection
		tls    bool
	}{
		"still there":           {again, 0, false, false},
		"still there, TLS":      {again, 0, false, true},
		"ended":                 {"shut\nC#\n", unix.POLLRDHUP, true, false},
		"said goodbye":          {"S: 421 4.4.2 x Error: timeout exceeded\nshut\nC#\n", unix.POLLRDHUP, true, false},
		"spoke":                 {"S: 421 4.4.2 x Error: timeout exceeded\nC#\n", unix.POLLIN, true, false},
		"spoke out of turn":     {"S: 250 2.1.0 Ok\nC#\n", unix.POLLIN, true, false},
		"closed":                {"close\n", unix.POLLRDHUP, true, false},
		"ended, TLS":            {"shut\nC#\n", unix.POLLRDHUP, true, true},
		"said goodbye, TLS":     {"S: 421 4.4.2 x Error: timeout exceeded\nshut\nC#\n", unix.POLLRDHUP, true, true},
		"spoke, TLS: is heard":  {"S: 421 4.4.2 x\nC: MAIL FROM:<from@here.test>\nC: RCPT TO:<to@sink.test>\nC: DATA\nC#\n", unix.POLLIN, true, true},
		"closed, TLS":           {"close\n", unix.POLLRDHUP, true, true},
		"ends when it is asked": {"C: MAIL FROM:<from@here.test>\nclose\n", 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hello, main := keptHello, "smtp_connection_cache_time_limit = 100s\nconnection_cache_ttl_limit = 100s\nsmtp_connection_reuse_count_limit = 2\nsmtp_mail_timeout = 40s\n"
			if test.tls {
				hello, main = keptTLS, main+"smtp_tls_security_level = encrypt\nsmtp_tls_connection_reuse = yes\n"
			}
			scripts := []string{hello + keptMessage + "wait\n" + test.first}
			if test.second {
				scripts = append(scripts, hello+again)
			}
			kept := make(chan struct{})
			next, wait := keptServers(t, scripts, kept)
			log := new(lines)
			a, done := keptAgent(t, main, log)
			deliver := func(keep bool) {
				t.Helper()
				r := agent.NewTestRequest(envelope(10), next, []byte("A: b\r\n\r\n"), a.log)
				r.CacheLoad, r.CacheKeep = true, keep
				a.Deliver(context.Background(), r)
				if o := r.Outcomes()[0]; o.Status.String() != "2.0.0" || r.Kept() != keep {
					t.Errorf("%s %s, kept: %v", o.Status, o.Reason, r.Kept())
				}
			}
			deliver(true)
			close(kept)
			awaitKept(t, a, test.event)
			deliver(false)
			done()
			wait()
			got := log.b.String()
			if n := strings.Count(got, "\n"); n != 2 || strings.Count(got, "status=sent (250 done)") != 2 {
				t.Errorf("logged is\n%s", got)
			}
			if strings.Contains(got, "conn_use=2") == test.second {
				t.Errorf("the second message took a second connection: not %v\n%s", test.second, got)
			}
		})
	}
}

// keptServers serves a connection for each script, in turn. wait is until all have
// ended.
func keptServers(t *testing.T, scripts []string, goOn <-chan struct{}) (next mail.Nexthop, wait func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var servers sync.WaitGroup
	servers.Go(func() {
		for i, script := range scripts {
			c, err := l.Accept()
			if err != nil {
				t.Errorf("connection %d was not made", i+1)
				return
			}
			s := newScripted(t, l.Addr().String(), c)
			s.goOn = goOn
			servers.Go(func() { s.serve(script) })
		}
	})
	return mail.Nexthop("[127.0.0.1]:" + port(l)), func() { l.Close(); servers.Wait() }
}

// keptAgent is an agent whose log lines go to sink.
func keptAgent(t *testing.T, main string, sink *lines) (a *Agent, done func()) {
	cfg, err := config.LoadString("myhostname = me.test\ninet_interfaces = 127.0.0.1\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	dns := fakezone.Must("").Resolver()
	log := maillog.New("log", sink)
	if a, err = newAgent(deps{Config: cfg, Resolver: dns, Log: log}); err != nil {
		t.Fatal(err)
	}
	return a, func() {
		a.Close()
		dns.Close()
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	}
}

// awaitKept waits until the only session that is kept shows one of events, if there
// are any.
func awaitKept(t *testing.T, a *Agent, events int16) {
	t.Helper()
	if events == 0 {
		return
	}
	a.cache.mu.Lock()
	defer a.cache.mu.Unlock()
	for _, list := range a.cache.byAddr {
		conn := list[0].s.conn
		if c, ok := conn.(*tls.Conn); ok {
			conn = c.NetConn()
		}
		raw, err := conn.(*quickio.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if err := raw.Control(func(fd uintptr) {
			if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 40000); n != 1 || err != nil {
				t.Errorf("nothing comes: %v", err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// An order may allow fewer messages over a connection than the settings do; and a
// connection that was opened is told from a session that was kept.
func TestMostMessages(t *testing.T) {
	t.Parallel()
	const main = "smtp_connection_cache_time_limit = 100s\nconnection_cache_ttl_limit = 100s\n"
	for name, test := range map[string]struct {
		most   [3]int  // of the orders
		opened [3]bool // whether they are to open a connection
	}{
		"no bound":               {[3]int{0, 0, 0}, [3]bool{true, false, false}},
		"one":                    {[3]int{1, 1, 1}, [3]bool{true, true, true}},
		"two":                    {[3]int{2, 2, 2}, [3]bool{true, false, true}},
		"fewer than before":      {[3]int{9, 9, 2}, [3]bool{true, false, true}},
		"more than there were":   {[3]int{3, 9, 9}, [3]bool{true, false, false}},
		"one that was kept goes": {[3]int{9, 1, 9}, [3]bool{true, true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var scripts []string
			n := 0
			for _, opened := range test.opened {
				if opened {
					n++
					scripts = append(scripts, keptHello)
				}
				scripts[n-1] += keptMessage
			}
			for i := range scripts {
				scripts[i] += "C: QUIT\n"
			}
			next, wait := keptServers(t, scripts, nil)
			log := new(lines)
			a, done := keptAgent(t, main, log)
			for i := range test.most {
				r := agent.NewTestRequest(envelope(10), next, []byte("A: b\r\n\r\n"), a.log)
				r.CacheLoad, r.CacheKeep, r.Most = true, true, test.most[i]
				a.Deliver(context.Background(), r)
				if o := r.Outcomes()[0]; o.Status.String() != "2.0.0" || r.Opened() != test.opened[i] {
					t.Errorf("message %d: %s %s, opened a connection: %v", i+1, o.Status, o.Reason, r.Opened())
				}
			}
			done()
			wait()
		})
	}
}

// A session that was kept under a destination's name, with a server that it has no more, is ended politely, and not used.
func TestKeptWithFormerServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, servers: map[string][]string{"192.0.2.1:25": {keptHello + "C: MAIL FROM:<from@here.test>\nC: RCPT TO:<to@sink.test>\nC: DATA\nS: 550 5.7.1 no\nS: 550 no\nS: 503 no\nC: QUIT\n"}}}
		cfg, err := config.LoadString("myhostname = me.test\ninet_interfaces = 192.0.2.200\n")
		if err != nil {
			t.Fatal(err)
		}
		dns := fakezone.Must("dest.test. MX 10 mx1.dest.test.\nmx1.dest.test. A 192.0.2.1\n").Resolver()
		a, err := newAgent(deps{Config: cfg, Resolver: dns, Dial: w.dial})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the server had several
			ours, theirs := net.Pipe()
			w.wg.Go(func() { newScripted(t, "192.0.2.9:25", theirs).serve("C: QUIT\nC#\n") })
			former := target{host: "mx1.dest.test", ip: netip.MustParseAddr("192.0.2.9"), port: "25"}
			if !a.cache.put(a.newSession(ours, &former), 0, cacheKey{hop: "dest.test"}, cacheKey{host: former.host, ip: former.ip, port: "25"}, time.Now().Add(time.Hour)) {
				t.Fatal("not kept")
			}
		}
		r := agent.NewTestRequest(envelope(10), "dest.test", []byte("A: b\r\n\r\n"), nil)
		r.CacheLoad = true
		a.Deliver(t.Context(), r)
		if o := r.Outcomes()[0]; o.Status.String() != "5.7.1" {
			t.Errorf("%s %s", o.Status, o.Reason)
		}
		a.cache.mu.Lock()
		n := a.cache.count
		a.cache.mu.Unlock()
		if n != 0 {
			t.Errorf("%d sessions are kept", n)
		}
		a.Close()
		dns.Close()
		w.wg.Wait()
	})
}
