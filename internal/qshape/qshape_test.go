package qshape

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/testpeers"
)

func run(s *faketest.Site, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	status = Run("qshape", append([]string{"-c", s.Config}, args...), nil, &o, &e)
	return o.String(), e.String(), status
}

func message(q queue.Name, age time.Duration, sender string, rcpts ...string) faketest.Mail {
	m := faketest.Mail{Queue: q, Content: "x\r\n", Envelope: mail.Envelope{Arrival: time.Now().Add(-age), Sender: sender, Size: 3}}
	for _, r := range rcpts {
		m.Envelope.Recipients = append(m.Envelope.Recipients, mail.Recipient{Address: r})
	}
	return m
}

const heading = "                                         T  5 10 20 40 80 160 320 640 1280 1280+\n"

func TestQueues(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	if out, errs, status := run(s); out != heading+"                                  TOTAL  0  0  0  0  0  0   0   0   0    0     0\n" || status != 0 {
		t.Errorf("empty: exit status %d, %q\n%s", status, errs, out)
	}
	mails := []faketest.Mail{
		message(queue.Incoming, time.Minute, "s@from.test", "a@To.test", "b@to.test", "c@other.test"),
		message(queue.Deferred, 25*time.Minute, "", "a@to.test", "done@to.test"),
		message(queue.Hold, 100*time.Hour, "s@from.test", "a@to.test"),
		message(queue.Corrupt, time.Hour, "s@from.test", "a@to.test"),
	}
	mails[1].Done = []int{1}
	ids := s.Fill(mails...)
	cases := map[string]string{
		"": heading + "                                  TOTAL  3  3  0  0  0  0   0   0   0    0     0\n" +
			"                                to.test  2  2  0  0  0  0   0   0   0    0     0\n" +
			"                             other.test  1  1  0  0  0  0   0   0   0    0     0\n",
		"deferred hold": heading + "                                  TOTAL  2  0  0  0  1  0   0   0   0    0     1\n" +
			"                                to.test  2  0  0  0  1  0   0   0   0    0     1\n",
		"-s deferred hold incoming": heading + "                                  TOTAL  3  1  0  0  1  0   0   0   0    0     1\n" +
			"                              from.test  2  1  0  0  0  0   0   0   0    0     1\n" +
			"                          MAILER-DAEMON  1  0  0  0  1  0   0   0   0    0     0\n",
		"-l -t 10 -b 4 deferred": strings.Repeat(" ", 64) + "  T 10 20 30 30+\n" +
			strings.Repeat(" ", 59) + "TOTAL  1  0  0  1   0\n" + strings.Repeat(" ", 57) + "to.test  1  0  0  1   0\n",
		"-n 1 corrupt": heading + "                                  TOTAL  1  0  0  0  0  1   0   0   0    0     0\n",
	}
	check := func(which string) {
		t.Helper()
		for args, want := range cases {
			if out, errs, status := run(s, strings.Fields(args)...); out != want || errs != "" || status != 0 {
				t.Errorf("%s, %q: exit status %d, %q\n got %s\nwant %s", which, args, status, errs, out, want)
			}
		}
	}
	check("down")
	entries := s.Entries()
	s.Serve("qmgr", func(r *ipc.Request) {
		if r.Kind == proto.KindOverride {
			r.Reply(&proto.OverrideReply{})
			return
		}
		q := faketest.Decode[proto.Shape](t, r)
		reply := new(proto.ShapeReply)
		for i, id := range ids[:3] { // it does not know what is corrupt
			e := entries[id]
			created, _, _ := id.Parse()
			switch {
			case !slices.Contains(q.Queues, e.Queue.String()):
			case i == 1: // has not been read yet
				reply.Unread = append(reply.Unread, proto.Item{ID: id, Queue: e.Queue.String(), Arrival: created, Ref: e.Ref, Done: e.Done})
			default:
				counts := make([]int, len(q.Edges)+1)
				column := 0
				for ; column < len(q.Edges) && !created.After(q.Edges[column]); column++ {
				}
				domains := []string{"to.test"}
				if i == 0 {
					domains = []string{"to.test", "to.test", "other.test"} // a domain may come twice
				}
				if q.Senders {
					domains = []string{"from.test"}
				}
				counts[column] = 1
				for _, d := range domains {
					reply.Rows = append(reply.Rows, proto.ShapeRow{Domain: d, Counts: counts})
				}
			}
		}
		if q.Cursor == 0 { // the first page has all but one row
			if n := len(reply.Rows); n > 0 {
				reply.Rows = reply.Rows[:n-1]
			}
			reply.Next = 7
		} else {
			reply.Unread = nil
			reply.Rows = reply.Rows[max(0, len(reply.Rows)-1):]
		}
		r.Reply(reply)
	})
	check("up")
}

