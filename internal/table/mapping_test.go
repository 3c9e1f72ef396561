package table

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMapAddress(t *testing.T) {
	t.Parallel()
	m := OpenMaps("test_maps", []string{`inline:{{u@x.test=a, "b c"@d.test}, {@y.test=@z.test}, {n@x.test=<>}, {bad@x.test=,}, {q@x.test=@z.test}}`}, Options{})
	rewrite := func(a string) string {
		if !strings.Contains(a, "@") {
			a += "@origin.test"
		}
		return a
	}
	for _, tc := range []struct {
		addr      string
		propagate bool
		want      string
	}{
		{"u@x.test", true, "a@origin.test|b c@d.test"},
		{"u+e@x.test", true, "a+e@origin.test|b c+e@d.test"},
		{"u+e@x.test", false, "a@origin.test|b c@d.test"},
		{"v w+e@y.test", true, "v w+e@z.test"},
		{"q+e@x.test", true, "q+e@z.test"},
		{"q+e@x.test", false, "q@z.test"},
		{"n@x.test", true, ""},
		{"none@x.test", true, "-"},
		{"bad@x.test", true, "!"},
	} {
		list, found, err := m.MapAddress(context.Background(), testSearch("+"), tc.addr, tc.propagate, rewrite)
		got := strings.Join(list, "|")
		if err != nil {
			got = "!"
		} else if !found {
			got = "-"
		}
		if got != tc.want {
			t.Errorf("%q: got %q, want %q (%v)", tc.addr, got, tc.want, err)
		}
	}
}

// TestFormat: a file built by the first version is read, and the same entries
// make the same file: the format is on other people's disks.
func TestFormat(t *testing.T) {
	t.Parallel()
	pairs := []string{"user@example.com", "other@example.org", "empty", "", "", "no key", "\u00fc", "utf-8"}
	path := filepath.Join(t.TempDir(), "t")
	build(t, "hash", path, pairs...)
	got, err := os.ReadFile(path + Suffix)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE_FORMAT") != "" {
		writeAll(t, "testdata/v1"+Suffix, string(got))
	}
	want, err := os.ReadFile("testdata/v1" + Suffix)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("the format has changed: %d bytes, were %d", len(got), len(want))
	}
	tab := open(t, "hash:testdata/v1", Options{})
	for i := 0; i < len(pairs); i += 2 {
		if got := ask(tab, pairs[i]); got != pairs[i+1] {
			t.Errorf("%q: %q", pairs[i], got)
		}
	}
}
