package statedir

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestOpen(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	root := os.Geteuid() == 0
	if root {
		if err := os.Chown(parent, 12345, 23456); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(parent, "state")
	for range 2 {
		d, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.WriteFile("x", []byte("y"), 0o600); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o700 {
		t.Fatal(fi, err)
	}
	if st := fi.Sys().(*syscall.Stat_t); root && (st.Uid != 12345 || st.Gid != 23456) {
		t.Errorf("it is %d:%d's", st.Uid, st.Gid)
	}
	if _, err := Open(filepath.Join(parent, "a", "b")); err == nil {
		t.Error("a directory in one that does not exist")
	}
}
