package tabletext

import (
	"os"
	"path/filepath"
	"testing"
)

// An entry of a table takes the place of the one before, whatever stands around it.
func TestSetEntry(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, want string }{
		{"", "a.test\tx\n"},
		{"# head\nb y", "# head\nb y\na.test\tx\n"},
		{"A.test old\n  more\nb y\na.test again\n", "a.test\tx\nb y\na.test again\n"},
		{"b y\na.test old\n# inside\n  more\n# after\n", "b y\na.test\tx\n# inside\n# after\n"},
	} {
		if got := setEntry(tt.text, "a.test", "x"); got != tt.want {
			t.Errorf("%q: %q, expected %q", tt.text, got, tt.want)
		}
	}
}

// A key that is removed is gone, however often it stands in the text, and comments stay.
func TestRemoveEntry(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, want string
		found      bool
	}{
		{"", "", false},
		{"# head\nb y\n", "# head\nb y\n", false},
		{"A.test old\n  more\nb y\na.test again\n", "b y\n", true},
		{"b y\na.test old\n# inside\n  more\n# after\n", "b y\n# inside\n# after\n", true},
	} {
		if got, found := removeEntry(tt.text, "a.test"); got != tt.want || found != tt.found {
			t.Errorf("%q: %q %v, expected %q", tt.text, got, found, tt.want)
		}
	}
}

// A new text is for those who may read it and nobody else; what is there stays.
func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "users")
	f := File{Spec: "texthash:" + path, Path: path}
	if err := f.Create("Users", 0o600, -1); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	for _, key := range []string{"ann", "joe"} {
		if err := f.Set(key, "x "+key); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Create("Users", 0o600, -1); err != nil {
		t.Fatal(err)
	}
	entries, err := f.Entries()
	if want := []Entry{{"ann", "x ann"}, {"joe", "x joe"}}; err != nil || len(entries) != 2 || entries[0] != want[0] || entries[1] != want[1] {
		t.Errorf("%v %v", entries, err)
	}
	if found, err := f.Remove("Ann"); !found || err != nil {
		t.Errorf("%v %v", found, err)
	}
	if _, found, err := f.Get("ann"); found || err != nil {
		t.Errorf("%v %v", found, err)
	}
	text, err := os.ReadFile(path)
	if want := "# Users\njoe\tx joe\n"; err != nil || string(text) != want {
		t.Errorf("%q %v", text, err)
	}
}
