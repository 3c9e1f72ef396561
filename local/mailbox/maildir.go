package mailbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
	"posthaste/internal/rights"
)

// A Maildir says how to deliver to one maildir.
type Maildir struct {
	Path string // with or without a slash at the end
	// Spool, when set, is the directory that Path is in, which belongs to no one
	// user. If others than its owner may write there the maildir must be the
	// recipient's, and no symbolic link is followed below Spool.
	Spool  string
	Rights rights.Rights
	Limit  int64 // largest size of one message; 0: none

	Otherwise dsn.Status // when the system's error says nothing better
}

// Deliver adds a message to a maildir. An error is an *[Error]; its Err is
// EACCES when the rights do not suffice, which is mostly for an administrator
// to mend.
func (s *Store) Deliver(m *Maildir, head []byte, content Content) error {
	var failed error
	err := m.Rights.Do(func() error { failed = s.deliver(m, head, content); return nil })
	if err != nil {
		return &Error{Status: dsn.S(4, 3, 5), Text: err.Error()}
	}
	return failed
}

func (s *Store) deliver(m *Maildir, head []byte, content Content) error {
	dirs, err := s.directories(m)
	if err != nil {
		return err
	}
	defer dirs.close()
	now := time.Now()
	temp := s.tempName(now)
	tmp := filepath.Join(m.Path, "tmp", temp)
	fd, err := dirs.create(temp)
	if errors.Is(err, fs.ErrNotExist) {
		if err = dirs.make("tmp"); err == nil {
			fd, err = dirs.create(temp)
		}
	}
	if err != nil {
		return dirs.failure(err, "create maildir file %s", tmp)
	}
	f, kept := os.NewFile(uintptr(fd), tmp), false
	defer func() {
		f.Close()
		if !kept {
			if err := dirs.remove("tmp", temp); err != nil {
				s.opt.Warn("remove %s: %v", tmp, err)
			}
		}
	}()
	var st unix.Stat_t
	if err := m.fill(f, head, content); err != nil {
		return err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return failure(err, m.Otherwise, "create maildir file %s", tmp)
	}
	if m.Limit > 0 && st.Size > m.Limit {
		return m.writeFailed(syscall.EFBIG)
	}
	if err := s.sys.sync(fd, tmp); err != nil {
		return m.writeFailed(err)
	}
	name := fmt.Sprintf("%d.V%xI%xM%d.%s", now.Unix(), st.Dev, st.Ino, now.Nanosecond()/1000, s.opt.Hostname)
	path := filepath.Join(m.Path, "new", name)
	err = dirs.rename(fd, temp, name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = errors.Join(dirs.make("cur"), dirs.make("new")); err == nil {
			err = dirs.rename(fd, temp, name)
		}
	}
	if err != nil {
		return dirs.failure(err, "create maildir file %s", path)
	}
	kept = true
	if err := dirs.syncNew(); err != nil {
		dirs.remove("new", name) // it will be delivered again
		return failure(err, dsn.S(4, 3, 0), "sync maildir directory %s", filepath.Dir(path))
	}
	return nil
}

// directories are those of a maildir while a message is delivered to it: as
// names, or where names cannot be trusted as descriptors.
type directories struct {
	*Maildir
	sys  *system
	top  int            // the maildir; -1: by name
	open map[string]int // those below that have been opened, when top is
}

// directories finds out how the maildir is to be reached.
func (s *Store) directories(m *Maildir) (*directories, error) {
	d := &directories{Maildir: m, sys: &s.sys, top: -1}
	var spool unix.Stat_t
	if m.Spool == "" {
		return d, nil
	}
	if err := unix.Stat(m.Spool, &spool); err != nil {
		return nil, failure(err, m.Otherwise, "look at %s", m.Spool)
	}
	if spool.Mode&(unix.S_IWGRP|unix.S_IWOTH) == 0 {
		return d, nil
	}
	path := strings.TrimRight(m.Path, "/")
	err := d.enter(unix.AT_FDCWD, path, &d.top)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(s.sys.sync, path); err == nil {
			err = d.enter(unix.AT_FDCWD, path, &d.top)
		}
	}
	if err != nil {
		return nil, d.failure(err, "open maildir %s", path)
	}
	d.open = map[string]int{}
	return d, nil
}

// errNotOwned is what is wrong with a directory in a spool directory.
var errNotOwned = errors.New("not owned by recipient, or world-writable")

// enter opens a directory that must be the recipient's.
func (d *directories) enter(at int, name string, fd *int) error {
	n, err := openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err = unix.Fstat(n, &st); err == nil && (int(st.Uid) != d.uid() || st.Mode&unix.S_IWOTH != 0) {
		err = errNotOwned
	}
	if err != nil {
		unix.Close(n)
		return err
	}
	*fd = n
	return nil
}

