// Package mailbox writes messages into mailboxes: files in mbox form, and
// maildirs.
//
// A message arrives as CRLF lines (package mail) and is stored with LF line
// ends. What is put before it, the "From " line, Return-Path:, Delivered-To:,
// is the caller's to compose.
//
// # mbox
//
// Messages follow one another in a file, each begun by a line "From SENDER
// DATE" after an empty line. A line of the message that begins with "From "
// gets a ">" before it. The file is locked by everything that Lock names:
// a file of the same name with .lock added, which other programs create too,
// and kernel locks, taken as open file description locks, which conflict
// with other programs' fcntl locks and, unlike those, also between the
// deliveries of this process. Among these deliveries the first come is
// first served, by a lock in memory.
//
// A write that fails is undone: the file is truncated to what it was. One
// that was cut off by a crash cannot be; the next delivery then begins on a
// new line after an empty one, so that the torn message costs no other.
//
// # Maildir
//
// Each message is a file, written and synced in tmp, then renamed to new, and
// that directory is synced. Where a file system has no renaming that replaces
// nothing the file is linked to new and removed from tmp. Names follow the
// maildir convention: seconds, V device I inode M microseconds, host. Directories
// are made when they are missing.
//
// # Durability
//
// On return without error the message is on stable storage, and so are the
// names of the file and of directories that were made for it: always; no
// setting turns that off.
//
// # Quota
//
// Files are written with the recipient's rights, and without root's privilege to
// exceed quotas, also those that root has opened: a full quota is status 5.2.2,
// and leaves the mailbox as it was.
//
// # Security
//
// Everything is done with the rights that the caller names (package rights).
// The last component of a file's path is never followed when it is a symbolic link,
// a file with more than one hard link is refused, files are opened without
// waiting (a FIFO cannot hang a delivery), and what was opened is looked at
// again before it is written to.
//
// Postfix follows a symbolic link that root has made in a directory where only
// root may write. It is refused here too: whoever may make such a link may
// as well say in main.cf or a table where the mail goes, and then no
// delivery depends on what a name was a moment ago.
//
// A maildir in a spool directory where others may make names must belong to the
// recipient and must not be world-writable, as must new and tmp in it, which
// are reached from descriptors, following no link: what somebody else has
// put there gets no mail, and makes no file appear elsewhere.
//
// # Bugs
//
// Two programs that see the same stale .lock file may both remove it, the second one
// the first one's new lock, as with Postfix. With a kernel lock beside it
// (fcntl, flock) that harms nobody; so dotlock should not be the only lock.
//
// flock locks are by file description like open file description locks, but
// over NFS they become the same as fcntl locks: naming both then deadlocks
// with itself, as it does with Postfix.
package mailbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/reuse"
)

// Lock is a set of ways to lock an mbox file, as in mailbox_delivery_lock.
type Lock uint8

const (
	Dotlock Lock = 1 << iota
	Fcntl
	Flock
)

// ParseLocks reads the words of mailbox_delivery_lock.
func ParseLocks(words []string) (Lock, error) {
	var l Lock
	for _, w := range words {
		switch w {
		case "dotlock":
			l |= Dotlock
		case "fcntl":
			l |= Fcntl
		case "flock":
			l |= Flock
		default:
			return 0, fmt.Errorf("lock method %q: expected dotlock, fcntl or flock", w)
		}
	}
	return l, nil
}

// Content is a message's content: CRLF lines.
type Content interface {
	Bytes() []byte     // all of it, or nil when it is not in memory
	Reader() io.Reader // from the first octet
}

// An Error is why a message was not stored.
type Error struct {
	Status dsn.Status
	Text   string
	Err    error // the system's, nil when the refusal is ours
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Text
	}
	return e.Text + ": " + Reason(e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Reason is the system's reason in err, in the C library's wording, which is
// what people's log filters know.
func Reason(err error) string {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return err.Error()
	}
	s := errno.Error()
	return strings.ToUpper(s[:1]) + s[1:]
}

// failure makes an Error of a system call's. def is the status when the
// system's error says nothing better.
func failure(err error, def dsn.Status, format string, args ...any) *Error {
	return &Error{Status: status(err, def), Text: fmt.Sprintf(format, args...), Err: err}
}

func status(err error, def dsn.Status) dsn.Status {
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.EEXIST),
		// What a file system cannot do is for an administrator to see to.
		errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP):
		return dsn.S(4, 2, 0)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE),
		errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EIO), errors.Is(err, syscall.EROFS):
		return dsn.S(4, 3, 0)
	case errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return dsn.S(5, 2, 2)
	}
	return def
}

// Options are what all deliveries of a Store share.
type Options struct {
	LockAttempts int           // deliver_lock_attempts
	LockDelay    time.Duration // deliver_lock_delay: between attempts
	StaleLock    time.Duration // stale_lock_time: an older .lock file is nobody's
	Hostname     string        // in the names of files in maildirs
	// Warn gets what an administrator should look at although mail was, or
	// will be, delivered. Nil: dropped.
	Warn func(format string, args ...any)
	// Change is asked before a file or directory is renamed, synced or removed, which op says.
	// With an error nothing is done, and the system counts as having said so. Nil: nobody is asked.
	Change func(op, path string) error
}

