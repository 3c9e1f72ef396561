package table

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipeServer answers on in-memory connections: serve is run for each.
func pipeServer(t *testing.T, serve func(c net.Conn)) Options {
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	return Options{Dial: func(_ context.Context, network, addr string) (net.Conn, error) {
		if network != "tcp" || addr != "host:1" {
			return nil, fmt.Errorf("dialed %s %s", network, addr)
		}
		client, server := net.Pipe()
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer func() { _ = server.Close() }()
			serve(server)
		}()
		return client, nil
	}}
}

func TestSocketmap(t *testing.T) {
	t.Parallel()
	conns := 0
	o := pipeServer(t, func(c net.Conn) {
		conns++
		r := bufio.NewReader(c)
		for {
			q, err := readNetstring(r, 1000)
			if err != nil {
				return
			}
			name, key, _ := strings.Cut(q, " ")
			reply := map[string]string{"a": "OK value of " + name, "empty": "OK ", "none": "NOTFOUND ", "temp": "TEMP later", "perm": "PERM x", "odd": "WHAT"}[key]
			if key == "hangup" {
				return
			}
			if _, err := fmt.Fprintf(c, "%d:%s,", len(reply), reply); err != nil {
				return
			}
		}
	})
	tab, err := Open("socketmap:inet:host:1:mymap", o)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ key, want string }{{"a", "value of mymap"}, {"none", "-"}, {"empty", ""}, {"temp", "!"}, {"perm", "!"}, {"odd", "!"}, {"a", "value of mymap"}} {
		if got := ask(tab, tc.key); got != tc.want {
			t.Errorf("%q: got %q, want %q", tc.key, got, tc.want)
		}
	}
	if conns != 1 {
		t.Errorf("%d connections for requests one after the other", conns)
	}
	if got := ask(tab, "hangup"); got != "!" {
		t.Errorf("hangup: %q", got)
	}
	if got := ask(tab, "a"); got != "value of mymap" {
		t.Errorf("after hangup: %q", got)
	}
	if err := tab.Close(); err != nil {
		t.Error(err)
	}
	if got := ask(tab, "a"); got != "!" {
		t.Errorf("after close: %q", got)
	}
}

// What is longer than the limits is not asked, and not believed.
func TestSocketmapLimits(t *testing.T) {
	t.Parallel()
	const name = "socketmap:inet:host:1:m"
	o := pipeServer(t, func(c net.Conn) {
		r := bufio.NewReader(c)
		for {
			q, err := readNetstring(r, 1<<20)
			if err != nil {
				return
			}
			reply := "OK " + q
			if _, err := fmt.Fprintf(c, "%d:%s,", len(reply), reply); err != nil {
				return
			}
		}
	})
	for _, c := range []struct {
		query, reply, key int
		want              string
	}{
		{0, 0, 9998, "m " + strings.Repeat("k", 9998)}, {0, 0, 9999, "-"}, {10, 20, 8, "m kkkkkkkk"}, {10, 20, 9, "-"},
		{20, 10, 5, "m kkkkk"}, {20, 10, 6, "!"}, {300000, 0, 99995, "m " + strings.Repeat("k", 99995)}, {300000, 0, 99996, "!"}, {300000, 300000, 99996, "m " + strings.Repeat("k", 99996)},
	} {
		o := o
		o.MaxQuery, o.MaxReply = c.query, c.reply
		if got := ask(open(t, name, o), strings.Repeat("k", c.key)); got != c.want {
			t.Errorf("limits %d and %d, key of %d: got %.30q (%d), want %.30q", c.query, c.reply, c.key, got, len(got), c.want)
		}
	}
}

func TestTCPTable(t *testing.T) {
	t.Parallel()
	o := pipeServer(t, func(c net.Conn) {
		s := bufio.NewScanner(c)
		for s.Scan() {
			reply := map[string]string{"get a%20b": "200 x%25y z", "get none": "500 no", "get temp": "400 later", "get odd": "200", "get bad": "200 %zz"}[s.Text()]
			if _, err := io.WriteString(c, reply+"\n"); err != nil {
				return
			}
		}
	})
	tab := open(t, "tcp:host:1", o)
	for key, want := range map[string]string{"a b": "x%y z", "none": "-", "temp": "!", "odd": "!", "bad": "!"} {
		if got := ask(tab, key); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

func TestServerTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := pipeServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
		o.Timeout = 5 * time.Second
		tab := open(t, "tcp:host:1", o)
		start := time.Now()
		if got := ask(tab, "x"); got != "!" {
			t.Errorf("got %q", got)
		}
		if d := time.Since(start); d != 5*time.Second {
			t.Errorf("took %v", d)
		}
	})
}

func TestServerLimits(t *testing.T) {
	t.Parallel()
	o := pipeServer(t, func(c net.Conn) {
		if _, err := bufio.NewReader(c).ReadString('\n'); err != nil {
			return
		}
		for {
			if _, err := io.WriteString(c, strings.Repeat("x", 4096)); err != nil {
				return
			}
		}
	})
	if got := ask(open(t, "tcp:host:1", o), "x"); got != "!" {
		t.Errorf("a reply without end: %q", got)
	}
	for _, s := range []string{"999999999999:", "5:ab", "3:abcd", ":,", "x:", "200001:"} {
		if got, err := readNetstring(bufio.NewReader(strings.NewReader(s)), 1000); err == nil {
			t.Errorf("%q: %q", s, got)
		}
	}
}

func FuzzReplies(f *testing.F) {
	f.Add("5:OK xy,", "200 a%20b\n")
	f.Fuzz(func(t *testing.T, ns, line string) {
		if s, err := readNetstring(bufio.NewReader(strings.NewReader(ns)), 100000); err == nil && len(s) > len(ns) {
			t.Fatal(s)
		}
		if s, err := readReplyLine(bufio.NewReader(strings.NewReader(line))); err == nil {
			if back, ok := percentDecode(percentEncode(s)); !ok || back != s {
				t.Fatalf("%q: %q", s, back)
			}
			_, _ = percentDecode(s)
		}
	})
}
