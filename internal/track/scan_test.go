package track

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"posthaste/internal/logread"
)

// lower is what the comparison of keys does to letters, whatever is in the text.
func TestLower(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.OneOf(rapid.Byte(), rapid.ByteRange('@', '['), rapid.ByteRange('`', '{')), 0, 40).Draw(t, "text")
		want := bytes.Map(func(r rune) rune { return r }, nil)
		for _, c := range b {
			if c >= 'A' && c <= 'Z' {
				c += 'a' - 'A'
			}
			want = append(want, c)
		}
		if got := lower([]byte("before"), b); !bytes.Equal(got, want) {
			t.Fatalf("%q: %q, want %q", b, got, want)
		}
	})
}

// The lines that are taken apart are those with the texts, each once and in order, and all lines where a text may stand in another
// form.
func TestScan(t *testing.T) {
	t.Parallel()
	text := "a Ann\nb bob ann\n\nc ann ann ANN\nd"
	for _, c := range []struct {
		wishes string
		fold   bool
		want   string
	}{
		{"ann", false, "b bob ann|c ann ann ANN"},
		{"ann", true, "a Ann|b bob ann|c ann ann ANN"},
		{"ann ann", true, "a Ann|b bob ann|c ann ann ANN"},
		{"d bob", false, "b bob ann|d"},
		{"nobody", true, ""},
		{`bob "`, false, "a Ann|b bob ann||c ann ann ANN|d"},
	} {
		var list []*wish
		for _, w := range strings.Fields(c.wishes) {
			wish := newWish(keyTo, []byte(w), c.fold)
			list = append(list, &wish)
		}
		var got []string
		new(scanner).lines([]byte(text), list, c.fold, func(begin, end int) { got = append(got, text[begin:end]) })
		if s := strings.Join(got, "|"); s != c.want {
			t.Errorf("%s, fold %t: %q, want %q", c.wishes, c.fold, s, c.want)
		}
	}
}

// Of the Message-IDs of a message the first one in the log counts, whichever line is read first; those of Resent-Message-ID: only where
// there is no other.
func TestMessageIDs(t *testing.T) {
	t.Parallel()
	lines := []struct {
		resent bool
		mid    string
	}{{true, "r1"}, {true, "r2"}, {false, "a"}, {true, "r3"}, {false, "b"}}
	for _, c := range []struct {
		order []int
		want  string
	}{{[]int{0, 1}, "r1"}, {[]int{1, 0}, "r1"}, {[]int{0, 1, 2, 3, 4}, "a"}, {[]int{4, 2, 3, 1, 0}, "a"}, {[]int{2, 0}, "a"}, {[]int{0, 2, 3}, "a"}, {[]int{4, 0, 2}, "a"}, {[]int{4, 0}, "b"}} {
		b := newBook(0)
		for _, n := range c.order {
			b.add(&event{kind: messageID, line: new(logread.Line), id: []byte("4aAAAA1z"), mid: []byte(lines[n].mid), resent: lines[n].resent}, place{pos: int64(n + 1)}, 0)
		}
		if e := b.entries["4aAAAA1z"]; e.mid != c.want || !slices.Equal(b.mids[c.want], []string{e.id}) {
			t.Errorf("%v: %s, want %s; %v", c.order, e.mid, c.want, b.mids)
		}
	}
}

// manyLines is a log of some hundred segments.
func manyLines(t *testing.T, name string, from, to int) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for i := from; i < to; i++ {
		fmt.Fprintf(f, "2026-11-23T00:00:00Z mx postfix/qmgr[4]: 4aAAA%05dz: from=<a%d@one.test>, size=1, nrcpt=1 (queue active)\n", i, i%100)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// kinds is how many volumes and how many other segments an index has.
func kinds(t *testing.T, dir string) (volumes, segments int) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch {
		case strings.Contains(e.Name(), "-v"):
			volumes++
		case strings.HasSuffix(e.Name(), segmentSuffix):
			segments++
		}
	}
	return volumes, segments
}

