package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emersion/go-msgauth/dkim"
)

// listening is a sink that ends with the test.
func listening(t *testing.T) *sink {
	t.Helper()
	s, err := newSink()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

// The next hop finds out what it is asked: of each message whether a line begins with the mark, which recipients
// there were, when it came; and it has the text of one.
func TestInquiry(t *testing.T) {
	t.Parallel()
	s := listening(t)
	w := workload{sessions: 3, messages: 10, size: 2000, recipients: 1, domains: 2, numbered: true, last: "The end."}
	for _, c := range []struct {
		mark, name string
		marked     int
		named      int64
	}{
		{"The end", "n", 10, 10}, {"he end", "n1", 0, 1}, {"", "", 0, 0},
	} {
		s.ask(&inquiry{mark: c.mark, name: c.name})
		if err := w.send(s.l.Addr().String()); err != nil {
			t.Fatal(err)
		}
		got := s.found()
		if got.messages != 10 || got.marked != c.marked || got.named != c.named || got.plain != 10 || string(got.text)+".\r\n" != string(w.text()) {
			t.Errorf("mark %q, name %q: %d messages, %d marked, %d named, %d plain, text %q", c.mark, c.name, got.messages, got.marked, got.named, got.plain, got.text)
		}
	}
	w.stamps = newStamps(10)
	s.ask(&inquiry{name: "n", stamps: w.stamps})
	if err := w.send(s.l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	list := w.stamps.times()
	if len(list) != 10 || list[0] <= 0 || list[9] < list[0] {
		t.Errorf("times %v", list)
	}
}

// A line that is longer than the reader's buffer has one beginning.
func TestLongLine(t *testing.T) {
	t.Parallel()
	s := listening(t)
	s.ask(&inquiry{mark: "mark"})
	w := workload{sessions: 1, messages: 1, recipients: 1, domains: 1, last: strings.Repeat("x", 64<<10) + "mark" + strings.Repeat("x", 64<<10)}
	if err := w.send(s.l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if got := s.found(); got.messages != 1 || got.marked != 0 {
		t.Errorf("%d messages, %d marked", got.messages, got.marked)
	}
}

// A round fails unless its sessions used TLS, new or resumed, as the contest demands.
func TestTLSInForce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		resumed bool // by the load, and the sink lets it
		perConn int
		use     tlsUse
		words   string // of the complaint
	}{
		{"new", false, 1, tlsUse{}, ""},
		{"resumed", true, 1, tlsUse{resume: true}, ""},
		{"kept", false, 0, tlsUse{keep: true}, ""},
		{"resumed, and should not be", true, 1, tlsUse{}, "of them resumed"},
		{"new, and should be resumed", false, 1, tlsUse{resume: true}, "0 of them resumed"},
		{"kept, and should not be", false, 0, tlsUse{}, "for 200 messages"},
		{"new, and should be kept", false, 1, tlsUse{keep: true}, "for 200 messages"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := listening(t)
			pair, _, err := makeCertificate()
			if err != nil {
				t.Fatal(err)
			}
			conf := measuredTLS()
			conf.Certificates = []tls.Certificate{pair}
			s.ask(&inquiry{tls: conf})
			w := workload{sessions: 2, messages: 200, size: 100, perConn: c.perConn, recipients: 1, domains: 1, secured: newSecured(c.resumed)}
			if err := w.send(s.l.Addr().String()); err != nil {
				t.Fatal(err)
			}
			err = c.use.check(w.secured, s.found())
			if (err == nil) != (c.words == "") || err != nil && !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v, want %q", err, c.words)
			}
		})
	}
}

// TLS that costs something else, and none at all, are told.
func TestOtherTLS(t *testing.T) {
	t.Parallel()
	load := newSecured(false)
	if err := (tlsUse{}).check(load, tally{messages: 1, plain: 1}); err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Error(err)
	}
	for _, s := range []suite{
		{tls.VersionTLS12, tls.TLS_AES_128_GCM_SHA256, tls.X25519}, {tls.VersionTLS13, tls.TLS_AES_256_GCM_SHA384, tls.X25519},
		{tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256, tls.X25519MLKEM768},
	} {
		if err := (tlsUse{}).checkEnd("in", 1, 0, 1, map[suite]int{s: 1}); err == nil {
			t.Errorf("%v is taken", s)
		}
	}
	if err := (tlsUse{}).checkEnd("in", 1, 0, 1, map[suite]int{{tls.VersionTLS13, tls.TLS_AES_128_GCM_SHA256, tls.X25519}: 1}); err != nil {
		t.Error(err)
	}
}

