package table

import (
	"context"
	"fmt"
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
