//go:build linux

package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"posthaste/internal/quickio"
)

// OS is the operating system's file system. The zero value works. Files are
// made with mode 0600 and directories with mode 0700, less the umask.
type OS struct{}

var _ FS = OS{}

type osFile struct {
	*os.File
	at   int    // directory that hide is relative to
	temp bool   // made by CreateTemp and not linked yet
	hide string // its name where the file system has no unnamed files

	remove func(string) error // removes hide, with others' rights; nil: with those of the process
}

// A place is where a file is: name is relative to the open directory at, and path is
// what people know it by.
type place struct {
	at         int // or unix.AT_FDCWD
	name, path string
}

func osPlace(name string) place { return place{unix.AT_FDCWD, name, name} }

// Open opens a file for reading.
func (OS) Open(name string) (File, error) { return asFile(osPlace(name).open(os.O_RDONLY)) }

// Forget gives up the kernel's copy of n octets from off on, as far as it is the same as what is on the disk:
// the next to read them reads the disk. It promises nothing.
func (f *osFile) Forget(off, n int64) { _ = unix.Fadvise(int(f.Fd()), off, n, unix.FADV_DONTNEED) }

// OpenWrite opens a file for reading and writing.
func (OS) OpenWrite(name string) (File, error) { return asFile(osPlace(name).open(os.O_RDWR)) }

// OpenShared takes a lock (flock), and then sees whether the file still has the name:
// OpenIdle, which comes after another name was given, finds the lock.
func (OS) OpenShared(name string) (File, error) { return osPlace(name).openShared() }

func (p place) openShared() (File, error) {
	f, err := p.open(os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	err = flock(f, unix.LOCK_SH)
	if err == unix.EWOULDBLOCK { // just being asked for by OpenIdle
		err = fs.ErrNotExist
	}
	if err == nil {
		var st unix.Stat_t
		err = unix.Fstatat(p.at, p.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	return f, nil
}

// OpenIdle opens a file that nobody has a lock on.
func (OS) OpenIdle(name string) (File, error) { return osPlace(name).openIdle() }

func (p place) openIdle() (File, error) {
	f, err := p.open(os.O_RDWR)
	if err != nil {
		return nil, err
	}
	err = flock(f, unix.LOCK_EX)
	if err == nil {
		err = flock(f, unix.LOCK_UN)
	}
	if err == unix.EWOULDBLOCK {
		err = ErrInUse
	}
	if err != nil {
		f.Close()
		return nil, &fs.PathError{Op: "flock", Path: p.path, Err: err}
	}
	return f, nil
}

// flock takes or gives up a lock, without waiting.
func flock(f *osFile, how int) error { return unix.Flock(int(f.Fd()), how|unix.LOCK_NB) }

// Create makes a file that must not exist.
func (OS) Create(name string) (File, error) {
	return asFile(osPlace(name).open(os.O_RDWR | os.O_CREATE | os.O_EXCL))
}

// asFile has no pointer that is nil in a File that is not.
func asFile(f *osFile, err error) (File, error) {
	if err != nil {
		return nil, err
	}
	return f, nil
}

// open opens or makes a regular file, or opens a directory: what else may have the name
// is not waited for.
func (p place) open(flag int) (*osFile, error) {
	for {
		fd, err := unix.Openat(p.at, p.name, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: p.path, Err: err}
		}
		f := os.NewFile(uintptr(fd), p.path)
		if flag&unix.O_DIRECTORY == 0 {
			if err := regular(f); err != nil {
				f.Close()
				return nil, err
			}
		}
		return &osFile{File: f}, nil
	}
}

// CreateTemp makes an unnamed file (O_TMPFILE), or one with a name
// where the file system knows no unnamed files, or there is no /proc, as inside chroot,
// by which such a file can be given a name.
func (OS) CreateTemp(dir string) (File, error) { return osPlace(dir).createTemp() }

// createTemp makes the file in the directory that p is.
func (p place) createTemp() (File, error) {
	if unix.Access(ownFiles, unix.X_OK) == nil {
		fd, err := unix.Openat(p.at, p.name, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err == nil {
			return &osFile{File: os.NewFile(uintptr(fd), filepath.Join(p.path, "(unnamed)")), temp: true}, nil
		}
		if err != unix.EOPNOTSUPP && err != unix.EISDIR && err != unix.EINVAL {
			return nil, &fs.PathError{Op: "open", Path: p.path, Err: err}
		}
	}
	for {
		name := TempPrefix + strconv.FormatUint(rand.Uint64(), 36)
		q := place{p.at, filepath.Join(p.name, name), filepath.Join(p.path, name)}
		f, err := q.open(os.O_RDWR | os.O_CREATE | os.O_EXCL)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		f.at, f.temp, f.hide = q.at, true, q.name
		return f, nil
	}
}

const (
	// TempPrefix is what the names begin with of files of CreateTemp that need one.
	TempPrefix = ".tmp-"
	ownFiles   = "/proc/self/fd"
)

// Link names a file made by CreateTemp.
func (OS) Link(f File, name string) error { return osPlace(name).link(f) }

func (p place) link(f File) error {
	o, ok := f.(*osFile)
	if !ok || !o.temp {
		return errForeign
	}
	from, old, flag := unix.AT_FDCWD, ownFiles+"/"+strconv.Itoa(int(o.Fd())), unix.AT_SYMLINK_FOLLOW
	if o.hide != "" {
		from, old, flag = o.at, o.hide, 0
	}
	if err := unix.Linkat(from, old, p.at, p.name, flag); err != nil {
		return &fs.PathError{Op: "link", Path: p.path, Err: err}
	}
	o.temp = false
	if o.hide != "" {
		return place{o.at, o.hide, filepath.Join(filepath.Dir(p.path), filepath.Base(o.hide))}.remove()
	}
	return nil
}

// Rename is renameat2 with RENAME_NOREPLACE, which some file systems refuse.
func (OS) Rename(from, to string) error { return osPlace(from).rename(osPlace(to)) }

func (p place) rename(to place) error {
	if err := unix.Renameat2(p.at, p.name, to.at, to.name, unix.RENAME_NOREPLACE); err != nil {
		return &os.LinkError{Op: "rename", Old: p.path, New: to.path, Err: err}
	}
	return nil
}

// Remove removes a name.
func (OS) Remove(name string) error { return os.Remove(name) }

// remove removes a file's name.
func (p place) remove() error {
	if err := unix.Unlinkat(p.at, p.name, 0); err != nil {
		return &fs.PathError{Op: "remove", Path: p.path, Err: err}
	}
	return nil
}

// List lists a directory. Where the file system has no unnamed files those
// of CreateTemp are among the names, and a dead process may have left some.
func (OS) List(dir string) ([]string, error) {
	d, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(d))
	for i, e := range d {
		names[i] = e.Name()
	}
	return names, nil
}

// MkdirAll makes directories and syncs the parents of those it made.
func (o OS) MkdirAll(dir string) error {
	if st, err := os.Stat(dir); err == nil {
		if !st.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
		}
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := o.MkdirAll(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return o.SyncDir(parent)
}

// SyncDir syncs a directory.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	slowly()
	return d.Sync()
}

// Lock takes a lock with flock and leaves this process's number in the file
// for those who find it taken.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return lockFile(f, name)
}

// lockFile takes the lock of an open file, which is the result, or closes it.
func lockFile(f *os.File, name string) (io.Closer, error) {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if err != unix.EWOULDBLOCK {
			return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
		}
		var b [32]byte
		n, _ := f.ReadAt(b[:], 0)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
		return nil, &LockedError{Name: name, PID: pid}
	}
	text := fmt.Sprintf("%d\n", os.Getpid())
	if _, err := f.WriteAt([]byte(text), 0); err == nil {
		err = f.Truncate(int64(len(text)))
		if err != nil {
			f.Close()
			return nil, err
		}
	}
	return f, nil
}

