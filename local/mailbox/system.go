package mailbox

import (
	"errors"
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// A system is what a Store has the system do that tests watch, or have fail.
type system struct {
	rename func(fromAt int, from string, toAt int, to string) error // replaces nothing
	remove func(at int, name string) error
	sync   syncer
}

// A syncer makes an open file or directory durable. path is for messages.
type syncer func(fd int, path string) error

func theSystem() system {
	return system{
		rename: func(fromAt int, from string, toAt int, to string) error {
			return unix.Renameat2(fromAt, from, toAt, to, unix.RENAME_NOREPLACE)
		},
		remove: func(at int, name string) error { return unix.Unlinkat(at, name, 0) },
		sync: func(fd int, _ string) error {
			for {
				if err := unix.Fsync(fd); err != unix.EINTR {
					return err
				}
			}
		},
	}
}

// asking is s with the question whether it may do a thing, see Options.Change.
func (s system) asking(change func(op, path string) error) system {
	if change == nil {
		return s
	}
	return system{
		rename: func(fromAt int, from string, toAt int, to string) error {
			if err := change("rename", to); err != nil {
				return err
			}
			return s.rename(fromAt, from, toAt, to)
		},
		remove: func(at int, name string) error {
			if err := change("remove", name); err != nil {
				return err
			}
			return s.remove(at, name)
		},
		sync: func(fd int, path string) error {
			if err := change("sync", path); err != nil {
				return err
			}
			return s.sync(fd, path)
		},
	}
}

// openat opens or makes a file: no descriptor for programs that are started.
func openat(at int, name string, flags int) (fd int, err error) {
	for {
		if fd, err = unix.Openat(at, name, flags|unix.O_CLOEXEC, 0o600); err != unix.EINTR {
			return fd, err
		}
	}
}

// syncDir makes the names in a directory durable. A directory that may be
// written in but not read cannot be opened for it; that must do.
func syncDir(sync syncer, dir string) error {
	fd, err := openat(unix.AT_FDCWD, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return ignoreEINVAL(sync(fd, dir))
}

// ignoreEINVAL lets file systems be that have no syncing of directories.
func ignoreEINVAL(err error) error {
	if errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}
