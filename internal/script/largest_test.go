package script

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"posthaste/cleanup"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// A limit is the largest of something that is taken from a stranger.
type limit struct {
	name   string
	bound  int64 // octets of memory that may be held at it, with all that the runtime needs
	atmost func(t testing.TB, held func())
}

// limits are played at their largest, and beyond. Each calls held when it has in memory what it ever
// has. The table "What the largest costs" of docs/proof.md has the figures.
var limits = []limit{
	{"1000 connections", 48 << 20, manyConnections},
	{"1000 recipients of 1000 octets", 6 << 20, manyRecipients},
	{"a message of message_size_limit", 3 << 20, largeMessage},
	{"a command line of 2048 octets", 1 << 20, longLine},
	{"a header field of header_size_limit", 1 << 20, longField},
	{"100000 header fields", 1 << 20, manyFields},
	{"850000 MIME parts", 1 << 20, manyParts},
	{"90 MIME levels", 1 << 20, deepParts},
	{"an address list of 50000 tokens", 3 << 20, longList},
	{"a key of 100000 octets", 1 << 20, longKey},
	{"a reply of 64 KB of a name server", 1 << 20, largeNames},
	{"replies of 60 MB for 1000 names", 48 << 20, manyNames},
}

// TestLargest: what is held in memory at each limit is bounded.
func TestLargest(t *testing.T) {
	for _, l := range limits {
		t.Run(l.name, func(t *testing.T) {
			if live, _ := measure(t, l); live > l.bound {
				t.Errorf("%d KB are held, the bound is %d KB", live>>10, l.bound>>10)
			} else {
				t.Logf("%d KB are held", live>>10)
			}
		})
	}
}

// BenchmarkLargest measures what is held, and the processor time, at each limit.
//
//	go test ./internal/script -run '^$' -bench Largest -benchtime 1x
func BenchmarkLargest(b *testing.B) {
	for _, l := range limits {
		b.Run(strings.ReplaceAll(l.name, " ", "_"), func(b *testing.B) {
			live, spent := int64(0), time.Duration(0)
			b.ReportAllocs()
			for range b.N {
				m, s := measure(b, l)
				live, spent = max(live, m), spent+s
			}
			b.ReportMetric(float64(live)/1024, "held-KB")
			b.ReportMetric(float64(spent.Microseconds())/1000/float64(b.N), "cpu-ms")
		})
	}
}

// measure plays a limit, and returns the growth of heap and stacks when all is held, and the time of processors
// that it took in all.
func measure(t testing.TB, l limit) (live int64, spent time.Duration) {
	before, began := inUse(), processorTime(t)
	called := false
	l.atmost(t, func() {
		called = true
		took := processorTime(t)
		live = max(live, inUse()-before)
		began += processorTime(t) - took // collecting garbage is not part of it
	})
	if !called {
		t.Errorf("%s: nothing was measured", l.name)
	}
	return live, processorTime(t) - began
}