// Segments become volumes when there are enough of them, as the log grows; after compressing it they are used again, and of another
// text of the same beginning none is.
func TestVolume(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "mail.log")
	o := Options{Logs: []string{name}, Index: filepath.Join(dir, "track"), IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small, Warn: t.Errorf}
	check := func(want int) {
		t.Helper()
		got := found(t, o, Query{Conditions: []Condition{{From, "A7@one.test"}}})
		if len(got) != want || got[fmt.Sprintf("4aAAA%05dz", 100*(want-1)+7)] == "" {
			t.Errorf("%d messages, want %d: %v", len(got), want, slices.Sorted(maps.Keys(got)))
		}
	}
	build := func() (b Built) {
		b, err := Build(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	volumes := 0
	for n := range 10 {
		manyLines(t, name, 100*n, 100*n+100)
		before := build()
		v, s := kinds(t, o.Index)
		if v < volumes || s >= volumeParts || before.Size == 0 {
			t.Fatalf("%d volumes and %d segments after %d", v, s, volumes)
		}
		volumes = v
		check(n + 1)
	}
	if volumes < 3 {
		t.Fatalf("%d volumes", volumes)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	zip(t, name+".gz", text)
	o.Logs = []string{name + ".gz"}
	ages := age(t, o.Index)
	build()
	check(10)
	for file, at := range ages {
		if now := age(t, o.Index)[file]; strings.Contains(file, "-v") && !os.SameFile(now, at) {
			t.Errorf("%s was made again after compressing the log", file)
		}
	}
	zip(t, name+".2.gz", bytes.ReplaceAll(text, []byte("4aAAA009"), []byte("5bBBB009")))
	o.Logs = []string{name + ".2.gz"}
	got := found(t, o, Query{Conditions: []Condition{{From, "a7@one.test"}}})
	if len(got) != 10 || got["5bBBB00907z"] == "" {
		t.Errorf("a log with the same beginning: %v", slices.Sorted(maps.Keys(got)))
	}
}

// A log that was cut, and has grown again, has an index of its own: the volume of what it was is not in the way of it.
func TestCutLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "mail.log")
	o := Options{Logs: []string{name}, Index: filepath.Join(dir, "track"), IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small, Warn: t.Errorf}
	manyLines(t, name, 0, 300)
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if v, _ := kinds(t, o.Index); v == 0 {
		t.Fatal("there is no volume")
	}
	if err := os.Truncate(name, 4*int64(small.segment)); err != nil {
		t.Fatal(err)
	}
	manyLines(t, name, 1000, 1030)
	if _, err := Build(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b, err := Build(t.Context(), o)
	if v, s := kinds(t, o.Index); err != nil || v != 0 || s < 4 || b.Added >= small.rest {
		t.Errorf("%d octets were read once more for nothing: %d volumes, %d segments, %v", b.Added, v, s, err)
	}
	if got := found(t, o, Query{Conditions: []Condition{{From, "a7@one.test"}}}); got["4aAAA01007z"] == "" || got["4aAAA00207z"] != "" {
		t.Errorf("found: %v", slices.Sorted(maps.Keys(got)))
	}
}

// What closes the index leaves it to the next one, though a program that is started at that moment has its files open.
func TestLockInherited(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "track")
	s, err := openStore(dir, formatOf(small), 1<<30, t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	other, err := unix.FcntlInt(s.lock.Fd(), unix.F_DUPFD_CLOEXEC, 0) // as a fork has it, until it executes the program
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(other)
	s.close()
	next, err := openStore(dir, formatOf(small), 1<<30, t.Errorf)
	if err != nil {
		t.Errorf("the next one: %v", err)
	}
	next.close()
}

// What is no file in the directory of the index, which may be another user's, keeps no search waiting.
func TestNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "mail.log")
	o := Options{Logs: []string{name}, Index: filepath.Join(dir, "track"), IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small, Warn: func(string, ...any) {}}
	manyLines(t, name, 0, 300)
	for _, packed := range []bool{false, true} {
		if packed {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			zip(t, name+".gz", text)
			o.Logs = []string{name + ".gz"}
		}
		if _, err := Build(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		for file := range age(t, o.Index) {
			path := filepath.Join(o.Index, file)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := found(t, o, Query{Conditions: []Condition{{From, "a7@one.test"}}}); len(got) != 3 {
			t.Errorf("packed %t: %v", packed, slices.Sorted(maps.Keys(got)))
		}
	}
}

// Letters that are not ASCII's are found as they stand, and escapes that are not known as the question mark that they are shown as;
// with the index as without.
func TestLetters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "mail.log")
	const json = `{"time":"2026-11-23T00:00:00Z","process":"postfix/smtp","pid":1,"text":"%s"}` + "\n"
	text := "2026-11-23T00:00:00Z mx postfix/smtp[4]: 4aAAAA1z: to=<Ärger@One.test>, relay=none, delay=1, delays=0/0/0/1, dsn=4.0.0, status=deferred (ERİŞİM Denied)\n" +
		fmt.Sprintf(json, `4aAAAA2z: to=<a\tb@one.test>, relay=none, delay=1, delays=0/0/0/1, dsn=4.0.0, status=deferred (what\tnow)`)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cond Condition
		want string
	}{
		{Condition{To, "Ärger@one.TEST"}, "4aAAAA1z"}, {Condition{Anything, "Ärger@one.test"}, "4aAAAA1z"}, {Condition{To, "ärger@one.test"}, ""},
		{Condition{Reply, "ERİŞİM DENIED"}, "4aAAAA1z"}, {Condition{Reply, "eri"}, ""}, {Condition{Reply, "denied"}, "4aAAAA1z"},
		{Condition{To, "A?b@one.test"}, "4aAAAA2z"}, {Condition{Reply, "What?now"}, "4aAAAA2z"},
	} {
		for _, index := range []string{"", filepath.Join(dir, "track")} {
			o := Options{Logs: []string{name}, Index: index, IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small, Warn: t.Errorf}
			got := found(t, o, Query{Conditions: []Condition{c.cond}})
			if want := min(1, len(c.want)); len(got) != want || want > 0 && got[c.want] == "" {
				t.Errorf("%v, index %q: %v, want %s", c.cond, index, slices.Sorted(maps.Keys(got)), c.want)
			}
		}
	}
}

