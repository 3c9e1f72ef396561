// Package override keeps what is allowed for now: decisions that hold beside
// main.cf until they are taken back or their time is over. The queue manager
// owns them; tools ask it. The kinds are [Suspension], [Limit] and [Diversion]; a further
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
// JSON object a line. Entries of a kind that is not known are kept as they are. "overrides.copy" has
// the same, and counts when the file is damaged (ErrRestored): what an operator has suspended must not be tried
// because a disk has lost a block. The copy is written first, so that it is never older than the file.
// Where there is no file there is nothing, whatever the copy says.
//
// # Security
//
// The file is the mail system's user's, and is read with no other rights. What it says is bounded before it
// is believed: the file, a line, each text, the number of entries. One fault and nothing of the file counts, not
// a part of it: Open says which line it is (ErrRestored, ErrDamaged).
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
	"unicode/utf8"

	"posthaste/internal/statedir"
)

// A Kind is a kind of decision.
type Kind string

const (
	// Suspension says that mail is not tried. Target is one of package selection's.
	Suspension Kind = "suspension"
	// Limit says how many deliveries to a destination may be under way at once. Target is a
	// destination of package selection.
	Limit Kind = "limit"
	// Diversion says that mail goes by another next hop. Target is a destination, a domain or a
	// next hop of package selection.
	Diversion Kind = "diversion"
	// Setting gives a key of shaping_files another value, for a site, a source at a site, or a domain: Name and
	// Value. Only rules of automation set them.
	Setting Kind = "setting"
	// Return says that mail is returned to its sender without an attempt, for a time: to a domain, from a sender, or of a
	// tenant or a campaign, wherever to or to one domain.
	Return Kind = "return"
	// Waiver says that rules of automation do nothing more of the kind Name with Target: an operator has taken
	// back what one did. It ends when that would have.
	Waiver Kind = "waiver"
)

// kinds are those that this program knows.
var kinds = [...]Kind{Suspension, Limit, Diversion, Setting, Return, Waiver}

// An Entry is one decision. Kind, Target and Name name it.
type Entry struct {
	Kind   Kind      `json:"kind"`
	Target string    `json:"target"`
	By     string    `json:"by"`               // who has decided: a user's name, or a program's
	Reason string    `json:"reason,omitempty"` // in words; may be empty
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until,omitzero"` // zero: until it is taken back

	Most   int  `json:"most,omitempty"`   // of a Limit: so many deliveries at once, 1 to MaxMost; else 0
	Raises bool `json:"raises,omitempty"` // of a Limit: Most counts even where main.cf allows less
	// Of a Diversion: where mail goes instead, nexthop, transport:nexthop or transport:; else empty.
	Nexthop string `json:"nexthop,omitempty"`
	// Of a Setting: a key and its value. Of a Waiver Name is a kind.
	Name  string `json:"name,omitempty"`
	Value string `json:"value,omitempty"`
	Rule  string `json:"rule,omitempty"` // names the rule of automation that has decided; empty: none has

	line string // of a kind that is not known: as it stood in the file; else empty
}

// Over says whether the time of an entry is over.
func (e *Entry) Over(now time.Time) bool { return !e.Until.IsZero() && !now.Before(e.Until) }

const (
	fileName = "overrides"
	copyName = "overrides.copy"
	badName  = "overrides.damaged"
	lockName = "lock"
	version  = 1
	// MaxEntries bounds how many entries there may be.
	MaxEntries = 10000
	// MaxMost bounds what a limit allows.
	MaxMost = 100000
	// MaxReason bounds the octets of a reason.
	MaxReason = 1000
	// maxTarget, maxBy and maxKind bound the octets of the other texts.
	maxTarget, maxBy, maxKind = 2048, 1000, 64
	// maxLine bounds a line of the file, where an octet of a text may take six, and maxFile all of it.
	maxLine = 6*(MaxReason+2*maxTarget+maxBy+maxKind) + 1000
	maxFile = 64 << 20
)

