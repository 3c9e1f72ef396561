package table

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/table/dbfile"
	"posthaste/internal/table/lmdbfile"
)

// Tables of the types hash, btree and lmdb that Postfix has built are read as they are:
// NAME.db, files of Berkeley DB, and NAME.lmdb. Where our own indexed file is there
// too the newer of the two is read: a site that moves may have both systems build its
// tables for a while.
//
// Postfix changes such files in place. It holds a lock, flock(2), while it writes to those of
// Berkeley DB; what is read here is read under the same lock. LMDB's can be read while
// they are written to.

// foreignSuffix is how the file of Postfix's that a type is kept in ends; "" if it is not read.
func foreignSuffix(kind string) string {
	switch kind {
	case "hash", "btree":
		return ".db"
	case "lmdb":
		return ".lmdb"
	}
	return ""
}

// builder is the command that makes the indexed file of a table.
func builder(kind, name string) string {
	return fmt.Sprintf("\"postmap %s:%s\", or postalias for aliases", kind, name)
}

// choose is the file that a table is read from: of our own and Postfix's the newer one, if
// both are there. both says that Postfix's is, although ours is there.
func choose(kind, name string) (path string, both bool) {
	own := name + Suffix
	suffix := foreignSuffix(kind)
	if suffix == "" {
		return own, false
	}
	theirs, err := os.Stat(name + suffix)
	if err != nil || !theirs.Mode().IsRegular() {
		return own, false
	}
	ours, err := os.Stat(own)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return name + suffix, false
	case err != nil || !theirs.ModTime().After(ours.ModTime()) || !recognized(name+suffix):
		return own, false
	}
	return name + suffix, true
}

// recognized says whether a file says of itself that it is one of Postfix's: there may be others
// whose names end in the same way.
func recognized(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return true // who reads it says why it cannot be read
	}
	defer f.Close()
	var head [32]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return true // damaged, perhaps being written
	}
	return dbfile.Recognized(head[:]) || lmdbfile.Recognized(head[:])
}

