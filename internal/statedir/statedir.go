// Package statedir opens directories in which a service keeps what it learns.
//
// A service opens its files before it gives up the rights of root and its view
// of the file system; what it opens here can be written to afterwards, by the
// user that it then is, and from inside a chroot.
//
// # Security
//
// data_directory is the mail system's user's. What root did in it by name, that
// user could lead elsewhere, with a symbolic link or with a second name of a file of
// root's. So a process of root's does everything here with the file rights of the
// directory's owner (package rights), to whom the files then belong as well.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/rights"
)

// A Dir is such a directory. Names are relative to it and never lead out of it.
// Methods may be called concurrently.
type Dir struct {
	root *os.Root
	who  rights.Rights // whose the directory is
}

// Open makes a directory, if it does not exist, and opens it. What root makes
// belongs to the owner of the directory above it.
func Open(path string) (*Dir, error) {
	above, who, err := rights.OpenDirectory(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer above.Close()
	d := &Dir{who: who}
	err = who.Do(func() error {
		err := unix.Mkdirat(int(above.Fd()), filepath.Base(path), 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return &fs.PathError{Op: "mkdir", Path: path, Err: err}
		}
		fd, err := unix.Openat(int(above.Fd()), filepath.Base(path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &fs.PathError{Op: "open", Path: path, Err: err}
		}
		dir := os.NewFile(uintptr(fd), path)
		defer dir.Close()
		d.root, err = os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", fd)) // path could be another by now
		return err
	})
	if err != nil || !who.IsOwn() {
		return d.unless(err)
	}
	self, err := d.root.Open(".")
	if err == nil {
		d.who, err = rights.OfDirectory(self)
		self.Close()
	}
	return d.unless(err)
}

// unless returns the directory, or closes it for an error.
func (d *Dir) unless(err error) (*Dir, error) {
	if err == nil {
		return d, nil
	}
	if d.root != nil {
		d.root.Close()
	}
	return nil, err
}

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Open is os.Root.Open.
func (d *Dir) Open(name string) (*os.File, error) { return d.OpenFile(name, os.O_RDONLY, 0) }

// OpenFile is os.Root.OpenFile.
func (d *Dir) OpenFile(name string, flag int, perm os.FileMode) (f *os.File, err error) {
	err = d.who.Do(func() error {
		f, err = d.root.OpenFile(name, flag, perm)
		return err
	})
	return f, err
}

// ReadFile is os.Root.ReadFile.
func (d *Dir) ReadFile(name string) (text []byte, err error) {
	err = d.who.Do(func() error {
		text, err = d.root.ReadFile(name)
		return err
	})
	return text, err
}

// ReadIfThere is ReadFile, but that a file that is not there is read as an empty one.
func (d *Dir) ReadIfThere(name string) ([]byte, error) {
	text, err := d.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return text, err
}

// WriteFile is os.Root.WriteFile.
func (d *Dir) WriteFile(name string, text []byte, perm os.FileMode) error {
	return d.who.Do(func() error { return d.root.WriteFile(name, text, perm) })
}

// newSuffix is added to the name of a file that is written to take another's place.
const newSuffix = ".new"

// Replace writes a file with mode 0600, and gives it the name. A file that had the name is
// gone then. A reader sees the old file or the new one, whole; after a power cut it may be
// neither. While it is written the file's name ends in ".new", so that there must be one
// writer at a time. On an error the file that has the name is as it was.
func (d *Dir) Replace(name string, text []byte) error { return d.replace(name, text, false) }

// ReplaceDurably is Replace, and on return the file is on stable storage under its name. A
// power cut before that leaves the old file or the new one, whole. On an error of the
// directory's sync it may be either.
func (d *Dir) ReplaceDurably(name string, text []byte) error { return d.replace(name, text, true) }

func (d *Dir) replace(name string, text []byte, durably bool) error {
	return d.who.Do(func() error {
		f, err := d.root.OpenFile(name+newSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(text)
		if err == nil && durably {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err == nil {
			err = d.root.Rename(name+newSuffix, name)
		}
		if err != nil || !durably {
			return err
		}
		above, err := d.root.Open(filepath.Dir(name))
		if err != nil {
			return err
		}
		return errors.Join(above.Sync(), above.Close())
	})
}

// Mkdir is os.Root.Mkdir.
func (d *Dir) Mkdir(name string, perm os.FileMode) error {
	return d.who.Do(func() error { return d.root.Mkdir(name, perm) })
}

// Rename is os.Root.Rename.
func (d *Dir) Rename(from, to string) error {
	return d.who.Do(func() error { return d.root.Rename(from, to) })
}

// Link is os.Root.Link.
func (d *Dir) Link(from, to string) error {
	return d.who.Do(func() error { return d.root.Link(from, to) })
}

// Remove is os.Root.Remove.
func (d *Dir) Remove(name string) error {
	return d.who.Do(func() error { return d.root.Remove(name) })
}

// Chtimes is os.Root.Chtimes.
func (d *Dir) Chtimes(name string, access, modified time.Time) error {
	return d.who.Do(func() error { return d.root.Chtimes(name, access, modified) })
}

// Lstat is os.Root.Lstat.
func (d *Dir) Lstat(name string) (fi os.FileInfo, err error) {
	err = d.who.Do(func() error {
		fi, err = d.root.Lstat(name)
		return err
	})
	return fi, err
}

// ReadDir lists a directory in the directory, or itself: ".".
func (d *Dir) ReadDir(name string) (list []fs.DirEntry, err error) {
	err = d.who.Do(func() error {
		list, err = fs.ReadDir(d.root.FS(), name)
		return err
	})
	return list, err
}

// Glob is fs.Glob in the directory.
func (d *Dir) Glob(pattern string) (list []string, err error) {
	err = d.who.Do(func() error {
		list, err = fs.Glob(d.root.FS(), pattern)
		return err
	})
	return list, err
}