var (
	// ErrDamaged says that neither the file nor its copy can be understood.
	ErrDamaged = errors.New("the file of overrides is damaged")
	// ErrRestored says that the file cannot be understood, and that its copy counts.
	ErrRestored = errors.New("the file of overrides was damaged, and its copy counts")
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
// it is written to. With ErrRestored the store has what the copy has, and can be used. Other errors
// come without a store. dir belongs to the store from then on.
func Open(dir *statedir.Dir) (*Store, error) {
	s := &Store{dir: dir}
	_, err := s.Own()
	if err == nil && s.lock == nil {
		err = s.read()
	}
	if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrRestored) {
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
// list is then what the former owner has left. It does not wait. Of errors that come with true,
// ErrDamaged and ErrRestored mean what they mean of Open; with ErrRestored the file is whole again,
// unless the error says that it could not be written.
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
	if err = s.read(); errors.Is(err, ErrRestored) {
		err = errors.Join(err, s.write(s.entries))
	}
	return true, err
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
	_, err := s.PutIf(e, now, func([]Entry) bool { return true })
	return err
}

// PutIf is Put, if may says so of the entries that there are at that moment: nobody changes them in between. It says whether
// the entry was put. Errors to tell apart: those of Put.
func (s *Store) PutIf(e Entry, now time.Time, may func([]Entry) bool) (put bool, err error) {
	if err := e.check(); err != nil {
		return false, err
	}
	err = s.change(now, func(list []Entry) ([]Entry, error) {
		if !may(list) {
			return nil, errUnchanged
		}
		put = true
		list = slices.DeleteFunc(list, func(o Entry) bool { return o.same(&e) })
		if len(list) >= MaxEntries {
			return nil, ErrFull
		}
		return append(list, e), nil
	})
	if errors.Is(err, errUnchanged) {
		return false, nil
	}
	return put && err == nil, err
}

// errUnchanged is for change: nothing is written.
var errUnchanged = errors.New("nothing is to be changed")

// Remove takes an entry back, and says whether there was one. It is on stable
// storage when the error is nil. An error to tell apart: ErrNotOwner.
func (s *Store) Remove(kind Kind, target string, now time.Time) (found bool, err error) {
	err = s.change(now, func(list []Entry) ([]Entry, error) {
		n := len(list)
		list = slices.DeleteFunc(list, func(o Entry) bool { return o.Kind == kind && o.Target == target })
		found = len(list) < n
		return list, nil
	})
	return found && err == nil, err
}

// Waive takes back all entries of a kind and a target, and puts a Waiver for each that a rule has made and that ends
// by itself: both or neither is on stable storage. It says whether there was one. An error to tell apart: ErrNotOwner.
func (s *Store) Waive(kind Kind, target, by string, now time.Time) (found bool, err error) {
	err = s.change(now, func(list []Entry) ([]Entry, error) {
		w := Entry{Kind: Waiver, Target: target, Name: string(kind), By: by, Since: now}
		kept := list[:0]
		for _, e := range list {
			if e.Kind != kind || e.Target != target {
				if !e.same(&w) {
					kept = append(kept, e)
				} else if e.Until.After(w.Until) {
					w.Until = e.Until
				}
				continue
			}
			found = true
			if e.Rule != "" && e.Until.After(w.Until) {
				w.Until = e.Until
			}
		}
		if !w.Until.IsZero() {
			kept = append(kept, w)
		}
		return kept, nil
	})
	return found && err == nil, err
}

// Drop takes back the entries that f says, and returns them. They are gone from stable storage when the error is
// nil. An error to tell apart: ErrNotOwner.
func (s *Store) Drop(f func(*Entry) bool, now time.Time) (gone []Entry, err error) {
	drops := func(e Entry) bool { return f(&e) }
	s.mu.Lock()
	some := slices.ContainsFunc(s.entries, drops)
	s.mu.Unlock()
	if !some {
		return nil, nil // nothing is written at each start
	}
	err = s.change(now, func(list []Entry) ([]Entry, error) {
		for _, e := range list {
			if f(&e) {
				gone = append(gone, e)
			}
		}
		return slices.DeleteFunc(list, drops), nil
	})
	return gone, err
}

// check says what is wrong with an entry.
func (e *Entry) check() error {
	switch {
	case e.Kind == "" || e.Target == "":
		return errors.New("an override needs a kind and a target")
	case e.Kind == Limit && (e.Most < 1 || e.Most > MaxMost):
		return fmt.Errorf("a limit is a number from 1 to %d", MaxMost)
	case e.Kind == Suspension && (e.Most != 0 || e.Raises):
		return errors.New("a suspension has no number")
	case e.Kind == Diversion && (e.Nexthop == "" || len(e.Nexthop) > maxTarget):
		return fmt.Errorf("a diversion has a next hop, of at most %d octets", maxTarget)
	case e.Kind == Setting && (e.Name == "" || len(e.Value) > maxTarget) || e.Kind == Waiver && e.Name == "":
		return errors.New("a setting has a name, and a value of a bounded length, and a waiver a name")
	case len(e.Name) > maxKind || len(e.Rule) > maxKind || e.Kind != Setting && e.Value != "":
		return fmt.Errorf("a name and a rule have at most %d octets", maxKind)
	case len(e.Reason) > MaxReason:
		return fmt.Errorf("a reason has at most %d octets", MaxReason)
	case len(e.Target) > maxTarget || len(e.By) > maxBy || len(e.Kind) > maxKind:
		return fmt.Errorf("a target has at most %d octets, a user's name %d and a kind %d", maxTarget, maxBy, maxKind)
	case !utf8.ValidString(e.Target + e.By + e.Reason + e.Nexthop + e.Name + e.Value + e.Rule): // JSON would change it
		return errors.New("an override is text in UTF-8")
	}
	return nil
}

func (e *Entry) same(o *Entry) bool {
	return e.Kind == o.Kind && e.Target == o.Target && e.Name == o.Name
}

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

// read reads the file, or the copy of one that is damaged. There need not be one.
func (s *Store) read() error {
	var err error
	s.entries, err = s.readFile(fileName)
	s.damaged = errors.Is(err, ErrDamaged)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if !s.damaged {
		return err
	}
	list, cerr := s.readFile(copyName)
	if cerr != nil {
		return err
	}
	s.entries = list
	return fmt.Errorf("%w: %v", ErrRestored, err)
}

// readFile reads a file in which the list is.
func (s *Store) readFile(name string) ([]Entry, error) {
	f, err := s.dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe in its place must not hold anybody up
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return nil, fmt.Errorf("%w: it is not a regular file, or is longer than %d octets", ErrDamaged, maxFile)
	}
	b := make([]byte, st.Size())
	if n, err := f.ReadAt(b, 0); n < len(b) {
		return nil, err
	}
	return decode(b)
}

