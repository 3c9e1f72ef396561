// Package vfs is the seam between the spool and the file system. Nothing in
// the spool touches the disk but through it, so that every order in which a
// machine can lose what it was told can be tried in a test.
//
// It has three faces: [OS], the real thing, or [OfOwner] for root; [Mem], a file system in memory
// that can be cut off at any point and then shows what a disk may show after
// a power cut; and [Faulty], which wraps either and fails, counts or records
// chosen operations.
//
// # What is durable when
//
//   - [File.WriteAt] promises nothing. After a power cut each sector of what
//     was written since the last successful Datasync may be old, new, or torn,
//     in any combination.
//   - [File.Datasync] that returns nil promises the bytes written before it,
//     and the size if it changed. One that returns an error promises nothing,
//     and neither does a later one that returns nil: the kernel marks the pages
//     clean although the disk does not have them. Who sees an error must
//     not write to the file again.
//   - The name of a new, linked, renamed or removed file is durable after
//     [FS.SyncDir] of its directory.
//   - A file that was made without a name ([FS.CreateTemp]) also needs
//     [File.Datasync] after [FS.Link]: the file itself counts its names, and one
//     that has a name and counts none is removed when the file system is checked.
//     A file system with a journal writes both together; ext4 without one does not.
package vfs

import (
	"errors"
	"fmt"
	"io"
)

// FS is a file system. Names are slash-separated paths. All methods may be
// called concurrently.
type FS interface {
	// Open opens an existing file for reading only. The error satisfies
	// errors.Is(err, fs.ErrNotExist) when there is no such file.
	Open(name string) (File, error)
	// OpenWrite opens an existing file for reading and writing.
	OpenWrite(name string) (File, error)
	// OpenShared is Open for a file that is renamed before it is used for something
	// else with OpenIdle: not before it is closed.
	OpenShared(name string) (File, error)
	// OpenIdle is OpenWrite for a file that has been renamed. The error is
	// ErrInUse when somebody has opened it with OpenShared, by its former name.
	OpenIdle(name string) (File, error)
	// Create makes a new, empty file. It fails with fs.ErrExist when there
	// is one.
	Create(name string) (File, error)
	// CreateTemp makes a file without a name in dir. Unless it is given one
	// with Link it is gone when it is closed, or when the process ends.
	CreateTemp(dir string) (File, error)
	// Link gives a name to a file made by CreateTemp of this FS. It fails with
	// fs.ErrExist when the name is taken. Both Datasync of f and SyncDir must
	// follow, in any order, before the file is durable.
	Link(f File, name string) error
	// Rename gives a file another name in the same directory. It fails with
	// fs.ErrExist when that is taken, and changes nothing then.
	Rename(from, to string) error
	// Remove removes a file's name.
	Remove(name string) error
	// List gives the names, not paths, of what is in dir, sorted.
	List(dir string) ([]string, error)
	// MkdirAll makes dir and what is missing above it. Directories that it
	// made are durable on return.
	MkdirAll(dir string) error
	// SyncDir makes the present names in dir durable.
	SyncDir(dir string) error
	// Lock takes an exclusive lock on the file of that name, made if need
	// be, which holds until the Closer is closed or the process ends. When
	// another holds it the error is a *LockedError.
	Lock(name string) (io.Closer, error)
	// Free is the space, in bytes, that an unprivileged process may still
	// use on the file system that dir is on.
	Free(dir string) (int64, error)
}

// File is an open file. ReadAt may be called concurrently with everything;
// WriteAt, Truncate, Writeback and Datasync by one goroutine at a time.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Datasync makes what was written durable, with fdatasync's meaning.
	Datasync() error
	// Writeback has the disk begin with n written bytes from off, and does not
	// wait. It promises nothing: it is for a later Datasync to find less to do,
	// which is also the one to tell of what fails.
	Writeback(off, n int64)
	// Truncate makes the file that long. It is durable after Datasync.
	Truncate(size int64) error
	// Size is the present length in bytes.
	Size() (int64, error)
	Close() error
}

// LockedError says that another process holds a lock.
type LockedError struct {
	Name string
	PID  int // of the holder; 0 when it could not be found out
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s: in use by another process", e.Name)
	}
	return fmt.Sprintf("%s: in use by process %d", e.Name, e.PID)
}

// ErrInUse is for a file that somebody reads.
var ErrInUse = errors.New("in use")

// errForeign is for a File that was not made by the FS it is given to.
var errForeign = errors.New("vfs: file belongs to another file system")
