// Package override keeps what is allowed for now: decisions that hold beside
// main.cf until they are taken back or their time is over. The queue manager
// owns them; tools ask it. There is one kind so far, [Suspension]; a further
// one is a Kind of its own, and what it says stands in fields of Entry.
//
// # What is durable
//
// Put and Remove return when the change is on stable storage: the whole list is
// written to a new file, which is synced, given the old one's name, and the
// directory synced. A crash leaves the one or the other.
//
// # The file
//
// Named "overrides", in a directory of its own below data_directory. The first line says
// the format's version, the number of entries, and the SHA-256 of what follows; then comes one
// JSON object a line. Entries of a kind that is not known are kept as they are.
//
// # Who writes
//
// One process at a time: it holds a lock on the file "lock". During a reload there are two
// queue managers for a moment; the second reads, and becomes the owner when the first is
// gone (Own).
package override

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"posthaste/internal/statedir"
)

// A Kind is a kind of decision.
type Kind string

// Suspension says that mail for a destination is not tried. Target is a
// destination as package selection has it.
const Suspension Kind = "suspension"

// An Entry is one decision. Kind and Target name it.
type Entry struct {
	Kind   Kind      `json:"kind"`
	Target string    `json:"target"`
	By     string    `json:"by"`               // who has decided: a user's name, or a program's
	Reason string    `json:"reason,omitempty"` // in words; may be empty
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // zero: until it is taken back
}

// Over says whether the time of an entry is over.
func (e *Entry) Over(now time.Time) bool { return !e.Until.IsZero() && !now.Before(e.Until) }

const (
	fileName = "overrides"
	badName  = "overrides.damaged"
	lockName = "lock"
	version  = 1
	// MaxEntries bounds how many entries there may be.
	MaxEntries = 10000
	// maxFile bounds the octets that are read.
	maxFile = 64 << 20
	// MaxReason bounds the octets of a reason.
	MaxReason = 1000
)

var (
	// ErrDamaged says that the file cannot be understood.
	ErrDamaged = errors.New("the file of overrides is damaged")
	// ErrNotOwner says that another process may write and this one may not.
	ErrNotOwner = errors.New("another queue manager still owns the overrides: try again")
	// ErrFull says that there are too many entries.
	ErrFull = fmt.Errorf("there are %d overrides already", MaxEntries)
)

// A Store is the list on disk and in memory. Its methods may be called concurrently.
type Store struct {
	dir *statedir.Dir

	mu      sync.Mutex
	lock    *os.File // nil: another process owns the file
	damaged bool     // what is on disk could not be read, and is put aside before it is written over
	entries []Entry
}

// Open reads the list in dir, and tries to become its owner. With ErrDamaged
// the store is empty and can be used; what is on disk is kept under another name when
// it is written to. dir belongs to the store from then on.
func Open(dir *statedir.Dir) (*Store, error) {
	s := &Store{dir: dir}
	_, err := s.Own()
	if err == nil && s.lock == nil {
		err = s.read()
	}
	if err != nil && !errors.Is(err, ErrDamaged) {
		dir.Close()
		return nil, err
	}
	return s, err
}

// Close gives the list up.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.lock != nil {
		err = s.lock.Close()
		s.lock = nil
	}
	return errors.Join(err, s.dir.Close())
}

// Own tries to become the owner, and says whether it has just become that: the
// list is then what the former owner has left. It does not wait.
func (s *Store) Own() (became bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock != nil {
		return false, nil
	}
	f, err := s.dir.OpenFile(lockName, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return false, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("lock the overrides: %w", err)
	}
	s.lock = f
	return true, s.read()
}

// Owner says whether this process may write.
func (s *Store) Owner() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lock != nil
}

// Entries are the entries whose time is not over, by kind and target. The
// caller may keep the list.
func (s *Store) Entries(now time.Time) []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.entries), func(e Entry) bool { return e.Over(now) })
}

