package maildrop

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// A Box is where submitted mail is left.
type Box struct {
	Dir    string // the maildrop directory
	Socket string // pickup's; empty: pickup is neither offered mail nor told of it
	// Sender says what is wrong with a sender that Drop is given; nil allows all.
	Sender func(sender string) error
	// A simulation's: how pickup's socket is reached, and who is asked before a file is synced
	// or removed, as service.World says. nil: the operating system's, and nobody.
	Dial   func() (net.Conn, error)
	Change func(op, path string) error
	Random func(b []byte) // fills b with what makes a name unique
}

// ask asks Change.
func (b Box) ask(op, path string) error {
	if b.Change == nil {
		return nil
	}
	return b.Change(op, path)
}

// EverySender is the local_login_sender_maps that asks nothing of senders, and
// EveryUser the authorized_submit_users that everybody is on: who may write to the
// maildrop need not leave that to postdrop then.
const (
	EverySender = "static:*"
	EveryUser   = "static:anyone"
)

// Drop reads a message in this package's form from r and stores it as Store
// does on behalf of user uid at time now, whatever r says of these two.
func (b Box) Drop(r io.Reader, uid int, now time.Time, limit int64) error {
	m, err := NewReader(r)
	if err != nil {
		return err
	}
	if b.Sender != nil {
		if err := b.Sender(m.Sender); err != nil {
			return err // the rest of the message may be on its way still
		}
	}
	m.UID, m.Time = uid, now
	if err = b.Store(&m.Header, m, limit); err == nil {
		m.Free() // after an error somebody may be waiting for the rest of it still
	}
	return err
}

// Store stores a message. On return it is on stable storage: in the queue, when
// pickup runs and takes it, as it does with small ones, else in a file of the
// directory. Content over limit octets is refused with ErrTooBig; 0 is no
// limit. A header is bounded in any case (MaxHeader).
//
// When pickup dies in the moment between queueing a message and saying so, the
// message is stored again, and is delivered twice.
func (b Box) Store(h *Header, content io.Reader, limit int64) error {
	if limit > 0 {
		content = &limited{content, limit}
	}
	start := make([]byte, maxOffered)
	n, err := io.ReadFull(content, start)
	switch err {
	case nil:
		rest, stop := interruptible(content)
		defer stop()
		content = io.MultiReader(bytes.NewReader(start), rest)
		err = b.drop(h.Time, func(w io.Writer) error { return Write(w, h, content) })
	case io.EOF, io.ErrUnexpectedEOF:
		var whole []byte
		if whole, err = h.whole(start[:n]); err != nil {
			return err
		}
		if b.Socket != "" && b.offer(whole) {
			return nil
		}
		err = b.drop(h.Time, func(w io.Writer) error { _, err := w.Write(whole); return err })
	}
	if err == nil && b.Socket != "" {
		b.wake()
	}
	return err
}

// drop makes a file of what write gives it.
//
// The file is synced once, after its mode has been set: the checksum at the
// end tells a whole file from one that a power cut tore. Its directory is not
// synced, because who runs postdrop may not read it; on the file systems that
// mail is kept on, syncing a new file makes its name durable too.
func (b Box) drop(now time.Time, write func(io.Writer) error) (err error) {
	f, err := b.create(now)
	if err != nil {
		return err
	}
	whole := false
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			err = b.withdraw(f.Name(), whole, err)
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Chmod(0o744); err != nil {
		return err
	}
	whole = true
	if err := b.ask("sync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

// withdraw takes back a message that could not be stored, which the error says.
// When a whole file is gone, pickup has removed it, which it does when the
// message is on stable storage elsewhere: then there is no error. The sender
// would only make another one of it.
func (b Box) withdraw(path string, whole bool, err error) error {
	rerr := b.ask("remove", path)
	if rerr == nil {
		rerr = os.Remove(path)
	}
	if whole && errors.Is(rerr, os.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("maildrop: %w", err)
}

// interruptible is r until this process is told to end, by SIGHUP, SIGINT,
// SIGQUIT or SIGTERM: then reading fails, so that drop takes back what it has
// begun. A signal that comes when all has been read changes nothing: the
// message is stored, and that has to be said. stop ends this.
func interruptible(r io.Reader) (_ io.Reader, stop func()) {
	signals := make(chan os.Signal, 1)
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM} {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	pr, pw := io.Pipe()
	stopped := make(chan struct{})
	go func() { // ends with stop
		select {
		case s := <-signals:
			pw.CloseWithError(fmt.Errorf("interrupted: %v", s))
		case <-stopped:
		}
	}()
	go func() { // ends with r, or at the next write
		_, err := io.Copy(pw, r)
		pw.CloseWithError(err)
	}()
	return pr, func() {
		signal.Stop(signals)
		close(stopped)
		pr.Close()
	}
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
func (b Box) create(now time.Time) (*os.File, error) {
	for range 10 {
		var r [4]byte
		if b.Random != nil {
			b.Random(r[:])
		} else {
			rand.Read(r[:])
		}
		name := fmt.Sprintf("%016x%08x", now.UnixMicro(), binary.LittleEndian.Uint32(r[:]))
		f, err := os.OpenFile(filepath.Join(b.Dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, os.ErrExist) {
			return f, err
		}
	}
	return nil, fmt.Errorf("maildrop: cannot find a free file name in %s", b.Dir)
}