// A good signature by the right algorithm is taken, and nothing else.
func TestSignature(t *testing.T) {
	t.Parallel()
	key, err := ed25519Key()
	if err != nil {
		t.Fatal(err)
	}
	other, err := rsaKey()
	if err != nil {
		t.Fatal(err)
	}
	const text = "From: a@from.test\r\nSubject: s\r\n\r\nbody\r\n"
	var b bytes.Buffer
	if err := dkim.Sign(&b, strings.NewReader(text), &dkim.SignOptions{Domain: "from.test", Selector: "s1", Signer: key.signer}); err != nil {
		t.Fatal(err)
	}
	if err := key.verify(b.Bytes()); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"another key":    other.verify(b.Bytes()),
		"another body":   key.verify(append(b.Bytes(), "more\r\n"...)),
		"no signature":   key.verify([]byte(text)),
		"two signatures": key.verify(append(b.Bytes()[:b.Len()-len(text)], b.Bytes()...)),
	} {
		if err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// The bare program stores what it acknowledges, and sends all of it on.
func TestBare(t *testing.T) {
	t.Chdir(t.TempDir())
	s := listening(t)
	front := listening(t)
	addr := front.l.Addr().String()
	front.close() // the port is free, as one for a mail system is
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- runBare(ctx, addr, s.l.Addr().String()) }()
	if err := answers(addr, nil); err != nil {
		t.Fatal(err)
	}
	w := workload{sessions: 4, messages: 40, size: 3000, recipients: 1, domains: 1}
	m := &system{addr: addr, sink: s}
	s.ask(new(inquiry))
	if _, err := m.carry(ctx, &w); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := s.found(); string(got.text)+".\r\n" != string(w.text()) {
		t.Errorf("what came is %q", got.text)
	}
	files, _ := filepath.Glob("bare*")
	if len(files) != 1 {
		t.Fatalf("files %q", files)
	}
	if b, err := os.ReadFile(files[0]); err != nil || len(b) != 40*(len(w.text())-len(".\r\n")) {
		t.Errorf("%d octets are stored, %v", len(b), err)
	}
}

// Messages that wait share a sync, and none is acknowledged before it, or when it fails.
func TestBareSync(t *testing.T) {
	t.Chdir(t.TempDir())
	bad := errors.New("no disk")
	for _, fails := range []error{nil, bad} {
		var list []store
		syncs := 0
		b := &bare{stores: make(chan store, 3), sync: func(f *os.File) error {
			syncs++
			for i, s := range list {
				if len(s.done) > 0 {
					t.Errorf("message %d is acknowledged before the sync", i)
				}
			}
			if text, err := os.ReadFile(f.Name()); err != nil || string(text) != "abc" {
				t.Errorf("%q is to be synced, %v", text, err)
			}
			return fails
		}}
		for _, text := range []string{"a", "b", "c"} {
			s := store{[]byte(text), make(chan error, 1)}
			list = append(list, s)
			b.stores <- s
		}
		close(b.stores)
		if err := b.write(); err != nil || syncs != 1 {
			t.Errorf("%d syncs, %v", syncs, err)
		}
		for _, s := range list {
			if err := <-s.done; err != fails {
				t.Errorf("told %v, want %v", err, fails)
			}
		}
	}
}

// The filter says how many messages it has looked at.
func TestLooker(t *testing.T) {
	t.Parallel()
	l := &looker{seen: new(atomic.Int64)}
	l.Header("subject", "s", nil)
	l.Body(nil)
	if n := l.seen.Load(); n != 0 {
		t.Errorf("%d messages without a body", n)
	}
	l.Header("subject", "s", nil)
	l.BodyChunk([]byte("a\r\n"), nil)
	l.Body(nil)
	l.BodyChunk([]byte("a\r\n"), nil)
	l.Body(nil)
	if n := l.seen.Load(); n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
}

// Each thing that is missing is named, once.
func TestMissing(t *testing.T) {
	t.Parallel()
	no := need{"what there is not", func() bool { return false }}
	yes := need{"what else there is", func() bool { return true }}
	err := missing([]*contest{{needs: []need{no, yes}}, {needs: []need{no}}})
	if err == nil || strings.Count(err.Error(), no.what) != 1 || strings.Contains(err.Error(), yes.what) {
		t.Error(err)
	}
}