// Put adds an entry, in place of one of the same kind and target. It is on
// stable storage when Put returns nil. Errors to tell apart: ErrNotOwner, ErrFull.
func (s *Store) Put(e Entry, now time.Time) error {
	if e.Kind == "" || e.Target == "" || len(e.Reason) > MaxReason {
		return fmt.Errorf("an override needs a kind and a target, and a reason has at most %d octets", MaxReason)
	}
	return s.change(now, func(list []Entry) ([]Entry, error) {
		list = slices.DeleteFunc(list, func(o Entry) bool { return o.same(&e) })
		if len(list) >= MaxEntries {
			return nil, ErrFull
		}
		return append(list, e), nil
	})
}

// Remove takes an entry back, and says whether there was one. It is on stable
// storage when the error is nil. An error to tell apart: ErrNotOwner.
func (s *Store) Remove(kind Kind, target string, now time.Time) (found bool, err error) {
	err = s.change(now, func(list []Entry) ([]Entry, error) {
		n := len(list)
		list = slices.DeleteFunc(list, func(o Entry) bool { return o.same(&Entry{Kind: kind, Target: target}) })
		found = len(list) < n
		return list, nil
	})
	return found && err == nil, err
}

func (e *Entry) same(o *Entry) bool { return e.Kind == o.Kind && e.Target == o.Target }

// change writes what f makes of the entries. What is over is left out.
func (s *Store) change(now time.Time, f func([]Entry) ([]Entry, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return ErrNotOwner
	}
	list := slices.DeleteFunc(slices.Clone(s.entries), func(e Entry) bool { return e.Over(now) })
	list, err := f(list)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Target, b.Target)) })
	if err := s.write(list); err != nil {
		return fmt.Errorf("the overrides cannot be written: %w", err)
	}
	s.entries = list
	return nil
}

// read reads the file. There need not be one.
func (s *Store) read() error {
	s.entries, s.damaged = nil, false
	f, err := s.dir.Open(fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	b := make([]byte, min(st.Size(), maxFile+1))
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return err
	}
	if s.entries, err = decode(b); err != nil {
		s.damaged = true
	}
	return err
}

func (s *Store) write(list []Entry) error {
	b, err := encode(list)
	if err != nil {
		return err
	}
	if s.damaged {
		// The damaged file is kept under a second name. It keeps its own until the new one is whole,
		// so that a start in between finds it, and says so.
		if err := s.dir.Remove(badName); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.dir.Link(fileName, badName); err != nil {
			return err
		}
	}
	if err := s.dir.ReplaceDurably(fileName, b); err != nil {
		return err
	}
	s.damaged = false
	return nil
}

func encode(list []Entry) ([]byte, error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	for i := range list {
		if err := enc.Encode(&list[i]); err != nil {
			return nil, err
		}
	}
	return fmt.Appendf(nil, "posthaste overrides %d entries %d sha256 %x\n%s", version, len(list), sha256.Sum256(body.Bytes()), body.Bytes()), nil
}

func decode(b []byte) ([]Entry, error) {
	head, body, ok := bytes.Cut(b, []byte("\n"))
	var v, n int
	var sum []byte
	if _, err := fmt.Sscanf(string(head), "posthaste overrides %d entries %d sha256 %x", &v, &n, &sum); err != nil || !ok {
		return nil, fmt.Errorf("%w: its first line is not one of ours", ErrDamaged)
	}
	if v != version {
		return nil, fmt.Errorf("%w: it has version %d, and this program knows %d", ErrDamaged, v, version)
	}
	if have := sha256.Sum256(body); !bytes.Equal(have[:], sum) {
		return nil, fmt.Errorf("%w: the checksum is wrong", ErrDamaged)
	}
	var list []Entry
	for dec := json.NewDecoder(bytes.NewReader(body)); dec.More(); {
		var e Entry
		if err := dec.Decode(&e); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		list = append(list, e)
	}
	if len(list) != n {
		return nil, fmt.Errorf("%w: %d entries, not %d", ErrDamaged, len(list), n)
	}
	return list, nil
}
