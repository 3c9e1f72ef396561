package track

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// hostile are lines that a stranger, a full disk or another program may have put into a log: cut off, far too long, with
// control characters, in another form, or such that they look like something else.
func hostile(t *rapid.T, id string) string {
	long := strings.Repeat(rapid.SampledFrom([]string{"x", "\x00", "\xff", "to=<", " ", `\u0000`}).Draw(t, "long"), rapid.IntRange(0, 5000).Draw(t, "times"))
	return rapid.SampledFrom([]string{
		"", "\n", "\r\n", "]: \n", "Nov", "Nov 23 00:00:00", long, long + "\n", "{\n", "{}\n", `{"time":` + long + "\n", `{"time":"x","text":"` + id + `: removed"}` + "\n",
		"2026-11-23T00:00:01Z mx postfix/smtpd[5]: " + long + "\n",
		"2026-11-23T00:00:01Z mx postfix/smtp[4]: " + id + ": to=<a@one.test>, relay=x, delay=1, delays=0/0/0/1, dsn=2.0.0, status=sent (250 queued as " + id + ")\n",
		"2026-11-23T00:00:01Z mx postfix/smtp[4]: " + id + ": to=<" + long + ">, relay=, delay=, delays=, dsn=, status=\n",
		"2026-11-23T00:00:01Z mx postfix/smtp[4]: " + id + ": to=<a@one.test, relay=x[, delay=-1e999, delays=////, dsn=9.9.9, status=sent (\n",
		"2026-11-23T00:00:01Z mx postfix/local[5]: " + id + ": to=<a@one.test>, relay=local, delay=1, delays=0/0/0/1, dsn=2.0.0, status=sent (forwarded as " + id + ")\n",
		"2026-11-23T00:00:01Z mx postfix/qmgr[4]: " + id + ": from=<a@one.test>, size=-99999999999999999999, nrcpt=99999999999999999999 (queue active)\n",
		"2026-11-23T00:00:01Z mx postfix/cleanup[7]: " + id + ": message-id=<" + long + "\n",
		"2026-11-23T00:00:01Z mx postfix/smtpd[5]: NOQUEUE: reject: RCPT from [" + long + "]: 550 5.1.1 <a@one.test>: ; from=<> to=<a@one.test> proto= helo=<\x1b[2J>\n",
		"2026-11-23T00:00:01Z mx postfix/smtpd[5]: NOQUEUE: reject: \n", "9999-99-99T99:99:99Z mx postfix/qmgr[4]: " + id + ": removed\n",
		"2026-11-23T00:00:01Z mx other[1]: 4aAAAA1z: from=<a@one.test>, size=1, nrcpt=1 (queue active)\n", strings.Repeat("\x00", 4096), "\xef\xbb\xbf\xff\xfe\n",
	}).Draw(t, "hostile")
}

// What strangers get into a log, whatever it is, makes no search fail or differ: with the index, that of the log as it was before
// more came included, the answer is that of reading it from the beginning to the end.
func TestHostileLines(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "track")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		w := &writer{t: t, json: rapid.Bool().Draw(t, "json")}
		lines := w.log(rapid.IntRange(1, 10).Draw(t, "messages"))
		id := w.lastID()
		name := filepath.Join(dir, "mail.log")
		o := Options{Logs: []string{name}, Index: filepath.Join(dir, "track"), IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small, Warn: func(string, ...any) {}}
		for range rapid.IntRange(1, 3).Draw(t, "parts") {
			var part []timed
			for i := range lines {
				if rapid.IntRange(0, 3).Draw(t, "evil") == 0 {
					part = append(part, timed{0, hostile(t, id)})
				}
				if rapid.IntRange(0, 2).Draw(t, "own") > 0 {
					part = append(part, lines[i])
				}
			}
			appendLines(t, name, part)
			q := w.query()
			plain := o
			plain.Index = ""
			if want, got := found(t, plain, q), found(t, o, q); !maps.Equal(got, want) {
				t.Fatalf("%+v: with the index\n%s\nwithout it\n%s", q, show(got, want), show(want, got))
			}
		}
	})
}

// manyMessages makes a log of so many messages of one sender, and says how it is searched.
func manyMessages(t *testing.T, messages int) Options {
	dir := t.TempDir()
	name := filepath.Join(dir, "mail.log")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		at := day.Add(time.Duration(i) * time.Second).Format(time.RFC3339)
		fmt.Fprintf(f, "%[1]s mx postfix/qmgr[4]: %[2]s: from=<a@one.test>, size=1, nrcpt=1 (queue active)\n%[1]s mx postfix/qmgr[4]: %[2]s: removed\n", at, fmt.Sprintf("4aAAA%05dz", i))
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return Options{Logs: []string{name}, Index: filepath.Join(dir, "track"), IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small, Warn: t.Errorf}
}

// A search finds the first messages of many before it has looked for all: somebody waits for them.
func TestFirstAnswer(t *testing.T) {
	t.Parallel()
	o := manyMessages(t, 4000)
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	x := newRun(o)
	defer x.close()
	var err error
	if x.plan, err = (Query{Conditions: []Condition{{From, "a@one.test"}}}).plan(); err != nil {
		t.Fatal(err)
	}
	n := 0
	x.yield = func(Found) bool { n++; return false }
	if err := x.search(t.Context()); err != errEnough && err != nil || n != 1 || x.cache.reads > 6 {
		t.Errorf("%v; %d found, %d blocks were read for it", err, n, x.cache.reads)
	}
}

// A search finds all of many messages, though those of a group have more blocks than are kept.
func TestAllOfMany(t *testing.T) {
	t.Parallel()
	const messages = 6 * cacheBlocks
	o := manyMessages(t, messages)
	for range 2 { // the index is made, and there
		if got := found(t, o, Query{Conditions: []Condition{{From, "a@one.test"}}}); len(got) != messages {
			t.Errorf("%d messages were found, want %d", len(got), messages)
		}
	}
}

// A segment whose file says that it has a larger block than there can be is damaged: it would be read as a whole.
func TestHugeBlock(t *testing.T) {
	t.Parallel()
	text := []byte("2026-11-23T00:00:01Z mx postfix/qmgr[4]: 4aAAA00001z: removed\n")
	for _, c := range []struct {
		end uint32
		ok  bool
	}{{uint32(len(text)), true}, {maxBlock, true}, {maxBlock + 1, false}, {1<<32 - 1, false}} {
		seg := newMason(usualSizes, day).build(1, 0, 1, text, []int{len(text)})
		seg.blocks[0].end = c.end
		if _, err := decodeSegment(seg.encode()); (err == nil) != c.ok {
			t.Errorf("a block of %d octets: %v", c.end, err)
		}
	}
}
