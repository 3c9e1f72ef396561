package verify

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"posthaste/internal/boltcheck"
	"posthaste/internal/statedir"
)

// A Store keeps records in a file. Its methods may be called concurrently.
// What they have changed survives a power cut when they return.
//
// It is a cache: a file that turns out to be damaged is set aside, with a
// warning, and a new one begun.
type Store struct {
	dir    *statedir.Dir
	name   string
	warn   func(text string)
	noSync bool
	limit  time.Duration // of one access
	hang   func(text string)

	// One at a time, readers too: what panics half-way in a damaged file may
	// leave its locks behind, for which nobody must be waiting.
	mu sync.Mutex
	db *bolt.DB // nil when a damaged file could not be replaced yet
}

var bucket = []byte("verify")

// lockPatience is how long to wait for a process that is about to end and
// still has the file.
const lockPatience = 10 * time.Second

// accessTime is how long one access may take, on the slowest disk: what takes
// longer goes round in circles in a file that was damaged while it was open.
const accessTime = 5 * time.Minute

// asideSuffix is what a damaged file's name gets.
const asideSuffix = ".damaged"

// OpenStore opens the file, and makes it when there is none. Without a path it
// is one that nobody else sees and that ends with the process. warn hears of
// damage; hang hears that an access does not end, and is to end the process:
// the file is set aside by then.
func OpenStore(path string, warn, hang func(text string)) (*Store, error) {
	passing := path == ""
	if passing {
		dir, err := os.MkdirTemp("", "verify")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir) // it is open; one that stays is in nobody's way
		path = filepath.Join(dir, "verify")
	}
	dir, err := statedir.Open(filepath.Dir(path))
	if err != nil {
		return nil, fmt.Errorf("address_verify_map: %w", err)
	}
	s := &Store{dir: dir, name: filepath.Base(path), warn: warn, noSync: passing, limit: accessTime, hang: hang}
	if err = s.load(); isDamage(err) {
		err = s.renew(err)
	}
	if err != nil {
		dir.Close()
		return nil, fmt.Errorf("address_verify_map: %s: %w", path, err)
	}
	return s, nil
}

// load opens the file.
func (s *Store) load() error {
	if err := s.check(); err != nil {
		return err
	}
	return guarded(func() error {
		db, err := bolt.Open(s.name, 0o600, &bolt.Options{Timeout: lockPatience, NoSync: s.noSync, OpenFile: s.dir.OpenFile})
		if err != nil {
			return err
		}
		err = db.Update(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(bucket)
			return err
		})
		if err != nil {
			return errors.Join(err, db.Close())
		}
		s.db = db
		return nil
	})
}

// check looks at the file, when nobody else has it.
func (s *Store) check() error {
	f, err := s.dir.Open(s.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	return boltcheck.Free(f, lockPatience)
}

// renew sets the damaged file aside and begins a new one. The old one is not
// closed: who knows which of its locks are held.
func (s *Store) renew(damage error) error {
	s.db = nil
	s.warn(fmt.Sprintf("address_verify_map: %s: %v; it is now %s%s, and addresses are verified anew", s.name, damage, s.name, asideSuffix))
	if err := s.setAside(); err != nil {
		return err
	}
	return s.load()
}

func (s *Store) setAside() error {
	if err := s.dir.Rename(s.name, s.name+asideSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// stuck is the end of an access that does not end.
func (s *Store) stuck() {
	text := fmt.Sprintf("address_verify_map: %s: an access has not ended after %v: the file is damaged", s.name, s.limit)
	if err := s.setAside(); err != nil {
		text += fmt.Sprintf(", and stays: %v", err)
	} else {
		text += fmt.Sprintf("; it is now %s%s, and addresses are verified anew", s.name, asideSuffix)
	}
	s.hang(text)
}

// do has f use the file: once more, with a new one, when it is damaged.
func (s *Store) do(f func(db *bolt.DB) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	watchdog := time.AfterFunc(s.limit, s.stuck)
	defer watchdog.Stop()
	if s.db == nil {
		if err := s.load(); err != nil {
			return err
		}
	}
	err := guarded(func() error { return f(s.db) })
	if !isDamage(err) {
		return err
	}
	if err = s.renew(err); err != nil {
		return err
	}
	return guarded(func() error { return f(s.db) })
}

// A panicked is what the library has panicked with: it believes its file.
type panicked struct{ value any }

func (p panicked) Error() string { return fmt.Sprintf("the file is damaged: %v", p.value) }

// guarded is f, with its panics, and reads beyond the end of the file, as errors.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = panicked{v}
		}
	}()
	return f()
}