// BuiltPath is the file that the table that spec, type:name, names is read from now: the
// one that [Create] makes, or Postfix's. It is "" when there is none, or the type is not kept
// in such a file.
func BuiltPath(spec string) string {
	path, err := WriterPath(spec)
	if err != nil {
		return ""
	}
	if kind, name, _ := strings.Cut(spec, ":"); kind != "cdb" {
		path, _ = choose(kind, name)
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// errWriting says that Postfix is writing to a file just now.
var errWriting = errors.New("the file is being written")

// errStale says that a file is no longer what it was when it was opened.
var errStale = errors.New("the file has changed")

// lockPause is how long a lock is waited for before it is tried again, and lockWait how long
// in all.
const (
	lockPause = 20 * time.Millisecond
	lockWait  = 10 * time.Second
)

// reader is what a file of either kind does.
type reader interface {
	Get(key []byte) (value []byte, found bool, err error)
	All(fn func(key, value []byte) bool) error
	Verify() error
}

// builtFile is one version of a file that Postfix has built.
type builtFile struct {
	r      reader
	f      *os.File // nil when all of it is in memory
	locked bool     // it is read under a lock, and does not change between
	id     fileID   // of f
	size   int64

	mu      sync.Mutex
	holders int // lookups under way: the first takes the lock, the last gives it up
}

// openBuiltFile opens and verifies a file. Its lock is waited for as long as wait.
func openBuiltFile(kind, path string, wait time.Duration) (*builtFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	b := &builtFile{f: f, locked: kind != "lmdb"}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	err = b.lock(ctx)
	if err == nil {
		err = errors.Join(b.load(), b.unlock())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if b.size <= maxResident {
		b.f = nil
		return b, f.Close()
	}
	return b, nil
}

func (b *builtFile) load() error {
	fi, err := b.f.Stat()
	if err != nil {
		return err
	}
	b.id, b.size = identify(fi), fi.Size()
	small := b.size <= maxResident
	switch {
	case !b.locked && small:
		b.r, err = asReader(lmdbfile.Load(b.f, b.size))
	case !b.locked:
		b.r, err = asReader(lmdbfile.Open(b.f, b.size))
	case small:
		mem := make([]byte, b.size)
		if _, err := b.f.ReadAt(mem, 0); err != nil {
			return err
		}
		b.r, err = asReader(dbfile.New(mem))
	default:
		b.r, err = asReader(dbfile.Open(b.f, b.size))
	}
	if err != nil {
		return err
	}
	if err := b.r.Verify(); err != nil {
		return err
	}
	var zero error
	err = b.r.All(func(k, v []byte) bool {
		_, err1 := ended(k)
		_, err2 := ended(v)
		zero = cmp.Or(err1, err2)
		return zero == nil
	})
	return cmp.Or(err, zero)
}

func asReader[T reader](r T, err error) (reader, error) { return r, err }

// lock takes the lock that keeps Postfix from writing. Several lookups share it.
func (b *builtFile) lock(ctx context.Context) error {
	if !b.locked {
		return nil
	}
	for {
		b.mu.Lock()
		var err error
		if b.holders == 0 {
			err = unix.Flock(int(b.f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		}
		if err == nil {
			b.holders++
		}
		b.mu.Unlock()
		switch {
		case err == nil:
			return nil
		case err != unix.EWOULDBLOCK && err != unix.EINTR:
			return fmt.Errorf("lock: %w", err)
		}
		select {
		case <-ctx.Done():
			return errWriting
		case <-time.After(lockPause):
		}
	}
}

func (b *builtFile) unlock() error {
	if !b.locked {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.holders--; b.holders > 0 {
		return nil
	}
	return unix.Flock(int(b.f.Fd()), unix.LOCK_UN)
}

// hold keeps a file as it is until release is called. Of a file that has changed since it was
// opened nothing is known any more: errStale.
func (b *builtFile) hold(ctx context.Context) (release func(), err error) {
	if b.f == nil || !b.locked {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	if err := b.lock(ctx); err != nil {
		return nil, err
	}
	release = func() { _ = b.unlock() } // nobody can do anything about it
	fi, err := b.f.Stat()
	if err == nil && identify(fi) != b.id {
		err = errStale
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// find looks a key up, with the zero byte that Postfix ends keys and values with, or
// without it: that is as the table was built.
func (b *builtFile) find(ctx context.Context, key string) (string, bool, error) {
	release, err := b.hold(ctx)
	if err != nil {
		return "", false, err
	}
	defer release()
	for _, k := range []string{key + "\x00", key} {
		value, found, err := b.r.Get([]byte(k))
		if err != nil {
			return "", false, err
		}
		if found {
			text, err := ended(value)
			return text, err == nil, err
		}
	}
	return "", false, nil
}

// errZero: postmap writes no such text, but a file that was not written to its end is full of
// them.
var errZero = errors.New("the file is damaged: there are zero bytes within a key or a value")

// ended is a text without the zero byte that ends it.
func ended(b []byte) (string, error) {
	text := strings.TrimSuffix(string(b), "\x00")
	if strings.IndexByte(text, 0) >= 0 {
		return "", errZero
	}
	return text, nil
}

func (b *builtFile) all(fn func(key, value string) bool) error {
	release, err := b.hold(context.Background())
	if err != nil {
		return err
	}
	defer release()
	var zero error
	err = b.r.All(func(k, v []byte) bool {
		key, err1 := ended(k)
		value, err2 := ended(v)
		if zero = errors.Join(err1, err2); zero != nil {
			return false
		}
		return fn(key, value)
	})
	return errors.Join(err, zero)
}

func (b *builtFile) close() error {
	if b.f == nil {
		return nil
	}
	return b.f.Close()
}
