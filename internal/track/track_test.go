package track

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/mail"
	"posthaste/internal/testpeers"
)

var day = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

// A writer makes the log of a day.
type writer struct {
	t     *rapid.T
	lines []timed
	n     int
	json  bool
}

type timed struct {
	at   time.Duration
	text string
}

func (w *writer) say(at time.Duration, program, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	line := fmt.Sprintf("%s mx postfix/%s[%d]: %s\n", day.Add(at).Format(time.RFC3339Nano), program, len(program), text)
	if w.json {
		b, err := json.Marshal(text)
		if err != nil {
			w.t.Fatal(err)
		}
		line = fmt.Sprintf(`{"time":"%s","process":"postfix/%s","pid":1,"text":%s}`+"\n", day.Add(at).Format("2006-01-02T15:04:05.000000Z07:00"), program, b)
	}
	w.lines = append(w.lines, timed{at, line})
}

var (
	people  = []string{"a@one.test", "B@one.test", "c@two.test", `"x> y"@two.test`, "root", "d@three.test"}
	clients = []string{"h1.test[192.0.2.1]", "unknown[192.0.2.2]", "h3.test[2001:db8::3]", "localhost[127.0.0.1]"}
)

func (w *writer) pick(list []string, what string) string {
	return rapid.SampledFrom(list).Draw(w.t, what)
}

func (w *writer) id(at time.Duration) string {
	w.n++
	return string(mail.MakeQueueID(day.Add(at), uint64(w.n)))
}

// message writes a message and what it becomes.
func (w *writer) message(at time.Duration, id, mid, origin string, depth int) {
	step := func() time.Duration {
		at += time.Duration(rapid.IntRange(0, 2000).Draw(w.t, "ms")) * time.Millisecond
		return at
	}
	to := w.pick(people, "to")
	if origin != "" {
		w.say(at, "smtpd", "%s: client=%s", id, origin)
	}
	w.say(at, "cleanup", "%s: message-id=<%s>", id, mid)
	w.say(step(), "qmgr", "%s: from=<%s>, size=%d, nrcpt=1 (queue active)", id, w.pick(append(people, ""), "from"), w.n)
	tried := func(program, relay, status string) {
		w.say(step(), program, "%s: to=<%s>, relay=%s, delay=1, delays=0/0/0/1, dsn=2.0.0, status=%s", id, to, relay, status)
	}
	what := rapid.IntRange(0, 9).Draw(w.t, "what")
	if depth > 3 {
		what = 0
	}
	next := w.id(at)
	switch what {
	case 1:
		tried("smtp", "mx.far.test[198.51.100.1]:25", "deferred (host mx.far.test[198.51.100.1] "+w.word()+"\u00c9: later)")
		at += time.Duration(rapid.IntRange(0, 20).Draw(w.t, "hours")) * time.Hour
		tried("smtp", "mx.far.test[198.51.100.1]:25", "sent (250 2.0.0 Ok: queued as 5xFARz1)")
	case 2:
		tried("local", "local", "sent (forwarded as "+next+")")
		w.message(at, next, mid, "", depth+1)
	case 3:
		tried("smtp", "mx.far.test[198.51.100.1]:25", "bounced (host mx.far.test[198.51.100.1] said: 550 no)")
		w.say(step(), "bounce", "%s: sender non-delivery notification: %s", id, next)
		w.message(at, next, next+"@mx.test", "", depth+1)
	case 4:
		w.message(at, next, mid, "localhost[127.0.0.1], orig_queue_id="+id, depth+1)
		tried("smtp", "127.0.0.1[127.0.0.1]:10025", "sent (250 2.0.0 Ok: queued as "+next+")")
	case 5:
		tried("pipe", "filter", "sent (delivered via filter service)")
		w.say(step(), "pickup", "%s: uid=7 from=<a@one.test>", next)
		w.message(at, next, mid, "", depth+1)
	case 6:
		w.say(step(), "postsuper", "%s: requeued", id)
		w.say(step(), "pickup", "%s: uid=7 from=<a@one.test> orig_id=%s", next, id)
		w.message(at, next, mid, "", depth+1)
		return
	case 7: // it stays in the queue
		return
	case 8: // a remote host names a message of ours
		tried("smtp", "mx.far.test[198.51.100.1]:25", "sent (250 2.0.0 Ok: queued as "+string(mail.MakeQueueID(day, 1))+")")
	default:
		tried("virtual", "virtual", "sent (delivered to maildir)")
	}
	w.say(step(), "qmgr", "%s: removed", id)
}

// word is a part of what is said of one message, or of none.
func (w *writer) word() string {
	return fmt.Sprintf("said 45%d no. %d", rapid.IntRange(0, 9).Draw(w.t, "code"), rapid.IntRange(0, 99).Draw(w.t, "number"))
}

