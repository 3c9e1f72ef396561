package override

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/statedir"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(root(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func root(t *testing.T, dir string) *statedir.Dir {
	t.Helper()
	r, err := statedir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func suspension(target string, until time.Time) Entry {
	return Entry{Kind: Suspension, Target: target, By: "root", Reason: "they asked \"us\"\n", Since: now, Until: until}
}

// What has been put is there after a restart, until it is taken back or over.
func TestKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	want := []Entry{suspension("a.test", time.Time{}), suspension("b.test", now.Add(time.Hour))}
	for _, e := range []Entry{want[1], suspension("a.test", now.Add(time.Minute)), want[0], suspension("gone.test", time.Time{})} {
		if err := s.Put(e, now); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := s.Remove(Suspension, "gone.test", now); !found || err != nil {
		t.Error(found, err)
	}
	if found, err := s.Remove(Suspension, "gone.test", now); found || err != nil {
		t.Error(found, err)
	}
	s.Close()
	s = open(t, dir)
	if got := s.Entries(now); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got := s.Entries(now.Add(time.Hour)); len(got) != 1 || got[0].Target != "a.test" {
		t.Errorf("an hour later: %+v", got)
	}
	s.Close()
}

// A limit is kept with its number, beside a suspension of the same target, and taken back alone.
func TestLimitKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	want := []Entry{{Kind: Limit, Target: "a.test", By: "ann", Since: now, Most: 3, Raises: true}, suspension("a.test", time.Time{})}
	first := want[0]
	first.Most = 2
	for _, e := range []Entry{first, want[1], want[0]} {
		if err := s.Put(e, now); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = open(t, dir)
	if got := s.Entries(now); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if found, err := s.Remove(Limit, "a.test", now); !found || err != nil || !reflect.DeepEqual(s.Entries(now), want[1:]) {
		t.Error(found, err, s.Entries(now))
	}
	s.Close()
}

// There is one writer; the next one has what that one has left.
func TestOneOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := open(t, dir)
	if err := old.Put(suspension("a.test", time.Time{}), now); err != nil {
		t.Fatal(err)
	}
	next := open(t, dir)
	if next.Owner() || len(next.Entries(now)) != 1 {
		t.Error("two owners, or what the other has is not known")
	}
	if err := next.Put(suspension("x.test", time.Time{}), now); !errors.Is(err, ErrNotOwner) {
		t.Errorf("put: %v", err)
	}
	if err := old.Put(suspension("b.test", time.Time{}), now); err != nil {
		t.Fatal(err)
	}
	if became, err := next.Own(); became || err != nil {
		t.Error(became, err)
	}
	old.Close()
	if became, err := next.Own(); !became || err != nil || len(next.Entries(now)) != 2 {
		t.Error(became, err, next.Entries(now))
	}
	next.Close()
}

// A crash between any two steps leaves the old list or the new one; what
// remains of an unfinished one is in nobody's way.
func TestTorn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "overrides.new"), []byte("posthaste overr"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if err := s.Put(suspension("a.test", time.Time{}), now); err != nil || len(s.Entries(now)) != 1 {
		t.Error(err)
	}
	s.Close()
}