func inUse() int64 {
	runtime.GC()
	runtime.GC() // what was put back for use again is gone with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

func processorTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// times is how often something that is not kept is sent: a test, which may run with the race detector, does with a
// tenth.
func times(t testing.TB, n int) int {
	if _, whole := t.(*testing.B); whole {
		return n
	}
	return n / 10
}

// limitWorld is a server that keeps nothing of its mail.
func limitWorld(t testing.TB) (w *world, done func()) {
	w = newWorld(t, &txtar.Archive{Files: []txtar.File{{Name: "main.cf", Data: []byte("smtpd_client_connection_count_limit = 0\n" +
		"smtpd_client_connection_rate_limit = 0\nsmtpd_hard_error_limit = 1000\nsmtpd_peername_lookup = no\n")}}})
	w.cleanup.forget = true
	return w, w.close
}

// A caller is a client in memory.
type caller struct {
	*benchClient
	end func()
}

func call(t testing.TB, w *world) caller {
	client, server := net.Pipe()
	var serving sync.WaitGroup
	serving.Go(func() { w.srv.ServeConn(context.Background(), pipeEnd{server}) })
	c := caller{newBenchClient(t, client), func() { client.Close(); serving.Wait() }}
	c.replies(1)
	return c
}

// refused sends a line, whose reply must have the code.
func (c caller) refused(line, code string) {
	c.send(line)
	reply, err := c.br.ReadString('\n')
	if err != nil || !strings.HasPrefix(reply, code) {
		c.t.Errorf("%.40q has the reply %q (%v), want %s", line, reply, err, code)
	}
}

func manyConnections(t testing.TB, held func()) {
	w, done := limitWorld(t)
	defer done()
	for range 1000 {
		c := call(t, w)
		defer c.end()
		c.send("EHLO client.test\r\n")
		c.replies(1)
	}
	held()
}

func manyRecipients(t testing.TB, held func()) {
	w, done := limitWorld(t)
	defer done()
	c := call(t, w)
	defer c.end()
	c.send("EHLO client.test\r\n")
	c.replies(1)
	c.send("MAIL FROM:<a@client.test>\r\n")
	c.replies(1)
	local := strings.Repeat("x", 980)
	for i := range 1000 {
		c.send(fmt.Sprintf("RCPT TO:<alice+%s%04d@example.test>\r\n", local[:960], i))
		c.replies(1)
	}
	held()
	c.refused("RCPT TO:<alice@example.test>\r\n", "452")
}

func largeMessage(t testing.TB, held func()) {
	w, done := limitWorld(t)
	defer done()
	c := call(t, w)
	defer c.end()
	c.send("EHLO client.test\r\n")
	c.replies(1)
	c.send("MAIL FROM:<a@client.test>\r\nRCPT TO:<alice@example.test>\r\nDATA\r\n")
	c.replies(3)
	lines := strings.Repeat(strings.Repeat("x", 998)+"\r\n", 100)
	for range 102 {
		c.send(lines)
	}
	held()
	c.send(".\r\n")
	c.replies(1)
	c.send("MAIL FROM:<a@client.test>\r\nRCPT TO:<alice@example.test>\r\nDATA\r\n")
	c.replies(3)
	for range 103 {
		c.send(lines)
	}
	c.refused(".\r\n", "552")
}

func longLine(t testing.TB, held func()) {
	w, done := limitWorld(t)
	defer done()
	c := call(t, w)
	defer c.end()
	c.send("NOOP " + strings.Repeat("x", 2040) + "\r\n")
	c.replies(1)
	held()
	c.refused("NOOP "+strings.Repeat("x", 1<<20)+"\r\n", "500")
}

// A fed is a message on its way through cleanup.
type fed struct {
	t testing.TB
	c *cleanup.Core
	m *cleanup.Message
}

func feeding(t testing.TB, main string) fed {
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mx.example.test\nqueue_directory = /\n" + main)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cleanup.NewCore(cfg, asIs{}, table.Options{Recheck: -1})
	if err != nil {
		t.Fatal(err)
	}
	return fed{t, c, c.NewMessage(t.Context(), &proto.Submit{Flags: proto.SubmitFilter | proto.SubmitMap, Envelope: mail.Envelope{ID: "4XyZ0000000000z1",
		Arrival: time.Unix(1e9, 0), Sender: "s@a.test", RewriteContext: "local", Recipients: []mail.Recipient{{Address: "r@x.test"}}}})}
}

// asIs is a trivial-rewrite that has nothing to do.
type asIs struct{}

func (asIs) Rewrite(_ context.Context, _, addr string) (string, error) { return addr, nil }

func (f fed) write(text string) { f.m.Write(f.t.Context(), []byte(text), nil) }

// end has the message end, which must be taken.
func (f fed) end() {
	if _, r := f.m.Finish(f.t.Context(), nil); r.Refused != nil {
		f.t.Errorf("refused: %v", r.Refused)
	}
	if err := f.c.Close(); err != nil {
		f.t.Error(err)
	}
}

func longField(t testing.TB, held func()) {
	f := feeding(t, "header_checks = pcre:{{/^Subject: never/ REJECT}}\n")
	f.write("Subject: x\r\n")
	for range 10 << 10 { // a megabyte, of which a tenth is a field
		f.write(" " + strings.Repeat("y", 98) + "\r\n")
	}
	held()
	f.end()
}

func manyFields(t testing.TB, held func()) {
	f := feeding(t, "header_checks = pcre:{{/^Subject: never/ REJECT}}\n")
	for i := range times(t, 100000) {
		f.write(fmt.Sprintf("X-%d: y\r\n", i))
	}
	held()
	f.write("\r\n")
	f.end()
}

func manyParts(t testing.TB, held func()) {
	f := feeding(t, "mime_header_checks = pcre:{{/^Subject: never/ REJECT}}\n")
	f.write("Content-Type: multipart/mixed; boundary=b\r\n\r\n")
	part := strings.Repeat("--b\r\nA:b\r\n\r\n", 1000)
	for range times(t, 850) {
		f.write(part)
	}
	held()
	f.end()
}

func deepParts(t testing.TB, held func()) {
	f := feeding(t, "mime_header_checks = pcre:{{/^Subject: never/ REJECT}}\n")
	f.write("Content-Type: multipart/mixed; boundary=b0\r\n\r\n")
	for i := range 90 {
		f.write(fmt.Sprintf("--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n", i, i+1))
	}
	for range 100000 {
		f.write("--no boundary of any of them\r\n")
	}
	held()
	f.end()
	g := feeding(t, "mime_header_checks = pcre:{{/^Subject: never/ REJECT}}\n")
	g.write("Content-Type: multipart/mixed; boundary=b0\r\n\r\n")
	for i := range 110 {
		g.write(fmt.Sprintf("--b%d\r\nContent-Type: multipart/mixed; boundary=b%d\r\n\r\n", i, i+1))
	}
	if _, r := g.m.Finish(t.Context(), nil); r.Refused == nil {
		t.Error("110 levels are taken; mime_nesting_limit is 100")
	}
	if err := g.c.Close(); err != nil {
		t.Error(err)
	}
}

func longList(t testing.TB, held func()) {
	text := strings.Repeat("a@b,", 25000)
	list := rfc5322.AppendAddresses(nil, text, 50000)
	held()
	if len(list) == 0 || len(list) > 25000 {
		t.Errorf("%d addresses", len(list))
	}
	runtime.KeepAlive(list)
}

func longKey(t testing.TB, held func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				io.WriteString(c, "100000:OK "+strings.Repeat("v", 99997)+",")
				io.Copy(io.Discard, c)
			})
		}
	})
	defer serving.Wait()
	defer l.Close()
	m := table.OpenMaps("test", []string{"socketmap:inet:" + l.Addr().String() + ":name"}, table.Options{Recheck: -1})
	defer m.Close()
	_, _, err = m.Lookup(t.Context(), strings.Repeat("k", 99990), false)
	held()
	if err != nil {
		t.Errorf("the longest key, or reply: %v", err)
	}
}
