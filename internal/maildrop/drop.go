package maildrop

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Drop reads a message in this package's form from r and stores it in the
// directory dir on behalf of user uid at time now, whatever r says of these
// two. On return the message is on stable storage. It returns the file's name.
// Content over limit octets is refused with ErrTooBig; 0 is no limit. A header
// is bounded in any case (MaxHeader).
//
// The file is synced once, after its mode has been set: the checksum at the
// end tells a whole file from one that a power cut tore. Its directory is not
// synced, because who runs postdrop may not read it; on the file systems that
// mail is kept on, syncing a new file makes its name durable too.
func Drop(dir string, r io.Reader, uid int, now time.Time, limit int64) (name string, err error) {
	m, err := NewReader(r)
	if err != nil {
		return "", err
	}
	m.UID, m.Time = uid, now
	f, err := create(dir, now)
	if err != nil {
		return "", err
	}
	whole := false
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			name, err = withdraw(f.Name(), whole, err)
		}
	}()
	content := io.Reader(m)
	if limit > 0 {
		content = &limited{m, limit}
	}
	if err := Write(f, &m.Header, content); err != nil {
		return "", err
	}
	if err := f.Chmod(0o744); err != nil {
		return "", err
	}
	whole = true
	if err := f.Sync(); err != nil {
		return "", err
	}
	return filepath.Base(f.Name()), nil
}

// withdraw takes back a message that could not be stored, which the error says.
// When a whole file is gone, pickup has removed it, which it does when the
// message is on stable storage elsewhere: then there is no error. The sender
// would only make another one of it.
func withdraw(path string, whole bool, err error) (name string, _ error) {
	if rerr := os.Remove(path); whole && errors.Is(rerr, os.ErrNotExist) {
		return filepath.Base(path), nil
	}
	return "", fmt.Errorf("maildrop: %w", err)
}

// ErrTooBig is the error of a message over message_size_limit.
var ErrTooBig = errors.New("message file too big")

// limited is a reader that fails when there is more than left to read.
type limited struct {
	r    io.Reader
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, ErrTooBig
	}
	return n, err
}

// create makes a file that nobody else has: its name is the time, so that
// pickup may take mail in the order in which it came, and a random number.
func create(dir string, now time.Time) (*os.File, error) {
	for range 10 {
		var b [4]byte
		rand.Read(b[:])
		name := fmt.Sprintf("%016x%08x", now.UnixMicro(), binary.LittleEndian.Uint32(b[:]))
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, os.ErrExist) {
			return f, err
		}
	}
	return nil, fmt.Errorf("maildrop: cannot find a free file name in %s", dir)
}

// Wake tells pickup, by its socket, that there is mail. It is no error when
// the mail system is not running: pickup looks when it starts.
func Wake(socket string) {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return
	}
	c.SetDeadline(time.Now().Add(time.Second))
	c.Write([]byte{'W'})
	c.Close()
}
