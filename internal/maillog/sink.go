package maillog

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/quickio"
	"posthaste/internal/rights"
)

// A Sink takes whole lines. Its methods are called by one goroutine at a
// time.
type Sink interface {
	// Format is the form of the lines, which never changes.
	Format() Format
	// Write takes lines, each ended by a newline. It reports how many bytes it
	// has taken, which is a number of whole lines unless the error is final;
	// the rest is offered again later. It returns within a bounded time.
	Write(lines []byte) (taken int, err error)
	// Close releases what the sink holds.
	Close() error
}

// NewWriter returns a Sink that writes to w, such as standard output. A write
// that fails is given up: there is nowhere to say so, and no reason to think
// that it would work later.
func NewWriter(w io.Writer, format Format) Sink { return &writerSink{w, format} }

type writerSink struct {
	w      io.Writer
	format Format
}

func (s *writerSink) Format() Format { return s.format }
func (s *writerSink) Write(lines []byte) (int, error) {
	s.w.Write(lines)
	return len(lines), nil
}
func (s *writerSink) Close() error { return nil }

// A File is a Sink that appends to a file. It notices when the file has been
// renamed or removed, and then opens it anew, so that log rotation needs to
// tell nobody.
type File struct {
	path    string
	perm    os.FileMode
	format  Format
	f       *os.File
	info    os.FileInfo
	checked time.Time
}

// OpenFile opens the log file at path for appending, and creates it with
// perm when it is missing.
func OpenFile(path string, perm os.FileMode, format Format) (*File, error) {
	s := &File{path: path, perm: perm, format: format}
	if err := s.open(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *File) open() error {
	f, err := openAppend(s.path, s.perm)
	if err != nil {
		if errors.Is(err, syscall.ELOOP) {
			err = fmt.Errorf("open log file %s: it is a symbolic link; name the file itself in maillog_file", s.path)
		}
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open log file %s: it is not a regular file (%v)", s.path, info.Mode().Type())
	}
	if err == nil && names(info) > 1 {
		// Whoever may write to the directory may have linked a file here that only we may write to.
		err = fmt.Errorf("open log file %s: it is a second name of another file; remove it", s.path)
	}
	if err != nil {
		f.Close()
		return err
	}
	s.f, s.info, s.checked = f, info, time.Now()
	return nil
}

// names is how many names a file has.
func names(info os.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Nlink)
	}
	return 1
}

// openAppend opens the file, or makes it with exactly the given mode, whatever
// the umask. Root does so with the rights of whoever controls the directory: who could
// lead it elsewhere gets no further than without it.
func openAppend(path string, perm os.FileMode) (f *os.File, err error) {
	if !rights.Switching() {
		return appendAt(unix.AT_FDCWD, path, path, perm)
	}
	dir, who, err := rights.OpenDirectory(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name := filepath.Base(path)
	err = who.Do(func() error {
		f, err = appendAt(int(dir.Fd()), name, path, perm)
		return err
	})
	if !errors.Is(err, os.ErrPermission) || who.IsOwn() {
		return f, err
	}
	return rootsFile(int(dir.Fd()), name, path, err)
}

const appending = unix.O_WRONLY | unix.O_APPEND | unix.O_NOFOLLOW | unix.O_NONBLOCK

// appendAt does openAppend's work for a name in an open directory.
func appendAt(dir int, name, path string, perm os.FileMode) (*os.File, error) {
	f, err := openAt(dir, name, path, appending, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	f, err = openAt(dir, name, path, appending|unix.O_CREAT|unix.O_EXCL, perm)
	if errors.Is(err, os.ErrExist) { // somebody was faster
		return openAt(dir, name, path, appending, 0)
	}
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(perm); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// rootsFile opens a log file that root has made in somebody else's directory, as a program
// that rotates logs does. denied is why its owner may not open it.
func rootsFile(dir int, name, path string, denied error) (*os.File, error) {
	f, err := openAt(dir, name, path, appending, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if st, ok := info.Sys().(*syscall.Stat_t); err != nil || !ok || st.Uid != 0 {
		f.Close()
		return nil, denied
	}
	return f, nil
}

// openAt is os.OpenFile for a name in an open directory.
func openAt(dir int, name, path string, flags int, perm os.FileMode) (*os.File, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, uint32(perm.Perm()))
		switch err {
		case nil:
			return os.NewFile(uintptr(fd), path), nil
		case unix.EINTR:
		default:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// Format implements Sink.
func (s *File) Format() Format { return s.format }

// Write implements Sink. A short write, which a full disk makes, is not
// taken back: the line goes on where it stopped when there is space again.
func (s *File) Write(lines []byte) (int, error) {
	if now := time.Now(); s.f != nil && now.Sub(s.checked) >= time.Second {
		s.checked = now
		if info, err := os.Lstat(s.path); err != nil || !os.SameFile(info, s.info) {
			s.renew()
		}
	}
	if s.f == nil {
		if err := s.open(); err != nil {
			return 0, err
		}
	}
	return s.f.Write(lines)
}

// renew opens the file anew. A process without the privilege goes on with the
// one it has, until master starts another process.
func (s *File) renew() {
	old := s.f
	if err := s.open(); err == nil {
		old.Close()
	}
}

// Reopen opens the file anew.
func (s *File) Reopen() {
	if s.f != nil {
		s.renew()
	}
}

// Close implements Sink.
func (s *File) Close() error {
	if s.f == nil {
		return nil
	}
	f := s.f
	s.f = nil
	return f.Close()
}

// writeTimeout bounds a write to a socket whose reader does not keep up.
const writeTimeout = time.Second

// datagrams is a connection that is made when there is something to send. Its
// address is the path of a socket, or udp:ADDRESS:PORT.
type datagrams struct {
	address string
	conn    net.Conn
	stale   bool // a write to conn has failed: who read is gone, or came back
}

// connect makes the connection if there is none that works. One that does not
// stays until there is another: inside chroot the path may lead nowhere.
func (d *datagrams) connect() error {
	if d.conn != nil && !d.stale {
		return nil
	}
	c, err := d.dial()
	if err != nil {
		return err
	}
	d.Close()
	d.conn, d.stale = quickio.New(c), false
	return nil
}

func (d *datagrams) dial() (net.Conn, error) {
	if remote, ok := strings.CutPrefix(d.address, "udp:"); ok {
		return net.Dial("udp", remote)
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: d.address, Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	c.SetWriteBuffer(4 * maxBatch)
	return c, nil
}

func (d *datagrams) send(p []byte) error {
	if err := d.connect(); err != nil && d.conn == nil {
		return err
	}
	d.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := d.conn.Write(p)
	d.stale = err != nil && !errors.Is(err, unix.EMSGSIZE)
	return err
}

// Reopen makes the connection, so that it is there inside chroot.
func (d *datagrams) Reopen() { _ = d.connect() }

func (d *datagrams) Close() error {
	if d.conn == nil {
		return nil
	}
	c := d.conn
	d.conn = nil
	return c.Close()
}

// postlogSink sends whole lines to the postlog service, many in a datagram.
type postlogSink struct {
	datagrams
	format Format
}

// NewPostlog returns a Sink that sends to the postlog service's socket.
func NewPostlog(path string, format Format) Sink {
	return &postlogSink{datagrams{address: path}, format}
}

func (s *postlogSink) Format() Format { return s.format }
func (s *postlogSink) Write(lines []byte) (int, error) {
	if err := s.send(lines); err != nil {
		return 0, err
	}
	return len(lines), nil
}