// uid is whose the maildir is.
func (d *directories) uid() int {
	if d.Rights.IsOwn() || !rights.Switching() {
		return os.Geteuid()
	}
	return d.Rights.UID
}

// failure is why the maildir could not be used. One that is not the
// recipient's waits for an administrator.
func (d *directories) failure(err error, format string, args ...any) error {
	if d.Spool == "" || !errors.Is(err, errNotOwned) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		return failure(err, d.Otherwise, format, args...)
	}
	if errors.Is(err, errNotOwned) {
		return refusal(dsn.S(4, 2, 0), "destination %s is not owned by recipient", d.Path)
	}
	return refusal(dsn.S(4, 2, 0), "destination %s is not a directory", d.Path)
}

// at is what a directory's names are relative to, and what stands before them.
func (d *directories) at(sub string) (fd int, prefix string, err error) {
	if d.top < 0 {
		return unix.AT_FDCWD, strings.TrimRight(d.Path, "/") + "/" + sub + "/", nil
	}
	fd, ok := d.open[sub]
	if !ok {
		if err = d.enter(d.top, sub, &fd); err == nil {
			d.open[sub] = fd
		}
	}
	return fd, "", err
}

func (d *directories) close() {
	if d.top >= 0 {
		unix.Close(d.top)
	}
	for _, fd := range d.open {
		unix.Close(fd)
	}
}

// make makes a directory of the maildir, durably.
func (d *directories) make(sub string) error {
	if d.top < 0 {
		return makeDirs(d.sys.sync, filepath.Join(d.Path, sub))
	}
	if err := unix.Mkdirat(d.top, sub, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return d.sys.sync(d.top, d.Path)
}

func (d *directories) create(name string) (fd int, err error) {
	at, prefix, err := d.at("tmp")
	if err != nil {
		return -1, err
	}
	return openat(at, prefix+name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW)
}

func (d *directories) remove(sub, name string) error {
	at, prefix, err := d.at(sub)
	if err != nil {
		return err
	}
	return d.sys.remove(at, prefix+name)
}

// rename moves the file, which is open as fd, from tmp to new, where nothing is
// replaced. Some file systems (NFS, CephFS, 9p, many in user space) cannot be asked
// for that in one step; they have links.
func (d *directories) rename(fd int, from, to string) error {
	fromAt, fromPrefix, err := d.at("tmp")
	if err != nil {
		return err
	}
	toAt, toPrefix, err := d.at("new")
	if err != nil {
		return err
	}
	from, to = fromPrefix+from, toPrefix+to
	err = d.sys.rename(fromAt, from, toAt, to)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	if err = unix.Linkat(fromAt, from, toAt, to, 0); err != nil {
		// An NFS server may have done it although its answer was lost.
		var st unix.Stat_t
		if !errors.Is(err, fs.ErrExist) || unix.Fstat(fd, &st) != nil || st.Nlink != 2 {
			return err
		}
	}
	return unix.Unlinkat(fromAt, from, 0)
}

// syncNew makes the names in new durable.
func (d *directories) syncNew() error {
	at, prefix, err := d.at("new")
	if err != nil {
		return err
	}
	if at >= 0 {
		return ignoreEINVAL(d.sys.sync(at, d.Path))
	}
	return syncDir(d.sys.sync, strings.TrimSuffix(prefix, "/"))
}

// tempName is unique among all who deliver to the same maildir.
func (s *Store) tempName(now time.Time) string {
	s.mu.Lock()
	s.count++
	n := s.count
	s.mu.Unlock()
	return fmt.Sprintf("%d.M%dP%dQ%d.%s", now.Unix(), now.Nanosecond()/1000, s.pid, n, s.opt.Hostname)
}

// fill writes the message.
func (m *Maildir) fill(f *os.File, head []byte, content Content) error {
	if m.Limit > 0 && int64(len(head))+least(content) > m.Limit {
		return m.writeFailed(syscall.EFBIG)
	}
	if err := WriteTo(f, head, content, "", Form{}); err != nil {
		return m.writeFailed(err)
	}
	return nil
}

func (m *Maildir) writeFailed(err error) error { return writeFailed(err, m.Otherwise) }

// makeDirs makes a directory and those above it that are missing, and makes
// that durable.
func makeDirs(sync syncer, dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(sync, parent(dir)); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(sync, parent(dir))
}

func parent(path string) string { return filepath.Dir(strings.TrimRight(path, "/")) }
