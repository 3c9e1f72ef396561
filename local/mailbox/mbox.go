package mailbox

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/dsn"
	"posthaste/internal/rights"
)

// An Mbox says how to append to one mbox file.
type Mbox struct {
	Path string
	// Rights are whose the file is.
	Rights rights.Rights
	// Group, when not 0, is the group that may write in the spool directory:
	// file and locks are made with it instead of Rights' group.
	Group int
	// Private says that only root may write in the spool directory: the file
	// is made by root and given away.
	Private bool

	Lock      Lock
	LockMay   bool       // a lock file that cannot be made is only a warning
	Limit     int64      // largest size of the file; 0: none
	Owner     int        // whom the file must belong to; -1: anybody
	Start     int64      // set by Append: where in the file the message is; -1 if it is no regular file
	Special   bool       // a destination named by a user: devices are as good as files, programs are not
	Otherwise dsn.Status // when the system's error says nothing better
}

// Append appends head, the content, and an empty line. Lines of content that
// begin with "From " are quoted. An error is an *[Error].
func (s *Store) Append(ctx context.Context, m *Mbox, head []byte, content Content) error {
	release, err := s.lockInProcess(ctx, m.Path)
	if err != nil {
		return &Error{Status: dsn.S(4, 2, 0), Text: "unable to lock for exclusive access", Err: err}
	}
	defer release()
	r := m.Rights
	if m.Group > 0 {
		r.GID = m.Group
	}
	var failed error
	work := func() error { failed = s.append(ctx, m, head, content); return nil }
	if m.Private && rights.Switching() {
		if err := m.Rights.Check(); err != nil && !m.Rights.IsOwn() {
			return &Error{Status: dsn.S(4, 3, 5), Text: err.Error()}
		}
		work()
		return failed
	}
	if err := r.Do(work); err != nil {
		return &Error{Status: dsn.S(4, 3, 5), Text: err.Error()}
	}
	return failed
}

