package track

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A warner keeps what a search warns of.
type warner struct {
	mu   sync.Mutex
	said []string
}

func (w *warner) warn(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, fmt.Sprintf(format, args...))
}

// heard is what it was warned of since it was last asked.
func (w *warner) heard() string {
	said := strings.Join(w.said, "|")
	w.said = nil
	return said
}

// indexOf is how one log is searched, and what it warns of.
func indexOf(t *testing.T, name string) (Options, *warner) {
	w := new(warner)
	return Options{Logs: []string{name}, Index: filepath.Join(t.TempDir(), "track"), IndexLimit: 1 << 30, Now: day.AddDate(0, 0, 3), sizes: small, Warn: w.warn}, w
}

// compare compares a search with one that has no index, and returns how many were found.
func compare(t *testing.T, o Options, q Query) int {
	t.Helper()
	plain := o
	plain.Index = ""
	want, got := found(t, plain, q), found(t, o, q)
	if !maps.Equal(got, want) {
		t.Errorf("%+v: with the index\n%s\nwithout it\n%s", q, show(got, want), show(want, got))
	}
	return len(got)
}

func build(t *testing.T, o Options) Built {
	t.Helper()
	b, err := Build(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var sentBy7 = Query{Conditions: []Condition{{From, "a7@one.test"}}}

// An index of another version is thrown away and made anew, which is said once. Who may not write it does without.
func TestFormat(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	manyLines(t, name, 0, 300)
	o, w := indexOf(t, name)
	build(t, o)
	for _, old := range []string{"posthaste trace, index 2: blocks of 300 octets\n", "", strings.Repeat("x", 5000)} {
		if err := os.WriteFile(filepath.Join(o.Index, formatName), []byte(old), 0o600); err != nil {
			t.Fatal(err)
		}
		holder, err := openStore(o.Index, old[:min(len(old), maxFormat)], 1<<30, t.Errorf)
		if err != nil {
			t.Fatal(err)
		}
		if n := compare(t, o, sentBy7); n != 3 || w.heard() != "" {
			t.Errorf("%d were found while another has the index", n)
		}
		holder.close()
		b := build(t, o)
		if said := w.heard(); b.Added != b.Text || strings.Count(said, "another version") != 1 {
			t.Errorf("%+v, %q", b, said)
		}
		if b, n := build(t, o), compare(t, o, sentBy7); b.Added >= small.rest || n != 3 || w.heard() != "" {
			t.Errorf("then: %+v, %d", b, n)
		}
	}
}

// stamped is a log in the form that has no year and no zone, a line for each hour of some days.
func stamped(t *testing.T, name string, from time.Time, hours int) {
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range hours {
		fmt.Fprintf(f, "%s mx postfix/qmgr[4]: 4aAAA%05dz: from=<a7@one.test>, size=1, nrcpt=1 (queue active)\n", from.Add(time.Duration(i)*time.Hour).Format(time.Stamp), i)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// Times that lines do not have whole are guessed by the time zone, and by when the file was written last: an answer is by what they are taken for
// now, whatever the index was made with. In another zone the index is made anew, which is said once; who may not write it uses it but for
// its times.
func TestGuessedTimes(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	stamped(t, name, day, 100)
	written := func(at time.Time) {
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	written(day.AddDate(0, 0, 5))
	o, w := indexOf(t, name)
	o.Now = day.AddDate(0, 1, 0)
	build(t, o)
	part := Query{Since: day.Add(10 * time.Hour), Until: day.Add(20 * time.Hour)}
	if n := compare(t, o, part); n != 10 || w.heard() != "" {
		t.Errorf("%d found", n)
	}
	other := o
	other.Now = o.Now.In(time.FixedZone("there", 7*3600))
	holder, err := openStore(o.Index, formatOf(small), 1<<30, t.Errorf)
	if err != nil {
		t.Fatal(err)
	}
	ages := age(t, o.Index)
	if n := compare(t, other, part); n != 10 || w.heard() != "" || !maps.EqualFunc(ages, age(t, o.Index), os.SameFile) {
		t.Errorf("%d found while another has the index", n)
	}
	holder.close()
	if n, said := compare(t, other, part), w.heard(); n != 10 || strings.Count(said, "another time zone than there (+0700)") != 1 || strings.Contains(said, "|") {
		t.Errorf("%d found, %q", n, said)
	}
	if b, said := build(t, other), w.heard(); b.Added >= small.rest || said != "" {
		t.Errorf("%+v, %q", b, said)
	}
	// A year later the same file is taken for one of that year.
	written(day.AddDate(1, 0, 5))
	other.Now = other.Now.AddDate(1, 0, 0)
	if n, said := compare(t, other, part), w.heard(); n != 0 || said != "" {
		t.Errorf("%d found, %q", n, said)
	}
	part.Since, part.Until = part.Since.AddDate(1, 0, 0), part.Until.AddDate(1, 0, 0)
	if n, said := compare(t, other, part), w.heard(); n != 10 || said != "" {
		t.Errorf("%d found, %q", n, said)
	}
}

// Lines that have their time zone are not read again for another one.
func TestZoneOfNoLine(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	manyLines(t, name, 0, 300)
	o, w := indexOf(t, name)
	build(t, o)
	o.Now = o.Now.In(time.FixedZone("there", 7*3600))
	if b, said := build(t, o), w.heard(); b.Added >= small.rest || said != "" {
		t.Errorf("%+v, %q", b, said)
	}
}

// A zone is known by its offsets, whatever it is called.
func TestZonePrint(t *testing.T) {
	t.Parallel()
	zone := func(name string) uint64 {
		l, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		return zonePrint(l)
	}
	if zone("Europe/Berlin") != zone("Europe/Oslo") || zonePrint(time.UTC) != zone("Etc/UTC") || zonePrint(time.UTC) != zonePrint(time.FixedZone("x", 0)) {
		t.Error("one zone has two prints")
	}
	if zone("Europe/Berlin") == zone("Africa/Lagos") || zone("Europe/Berlin") == zone("Africa/Cairo") || zonePrint(time.UTC) == zone("Europe/London") {
		t.Error("two zones have one print")
	}
}

// What the index has of a log is removed with the log; nothing is read again for that. Other logs' index stays if the search is
// of some logs only.
func TestRemovedLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o, w := indexOf(t, "")
	o.Logs = nil
	for i := range 3 {
		name := filepath.Join(dir, fmt.Sprint("mail.log.", 3-i))
		stamped(t, name, day.AddDate(0, 0, 10*i), 100)
		at := day.AddDate(0, 0, 10*i+5)
		if err := os.Chtimes(name, at, at); err != nil {
			t.Fatal(err)
		}
		o.Logs = append(o.Logs, name)
	}
	text, err := os.ReadFile(o.Logs[0])
	if err != nil {
		t.Fatal(err)
	}
	zip(t, o.Logs[0]+".gz", text)
	if at := day.AddDate(0, 0, 5); os.Chtimes(o.Logs[0]+".gz", at, at) != nil {
		t.Fatal("times")
	}
	o.Logs[0] += ".gz"
	o.Now = day.AddDate(0, 1, 0)
	whole := build(t, o)
	ages := age(t, o.Index)
	some := o
	some.Logs, some.Others = o.Logs[2:], true
	if build(t, some); !maps.EqualFunc(ages, age(t, o.Index), os.SameFile) {
		t.Error("the index of other logs was changed")
	}
	o.Logs = o.Logs[1:]
	b := build(t, o)
	if b.Added >= 2*small.rest || b.Size >= whole.Size*3/4 || w.heard() != "" {
		t.Errorf("%+v after %+v", b, whole)
	}
	left := age(t, o.Index)
	for file, at := range left {
		if !os.SameFile(at, ages[file]) {
			t.Errorf("%s was made again", file)
		}
	}
	if len(left) >= len(ages) || slices.ContainsFunc(slices.Collect(maps.Keys(left)), func(n string) bool { return strings.HasSuffix(n, packedSuffix) }) {
		t.Errorf("%d files of %d are left", len(left), len(ages))
	}
	compare(t, o, sentBy7)
}

// Two logs that begin alike and have one size, of which one is compressed, have the same names in the index: the segments of one are not taken
// for those of the other.
func TestReplacedLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := filepath.Join(dir, "mail.log")
	manyLines(t, name, 0, 300)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	zip(t, name+".gz", text)
	o, _ := indexOf(t, name+".gz")
	build(t, o)
	if n := compare(t, o, sentBy7); n != 3 {
		t.Errorf("%d found", n)
	}
	other := append(bytes.Clone(text[:headSize]), bytes.ReplaceAll(text[headSize:], []byte("@one"), []byte("@two"))...)
	if err := os.WriteFile(name, other, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Logs = []string{name}
	build(t, o)
	if n := compare(t, o, sentBy7); n != 1 {
		t.Errorf("%d found of the other", n)
	}
	o.Logs = []string{name + ".gz"}
	if n := compare(t, o, sentBy7); n != 3 {
		t.Errorf("%d found again", n)
	}
}

// What was being written when a search was killed is not used, and does not stay.
func TestKilledWriter(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	manyLines(t, name, 0, 300)
	o, w := indexOf(t, name)
	build(t, o)
	for file := range age(t, o.Index) {
		text, err := os.ReadFile(filepath.Join(o.Index, file))
		if err == nil {
			err = os.WriteFile(filepath.Join(o.Index, file+".new"), text[:len(text)/2], 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := compare(t, o, sentBy7); n != 3 || w.heard() != "" {
		t.Errorf("%d found", n)
	}
	for file := range age(t, o.Index) {
		if strings.HasSuffix(file, ".new") {
			t.Errorf("%s has stayed", file)
		}
	}
}

// Searches at the same time find the same, while one of them makes the index, and the log grows between them.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	o, _ := indexOf(t, name)
	for n := range 4 {
		manyLines(t, name, 200*n, 200*n+200)
		var all sync.WaitGroup
		for _, q := range []Query{sentBy7, {Conditions: []Condition{{Text, "<A7@ONE"}}}, sentBy7, {Conditions: []Condition{{Anything, "a7@one.test"}}}} {
			all.Go(func() {
				if got := len(found(t, o, q)); got != 2*n+2 {
					t.Errorf("%+v: %d found, want %d", q, got, 2*n+2)
				}
			})
		}
		all.Wait()
	}
}

// A search without an index, where there may be one, says that all of the log is read, and why.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	manyLines(t, name, 0, 300)
	for _, memory := range []int{100, 600} { // the log is too large, or its index when that is made
		o, w := indexOf(t, name)
		holder, err := openStore(o.Index, formatOf(small), 1<<30, t.Errorf)
		if err != nil {
			t.Fatal(err)
		}
		if n, said := compare(t, o, sentBy7), w.heard(); n != 3 || said != "" {
			t.Errorf("%d found, %q", n, said)
		}
		o.sizes.memory = memory
		if n, said := compare(t, o, sentBy7), w.heard(); n != 3 || said != "all of the log is read, which takes longer: "+ErrBusy.Error() {
			t.Errorf("%d: %d found, %q", memory, n, said)
		}
		holder.close()
		if n, said := compare(t, o, sentBy7), w.heard(); n != 3 || said != "" {
			t.Errorf("%d found with the index, %q", n, said)
		}
	}
}

// A slow reader of what a search has found keeps nobody from writing the index. What is found to be damaged meanwhile is made again.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	manyLines(t, name, 0, 600)
	o, w := indexOf(t, name)
	build(t, o)
	n := 0
	err := Search(t.Context(), o, sentBy7, func(Found) bool {
		if n++; n > 1 {
			return true
		}
		if b := build(t, o); b.Added >= small.rest {
			t.Errorf("%+v", b)
		}
		for file := range age(t, o.Index) {
			if filepath.Ext(file) == segmentSuffix {
				path := filepath.Join(o.Index, file)
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if s, err := decodeSegment(text); err != nil || os.WriteFile(path, append(text[:s.headerSize()], make([]byte, len(text)-s.headerSize())...), 0o600) != nil {
					t.Fatal(err)
				}
			}
		}
		return true
	})
	if said := w.heard(); err != nil || n != 6 || !strings.Contains(said, "it is made again") {
		t.Errorf("%v: %d found, %q", err, n, said)
	}
	if b := build(t, o); b.Added == 0 || w.heard() != "" {
		t.Errorf("then %+v", b)
	}
}
