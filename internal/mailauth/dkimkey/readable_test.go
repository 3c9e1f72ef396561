package dkimkey

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadable: root, who can read everything, is told what the mail system's user cannot. Another
// user is told what it cannot read itself.
func TestReadable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "key.pem")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	root := os.Getuid() == 0
	for _, c := range []struct {
		mode os.FileMode
		want bool
	}{{0o644, true}, {0o600, !root}, {0, false}} {
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		err := Readable(file, "nobody")
		if got := err == nil; got != c.want {
			t.Errorf("mode %04o: %v", c.mode, err)
		}
		if err != nil && !strings.Contains(err.Error(), "nobody, the user of the mail system, cannot read the key: open "+file+": permission denied") {
			t.Errorf("mode %04o: %v", c.mode, err)
		}
	}
	if err := Readable(file, "posthaste-nobody-has-this-name"); err == nil {
		t.Error("somebody who does not exist can read it")
	}
}
