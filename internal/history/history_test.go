package history

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/statedir"
)

var start = time.Date(2026, 11, 24, 7, 58, 0, 0, time.UTC)

func openWriter(t testing.TB, dir string, l Limits) *Writer {
	t.Helper()
	d, err := statedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	w, err := OpenWriter(d, l)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// sample is one of so many domains, some of them with an odd name.
func sample(at time.Time, rng *rand.Rand, domains int) *Sample {
	c := newCount(at)
	for i := range domains {
		name := []string{fmt.Sprintf("d%d.test", i), "", "@", "a\x00\xff\n.test"}[max(0, i%20-16)]
		for range 1 + rng.IntN(3) {
			c.add(tableKey{Queues[rng.IntN(4)], byte(rng.IntN(int(sides)))}, name, rng.IntN(Buckets), rng.Int64N(1000)+1)
		}
	}
	return c.sample()
}

func all(t testing.TB, dir string) (list []*Sample) {
	t.Helper()
	err := Between(dir, time.Unix(0, 0), start.AddDate(1, 0, 0), 0, func(s *Sample) bool {
		list = append(list, s)
		return true
	})
	if err != nil && !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	return list
}

func same(a, b []*Sample) bool {
	return slices.EqualFunc(a, b, func(a, b *Sample) bool { return a.At.Equal(b.At) && reflect.DeepEqual(a.Tables, b.Tables) })
}

// What was appended is read, over the ends of hours and a restart of the writer, and found by its
// time.
func TestStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "history")
	w := openWriter(t, dir, Limits{})
	if d, err := statedir.Open(dir); err != nil {
		t.Fatal(err)
	} else if _, err := OpenWriter(d, Limits{}); !errors.Is(err, ErrBusy) {
		t.Errorf("a second writer: %v", err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var want []*Sample
	for i := range 130 {
		s := sample(start.Add(time.Duration(i)*time.Minute), rng, i)
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
		if want = append(want, s); i == 65 {
			w.Close()
			w = openWriter(t, dir, Limits{})
			if err := w.Append(s); err != nil { // the clock has not gone on: it is there already
				t.Fatal(err)
			}
		}
	}
	w.Close()
	if got := all(t, dir); !same(got, want) {
		t.Fatalf("%d samples, want %d", len(got), len(want))
	}
	for i, after := range []time.Duration{0, time.Second, 59 * time.Second} {
		if s, err := At(dir, want[70].At.Add(after)); err != nil || !same([]*Sample{s}, want[70:71]) {
			t.Errorf("%d: %v %v", i, s, err)
		}
	}
	last := want[129].At
	if _, err := At(dir, start.Add(-time.Second)); !errors.Is(err, ErrNone) {
		t.Errorf("before the first: %v", err)
	}
	if _, err := At(dir, last.Add(near+time.Second)); !errors.Is(err, ErrNone) {
		t.Errorf("long after the last: %v", err)
	}
	if a, b, err := Span(dir); err != nil || !a.Equal(start) || !b.Equal(last) {
		t.Errorf("span: %v %v %v", a, b, err)
	}
	var steps []time.Time
	if err := Between(dir, start, last, time.Hour, func(s *Sample) bool { steps = append(steps, s.At); return true }); err != nil || len(steps) != 3 {
		t.Errorf("a sample an hour: %v %v", steps, err)
	}
	if _, err := At(filepath.Join(dir, "nosuch"), start); !errors.Is(err, ErrNone) {
		t.Errorf("no directory: %v", err)
	}
}

// fourSamples writes an hour's file, and returns its name and text, the samples in it, and where each
// ends.
func fourSamples(t *testing.T, dir string) (file string, text []byte, want []*Sample, ends []int64) {
	t.Helper()
	w := openWriter(t, dir, Limits{})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 4 {
		s := sample(start.Truncate(time.Hour).Add(time.Duration(i)*time.Minute), rng, 8)
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
		want, ends = append(want, s), append(ends, w.end)
	}
	w.Close()
	file = filepath.Join(dir, w.name)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return file, text, want, ends
}

// A file that ends anywhere, or has a wrong octet, is read up to there. The writer goes on behind
// the last whole sample.
func TestTorn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, whole, want, ends := fourSamples(t, dir)
	kept := func(n int) int { // samples before an octet
		i, _ := slices.BinarySearch(ends, int64(n)+1)
		return i
	}
	check := func(what string, n int, text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := all(t, dir); !same(got, want[:kept(n)]) {
			t.Fatalf("%s %d: %d samples, want %d", what, n, len(got), kept(n))
		}
	}
	for n := range len(whole) {
		check("ends at", n, whole[:n])
		bad := slices.Clone(whole)
		bad[n] ^= 0x41
		check("wrong octet", n, bad)
		if n%40 != 0 {
			continue
		}
		w := openWriter(t, dir, Limits{})
		if err := w.Append(want[3]); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if got := all(t, dir); !same(got, append(slices.Clone(want[:kept(n)]), want[3])) {
			t.Fatalf("written behind a wrong octet %d: %d samples", n, len(got))
		}
	}
}

