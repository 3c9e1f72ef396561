package table

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestConcurrentReload replaces tables while many look things up: each lookup
// sees one version or another, whole.
func TestConcurrentReload(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"hash", "cdb"} {
		path := filepath.Join(t.TempDir(), "t")
		pairs := func(version int) []string {
			var p []string
			for i := range 200 {
				p = append(p, fmt.Sprint("k", i), fmt.Sprint("v", version, ".", i))
			}
			return p
		}
		build(t, kind, path, pairs(0)...)
		tab := open(t, kind+":"+path, Options{Recheck: -1})
		const versions = 20
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				last := 0
				for i := g; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					n := i % 200
					value, found, err := tab.Lookup(context.Background(), fmt.Sprint("k", n))
					if err != nil || !found {
						t.Errorf("%s: %v %v", kind, found, err)
						return
					}
					var version, key int
					if _, err := fmt.Sscanf(value, "v%d.%d", &version, &key); err != nil || key != n || version < last {
						t.Errorf("%s: k%d is %q after version %d", kind, n, value, last)
						return
					}
					last = version
				}
			})
		}
		for v := 1; v <= versions; v++ {
			build(t, kind, path, pairs(v)...)
		}
		close(stop)
		wg.Wait()
		if got, want := ask(tab, "k7"), fmt.Sprint("v", versions, ".7"); got != want {
			t.Errorf("%s: got %q, want %q", kind, got, want)
		}
	}
}

// TestReopen: a table that could not be opened is tried again, but not with
// every lookup.
func TestReopen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "t")
		m := OpenMaps("x", []string{"texthash:" + path}, Options{})
		lookup := func() string {
			value, found, err := m.Lookup(context.Background(), "k", false)
			if err != nil {
				return "!"
			}
			if !found {
				return "-"
			}
			return value
		}
		writeAll(t, path, "k v\n")
		if got := lookup(); got != "!" {
			t.Errorf("at once: %q", got)
		}
		time.Sleep(reopenAfter)
		if got := lookup(); got != "v" {
			t.Errorf("later: %q", got)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A table is read again also after the clock has been set back.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "t")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("old")
	w, err := newWatched(path, Options{Recheck: time.Hour}, func(path string) (string, error) {
		b, err := os.ReadFile(path)
		return string(b), err
	})
	if err != nil {
		t.Fatal(err)
	}
	write("changed")
	if v, err := w.get(); v != "old" || err != nil {
		t.Errorf("%q %v within the interval", v, err)
	}
	w.next.Store(time.Now().AddDate(1, 0, 0).UnixNano())
	if v, err := w.get(); v != "changed" || err != nil {
		t.Errorf("%q %v after the clock was set back by a year", v, err)
	}
}
