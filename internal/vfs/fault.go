package vfs

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
)

// OpKind is what an operation does.
type OpKind uint8

const (
	OpOpen OpKind = iota
	OpCreate
	OpTemp
	OpLink
	OpRename
	OpRemove
	OpList
	OpMkdir
	OpSyncDir
	OpRead
	OpWrite
	OpTruncate
	OpSync
	OpClose
)

var opNames = [...]string{"open", "create", "temp", "link", "rename", "remove", "list", "mkdir", "syncdir", "read", "write", "truncate", "sync", "close"}

func (k OpKind) String() string { return opNames[k] }

// Op is one operation, as a hook sees it before it happens.
type Op struct {
	Kind OpKind
	Name string
	Off  int64
	Len  int
}

// String prints op on one line, the directory's last element at most.
func (o Op) String() string {
	name := path.Join(path.Base(path.Dir(o.Name)), path.Base(o.Name))
	switch o.Kind {
	case OpTruncate:
		return fmt.Sprintf("%s %s %d", o.Kind, name, o.Off)
	case OpRead, OpWrite:
		return fmt.Sprintf("%s %s %d+%d", o.Kind, name, o.Off, o.Len)
	}
	return strings.TrimSpace(o.Kind.String() + " " + name)
}

// ErrCut is for a hook to return once the machine is off: what it stops has
// not happened in any way, so that Mem.Cut still sees what was pending.
var ErrCut = errors.New("vfs: power cut")

// Faulty passes operations on to FS when Hook, called before each, returns
// nil, and returns Hook's error otherwise. A failed write has not
// happened; a failed sync has, as far as a failed sync does. Hook may be
// called concurrently when the file system is used so.
type Faulty struct {
	FS   FS
	Hook func(Op) error
}

var _ FS = (*Faulty)(nil)

type faultyFile struct {
	File
	f    *Faulty
	mu   sync.Mutex
	name string
}

func (f *Faulty) hook(kind OpKind, name string) error {
	return f.Hook(Op{Kind: kind, Name: name})
}

func (f *Faulty) open(kind OpKind, name string, open func(name string) (File, error)) (File, error) {
	if err := f.hook(kind, name); err != nil {
		return nil, err
	}
	file, err := open(name)
	if err != nil {
		return nil, err
	}
	return &faultyFile{File: file, f: f, name: name}, nil
}

// Open is FS.Open.
func (f *Faulty) Open(name string) (File, error) { return f.open(OpOpen, name, f.FS.Open) }

// OpenWrite is FS.OpenWrite.
func (f *Faulty) OpenWrite(name string) (File, error) { return f.open(OpOpen, name, f.FS.OpenWrite) }

// OpenShared is FS.OpenShared.
func (f *Faulty) OpenShared(name string) (File, error) { return f.open(OpOpen, name, f.FS.OpenShared) }

// OpenIdle is FS.OpenIdle.
func (f *Faulty) OpenIdle(name string) (File, error) { return f.open(OpOpen, name, f.FS.OpenIdle) }

// Create is FS.Create.
func (f *Faulty) Create(name string) (File, error) { return f.open(OpCreate, name, f.FS.Create) }

// CreateTemp is FS.CreateTemp.
func (f *Faulty) CreateTemp(dir string) (File, error) {
	return f.open(OpTemp, path.Join(dir, "(unnamed)"), func(string) (File, error) { return f.FS.CreateTemp(dir) })
}

// Link is FS.Link.
func (f *Faulty) Link(file File, name string) error {
	if err := f.hook(OpLink, name); err != nil {
		return err
	}
	ff, ok := file.(*faultyFile)
	if !ok {
		return errForeign
	}
	ff.mu.Lock()
	defer ff.mu.Unlock()
	ff.name = name
	return f.FS.Link(ff.File, name)
}

// Rename is FS.Rename. The hook sees the old name.
func (f *Faulty) Rename(from, to string) error {
	if err := f.hook(OpRename, from); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

// Remove is FS.Remove.
func (f *Faulty) Remove(name string) error {
	if err := f.hook(OpRemove, name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// List is FS.List.
func (f *Faulty) List(dir string) ([]string, error) {
	if err := f.hook(OpList, dir); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

// MkdirAll is FS.MkdirAll.
func (f *Faulty) MkdirAll(dir string) error {
	if err := f.hook(OpMkdir, dir); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir)
}

// SyncDir is FS.SyncDir.
func (f *Faulty) SyncDir(dir string) error {
	if err := f.hook(OpSyncDir, dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

// Lock is FS.Lock, which is not an operation on the disk.
func (f *Faulty) Lock(name string) (io.Closer, error) { return f.FS.Lock(name) }

// Free is FS.Free, likewise.
func (f *Faulty) Free(dir string) (int64, error) { return f.FS.Free(dir) }

func (f *faultyFile) op(kind OpKind, off int64, n int) error {
	f.mu.Lock()
	name := f.name
	f.mu.Unlock()
	return f.f.Hook(Op{Kind: kind, Name: name, Off: off, Len: n})
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.op(OpRead, off, len(p)); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.op(OpWrite, off, len(p)); err != nil {
		return 0, err
	}
	return f.File.WriteAt(p, off)
}

func (f *faultyFile) Truncate(size int64) error {
	if err := f.op(OpTruncate, size, 0); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultyFile) Datasync() error {
	if err := f.op(OpSync, 0, 0); err != nil {
		if s, ok := f.File.(interface{ failSync() }); ok && !errors.Is(err, ErrCut) {
			s.failSync()
		}
		return err
	}
	return f.File.Datasync()
}

func (f *faultyFile) Close() error {
	if err := f.op(OpClose, 0, 0); err != nil {
		f.File.Close()
		return err
	}
	return f.File.Close()
}
