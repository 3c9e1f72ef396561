package resolver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSilence(t *testing.T) {
	t.Parallel()
	var said []string
	s := &silence{warn: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
	now := time.Unix(1_000_000, 0)
	why := errors.New("i/o timeout")
	miss := func(server string, n int) {
		for range n {
			now = now.Add(time.Second)
			s.missed(server, why, now)
		}
	}
	const one, two = "name server 192.0.2.1:53 does not answer: i/o timeout; what needs the DNS waits", "name server 192.0.2.2:53 does not answer: i/o timeout; what needs the DNS waits"
	for _, step := range []struct {
		do   func()
		want []string
	}{
		{func() { miss("192.0.2.1:53", 2) }, nil}, // a lost datagram
		{func() { s.heard("192.0.2.1:53"); miss("192.0.2.1:53", 2) }, nil},
		{func() { miss("192.0.2.1:53", 1) }, []string{one}},
		{func() { miss("192.0.2.1:53", 200) }, nil}, // once a period
		{func() { miss("192.0.2.2:53", 3) }, []string{two}},
		{func() { now = now.Add(silencePeriod); miss("192.0.2.1:53", 2) }, []string{one}},
		{func() { s.heard("192.0.2.1:53"); s.heard("192.0.2.2:53"); miss("192.0.2.1:53", 3) }, []string{one}},
	} {
		said = nil
		step.do()
		if !slices.Equal(said, step.want) {
			t.Errorf("said %q, expected %q", said, step.want)
		}
	}
}

// TestSilentServerIsNamed asks a server on this machine that says nothing.
func TestSilentServerIsNamed(t *testing.T) {
	t.Parallel()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := pc.LocalAddr().String()
	pc.Close() // the kernel says at once that nobody listens
	said := make(chan string, 10)
	c := New(Options{Servers: []string{addr}, Warn: func(format string, args ...any) { said <- fmt.Sprintf(format, args...) }, CacheSize: -1})
	defer c.Close()
	for range 3 {
		if _, err := c.MX(context.Background(), "example.org"); err == nil {
			t.Fatal("an answer")
		}
	}
	close(said)
	var lines []string
	for l := range said {
		lines = append(lines, l)
	}
	if len(lines) != 1 || !strings.HasPrefix(lines[0], "name server "+addr+" does not answer: ") {
		t.Errorf("said %q", lines)
	}
}
