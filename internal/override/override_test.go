package override

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
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
