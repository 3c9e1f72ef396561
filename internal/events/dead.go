package events

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"posthaste/internal/eventjournal"
	"posthaste/internal/proto"
)

// errDead says that there is no room for dead letters.
var errDead = errors.New("there is no room for dead letters (event_dead_letter_limit)")

// deadPath is the file of a sink's dead letters.
func deadPath(dir, sink string) string { return filepath.Join(dir, "dead."+sink) }

// A deadLetter is a line of that file.
type deadLetter struct {
	Time   time.Time       `json:"refused"`
	Reason string          `json:"reason"`
	Number uint64          `json:"number"` // in the journal
	Kind   string          `json:"kind"`
	Key    string          `json:"key,omitempty"`
	Event  json.RawMessage `json:"event"`
}

// deadLetters are the events that one sink has refused for good. Methods may be called concurrently.
type deadLetters struct {
	path  string
	limit int64

	resending sync.Mutex // held while letters are sent again

	mu     sync.Mutex // of the file and what follows
	loaded bool
	n      uint64 // letters; good when loaded
	size   int64  // of the file
}

// load counts the letters. The caller has mu.
func (d *deadLetters) load() error {
	if d.loaded {
		return nil
	}
	d.n, d.size = 0, 0
	b, err := os.ReadFile(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// A line that power failed in ends with the file: it is not confirmed, and comes again.
	if end := bytes.LastIndexByte(b, '\n') + 1; end < len(b) {
		if err := os.Truncate(d.path, int64(end)); err != nil {
			return err
		}
		b = b[:end]
	}
	d.n, d.size, d.loaded = uint64(bytes.Count(b, []byte("\n"))), int64(len(b)), true
	return nil
}

// add appends events. They are durable on return.
func (d *deadLetters) add(now time.Time, list []eventjournal.Entry, reason string) error {
	var text []byte
	for i := range list {
		line, err := json.Marshal(&deadLetter{Time: now.UTC().Truncate(time.Second), Reason: reason, Number: list[i].Seq,
			Kind: list[i].Kind, Key: list[i].Key, Event: list[i].JSON})
		if err != nil {
			return err
		}
		text = append(append(text, line...), '\n')
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.load(); err != nil {
		return err
	}
	if d.size+int64(len(text)) > d.limit {
		return errDead
	}
	if err := appendFile(d.path, text, d.size); err != nil {
		d.loaded = false
		return fmt.Errorf("dead letters: %w", err)
	}
	d.n += uint64(len(list))
	d.size += int64(len(text))
	return nil
}

// appendFile appends text to a file that has so many octets, and syncs it, and its name if it is new.
func appendFile(path string, text []byte, size int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err == nil {
		err = f.Sync()
	}
	if err == nil && size == 0 {
		err = syncDir(filepath.Dir(path))
	}
	return errors.Join(err, f.Close())
}

// syncDir makes the names in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// count is how many there are.
func (d *deadLetters) count() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.load() != nil {
		return 0
	}
	return d.n
}

// resend has all letters sent, in order. Those that are refused again stay, and so do all from the first on that
// fails for another reason, which is returned. n is how many were taken.
func (d *deadLetters) resend(send func(*eventjournal.Entry) error) (n uint64, err error) {
	d.resending.Lock()
	defer d.resending.Unlock()
	b, err := d.read()
	if err != nil {
		return 0, err
	}
	var rest []byte
	var failed error
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 4*proto.MaxEvent)
	for lines.Scan() {
		var l deadLetter
		err := failed
		if err == nil {
			if err = json.Unmarshal(lines.Bytes(), &l); err == nil {
				err = send(&eventjournal.Entry{Seq: l.Number, EventRecord: proto.EventRecord{Kind: l.Kind, Key: l.Key, JSON: l.Event}})
			}
		}
		if err == nil {
			n++
			continue
		}
		rest = append(append(rest, lines.Bytes()...), '\n')
		var no *refusal
		if !errors.As(err, &no) {
			failed = err
		}
	}
	if err := lines.Err(); err != nil {
		return n, err // nothing is taken off
	}
	return n, errors.Join(failed, d.leave(len(b), rest))
}

// read gives the whole file.
func (d *deadLetters) read() ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.load(); err != nil {
		return nil, err
	}
	b, err := os.ReadFile(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return b, err
}

// leave replaces the first n octets of the file. Others may have come behind them.
func (d *deadLetters) leave(n int, rest []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.loaded = false
	b, err := os.ReadFile(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return replaceFile(d.path, append(rest, b[min(n, len(b)):]...))
}

// replaceFile replaces a file durably; an empty one is removed.
func replaceFile(path string, text []byte) error {
	if len(text) == 0 {
		err := os.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return errors.Join(err, syncDir(filepath.Dir(path)))
	}
	temp := path + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := appendFile(temp, text, 0); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