// isDamage says whether an error is about what is in the file, and not of the
// system, or because another process has the file.
func isDamage(err error) bool {
	var path *fs.PathError
	var sys *os.SyscallError
	var errno syscall.Errno
	return err != nil && !errors.Is(err, errUnchanged) && !errors.Is(err, bolterrors.ErrTimeout) &&
		!errors.As(err, &path) && !errors.As(err, &sys) && !errors.As(err, &errno)
}

// Path is the file's path for the value of address_verify_map, which names a
// table type that does not matter here. Empty means that nothing is kept.
func Path(value string) string {
	if value == "" {
		return ""
	}
	if _, name, ok := strings.Cut(value, ":"); ok {
		value = name
	}
	return value + ".bolt"
}

// Close closes the file.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return s.dir.Close()
	}
	return errors.Join(guarded(s.db.Close), s.dir.Close())
}

var errTooLong = errors.New("verify: address too long")

func keyOf(addr string) ([]byte, error) {
	if len(addr) > maxKey {
		return nil, errTooLong
	}
	return []byte(strings.ToLower(addr)), nil
}

// Get is the record of addr, a zero one when there is none.
func (s *Store) Get(addr string) (r Record, err error) {
	key, err := keyOf(addr)
	if err != nil {
		return r, err
	}
	err = s.do(func(db *bolt.DB) error {
		return db.View(func(tx *bolt.Tx) error {
			r = recordOf(tx.Bucket(bucket).Get(key))
			return nil
		})
	})
	return r, err
}

// recordOf is the record with this encoding: a zero one if there is none, or
// if it is damaged.
func recordOf(v []byte) (r Record) {
	if v != nil && r.decode(v) != nil {
		return Record{}
	}
	return r
}

// errUnchanged ends a transaction that has nothing to write.
var errUnchanged = errors.New("unchanged")

// Change calls f with the record of addr, a zero one when there is none, and
// keeps what f makes of it, or drops it when f returns false. It may call f
// twice.
func (s *Store) Change(addr string, f func(*Record) bool) error {
	key, err := keyOf(addr)
	if err != nil {
		return err
	}
	err = s.do(func(db *bolt.DB) error {
		return db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket(bucket)
			old := b.Get(key)
			r := recordOf(old)
			if !f(&r) {
				if old == nil {
					return errUnchanged
				}
				return b.Delete(key)
			}
			v := r.append(nil)
			if old != nil && bytes.Equal(old, v) {
				return errUnchanged
			}
			return b.Put(key, v)
		})
	})
	if errors.Is(err, errUnchanged) {
		err = nil
	}
	return err
}

// cleanStep is how many records are looked at, at most, while others wait.
const cleanStep = 1000

// Clean drops the records for which dead is true and returns how many stay
// and go.
func (s *Store) Clean(dead func(*Record) bool) (kept, dropped int, err error) {
	next := []byte{} // where to go on; nil: there is no more
	for next != nil && err == nil {
		from := next
		var stay int
		var gone [][]byte
		err = s.do(func(db *bolt.DB) error {
			stay, gone, next = 0, nil, nil
			if err := db.View(func(tx *bolt.Tx) error {
				c := tx.Bucket(bucket).Cursor()
				k, v := c.Seek(from)
				for ; k != nil && stay+len(gone) < cleanStep; k, v = c.Next() {
					var r Record
					if r.decode(v) != nil || dead(&r) {
						gone = append(gone, bytes.Clone(k))
					} else {
						stay++
					}
				}
				next = bytes.Clone(k)
				return nil
			}); err != nil || len(gone) == 0 {
				return err
			}
			return db.Update(func(tx *bolt.Tx) error {
				for _, k := range gone {
					if err := tx.Bucket(bucket).Delete(k); err != nil {
						return err
					}
				}
				return nil
			})
		})
		kept, dropped = kept+stay, dropped+len(gone)
	}
	return kept, dropped, err
}
