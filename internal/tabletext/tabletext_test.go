package tabletext

import (
	"errors"
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

// What root writes is not for who controls the directory that it is written in.
func TestOurs(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may give a directory away")
	}
	dir := t.TempDir()
	ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
	for _, d := range []string{ours, theirs} {
		if err := errors.Join(os.Mkdir(d, 0o755), os.WriteFile(filepath.Join(d, "users"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Chown(theirs, 65534, 65534), os.Symlink("../theirs/users", filepath.Join(ours, "away")), os.Symlink("users", filepath.Join(ours, "here")))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"ours/users": true, "ours/new": true, "ours/here": true, "theirs/users": false, "theirs/new": false, "ours/away": false} {
		if err := (File{Path: filepath.Join(dir, path)}).Ours(); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
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
