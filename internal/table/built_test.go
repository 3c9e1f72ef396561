package table

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/testpeers"
)

// original is Postfix's own postmap, with a configuration of its own.
type original struct {
	t    testing.TB
	path string
	dir  string
}

func newOriginal(t testing.TB) *original {
	t.Helper()
	o := &original{t: t, path: testpeers.Program(t, "postmap"), dir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(o.dir, "main.cf"), []byte("compatibility_level = 3.6\nsmtputf8_enable = yes\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return o
}

// run runs it with options, and text as its standard input.
func (o *original) run(stdin string, args ...string) {
	o.t.Helper()
	cmd := exec.Command(o.path, append([]string{"-c", o.dir}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		o.t.Fatalf("postmap %q: %v\n%s", args, err, out)
	}
}

// build writes a source and builds a table of it.
func (o *original) build(spec, text string, options ...string) {
	o.t.Helper()
	_, name, _ := strings.Cut(spec, ":")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		o.t.Fatal(err)
	}
	o.run("", append(options, spec)...)
}

var builtKinds = []string{"hash", "btree", "lmdb"}

// entriesText is the source of a table, and what it says.
func entriesText(n, valueSize int) (text string, entries map[string]string) {
	var b strings.Builder
	entries = make(map[string]string, n)
	for i := range n {
		key := fmt.Sprintf("user%d@d%d.example", i, i%17)
		value := strings.Repeat(strconv.Itoa(i%10), max(1, valueSize*(i%5)/4)) + "@" + strconv.Itoa(i)
		entries[key] = value
		fmt.Fprintf(&b, "%s\t%s\n", key, value)
	}
	return b.String(), entries
}

// same says whether a table has just these entries: all of them are listed, and limit are looked up.
func same(t *testing.T, tab Table, entries map[string]string, limit int) {
	t.Helper()
	for key, want := range entries {
		if limit--; limit < 0 {
			break
		}
		value, found, err := tab.Lookup(t.Context(), strings.ToUpper(key))
		if err != nil || !found || value != want {
			t.Fatalf("%.80s: %.80q, %v, %v", key, value, found, err)
		}
		if value, found, err := tab.Lookup(t.Context(), key+"x"); found || err != nil {
			t.Fatalf("%.80sx: %.80q, %v", key, value, err)
		}
	}
	n := 0
	if err := tab.(Sequence).All(func(key, value string) bool {
		n++
		if entries[key] != value {
			t.Errorf("All: %.80q is %.80q", key, value)
		}
		return true
	}); err != nil || n != len(entries) {
		t.Fatalf("All: %d of %d entries, %v", n, len(entries), err)
	}
}

func noWarnings(t *testing.T) Options {
	return Options{Recheck: -1, Warn: func(text string) { t.Error(text) }}
}

// Tables of all sizes that the original has built: on one page, on many, in files that are
// not kept in memory, with keys and values that have pages of their own.
func TestBuiltByPostfix(t *testing.T) {
	t.Parallel()
	o := newOriginal(t)
	for _, kind := range builtKinds {
		for _, size := range []struct{ n, value int }{{0, 0}, {1, 3}, {2, 0}, {7, 5000}, {150, 20}, {3000, 40}, {40, 100000}, {8000, 1600}} {
			t.Run(fmt.Sprintf("%s/%dx%d", kind, size.n, size.value), func(t *testing.T) {
				t.Parallel()
				name := filepath.Join(t.TempDir(), "t")
				text, entries := entriesText(size.n, size.value)
				if kind != "lmdb" && size.n == 7 {
					key := strings.Repeat("k", 6000)
					text += key + " long\n"
					entries[key] = "long"
				}
				o.build(kind+":"+name, text)
				o := noWarnings(t)
				o.Recheck = time.Minute
				same(t, open(t, kind+":"+name, o), entries, size.n+1)
				if fi, err := os.Stat(name + foreignSuffix(kind)); err != nil || size.n == 8000 && fi.Size() <= maxResident {
					t.Errorf("the large file is not large: %v", err)
				}
			})
		}
	}
}

// What the original's options and changes make of a table, and that it is noticed.
func TestBuiltChanges(t *testing.T) {
	t.Parallel()
	o := newOriginal(t)
	for _, kind := range builtKinds {
		for _, large := range []bool{false, true} {
			for _, end := range []string{"-n", "-N"} { // without and with a zero byte at the end
				t.Run(fmt.Sprintf("%s%s/%v", kind, end, large), func(t *testing.T) {
					t.Parallel()
					name := filepath.Join(t.TempDir(), "t")
					spec := kind + ":" + name
					n := 20
					if large {
						n = 40000
					}
					text, entries := entriesText(n, 200)
					o.build(spec, text+"user3@d3.example again\n", end, "-w") // the first one counts
					tab := open(t, spec, noWarnings(t))
					same(t, tab, entries, 20)
					o.run("new@example.com one\nuser5@d5.example other\n", end, "-r", "-i", spec)
					entries["new@example.com"], entries["user5@d5.example"] = "one", "other"
					o.run("", end, "-d", "user4@d4.example", spec)
					delete(entries, "user4@d4.example")
					if value, found, err := tab.Lookup(t.Context(), "new@example.com"); value != "one" || err != nil {
						t.Errorf("what is added is not seen: %q, %v, %v", value, found, err)
					}
					same(t, tab, entries, 20)
					text, entries = entriesText(n/2, 30)
					o.build(spec, text, end)
					same(t, tab, entries, 20)
				})
			}
		}
	}
}

// While the original builds a table anew, and adds to it, every lookup has the answer of
// before or the one of after. Only one that has waited for the builder as long as lookups do, as on a
// machine that does much else, may fail, and says so.
func TestBuiltMeanwhile(t *testing.T) {
	t.Parallel()
	o := newOriginal(t)
	for _, kind := range builtKinds {
		for _, n := range []int{300, 8000} {
			t.Run(fmt.Sprintf("%s/%d", kind, n), func(t *testing.T) {
				t.Parallel()
				name := filepath.Join(t.TempDir(), "t")
				spec := kind + ":" + name
				text, _ := entriesText(n, 1600)
				o.build(spec, "same@example.com same\n"+text)
				// Each rebuilding begins with an empty file: that is said, and nothing else.
				tab := open(t, spec, Options{Recheck: time.Millisecond, Warn: func(text string) { t.Log(text) }})
				var done atomic.Bool
				var asked atomic.Int64
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						for !done.Load() {
							start := time.Now()
							value, found, err := tab.Lookup(t.Context(), "same@example.com")
							// A builder may be slower than a lookup waits, whether it has the lock
							// all the time or writes on each time it was given up.
							if (errors.Is(err, errStale) || errors.Is(err, errWriting)) && time.Since(start) >= lockWait {
								continue
							}
							if err != nil || !found || value != "same" {
								t.Errorf("%q, %v, %v", value, found, err)
								return
							}
							asked.Add(1)
						}
					})
				}
				for i := range 4 {
					if i%2 == 0 {
						o.run(fmt.Sprintf("more%d@example.com x\n", i), "-i", spec)
					} else {
						o.build(spec, "same@example.com same\n"+text)
					}
				}
				done.Store(true)
				wg.Wait()
				t.Logf("%d lookups", asked.Load())
			})
		}
	}
}

