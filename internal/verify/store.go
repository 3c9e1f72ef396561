package verify

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"

	"posthaste/internal/statedir"
)

// A Store keeps records, in a file or, without one, in memory. Its methods may
// be called concurrently.
type Store struct {
	db *bolt.DB
}

var bucket = []byte("verify")

// lockPatience is how long to wait for a process that is about to end and
// still has the file.
const lockPatience = 10 * time.Second

// OpenStore opens the file, and makes it when there is none.
func OpenStore(path string) (*Store, error) {
	// Not synced: what a power cut loses is found out again.
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockPatience, NoSync: true, NoFreelistSync: true, OpenFile: openOwn})
	if err == nil {
		err = db.Update(func(tx *bolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(bucket)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("address_verify_map: %s: %w; remove the file to begin anew", path, err)
	}
	return &Store{db}, nil
}

// openOwn is os.OpenFile, and has the file belong to the owner of its directory.
func openOwn(path string, flag int, perm os.FileMode) (*os.File, error) {
	dir, err := statedir.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := dir.OpenFile(filepath.Base(path), flag, perm)
	if err == nil {
		err = statedir.Own(dir, filepath.Base(path))
	}
	if err != nil && f != nil {
		f.Close()
		f = nil
	}
	return f, err
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
func (s *Store) Close() error { return s.db.Close() }

// Change calls f with the record of addr, a zero one when there is none, and
// keeps what f makes of it, or drops it when f returns false.
func (s *Store) Change(addr string, f func(*Record) bool) error {
	if len(addr) > maxKey {
		return errors.New("verify: address too long")
	}
	key := []byte(strings.ToLower(addr))
	return s.db.Update(func(tx *bolt.Tx) error {
		b := tx.Bucket(bucket)
		r := new(Record)
		if v := b.Get(key); v != nil {
			if err := r.decode(v); err != nil {
				*r = Record{} // damaged: as good as none
			}
		}
		if !f(r) {
			return b.Delete(key)
		}
		return b.Put(key, r.append(nil))
	})
}

// Clean drops the records for which dead is true and returns how many stay
// and go.
func (s *Store) Clean(dead func(*Record) bool) (kept, dropped int, err error) {
	err = s.db.Update(func(tx *bolt.Tx) error {
		var keys [][]byte
		b := tx.Bucket(bucket)
		err := b.ForEach(func(k, v []byte) error {
			var r Record
			if r.decode(v) != nil || dead(&r) {
				keys = append(keys, append([]byte(nil), k...))
			} else {
				kept++
			}
			return nil
		})
		for _, k := range keys {
			if err == nil {
				err = b.Delete(k)
			}
		}
		dropped = len(keys)
		return err
	})
	return kept, dropped, err
}