func TestChosenContests(t *testing.T) {
	t.Parallel()
	list, err := chosenContests("sql, latency", 7)
	if err != nil || len(list) != 2 || list[0].name != "sql" || list[0].messages != 7 || list[1].name != "latency" || !list[1].numbered {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := chosenContests("sqlite", 0); err == nil || !strings.Contains(err.Error(), "tls-resumed") {
		t.Error(err)
	}
	all, err := chosenContests("", 0)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, c := range all {
		if c.unit == "" || c.each == 0 || have[c.name] {
			t.Errorf("%s: %q, %v", c.name, c.unit, c.each)
		}
		have[c.name] = true
	}
	for _, w := range workloads {
		if !have[w.name] {
			t.Errorf("%s is not among them", w.name)
		}
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var list []time.Duration
	for i := range 200 {
		list = append(list, time.Duration(i+1))
	}
	for percent, want := range map[int]time.Duration{1: 2, 50: 100, 99: 198, 100: 200} {
		if got := percentile(list, percent); got != want {
			t.Errorf("%d %%: %d, want %d", percent, got, want)
		}
	}
	if got := percentile(list[:1], 50); got != 1 {
		t.Errorf("of one: %d", got)
	}
}

// The table has medians, ratios with their intervals, blanks where there is nothing, and the limit beside ours.
func TestBesideTable(t *testing.T) {
	t.Parallel()
	c := &contest{workload: workload{name: "large"}, unit: "megabytes"}
	entrants := make([]*entrant, 3)
	for i, rates := range [][]float64{{2000, 2000}, {1000, 1000}, {4000, 4000}} {
		entrants[i] = &entrant{name: limitName}
		entrants[i].scores[0] = map[figure][]float64{c.rate(): rates, processor: {12.25, 12.25}}
		entrants[i].scores[1] = entrants[i].scores[0]
	}
	entrants[1].scores[0][helping] = []float64{3, 4}
	var b bytes.Buffer
	c.print(entrants, false, &b)
	want := `| large | megabytes a second | 2,000 | 1,000 | 2.00 (2.00 to 2.00) |
| large | processor time, µs/message | 12.2 | 12.2 | 1.00 (1.00 to 1.00) |
| large | of it in helpers | | 3.50 | |
| large | limit: megabytes a second | 4,000 | | 0.500 (0.500 to 0.500) of it |
| large | limit: processor time, µs/message | 12.2 | | 1.00 (1.00 to 1.00) of it |
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	b.Reset()
	c.print(entrants[:2], true, &b)
	if line, _, _ := strings.Cut(b.String(), "\n"); line != "| large | megabytes a second | 2,000 | 1,000 | 2.00 (2.00 to 2.00) | 2,000 | 1,000 | 2.00 (2.00 to 2.00) |" {
		t.Error(line)
	}
	if got := ratioOf([]float64{3}, []float64{2}); got != "1.50" {
		t.Error(got)
	}
}

// A round that is not as it should be is an error.
func TestInForce(t *testing.T) {
	t.Parallel()
	bad := errors.New("no")
	c := &contest{check: func(*entrant, tally) error { return bad }}
	if err := c.inForce(nil, &workload{messages: 2}, tally{messages: 2}); err != bad {
		t.Error(err)
	}
	c.check = nil
	if err := c.inForce(nil, &workload{messages: 2}, tally{messages: 2}); err != nil {
		t.Error(err)
	}
	if err := c.inForce(nil, &workload{messages: 2}, tally{messages: 3}); err == nil {
		t.Error("a message too many is taken")
	}
	if err := searched().check(nil, tally{messages: 2, marked: 1}); err == nil {
		t.Error("a message that body_checks did not see is taken")
	}
}

// A process and those of its children that have ended.
func TestUsedOf(t *testing.T) {
	t.Parallel()
	name, own, ended := usedOf([]byte("7 (a (b) c) S 1 7 7 0 -1 4194560 1 2 3 4 100 50 25 10 20 0 1"))
	if name != "a (b) c" || own != 1500*time.Millisecond || ended != 350*time.Millisecond {
		t.Errorf("%q, %v, %v", name, own, ended)
	}
	s := &system{dir: "/x"}
	if !s.helps("/x/helpers/a/b") || s.helps("/x/helpers") || s.helps("/x/spool") {
		t.Error("helpers are not told from others")
	}
}