// A Store delivers to mailboxes. All methods may be called concurrently.
type Store struct {
	opt Options
	sys system
	pid int // in the names of files in maildirs

	mu    sync.Mutex
	inUse map[string]*turn // mbox files being delivered to
	count uint64           // of maildir files
}

// A turn is the queue for one mbox file.
type turn struct {
	ch   chan struct{} // holds one token while nobody has the file
	refs int
}

// New returns a Store.
func New(o Options) *Store {
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	o.LockAttempts = max(o.LockAttempts, 1)
	o.Hostname = strings.NewReplacer("/", "\\057", ":", "\\072").Replace(o.Hostname)
	return &Store{opt: o, sys: theSystem().asking(o.Change), pid: os.Getpid(), inUse: map[string]*turn{}}
}

// lockInProcess waits for its turn at path. The result gives it back.
func (s *Store) lockInProcess(ctx context.Context, path string) (release func(), err error) {
	s.mu.Lock()
	t := s.inUse[path]
	if t == nil {
		t = &turn{ch: make(chan struct{}, 1)}
		t.ch <- struct{}{}
		s.inUse[path] = t
	}
	t.refs++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		if t.refs--; t.refs == 0 {
			delete(s.inUse, path)
		}
		s.mu.Unlock()
	}
	select {
	case <-t.ch:
		return func() { t.ch <- struct{}{}; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

// chunk is how much is written at once.
const chunk = 256 << 10

var buffers = reuse.Pool[[]byte]{New: func() *[]byte { b := make([]byte, 0, 32<<10); return &b }}

// A Form is how the lines of a message are stored.
type Form struct {
	EOL   string // line end; empty: "\n"
	Quote bool   // ">" before lines that begin with "From "
	Dots  bool   // "." before lines that begin with "."
}

// WriteTo writes head, then content in this form, then tail, in as few
// writes as that takes. An error is f's, or a *[ReadError].
func WriteTo(f *os.File, head []byte, content Content, tail string, form Form) error {
	buf := buffers.Get()
	defer func() {
		if cap(*buf) <= chunk+chunk/2 {
			buffers.Put(buf)
		}
	}()
	b := append(reuse.Truncated(*buf), head...)
	defer func() { *buf = b }()
	if all := content.Bytes(); all != nil {
		for start := true; len(all) > 0; {
			n := len(all)
			if n > chunk {
				n = cut(all[:chunk])
			}
			b, start = appendLines(b, all[:n], start, form)
			if all = all[n:]; len(all) > 0 {
				if _, err := f.Write(b); err != nil {
					return err
				}
				b = reuse.Truncated(b)
			}
		}
	} else {
		var err error
		if b, err = writeStream(f, b, content.Reader(), form); err != nil {
			return err
		}
	}
	b = append(b, tail...)
	_, err := f.Write(b)
	return err
}

// writeStream is write for content that is not in memory. It returns what has
// not been written yet.
func writeStream(f *os.File, b []byte, r io.Reader, form Form) ([]byte, error) {
	in := make([]byte, 0, chunk)
	start := true
	for {
		n, err := r.Read(in[len(in):cap(in)])
		in = in[:len(in)+n]
		if err != nil && err != io.EOF {
			return b, &ReadError{err}
		}
		last := err == io.EOF
		if !last && len(in) < cap(in) {
			continue
		}
		whole := len(in)
		if !last {
			whole = cut(in)
		}
		b, start = appendLines(b, in[:whole], start, form)
		in = in[:copy(in, in[whole:])]
		if last {
			return b, nil
		}
		if _, err := f.Write(b); err != nil {
			return b, err
		}
		b = reuse.Truncated(b)
	}
}

// cut is where to cut b, which more follows: after a line if there is one, and
// never between CR and LF.
func cut(b []byte) int {
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		return i + 1
	}
	if b[len(b)-1] == '\r' {
		return len(b) - 1
	}
	return len(b)
}

// A ReadError is trouble with the message, not with the mailbox.
type ReadError struct{ Err error }

func (e *ReadError) Error() string { return e.Err.Error() }
func (e *ReadError) Unwrap() error { return e.Err }

// appendLines appends text, CRLF lines, in the given form. start says whether
// text begins at the start of a line; the result says the same of what
// follows it.
func appendLines(b, text []byte, start bool, form Form) ([]byte, bool) {
	for len(text) > 0 {
		if start && (text[0] == 'F' || text[0] == '.') {
			switch {
			case form.Quote && bytes.HasPrefix(text, fromSpace):
				b = append(b, '>')
			case form.Dots && text[0] == '.':
				b = append(b, '.')
			}
		}
		i := bytes.IndexByte(text, '\n')
		if i < 0 {
			return append(b, text...), false
		}
		line := text[:i]
		if i > 0 && text[i-1] == '\r' {
			line = text[:i-1]
		}
		b = append(b, line...)
		if form.EOL == "" {
			b = append(b, '\n')
		} else {
			b = append(b, form.EOL...)
		}
		text, start = text[i+1:], true
	}
	return b, start
}

var fromSpace = []byte("From ")
