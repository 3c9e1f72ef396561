package statedir

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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

// What the owner of the directory has planted in it leads root nowhere: a file of
// root's keeps owner, mode and content, whatever is done with the names.
func TestPlanted(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: nobody else's directory can be made")
	}
	for _, tt := range []struct {
		name  string
		plant func(dir, secret string) error
		calls func(d *Dir) // all may fail
	}{
		{"a link to a file", func(dir, secret string) error { return os.Symlink(secret, filepath.Join(dir, "x")) }, write},
		{"a link to a file, where a new one is written", func(dir, secret string) error { return os.Symlink(secret, filepath.Join(dir, "x.new")) }, replace},
		{"a second name, where a new one is written", func(dir, secret string) error { return os.Link(secret, filepath.Join(dir, "x.new")) }, replace},
		{"a second name", func(dir, secret string) error { return os.Link(secret, filepath.Join(dir, "x")) }, write},
		{"a link to a directory", func(dir, secret string) error { return os.Symlink(filepath.Dir(secret), filepath.Join(dir, "sub")) }, func(d *Dir) {
			d.WriteFile("sub/secret", []byte("y"), 0o666)
			d.Mkdir("sub/new", 0o700)
			d.Remove("sub/secret")
			d.Rename("sub/secret", "x")
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			parent, err := os.MkdirTemp("/tmp", "state")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(parent) })
			secrets, state := filepath.Join(parent, "secrets"), filepath.Join(parent, "state")
			secret := filepath.Join(secrets, "secret")
			if err := errors.Join(os.Chmod(parent, 0o755), os.Mkdir(secrets, 0o755), os.Mkdir(state, 0o700), os.Chown(state, 12345, 23456),
				os.WriteFile(secret, []byte("secret"), 0o600), tt.plant(state, secret)); err != nil {
				t.Fatal(err)
			}
			d, err := Open(state)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if text, err := d.ReadFile("x"); err == nil {
				t.Errorf("read %q", text)
			}
			tt.calls(d)
			fi, err := os.Lstat(secret)
			if err != nil {
				t.Fatal(err)
			}
			st := fi.Sys().(*syscall.Stat_t)
			text, err := os.ReadFile(secret)
			if st.Uid != 0 || fi.Mode() != 0o600 || string(text) != "secret" || err != nil {
				t.Errorf("%d's, mode %v, %q, %v", st.Uid, fi.Mode(), text, err)
			}
			if list, err := os.ReadDir(secrets); len(list) != 1 || err != nil {
				t.Errorf("beside it: %v, %v", list, err)
			}
			// And the directory still serves.
			if err := d.WriteFile("good", []byte("z"), 0o600); err != nil {
				t.Error(err)
			}
			if fi, err := os.Stat(filepath.Join(state, "good")); err != nil || fi.Sys().(*syscall.Stat_t).Uid != 12345 {
				t.Errorf("%v, %v", fi, err)
			}
		})
	}
	// A directory above that leads elsewhere.
	parent, err := os.MkdirTemp("/tmp", "state")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	data, private := filepath.Join(parent, "data"), filepath.Join(parent, "private")
	if err := errors.Join(os.Chmod(parent, 0o755), os.Mkdir(data, 0o700), os.Mkdir(private, 0o700), os.Symlink(private, filepath.Join(data, "sub")),
		os.Lchown(filepath.Join(data, "sub"), 12345, 23456), os.Chown(data, 12345, 23456)); err != nil {
		t.Fatal(err)
	}
	if d, err := Open(filepath.Join(data, "sub", "new")); err == nil {
		d.Close()
		t.Error("made a directory where the owner of the one above had led it")
	}
}

func write(d *Dir) {
	d.WriteFile("x", []byte("y"), 0o666)
	if f, err := d.OpenFile("x", os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o666); err == nil {
		f.WriteString("y")
		f.Close()
	}
	d.Chtimes("x", time.Unix(1, 0), time.Unix(1, 0))
	d.Rename("x", "y")
}

func replace(d *Dir) {
	d.Replace("x", []byte("y"))
	d.ReplaceDurably("x", []byte("y"))
}

// A file that is replaced has the new content and mode, whatever an attempt before has left;
// the old one is still whole for its reader, and there when the new one cannot be written.
func TestReplace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state")
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := errors.Join(d.Mkdir("sub", 0o700), d.WriteFile("sub/x"+newSuffix, []byte("what an attempt has left"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, replace := range map[string]func(string, []byte) error{"x": d.Replace, "sub/x": d.ReplaceDurably} {
		if err := replace(name, []byte("one")); err != nil {
			t.Fatal(err)
		}
		reader, err := d.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer reader.Close()
		if err := replace(name, []byte("two")); err != nil {
			t.Fatal(err)
		}
		if text, err := d.ReadFile(name); err != nil || string(text) != "two" {
			t.Errorf("%s: %q, %v", name, text, err)
		}
		if text, err := io.ReadAll(reader); err != nil || string(text) != "one" {
			t.Errorf("%s, opened before: %q, %v", name, text, err)
		}
		if fi, err := d.Lstat(name); err != nil || fi.Mode() != 0o600 {
			t.Error(name, fi, err)
		}
		if _, err := d.Lstat(name + newSuffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s%s is left: %v", name, newSuffix, err)
		}
		if err := d.Mkdir(name+newSuffix, 0o700); err != nil { // which no file takes the place of
			t.Fatal(err)
		}
		if err := replace(name, []byte("three")); err == nil {
			t.Errorf("%s: written to a directory", name)
		}
		if text, err := d.ReadFile(name); err != nil || string(text) != "two" {
			t.Errorf("%s, after an error: %q, %v", name, text, err)
		}
	}
}