// Rows of mail that is suspended or limited are marked, those alone; without an answer there are no marks,
// and a warning.
func TestSuspended(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	var reply atomic.Pointer[proto.OverrideReply]
	s.Serve("qmgr", func(r *ipc.Request) {
		if r.Kind == proto.KindOverride {
			r.Reply(reply.Load())
			return
		}
		q := faketest.Decode[proto.Shape](t, r)
		counts := make([]int, len(q.Edges)+1)
		counts[0] = 1
		answer := new(proto.ShapeReply)
		for _, d := range []string{"a.test", "b.test", "w.c.test", "x.c.test", ""} {
			answer.Rows = append(answer.Rows, proto.ShapeRow{Domain: d, Counts: counts})
		}
		r.Reply(answer)
	})
	marked := func(word string, args ...string) (names string) {
		t.Helper()
		out, _, status := run(s, args...)
		if status != 0 {
			t.Fatal(status, out)
		}
		for line := range strings.Lines(out) {
			if fields := strings.Fields(line); slices.Contains(fields, word) {
				names += fields[0] + " "
			}
		}
		return names
	}
	for _, c := range []struct{ target, receivers, senders string }{
		{"a.test", "a.test ", ""}, {"smtp:a.test", "a.test ", ""}, {"domain=.c.test", "w.c.test x.c.test ", ""}, {"[a.test]", "", ""}, {"smtp:", "", ""},
		{"sender=@a.test", "", "a.test "}, {"sender=@.c.test", "", "w.c.test x.c.test "}, {"sender=<>", "", "MAILER-DAEMON "}, {"sender=x@a.test", "", ""},
		{"*", "a.test b.test w.c.test x.c.test MAILER-DAEMON ", "a.test b.test w.c.test x.c.test MAILER-DAEMON "}, {"a b", "", ""},
	} {
		reply.Store(&proto.OverrideReply{Entries: []proto.OverrideEntry{{Of: "limit", Target: "b.test"}, {Of: "diversion", Target: "domain=a.test"}, {Of: "suspension", Target: c.target}}})
		if to, from := marked("suspended"), marked("suspended", "-s"); to != c.receivers || from != c.senders {
			t.Errorf("%s: %q are marked, with -s %q", c.target, to, from)
		}
		if to, from := marked("diverted"), marked("diverted", "-s"); to != "a.test " || from != "" {
			t.Errorf("%q are marked as diverted, with -s %q", to, from)
		}
		if to, from := marked("limited"), marked("limited", "-s"); to != "b.test " || from != "" {
			t.Errorf("%q are marked as limited, with -s %q", to, from)
		}
	}
	reply.Store(&proto.OverrideReply{Entries: []proto.OverrideEntry{{Of: "suspension", Target: ".c.test"}}})
	if got := marked("suspended", "-p", "-m", "2"); got != ".c.test w.c.test x.c.test " {
		t.Errorf("with parents %q are marked", got)
	}
	reply.Store(&proto.OverrideReply{Refused: "the overrides cannot be kept"})
	if out, errs, status := run(s); status != 0 || !strings.Contains(errs, "not marked: the overrides cannot be kept") || strings.Contains(out, "suspended") {
		t.Errorf("exit status %d, %q\n%s", status, errs, out)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	for _, args := range []string{"-x", "-b", "-b 0", "-b x", "-t 0", "nosuch", "-h"} {
		if _, errs, status := run(s, strings.Fields(args)...); status != 64 || !strings.Contains(errs, "qshape: fatal: ") {
			t.Errorf("%s: exit status %d, %q", args, status, errs)
		}
	}
}

func record(typ byte, data string) string {
	b := []byte{typ}
	n := len(data)
	for ; n > 0x7f; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return string(append(b, byte(n))) + data
}

// The original, where there is one, prints the same for the same mail.
func TestAgainstPostfix(t *testing.T) {
	t.Parallel()
	original := testpeers.Postfix(t, "qshape")
	testpeers.Program(t, "perl")
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	now := time.Now()
	type sent struct {
		at     time.Time
		sender string
		rcpts  []string
	}
	var mails []sent
	domain := func() string {
		return []string{"", "a.very-long-domain-name-that-does-not-fit-into-its-column.example.test", "x.test", "X.Test.", "big..test",
			fmt.Sprintf("h%d.parent.test", rng.IntN(7)), fmt.Sprintf("d%d.s%d.deep.parent.test", rng.IntN(9), rng.IntN(6))}[rng.IntN(7)]
	}
	for i := range 600 {
		// Half a minute from any border, so that it does not matter when which of them looks.
		m := sent{at: now.Add(-time.Duration(rng.ExpFloat64()*200)*time.Minute - 30*time.Second), sender: fmt.Sprintf("u%d@%s", i, domain())}
		for range 1 + rng.IntN(3) {
			m.rcpts = append(m.rcpts, fmt.Sprintf("r@%sz", domain()))
		}
		if i%20 == 0 {
			m.sender = ""
		}
		mails = append(mails, m)
		text := record('C', fmt.Sprintf("%15d %15d %15d %15d %15d %15d", 3, 0, 1, 0, 3, 0)) + record('T', fmt.Sprintf("%d 0", m.at.Unix())) + record('S', m.sender)
		for _, r := range m.rcpts {
			text += record('R', r)
		}
		text += record('M', "") + record('N', "x") + record('X', "") + record('E', "")
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%08X", i)), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, flags := range []string{"", "-s", "-p", "-p -m 2", "-l -t 20", "-b 5 -w 100", "-p -s -m 3 -b 20 -t 3"} {
		args := append(strings.Fields(flags), dir)
		want, err := exec.Command(original, args...).Output()
		if err != nil {
			t.Fatal(err)
		}
		c := &command{width: 80, shape: newShape(now)}
		if err := c.parse(strings.Fields(flags)); err != nil {
			t.Fatal(err)
		}
		edges, counted := c.shape.edges(), c.shape.same()
		for _, m := range mails {
			if c.shape.senders {
				m.rcpts = []string{m.sender}
			}
			for _, r := range m.rcpts {
				c.shape.add(r, m.at)
				counts := make([]int, len(edges)+1)
				column := 0
				for ; column < len(edges) && !m.at.After(edges[column]); column++ {
				}
				counts[column] = 1
				d := strings.ToLower(r[strings.LastIndexByte(r, '@')+1:])
				if strings.HasSuffix(r, "@") {
					d = "@"
				}
				counted.addRow(d, counts)
			}
		}
		if here, there := c.shape.table(c.width, 0), counted.table(c.width, 0); !bytes.Equal(here, there) {
			t.Errorf("%s:\n counted here %s\n by the queue manager %s", flags, here, there)
		}
		// Of equal rows it shows one or another first.
		if got, want := sorted(string(c.shape.table(c.width, 0))), sorted(string(want)); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", flags, strings.Join(got, ""), strings.Join(want, ""))
		}
	}
}