func (s *Store) write(list []Entry) error {
	b, err := encode(list)
	if err != nil {
		return err
	}
	if err := s.dir.ReplaceDurably(copyName, b); err != nil {
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
		if list[i].line != "" {
			body.WriteString(list[i].line + "\n")
		} else if err := enc.Encode(&list[i]); err != nil {
			return nil, err
		}
	}
	return fmt.Appendf(nil, "posthaste overrides %d entries %d sha256 %x\n%s", version, len(list), sha256.Sum256(body.Bytes()), body.Bytes()), nil
}

// damage is an error about a line of the file.
func damage(line int, format string, args ...any) error {
	return fmt.Errorf("%w: %s:%d: %w", ErrDamaged, fileName, line, fmt.Errorf(format, args...))
}

func decode(b []byte) ([]Entry, error) {
	head, body, ok := bytes.Cut(b, []byte("\n"))
	var v, n int
	var sum []byte
	if _, err := fmt.Sscanf(string(head[:min(len(head), maxLine)]), "posthaste overrides %d entries %d sha256 %x", &v, &n, &sum); err != nil || !ok {
		return nil, damage(1, "it is not the first line of such a file")
	}
	if v != version {
		return nil, damage(1, "it has version %d, and this program knows %d", v, version)
	}
	if have := sha256.Sum256(body); !bytes.Equal(have[:], sum) {
		return nil, damage(1, "the checksum is wrong: the file was not written by the queue manager, or has changed since")
	}
	var list []Entry
	for line := 2; len(body) > 0; line++ {
		var text []byte
		text, body, _ = bytes.Cut(body, []byte("\n"))
		if len(list) >= MaxEntries || len(text) > maxLine {
			return nil, damage(line, "there are more than %d entries, or a line is longer than %d octets", MaxEntries, maxLine)
		}
		var e Entry
		err := json.Unmarshal(text, &e)
		if err == nil {
			err = e.check()
		}
		if err != nil {
			return nil, damage(line, "%w", err)
		}
		if !slices.Contains(kinds[:], e.Kind) {
			e.line = string(text)
		}
		list = append(list, e)
	}
	if len(list) != n {
		return nil, damage(1, "it promises %d entries, and there are %d", n, len(list))
	}
	return list, nil
}