// What stands behind a damaged sample does not come back when one as long as that takes its place.
func TestTail(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, text, want, ends := fourSamples(t, dir)
	text[ends[1]-1] ^= 1
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	w := openWriter(t, dir, Limits{})
	defer w.Close()
	if err := w.Append(want[1]); err != nil {
		t.Fatal(err)
	}
	if got := all(t, dir); !same(got, want[:2]) {
		t.Errorf("%d samples", len(got))
	}
}

// A disk that is full costs the sample, and no other.
func TestFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := openWriter(t, dir, Limits{})
	rng := rand.New(rand.NewPCG(1, 2))
	one, two, three := sample(start, rng, 9), sample(start.Add(time.Minute/2), rng, 9), sample(start.Add(time.Minute), rng, 9)
	if err := w.Append(one); err != nil {
		t.Fatal(err)
	}
	w.file.Close()
	if err := w.Append(two); err == nil {
		t.Error("no error")
	}
	if err := w.Append(three); err != nil {
		t.Error(err)
	}
	w.Close()
	if got := all(t, dir); !same(got, []*Sample{one, three}) {
		t.Errorf("%d samples", len(got))
	}
}

// Files that are too old, or too many, are dropped before a new one is begun, the oldest first;
// others are left alone.
func TestLimits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limits Limits
		first  int // hour
	}{{Limits{}, 0}, {Limits{Age: 5 * time.Hour}, 14}, {Limits{Octets: 1}, 19}, {Limits{Octets: 1 << 30, Age: time.Hour}, 18}} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		w := openWriter(t, dir, c.limits)
		for i := range 20 {
			if err := w.Append(sample(start.Add(time.Duration(i)*time.Hour), rand.New(rand.NewPCG(1, 2)), 3)); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		if got := all(t, dir); len(got) != 20-c.first || !got[0].At.Equal(start.Add(time.Duration(c.first)*time.Hour)) {
			t.Errorf("%+v: %d samples, the first of %v", c.limits, len(got), got[0].At)
		}
		if _, err := os.Stat(filepath.Join(dir, "notes")); err != nil {
			t.Error(err)
		}
	}
}

// Whatever is counted comes back, and the sums hold whatever has a row.
func TestSample(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		s := sample(start, rng, rapid.IntRange(0, 400).Draw(t, "domains"))
		got, err := decode(s.append(nil))
		if err != nil || !same([]*Sample{got}, []*Sample{s}) {
			t.Fatalf("%v: %+v", err, got)
		}
		for i := range s.Tables {
			if tab := &s.Tables[i]; len(tab.Rows) > MaxRows || (len(tab.Rows) < MaxRows) != (tab.Names == 0) && tab.Names > 0 {
				t.Fatalf("%d rows and %d others", len(tab.Rows), tab.Names)
			}
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(sample(start, rand.New(rand.NewPCG(1, 2)), 20).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decode(b)
		if err != nil {
			return
		}
		if again, err := decode(s.append(nil)); err != nil || !same([]*Sample{again}, []*Sample{s}) {
			t.Errorf("%v", err)
		}
	})
}