// Free asks statfs.
func (OS) Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return freeOf(&st), nil
}

func freeOf(st *unix.Statfs_t) int64 { return int64(st.Bavail) * int64(st.Bsize) }

// ReadAt reads, at less expense what is in memory.
func (f *osFile) ReadAt(p []byte, off int64) (int, error) { return quickio.ReadAt(f.File, p, off) }

// maxPieces is how many pieces the kernel takes at once (IOV_MAX).
const maxPieces = 1024

// WriteAll is pwritev, as often as it takes.
func (f *osFile) WriteAll(pieces [][]byte, off int64) error {
	fd := int(f.Fd())
	for pieces = drop(pieces, 0); len(pieces) > 0; {
		n, err := unix.Pwritev(fd, pieces[:min(len(pieces), maxPieces)], off)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return &fs.PathError{Op: "pwritev", Path: f.Name(), Err: err}
		}
		if n == 0 { // pieces are never all empty here
			return &fs.PathError{Op: "pwritev", Path: f.Name(), Err: io.ErrShortWrite}
		}
		off += int64(n)
		pieces = drop(pieces, n)
	}
	return nil
}

// drop takes the first n octets off pieces, and pieces that are empty then.
func drop(pieces [][]byte, n int) [][]byte {
	for len(pieces) > 0 && n >= len(pieces[0]) {
		n -= len(pieces[0])
		pieces = pieces[1:]
	}
	if n > 0 {
		pieces[0] = pieces[0][n:]
	}
	return pieces
}

// Datasync is fdatasync. An interrupted call is repeated, no other failure.
func (f *osFile) Datasync() error {
	slowly()
	for {
		err := unix.Fdatasync(int(f.Fd()))
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
		}
	}
}

// Writeback is sync_file_range. The kernel remembers for the file what could not
// be written, and fdatasync returns it.
func (f *osFile) Writeback(off, n int64) {
	unix.SyncFileRange(int(f.Fd()), off, n, unix.SYNC_FILE_RANGE_WRITE)
}

func (f *osFile) Size() (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

func (f *osFile) Close() error {
	if f.temp && f.hide != "" {
		if f.remove != nil {
			_ = f.remove(f.hide)
		} else {
			_ = unix.Unlinkat(f.at, f.hide, 0) // the next start removes what stays
		}
	}
	return f.File.Close()
}
