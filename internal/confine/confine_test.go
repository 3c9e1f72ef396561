package confine

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMark(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		do      func(path string) error
		changed bool
	}{
		{"nothing", func(string) error { return nil }, false},
		{"read", func(p string) error { _, err := os.ReadFile(p); return err }, false},
		{"written to", func(p string) error { return os.WriteFile(p, []byte("longer than before"), 0o600) }, true},
		{"touched", func(p string) error { return os.Chtimes(p, time.Now(), time.Now().Add(time.Second)) }, true},
		{"removed", os.Remove, true},
		{"replaced", func(p string) error {
			if err := os.WriteFile(p+".new", []byte("before"), 0o600); err != nil {
				return err
			}
			return os.Rename(p+".new", p)
		}, true},
		{"link read", func(p string) error { _, err := os.ReadFile(p); return err }, false},
		{"link changed", func(p string) error {
			if err := os.Symlink(filepath.Join(filepath.Dir(p), "other"), p+".new"); err != nil {
				return err
			}
			return os.Rename(p+".new", p)
		}, true},
		{"link, whose file is written to", func(p string) error { return os.WriteFile(p, []byte("longer than before"), 0o600) }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "f")
			file := path
			if strings.HasPrefix(tc.name, "link") { // as programs that renew certificates have it
				file += "1"
				if err := os.Symlink(file, path); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
			var replaced []string
			c := New(func(p string) { replaced = append(replaced, p) })
			m := c.Mark(path)
			if m == nil {
				t.Fatal("no mark")
			}
			defer m.Close()
			c.Begin(true)
			if err := tc.do(path); err != nil {
				t.Fatal(err)
			}
			if m.Changed() != tc.changed {
				t.Errorf("Changed() = %v", !tc.changed)
			}
			c.Restart([]*Mark{nil, m})
			c.Restart([]*Mark{m})
			if want := fmt.Sprint(map[bool][]string{true: {path}}[tc.changed]); fmt.Sprint(replaced) != want {
				t.Errorf("replaced for %v, want %v", replaced, want)
			}
		})
	}
}

func TestLost(t *testing.T) {
	t.Parallel()
	denied := fmt.Errorf("open: %w", fs.ErrPermission)
	var none *Confinement
	if none.Lost(denied) || none.Jailed() || none.Mark("/") != nil {
		t.Error("a process that keeps its rights is taken for one that lost them")
	}
	c := New(nil)
	if c.Lost(denied) || c.Mark("/nonexistent") != nil {
		t.Error("lost before it was given up")
	}
	c.Begin(false)
	if c.Lost(nil) || !c.Lost(denied) || c.Lost(fs.ErrNotExist) || c.Jailed() {
		t.Error("an ordinary user lacks permission, and nothing else")
	}
	c.Begin(true)
	if c.Lost(nil) || !c.Lost(fs.ErrNotExist) || !c.Jailed() {
		t.Error("inside chroot every path is lost")
	}
	if c.Mark("/") != nil {
		t.Error("a mark made inside chroot")
	}
}