// Of our file and Postfix's the newer one is read, also if that changes.
func TestNewerOfTwo(t *testing.T) {
	t.Parallel()
	o := newOriginal(t)
	for _, kind := range builtKinds {
		name := filepath.Join(t.TempDir(), "t")
		spec := kind + ":" + name
		theirs, ours := name+foreignSuffix(kind), name+Suffix
		o.build(spec, "k theirs\n")
		buildIndexed(t, spec, map[string]string{"k": "ours"})
		hour := time.Now().Add(-time.Hour)
		at := func(path string, minutes int) {
			t.Helper()
			when := hour.Add(time.Duration(minutes) * time.Minute)
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
		}
		at(name, 0)
		at(theirs, 1)
		at(ours, 2)
		tab := open(t, spec, noWarnings(t))
		expectValue := func(want string) {
			t.Helper()
			if value, _, err := tab.Lookup(t.Context(), "k"); value != want || err != nil {
				t.Errorf("%s: %q, %v, want %s", kind, value, err, want)
			}
			wantPath := map[string]string{"ours": ours, "theirs": theirs}[want]
			if got := BuiltPath(spec); got != wantPath {
				t.Errorf("BuiltPath is %s, want %s", got, wantPath)
			}
		}
		expectValue("ours")
		at(theirs, 3)
		expectValue("theirs")
		var warned []string
		if tab := open(t, spec, Options{Warn: func(text string) { warned = append(warned, text) }}); len(warned) != 1 || !strings.Contains(warned[0], "are both there") {
			t.Errorf("%s: warnings %q, %v", kind, warned, tab)
		}
		at(ours, 4)
		expectValue("ours")
		at(theirs, 5)
		if err := os.WriteFile(theirs, []byte("SQLite format 3\x00 and so on, in a file that is another's\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		expectValue("ours")
		if err := os.Remove(ours); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(spec, Options{}); err == nil || !strings.Contains(err.Error(), "postmap "+spec) {
			t.Errorf("%s: what is neither is read, or the command is not named: %v", kind, err)
		}
	}
}

// buildIndexed makes our own file.
func buildIndexed(t testing.TB, spec string, entries map[string]string) {
	t.Helper()
	w, err := Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range entries {
		if _, err := w.Add(key, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(0o644, -1, -1); err != nil {
		t.Fatal(err)
	}
}

// A file that cannot be read says why, and the command that helps; one that becomes
// unreadable leaves the contents of before in force.
func TestBuiltDamaged(t *testing.T) {
	t.Parallel()
	o := newOriginal(t)
	for _, kind := range builtKinds {
		name := filepath.Join(t.TempDir(), "t")
		spec := kind + ":" + name
		text, entries := entriesText(500, 50)
		o.build(spec, text)
		path := name + foreignSuffix(kind)
		var mu sync.Mutex
		var warned []string
		tab := open(t, spec, Options{Recheck: -1, Warn: func(text string) { mu.Lock(); warned = append(warned, text); mu.Unlock() }})
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		zeros := bytes.Clone(whole)
		clear(zeros[len(zeros)-4096:])
		for _, damaged := range [][]byte{whole[:len(whole)/2], nil, zeros} {
			if err := os.WriteFile(path, damaged, 0o644); err != nil {
				t.Fatal(err)
			}
			same(t, tab, entries, 20)
			// A page that is not in use may be lost.
			if other, err := Open(spec, Options{}); err == nil {
				same(t, other, entries, 500)
			} else if !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), "postmap "+spec) {
				t.Errorf("%s: %v", kind, err)
			} else {
				continue
			}
			if damaged == nil || len(damaged) < len(whole) {
				t.Errorf("%s: a file of %d of %d octets is read", kind, len(damaged), len(whole))
			}
		}
		if len(warned) == 0 || !strings.Contains(warned[0], "the previous contents stay in force") {
			t.Errorf("%s: warnings %q", kind, warned)
		}
	}
}

// Lookups in files of Postfix's, and in our own of the same content (dbm, which is ours alone).
func BenchmarkBuilt(b *testing.B) {
	o := newOriginal(b)
	for _, kind := range append([]string{"dbm"}, builtKinds...) {
		for _, n := range []int{1000, 100000} {
			name := filepath.Join(b.TempDir(), "t")
			text, entries := entriesText(n, 100)
			if kind == "dbm" {
				buildIndexed(b, kind+":"+name, entries)
			} else {
				o.build(kind+":"+name, text)
			}
			if path := BuiltPath(kind + ":" + name); path != "" {
				fi, err := os.Stat(path)
				b.Logf("%s: %d octets, %v", path, fi.Size(), err)
			}
			keys := make([]string, 0, n)
			for key := range entries {
				keys = append(keys, key)
			}
			b.Run(fmt.Sprintf("%s/%d", kind, n), func(b *testing.B) {
				tab, err := Open(kind+":"+name, Options{})
				if err != nil {
					b.Fatal(err)
				}
				defer tab.Close()
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, found, err := tab.Lookup(b.Context(), keys[i%n]); !found || err != nil {
						b.Fatal(found, err)
					}
				}
			})
		}
	}
}
