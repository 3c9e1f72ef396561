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
	"posthaste/local/rights"
)

// A Maildir says how to deliver to one maildir.
type Maildir struct {
	Path   string // with or without a slash at the end
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
	now := time.Now()
	tmp := filepath.Join(m.Path, "tmp", s.tempName(now))
	f, err := create(tmp)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(filepath.Join(m.Path, "tmp")); err == nil {
			f, err = create(tmp)
		}
	}
	if err != nil {
		return failure(err, m.Otherwise, "create maildir file %s", tmp)
	}
	kept := false
	defer func() {
		f.Close()
		if !kept {
			if err := os.Remove(tmp); err != nil {
				s.opt.Warn("remove %s: %v", tmp, err)
			}
		}
	}()
	if err := m.fill(f, head, content); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return failure(err, m.Otherwise, "create maildir file %s", tmp)
	}
	name := filepath.Join(m.Path, "new", fmt.Sprintf("%d.V%xI%xM%d.%s", now.Unix(), st.Dev, st.Ino, now.Nanosecond()/1000, s.opt.Hostname))
	err = rename(tmp, name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = errors.Join(makeDirs(filepath.Join(m.Path, "cur")), makeDirs(filepath.Join(m.Path, "new"))); err == nil {
			err = rename(tmp, name)
		}
	}
	if err != nil {
		return failure(err, m.Otherwise, "create maildir file %s", name)
	}
	kept = true
	if err := syncDir(filepath.Dir(name)); err != nil {
		os.Remove(name) // it will be delivered again
		return failure(err, dsn.S(4, 3, 0), "sync maildir directory %s", filepath.Dir(name))
	}
	return nil
}

// tempName is unique among all who deliver to the same maildir.
func (s *Store) tempName(now time.Time) string {
	s.mu.Lock()
	s.count++
	n := s.count
	s.mu.Unlock()
	return fmt.Sprintf("%d.M%dP%dQ%d.%s", now.Unix(), now.Nanosecond()/1000, os.Getpid(), n, s.opt.Hostname)
}

func create(name string) (*os.File, error) {
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func rename(from, to string) error {
	return unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
}

// fill writes the message and makes it durable.
func (m *Maildir) fill(f *os.File, head []byte, content Content) error {
	fail := func(err error) error {
		var r *ReadError
		if errors.As(err, &r) {
			return &Error{Status: dsn.S(4, 3, 0), Text: "message cannot be read from the queue", Err: r.Err}
		}
		return failure(err, m.Otherwise, "error writing message")
	}
	if m.Limit > 0 && int64(len(head))+least(content) > m.Limit {
		return fail(syscall.EFBIG)
	}
	if err := WriteTo(f, head, content, "", Form{}); err != nil {
		return fail(err)
	}
	if end, err := f.Seek(0, 1); err != nil || m.Limit > 0 && end > m.Limit {
		return fail(errors.Join(err, syscall.EFBIG))
	}
	if err := f.Sync(); err != nil {
		return fail(err)
	}
	return nil
}

// makeDirs makes a directory and those above it that are missing, and makes
// that durable.
func makeDirs(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDirs(parent(dir)); err == nil {
			err = os.Mkdir(dir, 0o700)
		}
	}
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncDir(parent(dir))
}

func parent(path string) string { return filepath.Dir(strings.TrimRight(path, "/")) }

// syncDir makes the names in a directory durable. A directory that may be
// written in but not read cannot be opened for it; that must do.
func syncDir(dir string) error {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}
