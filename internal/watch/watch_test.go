package watch

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/ownsocket"
	"posthaste/internal/testwait"
)

func TestPattern(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	for _, test := range []struct {
		pattern, names string
		addr           string
		want           bool
	}{
		{"example.org", "example.org", "192.0.2.1", true},
		{"Example.ORG", "mx.example.org.", "192.0.2.1", true},
		{"example.org", "badexample.org", "192.0.2.1", false},
		{"example.org", "mx.example.net example.org", "192.0.2.1", true},
		{"mx.example.org", "example.org", "192.0.2.1", false},
		{"192.0.2.1", "unknown", "192.0.2.1", true},
		{"192.0.2.1", "unknown", "::ffff:192.0.2.1", true},
		{"[192.0.2.1]", "unknown", "192.0.2.10", false},
		{"192.0.2.0/24", "unknown", "192.0.2.10", true},
		{"192.0.2.7/24", "unknown", "192.0.2.10", true},
		{"[2001:db8::]/32", "x", "2001:db8::5", true},
		{"2001:DB8::5", "x", "2001:db8::5", true},
		{"2001:db8::5", "x", "2001:db8::6", false},
		{"/run/lmtp", "/run/lmtp", "", true},
	} {
		p, err := ParsePattern(test.pattern)
		if err != nil {
			t.Errorf("%s: %v", test.pattern, err)
			continue
		}
		var a netip.Addr
		if test.addr != "" {
			a = addr(test.addr)
		}
		if got := p.Matches(a, strings.Fields(test.names)...); got != test.want {
			t.Errorf("%s matches %s %s: %v", test.pattern, test.names, test.addr, got)
		}
	}
	for _, bad := range []string{"", ".", "a b", "a,b", "hash:/etc/x", "a\nb", "!x", "*", strings.Repeat("x", 256), "{x"} {
		if _, err := ParsePattern(bad); err == nil {
			t.Errorf("%q is taken for a pattern", bad)
		}
	}
}

// newHub makes a Hub that serves in a directory of its own.
func newHub(t *testing.T, dir string) *Hub {
	t.Helper()
	h := New(Client, "smtpd")
	if err := h.serveIn(ownsocket.Listen, dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// watching has somebody watch, and returns when he does.
func watching(t *testing.T, h *Hub, pattern string) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("unix", h.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintln(c, pattern)
	in := bufio.NewReader(c)
	if line, err := in.ReadString('\n'); err != nil || line != fmt.Sprintf("ok smtpd[%d]\n", os.Getpid()) {
		t.Fatalf("%q, %v", line, err)
	}
	return c, in
}

var joe = &Peer{Names: []string{"joe.example.org"}, Addr: netip.MustParseAddr("192.0.2.1"), Shown: "joe.example.org[192.0.2.1]"}

func TestLines(t *testing.T) {
	t.Parallel()
	h := newHub(t, t.TempDir())
	var early, other Talk
	early.Line(h, "<", joe, []byte("before anybody watches"))
	if !early.Idle(h) || !other.Idle(nil) {
		t.Error("somebody watches")
	}
	c, in := watching(t, h, "example.org")
	early.Line(h, ">", joe, []byte("220 hello\x1b[2J\nforged"))
	other.Line(h, "<", &Peer{Names: []string{"example.net"}, Shown: "x"}, []byte("not asked for"))
	early.Line(h, "<", joe, bytes.Repeat([]byte("x"), 3*maxLine))
	line, err := in.ReadString('\n')
	if want := fmt.Sprintf(" smtpd[%d] > joe.example.org[192.0.2.1]: 220 hello?[2J?forged\n", os.Getpid()); err != nil || !strings.HasSuffix(line, want) {
		t.Errorf("%q, %v; want %q", line, err, want)
	}
	if line, err = in.ReadString('\n'); err != nil || len(line) > maxLine+200 || !strings.HasSuffix(line, "xxx...\n") {
		t.Errorf("%d octets, %v", len(line), err)
	}
	c.Close()
	testwait.Until(t, "who has gone is forgotten", func() bool { return h.changes.Load() == 2 })
	early.Line(h, "<", joe, []byte("afterwards"))
	if !early.Idle(h) {
		t.Error("the watcher is there still")
	}
}

// TestSlowWatcher: the dialogue does not wait, memory is bounded, and the watcher learns how much he has missed.
func TestSlowWatcher(t *testing.T) {
	t.Parallel()
	w := &watcher{more: make(chan struct{}, 1)}
	for i := range maxWaiting + 7 {
		w.tell(fmt.Sprint(i))
	}
	lines := w.take()
	if len(lines) != maxWaiting+1 || lines[maxWaiting-1] != fmt.Sprint(maxWaiting-1) || !strings.HasPrefix(lines[maxWaiting], "(7 lines were lost") {
		t.Errorf("%d lines, at last %q", len(lines), lines[len(lines)-1])
	}
	w.tell("again")
	if lines := w.take(); len(lines) != 1 || lines[0] != "again" {
		t.Errorf("%q", lines)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	h := newHub(t, t.TempDir())
	ask := func(request string) string {
		c, err := net.Dial("unix", h.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, request)
		line, _ := bufio.NewReader(c).ReadString('\n')
		return line
	}
	if got := ask("hash:/etc/passwd\n"); !strings.HasPrefix(got, "error expected one name") {
		t.Errorf("a table: %q", got)
	}
	if got := ask(strings.Repeat("x", 1000) + "\n"); !strings.HasPrefix(got, "error ") && got != "" {
		t.Errorf("a long request: %q", got)
	}
	for range maxWatchers {
		watching(t, h, "x.test")
	}
	if got := ask("x.test\n"); !strings.HasPrefix(got, "error 16 others watch smtpd") {
		t.Errorf("one too many: %q", got)
	}
}

// A buffer that several goroutines write to.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) has(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.b.String(), text)
}

// TestCommand: the command finds a process that starts later, follows it, and ends when it is told to.
func TestCommand(t *testing.T) {
	t.Parallel()
	conf, queue := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(queue, Dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "main.cf"), []byte("queue_directory = "+queue+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, stderr buffer
	ctx, cancel := context.WithCancel(t.Context())
	status := make(chan int)
	go func() { status <- run(ctx, []string{"-c", conf, "client", "example.org"}, &out, &stderr) }()
	h := newHub(t, filepath.Join(queue, Dir))
	testwait.Until(t, "it follows", func() bool { return stderr.has("following client example.org in smtpd[") })
	var talk Talk
	talk.Line(h, "<", joe, []byte("EHLO joe"))
	testwait.Until(t, "it shows EHLO", func() bool { return out.has("< joe.example.org[192.0.2.1]: EHLO joe\n") })
	cancel()
	if s := <-status; s != 0 {
		t.Errorf("exit status %d", s)
	}
	for _, args := range []string{"", "client", "clients x", "client hash:/x", "-x client y", "-c", "client a b"} {
		if s := run(t.Context(), strings.Fields(args), &out, &stderr); s != 1 {
			t.Errorf("%q: exit status %d", args, s)
		}
	}
}