// Every octet counts: a file with any one changed, or cut off anywhere, is
// said to be damaged, kept, and does not keep the store from being used.
func TestDamaged(t *testing.T) {
	t.Parallel()
	good, err := encode([]Entry{suspension("a.test", now)})
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 0x10
		if _, err := decode(bad); !errors.Is(err, ErrDamaged) {
			t.Errorf("octet %d (%q) changed: %v", i, good[i], err)
		}
		if _, err := decode(good[:i]); !errors.Is(err, ErrDamaged) {
			t.Errorf("cut off at %d: %v", i, err)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, fileName), good[:len(good)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(root(t, dir))
	if !errors.Is(err, ErrDamaged) || s == nil {
		t.Fatal(err)
	}
	if err := s.Put(suspension("b.test", time.Time{}), now); err != nil {
		t.Error(err)
	}
	s.Close()
	if kept, err := os.ReadFile(filepath.Join(dir, badName)); err != nil || !bytes.Equal(kept, good[:len(good)-3]) {
		t.Errorf("what was damaged: %q, %v", kept, err)
	}
	if s := open(t, dir); len(s.Entries(now)) != 1 {
		t.Error("what was put is not there")
	}
}

// A file that is damaged at whichever octet, is cut off or is no file at all costs nothing: its copy counts, and the
// file is whole again. A copy that is damaged, or is left from before, counts for nothing while the file is sound.
func TestRestored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	main, second := filepath.Join(dir, fileName), filepath.Join(dir, copyName)
	s := open(t, dir)
	for _, target := range []string{"a.test", "b.test"} {
		if err := s.Put(suspension(target, time.Time{}), now); err != nil {
			t.Fatal(err)
		}
	}
	want := s.Entries(now)
	s.Close()
	good, err := os.ReadFile(main)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) {
		t.Helper()
		if err := errors.Join(os.RemoveAll(name), os.WriteFile(name, b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; i <= len(good); i += 13 {
		bad := good[:i]
		if i%2 == 1 {
			bad = slices.Concat(good[:i-1], []byte{good[i-1] ^ 0x10}, good[i:])
		}
		write(main, bad)
		s, err := Open(root(t, dir))
		if !errors.Is(err, ErrRestored) || !reflect.DeepEqual(s.Entries(now), want) {
			t.Fatalf("damaged at %d: %v", i, err)
		}
		s.Close()
		s = open(t, dir)
		if !reflect.DeepEqual(s.Entries(now), want) {
			t.Error("the file has not been made whole")
		}
		s.Close()
		if kept, err := os.ReadFile(filepath.Join(dir, badName)); err != nil || !bytes.Equal(kept, bad) {
			t.Errorf("what was damaged: %q, %v", kept, err)
		}
	}
	write(second, good[:len(good)-3])
	s = open(t, dir)
	if !reflect.DeepEqual(s.Entries(now), want) {
		t.Error("a damaged copy counts")
	}
	s.Close()
	write(main, nil)
	if s, err = Open(root(t, dir)); !errors.Is(err, ErrDamaged) || len(s.Entries(now)) != 0 {
		t.Errorf("both are damaged: %v", err)
	}
	s.Close()
	write(second, good)
	if err := os.Remove(main); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if len(s.Entries(now)) != 0 {
		t.Error("a copy counts where there is no file")
	}
	s.Close()
}

// A copy that cannot be written is an error, and then nothing has changed: it is never behind the file.
func TestCopyComesFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if err := errors.Join(s.Put(suspension("a.test", time.Time{}), now), os.Remove(filepath.Join(dir, copyName)), os.MkdirAll(filepath.Join(dir, copyName, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(suspension("b.test", time.Time{}), now); err == nil || len(s.Entries(now)) != 1 {
		t.Errorf("%v, %v", err, s.Entries(now))
	}
	s.Close()
	if s := open(t, dir); len(s.Entries(now)) != 1 {
		t.Error("the file has what was refused")
	}
}

// file is a file of those lines, as somebody writes it who can compute a checksum.
func file(entries int, lines ...string) []byte {
	body := strings.Join(lines, "\n") + "\n"
	return fmt.Appendf(nil, "posthaste overrides %d entries %d sha256 %x\n%s", version, entries, sha256.Sum256([]byte(body)), body)
}

// What somebody has written by hand is refused with the line that is wrong, as a whole, and nothing is read without bound.
func TestHostileFile(t *testing.T) {
	t.Parallel()
	good := `{"kind":"suspension","target":"a.test","by":"ann","since":"2026-11-23T12:00:00Z"}`
	if list, err := decode(file(1, good)); err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	long := func(name string, n int) string {
		return strings.Replace(good, `"by":"ann"`, `"`+name+`":"`+strings.Repeat("x", n)+`"`, 1)
	}
	for _, c := range []struct {
		file []byte
		says string
	}{
		{[]byte("\n"), "overrides:1: "},
		{[]byte("posthaste overrides 2 entries 0 sha256 00\n"), "overrides:1: it has version 2"},
		{[]byte("posthaste overrides 1 entries 1 sha256 00\n" + good), "overrides:1: the checksum is wrong"},
		{file(2, good), "overrides:1: it promises 2 entries"},
		{file(2, good, "{"), "overrides:3: "},
		{file(2, good, "[]"), "overrides:3: "},
		{file(2, good, ""), "overrides:3: "},
		{file(2, good, good+good), "overrides:3: "},
		{file(2, good, `{"target":"a.test"}`), "overrides:3: an override needs a kind"},
		{file(2, good, `{"kind":"limit","target":"a.test","most":0}`), "overrides:3: a limit is a number from 1"},
		{file(2, good, `{"kind":"suspension"}`), "overrides:3: an override needs a kind"},
		{file(2, good, strings.Replace(good, "2026", "soon", 1)), "overrides:3: "},
		{file(2, good, long("reason", MaxReason+1)), "overrides:3: a reason has at most"},
		{file(2, good, long("by", maxBy+1)), "overrides:3: a target has at most"},
		{file(2, good, long("kind", maxKind+1)), "overrides:3: a target has at most"},
		{file(2, good, long("target", maxTarget+1)), "overrides:3: a target has at most"},
		{file(2, good, long("x", maxLine)), "overrides:3: there are more than"},
		{file(MaxEntries+1, slices.Repeat([]string{good}, MaxEntries+1)...), "overrides:10002: there are more than"},
	} {
		list, err := decode(c.file)
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), c.says) || list != nil {
			t.Errorf("%.200q: %v, want %q", c.file, err, c.says)
		}
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, fileName), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Open(root(t, dir))
	if !errors.Is(err, ErrDamaged) {
		t.Fatalf("a pipe: %v", err)
	}
	if err := s.Put(suspension("a.test", time.Time{}), now); err != nil {
		t.Error(err)
	}
	s.Close()
	if s := open(t, dir); len(s.Entries(now)) != 1 {
		t.Error("what was put in place of a pipe is not there")
	}
}

// What is put has the same bounds, so that it can be read again.
func TestPutBounds(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for name, e := range map[string]Entry{
		"no kind": {Target: "a.test"}, "no target": {Kind: Suspension}, "a reason": {Kind: Suspension, Target: "a", Reason: strings.Repeat("x", MaxReason+1)},
		"a target": {Kind: Suspension, Target: strings.Repeat("x", maxTarget+1)}, "a name": {Kind: Suspension, Target: "a", By: strings.Repeat("x", maxBy+1)},
		"no number": {Kind: Limit, Target: "a"}, "a large number": {Kind: Limit, Target: "a", Most: MaxMost + 1}, "a negative number": {Kind: Limit, Target: "a", Most: -1},
		"no next hop": {Kind: Diversion, Target: "a"}, "a long next hop": {Kind: Diversion, Target: "a", Nexthop: strings.Repeat("x", maxTarget+1)}, "a next hop that is no UTF-8": {Kind: Diversion, Target: "a", Nexthop: "\xff"},
		"a suspension with a number": {Kind: Suspension, Target: "a", Most: 1}, "a suspension that raises": {Kind: Suspension, Target: "a", Raises: true},
		"no UTF-8": {Kind: Suspension, Target: "a", Reason: "\xff"},
	} {
		if err := s.Put(e, now); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	worst := Entry{Kind: Suspension, Target: strings.Repeat("\x01", maxTarget), By: strings.Repeat("\x01", maxBy), Reason: strings.Repeat("\x01", MaxReason), Since: now, Until: now.Add(time.Hour)}
	if b, err := encode([]Entry{worst}); err != nil {
		t.Error(err)
	} else if list, err := decode(b); err != nil || !reflect.DeepEqual(list, []Entry{worst}) {
		t.Errorf("the longest entry: %v", err)
	}
	s.Close()
}

// Entries of a kind that a later version has made are kept with all that they say.
func TestOtherKinds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	later := `{"kind":"later","target":"a.test","by":"ann","since":"2026-11-23T12:00:00Z","deliveries":7}`
	if err := os.WriteFile(filepath.Join(dir, fileName), file(1, later), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if err := s.Put(suspension("b.test", time.Time{}), now); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if b, err := os.ReadFile(filepath.Join(dir, fileName)); err != nil || !strings.Contains(string(b), "\n"+later+"\n") {
		t.Errorf("%q, %v", b, err)
	}
	s = open(t, dir)
	if found, err := s.Remove("later", "a.test", now); !found || err != nil || len(s.Entries(now)) != 1 {
		t.Error(found, err)
	}
	s.Close()
}

func FuzzDecode(f *testing.F) {
	good, _ := encode([]Entry{suspension("a.test", now)})
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		if list, err := decode(b); err == nil {
			again, err := encode(list)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := decode(again); err != nil {
				t.Fatal(err)
			}
		}
	})
}
