package mtasts

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/statedir"
)

// kept lists a directory.
func kept(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range list {
		names = append(names, d.Name())
	}
	return strings.Join(names, " ")
}

// published is the policy of every domain; DAYS is the number in its name.
type published string

func (p published) RoundTrip(r *http.Request) (*http.Response, error) {
	days := strings.TrimSuffix(strings.TrimPrefix(r.URL.Host, "mta-sts.d"), ".test")
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/plain"}},
		Body: io.NopCloser(strings.NewReader(strings.ReplaceAll(string(p), "DAYS", days)))}, nil
}

// The directory has the policies that count, however long the process lives.
func TestSweepDaily(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var zone strings.Builder
		for _, d := range []string{"1", "2", "9"} { // days: the policy's max_age
			fmt.Fprintf(&zone, "_mta-sts.d%s.test. 0 TXT \"v=STSv1; id=1\"\n", d)
		}
		dns := fakezone.Must(zone.String()).Resolver()
		defer dns.Close()
		tab := New(Options{Dir: dir, Resolver: dns, Client: &http.Client{Transport: published("version: STSv1\nmode: enforce\nmx: a.test\nmax_age: DAYS00000\n")},
			Warn: func(text string) { t.Error(text) }})
		defer tab.Close()
		fetch := func(domain, want string) {
			t.Helper()
			if p, err := tab.Policy(context.Background(), domain); p == nil || err != nil {
				t.Fatal(p, err)
			}
			if got := kept(t, dir); got != want {
				t.Errorf("after %s: %s, want %s", domain, got, want)
			}
		}
		fetch("d1.test", "d1.test.json")
		time.Sleep(23 * time.Hour)
		fetch("d9.test", "d1.test.json d9.test.json")
		time.Sleep(24 * time.Hour) // the first one's 100,000 seconds are over
		fetch("d2.test", "d2.test.json d9.test.json")
	})
}

func TestSweep(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	entryFor := func(expires time.Time) string {
		return fmt.Sprintf(`{"id":"1","policy":{"mode":"enforce","mx":["a.test"],"max_age":1},"expires":%q}`, expires.Format(time.RFC3339))
	}
	good, over := entryFor(now.Add(time.Hour)), entryFor(now)
	for _, tt := range []struct {
		files  int
		octets int64
		want   string
	}{
		{10, 1 << 20, "a.json b.json c.json new-young other"},
		{2, 1 << 20, "a.json c.json new-young other"},
		{10, int64(len(good)), "c.json new-young other"},
		{0, 1 << 20, "new-young other"},
	} {
		dir := t.TempDir()
		for name, f := range map[string]struct {
			text string
			used time.Duration // ago
		}{
			"b.json": {good, 1000 * time.Hour}, "a.json": {good, 2 * time.Hour}, "c.json": {good, time.Hour}, "over.json": {over, 0},
			"torn.json": {"{", 0}, "empty.json": {"", 0}, "new-old": {good, 2 * time.Hour}, "new-young": {"", time.Minute}, "other": {"", 1000 * time.Hour},
		} {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(f.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, now, now.Add(-f.used)); err != nil {
				t.Fatal(err)
			}
		}
		root, err := statedir.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		tab := &Table{dir: root}
		if err := tab.sweep(now, tt.files, tt.octets); err != nil {
			t.Fatal(err)
		}
		if got := kept(t, dir); got != tt.want {
			t.Errorf("%d files, %d octets: %s, want %s", tt.files, tt.octets, got, tt.want)
		}
		root.Close()
	}
}

// A policy that is used, if only from memory, is not among the longest unused.
func TestTouch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		dns := fakezone.Must("").Resolver() // the records have gone; what is known counts
		defer dns.Close()
		tab := New(Options{Dir: dir, Resolver: dns})
		defer tab.Close()
		synctest.Wait()
		e := &entry{ID: "1", Policy: &Policy{Mode: Enforce}, Expires: time.Now().Add(1000 * time.Hour)}
		var used []int
		for _, domain := range []string{"a.test", "b.test"} {
			tab.save(domain, e, time.Now())
		}
		start := time.Now()
		for range 5 {
			time.Sleep(13 * time.Hour)
			if p, err := tab.Policy(context.Background(), "a.test"); p == nil || err != nil {
				t.Fatal(p, err)
			}
			fi, err := os.Stat(filepath.Join(dir, "a.test.json"))
			if err != nil {
				t.Fatal(err)
			}
			used = append(used, int(fi.ModTime().Sub(start)/time.Hour))
		}
		if want := []int{13, 13, 39, 39, 65}; !slices.Equal(used, want) {
			t.Errorf("in use at %v hours, want %v", used, want)
		}
		if err := tab.sweep(time.Now(), 1, 1<<20); err != nil || kept(t, dir) != "a.test.json" {
			t.Errorf("%v: %s is kept", err, kept(t, dir))
		}
	})
}
