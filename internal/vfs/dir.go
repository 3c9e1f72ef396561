//go:build linux

package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/rights"
)

// Dir is one directory of the operating system's file system, opened once: what is in it can be
// had after the process has given up the rights to get there by its path, and inside
// chroot. It is an FS for the names of files in it, as path and name together, and for no others; one
// of OpenTree has what is in its subdirectories, too.
//
// In a process of root's everything is done with the rights of the directory's owner, as
// with [OfOwner].
type Dir struct {
	f    *os.File
	path string
	who  *rights.Rights // the owner's; nil in a process that was not root's when it was opened
	deep bool           // what is below it in other directories belongs to it
}

var _ FS = (*Dir)(nil)

// OpenDir opens a directory, which must not be a symbolic link.
func OpenDir(path string) (*Dir, error) {
	path = filepath.Clean(path)
	if rights.Switching() {
		f, who, err := rights.OpenDirectory(path)
		if err != nil {
			return nil, err
		}
		return &Dir{f: f, path: path, who: &who}, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &Dir{f: f, path: path}, nil
}

// OpenTree is OpenDir for a directory with subdirectories, which are of the same FS. Whoever may make names in it
// can lead what is done by this FS elsewhere, as far as the rights of its owner go.
func OpenTree(path string) (*Dir, error) {
	d, err := OpenDir(path)
	if err == nil {
		d.deep = true
	}
	return d, err
}

// Close closes the directory. Files that were opened in it stay open.
func (d *Dir) Close() error { return d.f.Close() }

// as calls f with the rights of the directory's owner, if this is still a process of root's.
func (d *Dir) as(f func() error) error {
	if d.who == nil || !rights.Switching() {
		return f()
	}
	return d.who.Do(f)
}

// file is as for what gives a file.
func (d *Dir) file(open func() (File, error)) (f File, err error) {
	err = d.as(func() error {
		f, err = open()
		return err
	})
	return f, err
}

func (d *Dir) fd() int { return int(d.f.Fd()) }

// in says where name is: a file in the directory.
func (d *Dir) in(name string) (place, error) {
	rel, found := strings.CutPrefix(name, d.path+"/")
	if !found || filepath.Clean(name) != name || !d.deep && strings.Contains(rel, "/") {
		return place{}, &fs.PathError{Op: "open", Path: name, Err: fmt.Errorf("not in %s", d.path)}
	}
	return place{d.fd(), rel, name}, nil
}

// self is the directory itself, if dir is that, or one in its tree.
func (d *Dir) self(dir string) (place, error) {
	if dir = filepath.Clean(dir); dir != d.path {
		if d.deep {
			return d.in(dir)
		}
		return place{}, &fs.PathError{Op: "open", Path: dir, Err: fmt.Errorf("not %s", d.path)}
	}
	return place{d.fd(), ".", d.path}, nil
}

func (d *Dir) open(name string, flag int) (*osFile, error) {
	p, err := d.in(name)
	if err != nil {
		return nil, err
	}
	var f *osFile
	err = d.as(func() error {
		f, err = p.open(flag)
		return err
	})
	return f, err
}

// Open opens a file for reading.
func (d *Dir) Open(name string) (File, error) { return asFile(d.open(name, os.O_RDONLY)) }

// OpenWrite opens a file for reading and writing.
func (d *Dir) OpenWrite(name string) (File, error) { return asFile(d.open(name, os.O_RDWR)) }

// OpenShared is FS.OpenShared.
func (d *Dir) OpenShared(name string) (File, error) {
	p, err := d.in(name)
	if err != nil {
		return nil, err
	}
	return d.file(p.openShared)
}

// OpenIdle is FS.OpenIdle.
func (d *Dir) OpenIdle(name string) (File, error) {
	p, err := d.in(name)
	if err != nil {
		return nil, err
	}
	return d.file(p.openIdle)
}

// Create makes a file that must not exist.
func (d *Dir) Create(name string) (File, error) {
	return asFile(d.open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL))
}

// CreateTemp is FS.CreateTemp, for the directory itself, or one in its tree.
func (d *Dir) CreateTemp(dir string) (File, error) {
	p, err := d.self(dir)
	if err != nil {
		return nil, err
	}
	f, err := d.file(p.createTemp)
	if o, ok := f.(*osFile); ok && o.hide != "" {
		o.remove = func(string) error { return d.as(place{o.at, o.hide, o.hide}.remove) }
	}
	return f, err
}

// Link names a file made by CreateTemp.
func (d *Dir) Link(f File, name string) error {
	p, err := d.in(name)
	if err != nil {
		return err
	}
	return d.as(func() error { return p.link(f) })
}

// Rename is FS.Rename.
func (d *Dir) Rename(from, to string) error {
	p, err := d.in(from)
	if err != nil {
		return err
	}
	q, err := d.in(to)
	if err != nil {
		return err
	}
	return d.as(func() error { return p.rename(q) })
}

// Remove removes a file's name.
func (d *Dir) Remove(name string) error {
	p, err := d.in(name)
	if err != nil {
		return err
	}
	return d.as(p.remove)
}

// List lists the directory itself.
func (d *Dir) List(dir string) ([]string, error) {
	f, err := d.again(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// again opens the directory itself once more, to read it from its beginning.
func (d *Dir) again(dir string) (*os.File, error) {
	p, err := d.self(dir)
	if err != nil {
		return nil, err
	}
	var f *osFile
	err = d.as(func() error {
		f, err = p.open(os.O_RDONLY | unix.O_DIRECTORY)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f.File, nil
}

// MkdirAll finds the directory itself there, and makes no other but those in its tree.
func (d *Dir) MkdirAll(dir string) error {
	p, err := d.self(dir)
	if err != nil || p.name == "." {
		return err
	}
	err = d.as(func() error { return unix.Mkdirat(p.at, p.name, 0o700) })
	switch {
	case err == nil:
		return d.SyncDir(filepath.Dir(p.path))
	case errors.Is(err, fs.ErrExist):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		if err = d.MkdirAll(filepath.Dir(p.path)); err == nil {
			err = d.MkdirAll(p.path)
		}
		return err
	}
	return &fs.PathError{Op: "mkdir", Path: p.path, Err: err}
}

// SyncDir syncs the directory itself.
func (d *Dir) SyncDir(dir string) error {
	f, err := d.again(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	slowly()
	return f.Sync()
}

// Lock is FS.Lock.
func (d *Dir) Lock(name string) (io.Closer, error) {
	f, err := d.open(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	return lockFile(f.File, name)
}

// Free asks statfs, for the directory itself.
func (d *Dir) Free(dir string) (int64, error) {
	if _, err := d.self(dir); err != nil {
		return 0, err
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(d.fd(), &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return freeOf(&st), nil
}
