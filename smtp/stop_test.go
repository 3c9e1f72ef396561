package smtp

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/resolver/fakezone"
)

// TestStop: when the service must stop a delivery ends at once, at whatever
// stage, and nobody is to blame.
func TestStop(t *testing.T) {
	t.Parallel()
	for _, stage := range []string{"", "S: 220 x ESMTP\nC: EHLO me.test", "S: 220 x ESMTP\nC: EHLO me.test\nS: 250 x\nC: MAIL FROM:<from@here.test>",
		"S: 220 x ESMTP\nC: EHLO me.test\nS: 250 x\nC: MAIL FROM:<from@here.test>\nS: 250 x\nC: RCPT TO:<to@sink.test>\nS: 250 x\nC: DATA\nS: 354 x\nC* ."} {
		synctest.Test(t, func(t *testing.T) {
			w := &world{t: t, servers: map[string][]string{"192.0.2.1:25": {stage + "\nhang\n"}}}
			cfg, err := config.LoadString("myhostname = me.test\ninet_interfaces = 192.0.2.200\n")
			if err != nil {
				t.Fatal(err)
			}
			dns := fakezone.Must("").Resolver()
			a, err := newAgent(deps{Config: cfg, Resolver: dns, Dial: w.dial})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			start := time.Now()
			time.AfterFunc(7*time.Second, cancel)
			r := agent.NewTestRequest(envelope(10), "[192.0.2.1]", []byte("A: b\r\n\r\n"), nil)
			a.Deliver(ctx, r)
			if took := time.Since(start); took != 7*time.Second {
				t.Errorf("after %q: ended after %v", stage, took)
			}
			o := r.Outcomes()[0]
			if o.Status.String() != "4.3.2" || !strings.HasPrefix(o.Reason, "mail system is stopping") {
				t.Errorf("after %q: %s %s", stage, o.Status, o.Reason)
			}
			if site, _ := r.Site(); !site.IsZero() {
				t.Errorf("after %q: the destination is blamed: %s", stage, site)
			}
			a.Close()
			dns.Close()
			w.wg.Wait()
		})
	}
}

// TestManyAtOnce: many deliveries over few sessions; every message arrives
// once, and no session is used by two at a time.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var got sync.Map
	var servers sync.WaitGroup
	servers.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			servers.Go(func() { countingServer(t, c, &got) })
		}
	})
	a := tcpAgent(t, "")
	var wg sync.WaitGroup
	const workers, each = 8, 40
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("m%d.%d", w, i)
				env := envelope(10)
				env.Sender = id + "@here.test"
				r := agent.NewTestRequest(env, mail.Nexthop("sink.test:"+port(l)), []byte("Id: "+id+"\r\n\r\n"), nil)
				r.CacheLoad, r.CacheKeep = true, i%7 != 0
				a.Deliver(context.Background(), r)
				if o := r.Outcomes()[0]; o.Status.Class != 2 {
					t.Error(o)
				}
			}
		})
	}
	wg.Wait()
	a.Close()
	l.Close()
	servers.Wait()
	n := 0
	got.Range(func(_, v any) bool { n++; return true })
	if n != workers*each {
		t.Errorf("%d messages arrived, want %d", n, workers*each)
	}
}

func port(l net.Listener) string {
	_, p, _ := net.SplitHostPort(l.Addr().String())
	return p
}

// countingServer takes messages and hangs up after the fifth. Sender and
// content of each must be the same message's.
func countingServer(t *testing.T, c net.Conn, got *sync.Map) {
	s := newScripted(t, "server", c)
	var pump sync.WaitGroup
	pump.Go(func() { pumpInto(c, s.come) })
	defer pump.Wait()
	defer c.Close()
	s.send("220 x ESMTP\r\n")
	if _, err := s.line(); err != nil {
		return
	}
	s.send("250-x\r\n250 PIPELINING\r\n")
	for range 5 {
		from, err := s.line()
		if err != nil || from == "QUIT" {
			return
		}
		_, _ = s.line()
		data, err := s.line()
		if err != nil || data != "DATA" || !strings.HasPrefix(from, "MAIL FROM:<") {
			t.Errorf("%q ... %q", from, data)
			return
		}
		s.send("250 ok\r\n250 ok\r\n354 go\r\n")
		id, _, _ := strings.Cut(strings.TrimPrefix(from, "MAIL FROM:<"), "@")
		text, _ := s.line()
		if text != "Id: "+id {
			t.Errorf("message of %s has %q", id, text)
		}
		for text != "." && err == nil {
			text, err = s.line()
		}
		if _, dup := got.LoadOrStore(id, true); dup {
			t.Errorf("%s arrived twice", id)
		}
		s.send("250 ok\r\n")
	}
}

// TestManyRecipients: a thousand recipients take several flights; every third
// is refused, every seventh for now, and each hears its own reply.
func TestManyRecipients(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var server sync.WaitGroup
	flights := 0
	server.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		s := newScripted(t, "server", c)
		server.Go(func() { pumpInto(c, s.come) })
		s.send("220 x ESMTP\r\n")
		n, out := 0, strings.Builder{}
		for {
			if len(s.rest) == 0 && out.Len() > 0 {
				s.send(out.String()) // the flight is over
				out.Reset()
				flights++
			}
			line, err := s.line()
			switch {
			case err != nil:
				return
			case strings.HasPrefix(line, "EHLO"):
				out.WriteString("250-x\r\n250 PIPELINING\r\n")
			case strings.HasPrefix(line, "RCPT"):
				switch {
				case n%3 == 0:
					fmt.Fprintf(&out, "550 5.1.1 no %d\r\n", n)
				case n%7 == 0:
					fmt.Fprintf(&out, "450 4.2.0 later %d\r\n", n)
				default:
					out.WriteString("250 ok\r\n")
				}
				n++
			case line == "DATA":
				out.WriteString("354 go\r\n")
			case line == ".", strings.HasPrefix(line, "MAIL"), line == "QUIT":
				out.WriteString("250 done\r\n")
			}
		}
	})
	a := tcpAgent(t, "")
	env := envelope(10)
	env.Recipients = nil
	for i := range 1000 {
		env.Recipients = append(env.Recipients, mail.Recipient{Address: fmt.Sprintf("recipient-number-%d@sink.test", i)})
	}
	r := agent.NewTestRequest(env, mail.Nexthop("[127.0.0.1]:"+port(l)), []byte("A: b\r\n\r\n"), nil)
	a.Deliver(context.Background(), r)
	l.Close()
	server.Wait()
	for i, o := range r.Outcomes() {
		want := "250 done"
		switch {
		case i%3 == 0:
			want = fmt.Sprintf("550 5.1.1 no %d", i)
		case i%7 == 0:
			want = fmt.Sprintf("450 4.2.0 later %d", i)
		}
		if o.DiagText != want {
			t.Errorf("recipient %d: %q, want %q", i, o.DiagText, want)
		}
	}
	if flights < 10 || flights > 40 {
		t.Errorf("%d flights: too many at once, or too few", flights)
	}
}