// zip makes a compressed log.
func zip(t *testing.T, name string, text []byte) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(text)
	w.Close()
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// age are the files of an index.
func age(t *testing.T, dir string) map[string]os.FileInfo {
	list := map[string]os.FileInfo{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		list[e.Name()] = info
	}
	return list
}

// The lines that have a text are found, whatever octet of it is the rarest, and in whichever case it stands.
func TestFind(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.SampledFrom([]rune("abcABC01 \n"))
		text := []byte(rapid.StringOfN(letters, 0, 60, -1).Draw(t, "text"))
		word := rapid.StringOfN(rapid.SampledFrom([]rune("abc01 ")), 1, 4, -1).Draw(t, "word")
		fold := rapid.Bool().Draw(t, "fold")
		c := new(scanner)
		c.count([]byte(rapid.StringOfN(letters, 0, 30, -1).Draw(t, "first block")))
		var got, want []string
		c.lines(text, []*wish{{text: word}}, fold, func(begin, end int) { got = append(got, string(text[begin:end])) })
		for line := range strings.SplitSeq(string(text), "\n") {
			if strings.Contains(line, word) || fold && strings.Contains(strings.ToLower(line), word) {
				want = append(want, line)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q in %q, fold %t: %q, want %q", word, text, fold, got, want)
		}
	})
}