func sorted(text string) []string { return slices.Sorted(strings.Lines(text)) }

// BenchmarkDeferred counts mail in the deferred queue, each message with one
// state record behind it, as after a first attempt.
func BenchmarkDeferred(b *testing.B) {
	const n = 50000
	for _, mode := range []string{"down", "up"} {
		b.Run(mode, func(b *testing.B) {
			s := faketest.New(b, "")
			mails := make([]faketest.Mail, n)
			for i := range mails {
				mails[i] = message(queue.Deferred, time.Duration(i)*time.Second, "s@from.test", fmt.Sprintf("r@d%d.test", i%500))
				mails[i].Content = strings.Repeat("x", 4094) + "\r\n"
				mails[i].Attempts = 1
			}
			s.FillFast(mails...)
			if mode == "up" {
				serve(b, s)
			}
			for b.Loop() {
				if out, errs, status := run(s, "deferred"); status != 0 || !strings.Contains(out, fmt.Sprint("TOTAL ", n)) {
					b.Fatal(errs, out)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// serve says, in pages, where messages lie that it has not read, as the queue
// manager does after its start.
func serve(b *testing.B, s *faketest.Site) {
	var items []proto.Item
	for id, e := range s.Entries() {
		created, _, _ := id.Parse()
		items = append(items, proto.Item{ID: id, Queue: "deferred", Arrival: created, Ref: e.Ref, Size: e.Size})
	}
	s.Serve("qmgr", func(r *ipc.Request) {
		if r.Kind == proto.KindOverride {
			r.Reply(&proto.OverrideReply{})
			return
		}
		q := faketest.Decode[proto.Shape](b, r)
		end := min(q.Cursor+50000, len(items))
		reply := &proto.ShapeReply{Unread: items[q.Cursor:end], Next: end}
		if end == len(items) {
			reply.Next = 0
		}
		r.Reply(reply)
	})
}
