package smtpd

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
)

// brokenNames panics the first time that it is asked.
type brokenNames struct{ asked int }

func (b *brokenNames) PTR(context.Context, netip.Addr) (resolver.Answer[string], error) {
	if b.asked++; b.asked == 1 {
		panic("no names today")
	}
	return resolver.Answer[string]{}, io.EOF
}

func (b *brokenNames) Addrs(context.Context, string, resolver.Family) (resolver.Answer[netip.Addr], error) {
	return resolver.Answer[netip.Addr]{}, io.EOF
}

// A panic before the greeting ends one session, not the service.
func TestPanicBeforeGreeting(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nmynetworks = 127.0.0.0/8\n")
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	log := maillog.New("smtpd", maillog.NewWriter(&lines, maillog.Classic))
	s, err := New(t.Context(), Deps{Config: cfg, Log: log, Names: new(brokenNames)})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"421 4.3.0 ", "220 mx.example.test "} {
		near, far := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			s.ServeConn(t.Context(), addressed{far})
		}()
		line, err := bufio.NewReader(near).ReadString('\n')
		if err != nil || !strings.HasPrefix(line, want) {
			t.Errorf("%q, %v; want %s", line, err, want)
		}
		near.Close()
		<-served
	}
	s.Close()
	log.Close()
	if !strings.Contains(lines.String(), "no names today") {
		t.Errorf("the log does not say what happened:\n%s", lines.String())
	}
}

// A session takes the place of one that has ended, and knows nothing of it.
func TestNextSession(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nmynetworks = 127.0.0.0/8\n")
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	log := maillog.New("smtpd", maillog.NewWriter(&lines, maillog.Classic))
	s, err := New(t.Context(), Deps{Config: cfg, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	const clients, rounds = 4, 25
	play := func(commands []string, want ...string) {
		near, far := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			s.ServeConn(t.Context(), addressed{far})
		}()
		r := bufio.NewReader(near)
		for i, w := range want {
			if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, w) {
				t.Errorf("%q, %v; want %s", line, err, w)
			}
			if i < len(commands) {
				io.WriteString(near, commands[i]+"\r\n")
			}
		}
		near.Close()
		<-served
	}
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for range rounds {
				play([]string{"HELO a.test", "MAIL FROM:<>", "RSET x", "nonsense"}, "220 ", "250 ", "250 2.1.0", "501 ", "500 ") // and is lost
				play([]string{"MAIL FROM:<>", "QUIT"}, "220 ", "250 2.1.0", "221 ")
			}
		})
	}
	wg.Wait()
	s.Close()
	log.Close()
	for _, want := range []string{" helo=1 mail=1 rset=0/1 unknown=0/1 commands=2/4\n", " mail=1 quit=1 commands=2\n", ": lost connection after UNKNOWN from "} {
		if n := strings.Count(lines.String(), want); n != clients*rounds {
			t.Errorf("%d lines with %q, want %d", n, want, clients*rounds)
		}
	}
}
