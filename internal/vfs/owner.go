//go:build linux

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"posthaste/internal/rights"
)

// ownersFS is what OfOwner returns.
type ownersFS struct {
	os  OS
	dir string
	who atomic.Pointer[rights.Rights] // nil: not known yet, as there is no directory
}

// OfOwner is the operating system's file system for what is in dir. In a process of
// root's everything is done with the file rights of dir's owner, to whom new files then
// belong: what root did by name in a directory of the mail system's user, that user could
// lead elsewhere, with a symbolic link for one. In other processes it is [OS].
//
// dir need not exist; what is above it is then asked for the owner.
func OfOwner(dir string) FS {
	if !rights.Switching() {
		return OS{}
	}
	return &ownersFS{dir: dir}
}

// as calls f with the owner's rights.
func (o *ownersFS) as(f func() error) error {
	who := o.who.Load()
	if who == nil {
		r, found, err := ownerOf(o.dir)
		if err != nil {
			return err
		}
		if who = &r; found {
			o.who.Store(who)
		}
	}
	return who.Do(f)
}

// ownerOf says whose rights are used in dir, and whether that is for good.
func ownerOf(dir string) (who rights.Rights, found bool, err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return who, false, err
	}
	for found = true; ; found = false {
		f, who, err := rights.OpenDirectory(dir)
		if err == nil {
			return who, found, f.Close()
		}
		if above := filepath.Dir(dir); errors.Is(err, fs.ErrNotExist) && above != dir {
			dir = above
			continue
		}
		return who, false, err
	}
}

// file is as for what gives a file.
func (o *ownersFS) file(open func() (File, error)) (f File, err error) {
	err = o.as(func() error {
		f, err = open()
		return err
	})
	return f, err
}

func (o *ownersFS) Open(name string) (File, error) {
	return o.file(func() (File, error) { return o.os.Open(name) })
}

func (o *ownersFS) OpenWrite(name string) (File, error) {
	return o.file(func() (File, error) { return o.os.OpenWrite(name) })
}

func (o *ownersFS) OpenShared(name string) (File, error) {
	return o.file(func() (File, error) { return o.os.OpenShared(name) })
}

func (o *ownersFS) OpenIdle(name string) (File, error) {
	return o.file(func() (File, error) { return o.os.OpenIdle(name) })
}

func (o *ownersFS) Create(name string) (File, error) {
	return o.file(func() (File, error) { return o.os.Create(name) })
}

func (o *ownersFS) CreateTemp(dir string) (File, error) {
	f, err := o.file(func() (File, error) { return o.os.CreateTemp(dir) })
	if f, ok := f.(*osFile); ok && f.hide != "" {
		f.remove = func(name string) error { return o.Remove(name) }
	}
	return f, err
}

func (o *ownersFS) Link(f File, name string) error {
	return o.as(func() error { return o.os.Link(f, name) })
}

func (o *ownersFS) Rename(from, to string) error {
	return o.as(func() error { return o.os.Rename(from, to) })
}

func (o *ownersFS) Remove(name string) error {
	return o.as(func() error { return o.os.Remove(name) })
}

func (o *ownersFS) List(dir string) (names []string, err error) {
	err = o.as(func() error {
		names, err = o.os.List(dir)
		return err
	})
	return names, err
}

func (o *ownersFS) MkdirAll(dir string) error {
	return o.as(func() error { return o.os.MkdirAll(dir) })
}

func (o *ownersFS) SyncDir(dir string) error {
	return o.as(func() error { return o.os.SyncDir(dir) })
}

func (o *ownersFS) Lock(name string) (c io.Closer, err error) {
	err = o.as(func() error {
		c, err = o.os.Lock(name)
		return err
	})
	return c, err
}

func (o *ownersFS) Free(dir string) (n int64, err error) {
	err = o.as(func() error {
		n, err = o.os.Free(dir)
		return err
	})
	return n, err
}

// regular refuses what is not a regular file: somebody has put it in its place.
func regular(f *os.File) error {
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: f.Name(), Err: errors.New("it is not a regular file")}
	}
	return err
}