func (s *Store) append(ctx context.Context, m *Mbox, head []byte, content Content) error {
	m.Start = -1
	var st unix.Stat_t
	if err := unix.Lstat(m.Path, &st); m.Lock&Dotlock != 0 && (err != nil || st.Mode&unix.S_IFMT == unix.S_IFREG) {
		switch err := s.dotlock(ctx, m.Path, m.Otherwise); {
		case err == nil:
			defer os.Remove(lockFile(m.Path))
		case m.LockMay && !errors.Is(err, fs.ErrExist):
			s.opt.Warn("%v", err)
		default:
			return err
		}
	}
	f, err := s.open(m, st.Mode&unix.S_IFMT)
	if err != nil {
		return err
	}
	defer f.Close() // errors that matter came with the sync
	if err := unix.Fstat(f.fd, &st); err != nil {
		return failure(err, m.Otherwise, "cannot look at the open file")
	}
	if err := m.acceptable(s, f, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG {
		if err := s.kernelLocks(ctx, f.fd, m.Lock); err != nil {
			return err
		}
		defer unlock(f.fd, m.Lock)
		return s.extend(m, f, head, content)
	}
	f.SetWriteDeadline(time.Now().Add(deviceTimeout)) // a terminal or pipe that nobody reads; /dev/null has none
	if err := WriteTo(f.File, head, content, "\n", Form{Quote: true}); err != nil {
		return m.writeFailed(err)
	}
	return nil
}

// deviceTimeout bounds writing to what is not a regular file.
const deviceTimeout = time.Minute

// opened is an open file whose descriptor can be had without changing its mode.
type opened struct {
	*os.File
	fd       int
	readable bool
}

// open opens or makes the file. One that exists is never made, and one that
// does not is made exclusively: whoever swaps it in between loses.
// kind is what lay there before, as in st_mode: a pipe must not be opened for
// reading, since what is written then goes nowhere.
func (s *Store) open(m *Mbox, kind uint32) (*opened, error) {
	const flags = unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC | unix.O_NOCTTY
	for range 3 {
		// Reading is for the look at the last octets; who may only write still can.
		mode := unix.O_RDWR
		if kind != 0 && kind != unix.S_IFREG {
			mode = unix.O_WRONLY
		}
		fd, err := unix.Open(m.Path, flags|mode, 0)
		if errors.Is(err, fs.ErrPermission) && mode == unix.O_RDWR {
			mode = unix.O_WRONLY
			fd, err = unix.Open(m.Path, flags|mode, 0)
		}
		if errors.Is(err, fs.ErrNotExist) {
			fd, err = unix.Open(m.Path, flags|unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				continue
			}
			if err != nil {
				return nil, failure(err, m.Otherwise, "cannot create file exclusively")
			}
			f := os.NewFile(uintptr(fd), m.Path)
			if m.Private && rights.Switching() {
				if err := f.Chown(m.Rights.UID, m.Rights.GID); err != nil {
					f.Close()
					return nil, failure(err, m.Otherwise, "cannot change file ownership")
				}
			}
			if err := syncDir(s.sys.sync, parent(m.Path)); err != nil {
				f.Close()
				return nil, failure(err, m.Otherwise, "cannot sync the mailbox's directory")
			}
			return &opened{f, fd, true}, nil
		}
		if errors.Is(err, unix.ELOOP) {
			return nil, &Error{Status: m.Otherwise, Text: "file is a symbolic link"}
		}
		if err != nil {
			return nil, failure(err, m.Otherwise, "cannot open file")
		}
		return &opened{os.NewFile(uintptr(fd), m.Path), fd, mode == unix.O_RDWR}, nil
	}
	return nil, &Error{Status: dsn.S(4, 2, 0), Text: "file comes and goes while it is opened"}
}

// acceptable looks at what was opened.
func (m *Mbox) acceptable(s *Store, f *opened, st *unix.Stat_t) error {
	regular := st.Mode&unix.S_IFMT == unix.S_IFREG
	switch {
	case regular && st.Nlink > 1:
		return refusal(m.Otherwise, "file has %d hard links", st.Nlink)
	case regular && st.Nlink == 0:
		return refusal(dsn.S(4, 2, 0), "file was removed while it was opened")
	case !regular && (!m.Special || f.readable):
		return refusal(dsn.S(5, 2, 0), "destination %s is not a regular file", m.Path)
	case regular && m.Special && st.Mode&0o111 != 0:
		return refusal(dsn.S(5, 7, 1), "file is executable")
	case m.Owner >= 0 && rights.Switching() && int(st.Uid) != m.Owner:
		s.opt.Warn(`specify "strict_mailbox_ownership = no" to ignore mailbox ownership mismatch`)
		return refusal(dsn.S(4, 2, 0), "destination %s is not owned by recipient", m.Path)
	}
	return nil
}

func refusal(status dsn.Status, format string, args ...any) *Error {
	e := failure(nil, status, format, args...)
	e.Status = status
	return e
}

// extend appends to a file that is locked, or leaves it as it was. What root has
// opened is written with the recipient's rights too, whose quota it is that
// counts.
func (s *Store) extend(m *Mbox, f *opened, head []byte, content Content) error {
	if !m.Private {
		return s.extendAs(m, f, head, content)
	}
	var failed error
	if err := m.Rights.Do(func() error { failed = s.extendAs(m, f, head, content); return nil }); err != nil {
		return &Error{Status: dsn.S(4, 3, 5), Text: err.Error()}
	}
	return failed
}

func (s *Store) extendAs(m *Mbox, f *opened, head []byte, content Content) error {
	end, err := f.Seek(0, 2)
	if err != nil {
		return m.writeFailed(err)
	}
	before := separator(f.File, end)
	m.Start = end + int64(len(before))
	if head = append(before, head...); m.Limit > 0 {
		if end+int64(len(head))+least(content) > m.Limit {
			return m.writeFailed(syscall.EFBIG) // without writing what must be taken back
		}
	}
	err = WriteTo(f.File, head, content, "\n", Form{Quote: true})
	if err == nil && m.Limit > 0 {
		if now, e := f.Seek(0, 2); e != nil || now > m.Limit {
			err = errors.Join(e, syscall.EFBIG)
		}
	}
	if err == nil {
		err = s.sys.sync(f.fd, m.Path)
	}
	if err != nil {
		if e := f.Truncate(end); e != nil {
			return m.writeFailed(errors.Join(err, e))
		}
		s.sys.sync(f.fd, m.Path) // so that a crash does not bring it back; nothing more can be done when it fails
		return m.writeFailed(err)
	}
	return nil
}

// least is a lower bound of what content becomes: every second octet may be a
// CR that is left out.
func least(c Content) int64 { return int64(len(c.Bytes())) / 2 }

// separator is what must be written so that a message begins after an empty
// line: nothing, unless somebody was cut off in the middle of one.
func separator(f *os.File, end int64) []byte {
	var last [2]byte
	if end == 0 {
		return nil
	}
	from := max(end-2, 0)
	n, err := f.ReadAt(last[:end-from], from)
	switch {
	case err != nil || n == 0: // write-only: as it is
		return nil
	case last[n-1] != '\n':
		return []byte("\n\n")
	case n == 2 && last[0] != '\n':
		return []byte("\n")
	}
	return nil
}

func (m *Mbox) writeFailed(err error) error { return writeFailed(err, m.Otherwise) }

func writeFailed(err error, otherwise dsn.Status) error {
	var r *ReadError
	if errors.As(err, &r) {
		return &Error{Status: dsn.S(4, 3, 0), Text: "message cannot be read from the queue", Err: r.Err}
	}
	return failure(err, otherwise, "error writing message")
}