// log is a day's log, in order.
func (w *writer) log(messages int) []timed {
	for range messages {
		at := time.Duration(rapid.IntRange(0, 3000).Draw(w.t, "second")) * time.Second
		w.json = rapid.Bool().Draw(w.t, "json")
		client := w.pick(clients, "client")
		switch rapid.IntRange(0, 4).Draw(w.t, "kind") {
		case 0:
			w.say(at, "smtpd", "NOQUEUE: reject: RCPT from %s: 550 5.1.1 <x@one.test>: no; from=<%s> to=<x@one.test> proto=ESMTP helo=<h>", client, w.pick(people, "from"))
		case 1:
			w.say(at, "smtpd", "lost connection after DATA from %s", client)
			w.say(at, "other", "%s", strings.Repeat("y", rapid.IntRange(0, 3000).Draw(w.t, "long")))
		default:
			id := w.id(at)
			w.message(at, id, fmt.Sprintf("%d@mid.test", rapid.IntRange(0, 40).Draw(w.t, "mid")), client, 0)
		}
	}
	slices.SortStableFunc(w.lines, func(a, b timed) int { return cmp.Compare(a.at, b.at) })
	return w.lines
}

// query is one that finds some of it.
func (w *writer) query() (q Query) {
	for range rapid.IntRange(1, 2).Draw(w.t, "conditions") {
		c := rapid.SampledFrom([]Condition{{From, w.pick(people, "from")}, {To, w.pick(people, "to")}, {Anything, "@two.test"}, {From, "<>"},
			{Client, "192.0.2.1"}, {Client, "192.0.2.0/24"}, {Client, "2001:db8::/33"}, {Client, "127.0.0.0/9"}, {Client, "0.0.0.0/2"}, {Client, "198.51.100.0/24"},
			{Text, rapid.SampledFrom([]string{"O", "7@", "7@m", "relay=local, ", "X> Y", "From=<>", "lost connection AFTER", w.word()}).Draw(w.t, "text")}, {Reply, w.word()}, {Reply, "no"}, {Anything, "2001:DB8:0::3"}, {Reply, "550"}, {Reply, "MAILDIR"}, {MessageID, "<7@mid.test>"},
			{Anything, "3@mid.test"}, {Relay, "mx.far.test"}, {ID, "5xFARz1"}, {ID, string(mail.MakeQueueID(day, 1))}, {Anything, "root"},
			{ID, w.lastID()}}).Draw(w.t, "condition")
		q.Conditions = append(q.Conditions, c)
	}
	if rapid.Bool().Draw(w.t, "timed") {
		q.Since = day.Add(time.Duration(rapid.IntRange(0, 3000).Draw(w.t, "since")) * time.Second)
		q.Until = q.Since.Add(time.Duration(rapid.IntRange(1, 40000).Draw(w.t, "span")) * time.Second)
	}
	return q
}

func (w *writer) lastID() string {
	for _, l := range slices.Backward(w.lines) {
		if _, rest, ok := strings.Cut(l.text, "]: "); ok && strings.HasSuffix(l.text, ": removed\n") {
			id, _, _ := strings.Cut(rest, ":")
			return id
		}
	}
	return "4aAAAA1z"
}

// small are sizes of which a small log has many.
var small = sizes{block: 300, segment: 1 << 10, rest: 500, tail: 900, memory: 1 << 20}

