package postconf

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// EditFile replaces the text of a file by what edit makes of it. The new text is
// written to a temporary file beside the old one, made durable, and renamed; owner and
// mode stay. The temporary file's lock keeps two edits apart. If edit fails
// nothing changes. It may be called concurrently.
func EditFile(name string, edit func(text string) (string, error)) (err error) {
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	tmp, err := lockTemporary(target + ".tmp")
	if err != nil {
		return err
	}
	renamed := false
	defer func() {
		if err != nil && !renamed {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
		if e := tmp.Close(); err == nil {
			err = e
		}
	}()
	old, err := os.Open(target)
	if err != nil {
		return err
	}
	defer old.Close() // read only
	info, err := old.Stat()
	if err != nil {
		return err
	}
	text, err := io.ReadAll(old)
	if err != nil {
		return err
	}
	changed, err := edit(string(text))
	if err != nil {
		return err
	}
	if err := writeLike(tmp, info, changed); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), target); err != nil {
		return err
	}
	renamed = true
	return syncDir(filepath.Dir(target))
}

// lockTemporary creates the temporary file, or takes over the one that an
// interrupted edit left, once nobody else holds it.
func lockTemporary(name string) (*os.File, error) {
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("%w (an edit needs write access to the directory)", err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
		}
		// The edit that held the lock has renamed this file away.
		mine, err1 := f.Stat()
		there, err2 := os.Lstat(name)
		if err1 == nil && err2 == nil && os.SameFile(mine, there) {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// writeLike makes text the content of f, with the owner and mode of info.
func writeLike(f *os.File, info os.FileInfo, text string) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil && os.Geteuid() == 0 {
			return err
		}
	}
	if err := f.Chmod(info.Mode().Perm()); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