// The largest rows have names, the rest is summed up; what is not read yet has its row always.
func TestTake(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	now := time.Now()
	s.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.Shape](t, r)
		reply := &proto.ShapeReply{Next: 7}
		if q.Cursor == 7 {
			reply.Next = 0
			reply.Unread = []proto.Item{{ID: "4jWmK60qnzz1SDZl", Queue: "deferred", Arrival: now.Add(-12 * time.Minute)}}
		}
		if !q.Split || len(q.Edges) != Buckets-1 || q.Edges[1].Sub(q.Edges[0]) != -Tick {
			t.Errorf("%+v", q)
		}
		for i := range MaxRows + 10 { // each domain on both pages
			counts := make([]int, Buckets)
			counts[9] = i + 2
			reply.Rows = append(reply.Rows, proto.ShapeRow{Domain: fmt.Sprintf("d%03d.test", i), Queue: "deferred", Counts: counts})
		}
		reply.Rows = append(reply.Rows, proto.ShapeRow{Domain: "", Queue: "hold", Senders: true, Counts: []int{3}})
		r.Reply(reply)
	})
	q, err := queueclient.Open(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	conn, err := q.Manager(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := Take(t.Context(), conn, now)
	if err != nil || len(got.Tables) != 3 {
		t.Fatalf("%v %+v", err, got)
	}
	d := got.Tables[0]
	if d.Queue != "deferred" || d.Senders || len(d.Rows) != MaxRows || d.Rows[0] != (Row{Unread, Counts{0, 0, 1}}) || d.Names != 11 {
		t.Errorf("%+v", d)
	}
	if last := d.Rows[MaxRows-1]; last != (Row{fmt.Sprintf("d%03d.test", MaxRows+9), Counts{9: int64(2 * (MaxRows + 11))}}) {
		t.Errorf("%+v", last)
	}
	if want := int64(2 * (2 + 12) * 11 / 2); d.Others != (Counts{9: want}) {
		t.Errorf("others: %v, want %d", d.Others, want)
	}
	if h := got.Tables[2]; h.Queue != "hold" || !h.Senders || len(h.Rows) != 1 || h.Rows[0] != (Row{"", Counts{6}}) {
		t.Errorf("%+v", h)
	}
	for i, age := range []time.Duration{0, Tick - 1, Tick, 2*Tick - 1, 2 * Tick, 1280*time.Minute - 1, 1280 * time.Minute, 1 << 60} {
		if got, want := Bucket(age), []int{0, 0, 1, 1, 2, 8, 9, 9}[i]; got != want {
			t.Errorf("%v: column %d, want %d", age, got, want)
		}
	}
}

// BenchmarkDay writes a day of a busy queue: 300 domains in each table, a tenth of whose counts
// change every minute.
func BenchmarkDay(b *testing.B) {
	for b.Loop() {
		dir := b.TempDir()
		w := openWriter(b, dir, Limits{})
		rng := rand.New(rand.NewPCG(1, 2))
		c := newCount(start)
		for i := range 24 * 60 {
			for q := range 8 {
				for d := range 300 {
					if i == 0 || rng.IntN(10) == 0 {
						c.add(tableKey{Queues[q/2], byte(q % 2)}, fmt.Sprintf("domain%d.example.org", d), rng.IntN(Buckets), int64(rng.IntN(100)+300-d))
					}
				}
			}
			c.now = start.Add(time.Duration(i) * time.Minute)
			if err := w.Append(c.sample()); err != nil {
				b.Fatal(err)
			}
		}
		w.Close()
		total := int64(0)
		list, _ := os.ReadDir(dir)
		for _, e := range list {
			info, _ := e.Info()
			total += info.Size()
		}
		b.ReportMetric(float64(total), "octets/day")
	}
}

// Totals come back as they were, samples without them can be read, and rates are told only where they are known.
func TestTotals(t *testing.T) {
	t.Parallel()
	since := start.Add(-time.Hour)
	at := func(minutes int, t proto.Totals) *Sample {
		return &Sample{At: start.Add(time.Duration(minutes) * time.Minute), Totals: t}
	}
	totals := func(since time.Time, n int64) proto.Totals {
		return proto.Totals{Since: since, In: n, Sent: 2 * n, Deferred: 3 * n, Bounced: 4 * n}
	}
	for _, s := range []*Sample{at(0, proto.Totals{}), at(0, totals(since, 7)), at(0, totals(since, 0))} {
		back, err := decode(s.append(nil))
		if err != nil || !back.Totals.Since.Equal(s.Totals.Since) || back.Totals.In != s.Totals.In || back.Totals.Sent != s.Totals.Sent || back.Totals.Deferred != s.Totals.Deferred || back.Totals.Bounced != s.Totals.Bounced {
			t.Errorf("%+v becomes %+v, %v", s, back, err)
		}
	}
	whole := at(0, totals(since, 1000)).append(nil)
	short := at(0, proto.Totals{}).append(nil)
	for n := len(short) + 1; n < len(whole); n++ {
		if _, err := decode(whole[:n]); err == nil {
			t.Errorf("%d of %d octets are a sample", n, len(whole))
		}
	}
	for _, c := range []struct {
		a, b *Sample
		in   float64
		ok   bool
	}{
		{at(0, totals(since, 100)), at(2, totals(since, 160)), 30, true},
		{at(0, totals(since, 100)), at(3, totals(start.Add(time.Minute), 60)), 30, true}, // it was started meanwhile
		{at(0, proto.Totals{}), at(3, totals(start.Add(time.Minute), 60)), 30, true},
		{at(0, proto.Totals{}), at(1, totals(since, 60)), 0, false},
		{at(0, totals(since, 60)), at(1, proto.Totals{}), 0, false},
		{at(0, totals(since, 60)), at(0, totals(since, 70)), 0, false},
		{at(0, totals(since, 60)), later(at(0, totals(since, 70)), time.Second), 0, false},          // too short a time
		{at(0, totals(since, 60)), later(at(0, totals(since, 70)), RateTime), 120, true},            // long enough
		{at(0, totals(since, 60)), at(1, totals(start.Add(time.Minute-time.Second), 60)), 0, false}, // it was started a second ago
		{at(0, totals(since, 60)), at(1, totals(since, 50)), 0, true},                               // never negative
	} {
		r, ok := RatesBetween(c.a, c.b)
		if ok != c.ok || r.In != c.in || r.Sent != 2*c.in || r.Deferred != 3*c.in || r.Bounced != 4*c.in {
			t.Errorf("%+v, %+v: %+v, %v", c.a, c.b, r, ok)
		}
	}
}

func later(s *Sample, d time.Duration) *Sample {
	s.At = s.At.Add(d)
	return s
}

// A file that another version has written is read by none but that one: the writer sets it aside, and says so, and a reader says
// what it is. Others of the same time go on to be read. What is set aside goes with its age.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rng := rand.New(rand.NewPCG(1, 2))
	name := start.UTC().Format(hours) + suffix
	newer := []byte(magicName + "12\nwhat nobody here can read")
	if err := os.WriteFile(filepath.Join(dir, name), newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := At(dir, start.Add(time.Minute)); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "12") {
		t.Errorf("the reader says %v", err)
	}
	if _, err := First(dir); !errors.Is(err, ErrVersion) {
		t.Errorf("since when: %v", err)
	}
	w := openWriter(t, dir, Limits{Age: 2 * time.Hour})
	var said []string
	w.Warn = func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	one := sample(start.Add(time.Minute), rng, 3)
	for _, s := range []*Sample{one, sample(start.Add(2*time.Minute), rng, 3)} {
		if err := w.Append(s); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], name+aside) || !strings.Contains(said[0], "format 12") {
		t.Errorf("%q", said)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, name+aside)); err != nil || !bytes.Equal(kept, newer) {
		t.Errorf("what was set aside: %q, %v", kept, err)
	}
	if got := all(t, dir); len(got) != 2 || !same(got[:1], []*Sample{one}) {
		t.Errorf("%d samples", len(got))
	}
	if err := w.Append(sample(start.Add(4*time.Hour), rng, 3)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := os.Stat(filepath.Join(dir, name+aside)); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}
