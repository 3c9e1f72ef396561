package table

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Changes sees a file that changes, one that appears, and what it cannot see.
func TestChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old := time.Now().Add(-time.Hour)
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		old = old.Add(time.Second)
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var c Changes
	o := Options{Changes: &c, Recheck: time.Hour}
	text := write("text", "a b\n")
	missing := filepath.Join(dir, "missing")
	m := OpenMaps("m", []string{"texthash:" + text, "inline:{x=y}", "static:z"}, o)
	defer m.Close()
	first := c.Look()
	if again := c.Look(); again != first || c.Revision() != first || c.Blind() {
		t.Fatalf("nothing has changed: %d, then %d; blind: %v", first, again, c.Blind())
	}
	write("text", "a c\n")
	if c.Revision() != first {
		t.Error("a change was seen without a look")
	}
	second := c.Look()
	if second == first {
		t.Error("a file that has changed was not seen")
	}
	if v, _, err := m.Lookup(t.Context(), "a", false); v != "c" || err != nil {
		t.Errorf("after the look a is %q, %v", v, err)
	}
	// A combined table of which a part is missing leaves nothing of its other parts.
	if _, err := Open("unionmap:{texthash:"+text+", texthash:"+missing+"}", o); err == nil {
		t.Fatal("there is a table of a missing file")
	}
	if n := len(c.files); n != 1 {
		t.Errorf("%d files are watched, want 1", n)
	}
	write("missing", "d e\n")
	if tab, err := Open("unionmap:{texthash:"+text+", texthash:"+missing+"}", o); err != nil {
		t.Fatal(err)
	} else {
		defer tab.Close()
	}
	if n := len(c.files); n != 3 || c.Revision() == second {
		t.Errorf("%d files are watched, want 3; revision %d, before %d", n, c.Revision(), second)
	}
	if tab, err := Open("pipemap:{inline:{x=y}, randmap:{1,2}}", o); err != nil || !c.Blind() {
		t.Errorf("chance is not known to be one: %v", err)
	} else {
		tab.Close()
	}
}

// Each type that there is has been thought of.
func TestChangesTypes(t *testing.T) {
	t.Parallel()
	blind := map[string]bool{"ldap": true, "memcache": true, "mongodb": true, "mysql": true, "pgsql": true, "sqlite": true,
		"randmap": true, "socketmap": true, "suppress": true, "tcp": true, "unix": true}
	for _, kind := range Types() {
		if sees(kind) == blind[kind] {
			t.Errorf("%s: changes are seen: %v", kind, sees(kind))
		}
	}
}