// found is what a search finds, in an order of its own: messages by queue ID with what they came of, and other lines.
func found(t interface{ Fatal(...any) }, o Options, q Query) map[string]string {
	list := map[string]string{}
	var put func(parent string, m *Message)
	put = func(parent string, m *Message) {
		for _, c := range m.Children {
			put(m.ID, c)
		}
		alone := *m
		alone.Children = nil
		b, err := json.Marshal(&alone)
		if err != nil {
			t.Fatal(err)
		}
		list[m.ID] = parent + " " + string(b)
	}
	err := Search(context.Background(), o, q, func(f Found) bool {
		if f.Refusal != nil {
			list[f.Refusal.Raw+fmt.Sprint(f.Refusal.Line)] = f.Refusal.Text
		}
		for _, m := range f.Messages {
			put("", m)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// compress compresses a file, and removes it.
func compress(t *rapid.T, program, name string) string {
	ending := map[string]string{"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".zst", "lz4": ".lz4"}[program]
	out, err := exec.Command(program, "-c", name).Output()
	if err == nil {
		err = os.WriteFile(name+ending, out, 0o600)
	}
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	return name + ending
}

// With the index and without the answers are the same, however the log grows, is renamed and compressed between
// searches, and whatever becomes of the index.
//
// It is not parallel: the number of histories is a flag, which the properties of other tests read.
func TestSame(t *testing.T) {
	for _, p := range []string{"gzip", "xz", "zstd", "lz4"} {
		testpeers.Program(t, p)
	}
	// A history starts dozens of programs; a failing one is replayed with -rapid.seed.
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		if err := f.Value.Set("25"); err != nil {
			t.Fatal(err)
		}
		defer f.Value.Set(f.DefValue) // it parsed that before
	}
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "track")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w := &writer{t: t}
		lines := w.log(rapid.IntRange(1, 60).Draw(t, "messages"))
		o := Options{Index: filepath.Join(dir, "track"), IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small,
			Warn: func(f string, args ...any) {
				if !strings.Contains(f, "is made again") {
					t.Fatalf(f, args...)
				}
			}}
		current, rotated := filepath.Join(dir, "mail.log"), 0
		for len(lines) > 0 {
			n := rapid.IntRange(1, len(lines)).Draw(t, "lines")
			appendLines(t, current, lines[:n])
			lines = lines[n:]
			o.Logs = logs(t, dir)
			for range 2 {
				q := w.query()
				plain := o
				plain.Index = ""
				want, got := found(t, plain, q), found(t, o, q)
				if !maps.Equal(got, want) {
					t.Fatalf("%+v: with the index\n%s\nwithout it\n%s", q, show(got, want), show(want, got))
				}
			}
			switch rapid.IntRange(0, 5).Draw(t, "then") {
			case 0, 1:
				rotated++
				name := fmt.Sprintf("%s.%d", current, rotated)
				if err := os.Rename(current, name); err != nil {
					t.Fatal(err)
				}
			case 2:
				if list := plainRotated(dir); len(list) > 0 {
					compress(t, rapid.SampledFrom([]string{"gzip", "xz", "zstd", "lz4"}).Draw(t, "program"), list[0])
				}
			case 3:
				damage(t, o.Index)
			case 4:
				o.IndexLimit = int64(rapid.IntRange(0, 60000).Draw(t, "limit"))
			}
		}
	})
}

// show is what one has and the other has not.
func show(a, b map[string]string) string {
	var s strings.Builder
	for _, k := range slices.Sorted(maps.Keys(a)) {
		if a[k] != b[k] {
			fmt.Fprintf(&s, "%s: %s\n", k, a[k])
		}
	}
	return s.String()
}

func appendLines(t *rapid.T, name string, lines []timed) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, l := range lines {
		if _, err := f.WriteString(l.text); err != nil {
			t.Fatal(err)
		}
	}
}

func logs(t *rapid.T, dir string) (list []string) {
	list, err := filepath.Glob(filepath.Join(dir, "mail.log*"))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func plainRotated(dir string) (list []string) {
	all, _ := filepath.Glob(filepath.Join(dir, "mail.log.*"))
	return slices.DeleteFunc(all, func(n string) bool { return len(filepath.Ext(n)) > 2 || filepath.Ext(n)[1] > '9' })
}

// damage changes an octet of a file of the index, cuts it, or removes it.
func damage(t *rapid.T, dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*.*"))
	if len(files) == 0 {
		return
	}
	name := rapid.SampledFrom(files).Draw(t, "file")
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	switch at := rapid.IntRange(0, len(b)-1).Draw(t, "octet"); rapid.IntRange(0, 2).Draw(t, "damage") {
	case 0:
		b[at] ^= 0x55
		err = os.WriteFile(name, b, 0o600)
	case 1:
		err = os.WriteFile(name, b[:at], 0o600)
	case 2:
		err = os.Remove(name)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// sealed is what a file of the index begins with, with the checksum that it must have.
func sealed(b []byte) []byte {
	bits := uint8(segmentBits)
	if bytes.HasPrefix(b, []byte(volumeMagic)) {
		bits = volumeBits
	}
	if len(b) < fixedHeader {
		return b
	}
	count := binary.LittleEndian.Uint64(b[fixedHeader-8:])
	if count > 1<<bits {
		return b
	}
	b = bytes.Clone(b)
	size := headerSize(bits, int(count))
	b = append(b, make([]byte, max(0, size-len(b)))...)
	binary.LittleEndian.PutUint32(b[size-4:], crc32.ChecksumIEEE(b[:size-4]))
	return b
}

// FuzzSegment: no file of the index makes a search fail.
func FuzzSegment(f *testing.F) {
	text := []byte("Nov 20 17:56:01 mx postfix/qmgr[1]: 4aAAAA1z: removed\n")
	seg := newMason(usualSizes, day).build(1, 0, 1, text, []int{len(text)})
	f.Add(seg.encode()[:fixedHeader+spanSize])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = sealed(b)
		s, err := decodeSegment(b)
		if err != nil || s.fileSize() > 1<<20 { // the length is compared when a file is opened
			return
		}
		file := bytes.NewReader(append(b, make([]byte, max(0, int(s.fileSize())-len(b)))...))
		s.lookup([]wish{{print: 0}, {print: 1 << 40}, {print: 1 << 63}}, file, new([]byte))
		s.times()
		s.dated(day)
		s.sieve.pick(len(s.blocks), []token{0, 1 << 40, 1 << 63}, file, s.sieveAt(), new([]byte))
		s.sieve.load(file, s.sieveAt())
		s.readGate(file)
		s.readEntries(file, 0)
	})
}
