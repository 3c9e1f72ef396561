package simtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
)

// dropDir is the maildrop directory, below that of the test. It is a real one.
const dropDir = "maildrop"

// forgotten is how long the removal of a file may take to reach the disk. Nobody syncs the directory.
const forgotten = 30 * time.Second

// A dropbox knows what of the maildrop directory is on stable storage.
type dropbox struct {
	site *site
	rnd  *rand.Rand // of the names of files, and of the times that syncs take

	mu      sync.Mutex
	synced  map[string]bool
	removed []dropped
}

// dropped is a file that has been removed.
type dropped struct {
	path    string
	content []byte
	at      time.Time
}

// emptyDropbox makes the directory anew.
func emptyDropbox(s *site) (*dropbox, error) {
	if err := os.RemoveAll(dropDir); err != nil {
		return nil, err
	}
	return &dropbox{site: s, rnd: s.seed.source("maildrop"), synced: map[string]bool{}}, os.MkdirAll(dropDir, 0o755)
}

var errSwitchedOff = errors.New("simtest: the machine has no power")

// submit is the sendmail program with a letter: it offers it to pickup, or leaves it in maildrop, while the
// mail system runs or not.
func (s *site) submit(l *Letter, f *fate) (code int, err error) {
	n, on := s.machine()
	if !on {
		return 0, errSwitchedOff
	}
	dial := func() (net.Conn, error) {
		return s.dial(context.Background(), nil, "public/pickup", address("sendmail"))
	}
	box := maildrop.Box{Dir: dropDir, Socket: "public/pickup", Dial: dial, Random: s.drop.random,
		Change: func(op, path string) error { return s.drop.change(n, op, path) }}
	if l.File {
		box.Socket = ""
	}
	h := &maildrop.Header{Time: time.Now(), UID: os.Getuid(), Sender: l.From}
	for _, r := range l.Rcpts {
		h.Recipients = append(h.Recipients, mail.Recipient{Address: r})
	}
	f.rcpts, f.whole = l.Rcpts, true
	err = box.Store(h, strings.NewReader(strings.ReplaceAll(l.body(), "\r\n", "\n")), 0)
	if now, _ := s.machine(); now != n {
		return 0, errSwitchedOff // who would be told is gone
	}
	f.told = true
	if err != nil {
		return 451, nil
	}
	if l.File {
		s.wakePickup()
	}
	return 250, nil
}

func (d *dropbox) random(b []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range b {
		b[i] = byte(d.rnd.Uint32())
	}
}

// change is where faults strike postdrop: n is how often the power had failed when it began.
func (d *dropbox) change(n int, op, path string) error {
	if op == "sync" {
		d.mu.Lock()
		pause := time.Duration(100_000 + d.rnd.IntN(4_000_000))
		d.mu.Unlock()
		time.Sleep(pause)
	}
	if now, _ := d.site.machine(); now != n {
		return errSwitchedOff
	}
	switch {
	case op == "remove":
		d.remove(path)
	case d.site.syncsFail():
		return syscall.EIO
	default:
		d.mu.Lock()
		defer d.mu.Unlock()
		d.synced[path] = true
	}
	return nil
}

// remove notes that a file is about to be removed.
func (d *dropbox) remove(path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removed = append(d.removed, dropped{path, b, time.Now()})
}

// cut is what a power cut leaves: a file that was not synced may be gone or torn, and one that has been removed may
// be there again.
func (d *dropbox) cut(r *rand.Rand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names, _ := filepath.Glob(dropDir + "/*")
	slices.Sort(names)
	for _, path := range names {
		switch {
		case d.synced[path]:
		case r.IntN(2) == 0:
			_ = os.Remove(path)
		default:
			_ = os.Truncate(path, int64(r.IntN(400)))
		}
	}
	for _, f := range d.removed {
		if d.synced[f.path] && time.Since(f.at) < forgotten && r.IntN(2) == 0 {
			_ = os.WriteFile(f.path, f.content, 0o744)
			_ = os.Chmod(f.path, 0o744)
		}
	}
	d.removed = nil
}

// wakePickup says that there is a file.
func (s *site) wakePickup() {
	c, err := s.dial(context.Background(), nil, "public/pickup", address("postdrop"))
	if err == nil {
		_, _ = c.Write([]byte{'W'})
		_ = c.Close()
	}
}

// wakeful is what master does once a minute.
func (s *site) wakeful() {
	for !s.isOver() {
		time.Sleep(time.Minute)
		if names, _ := filepath.Glob(dropDir + "/*"); len(names) > 0 && s.powered() {
			s.wakePickup()
		}
	}
}

// left says which messages are in maildrop at the end.
func (d *dropbox) left() {
	names, _ := filepath.Glob(dropDir + "/*")
	for _, path := range names {
		b, err := os.ReadFile(path)
		if err != nil {
			d.site.books.fail("%v", err)
		}
		m, err := maildrop.NewReader(bytes.NewReader(b))
		if err == nil {
			_, err = io.Copy(io.Discard, m)
		}
		if err == nil {
			d.site.books.fail("%s is left, with mail from <%s>", path, m.Sender)
		}
	}
}
