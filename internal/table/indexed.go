package table

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"time"

	"posthaste/internal/reuse"
)

// Suffix is what is added to the name of a table's source to name the indexed
// file that postmap builds from it and that hash:, btree:, lmdb: and so on read.
const Suffix = ".phdb"

// The indexed file is written once and never changed: a new one is renamed over
// it, so that a reader has all of the old or all of the new. All numbers
// are little-endian.
//
//	header    64 bytes
//	   0  8   "PHDB\r\n\x1a\x01": the last byte is the version
//	   8  8   number of records
//	  16  8   where the index starts, which is where the records end
//	  24  8   number of slots in the index, a power of two
//	  32 28   zero
//	  60  4   CRC-32C of the 60 bytes before
//	records   in the order of the source, from byte 64 on:
//	       4   CRC-32C of the rest of the record
//	       4   length of the key
//	       4   length of the value
//	           key, value
//	index     16 bytes a slot: hash of the key (8), where its record is (8; 0: empty).
//	          A key's slot is the first free one from hash modulo the number of slots on.
//
// A lookup reads a slot and a record: two reads of a file that is in the page
// cache, or none when the file is small enough to be kept in memory.
const (
	indexedMagic  = "PHDB\r\n\x1a\x01"
	indexedHeader = 64
	recordHeader  = 12
	slotSize      = 16

	// maxResident is how large a file may be to be kept in memory.
	maxResident = 4 << 20

	// MaxEntry bounds key and value of one record.
	MaxEntry = 16 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// hashKey is FNV-1a, finished so that low bits depend on all of the key. It is
// part of the format.
func hashKey[T ~string | ~[]byte](key T) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(key); i++ {
		h = (h ^ uint64(key[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return h ^ h>>32
}

// errDamaged is for a file whose checksums or lengths do not agree.
var errDamaged = errors.New("the file is damaged; build it again with postmap (postalias for aliases)")

// indexedFile is one version of a file.
type indexedFile struct {
	f       io.ReaderAt // *os.File, or the bytes
	mem     []byte      // all of it, when small
	closer  io.Closer
	count   uint64
	indexAt uint64
	slots   uint64
}

func openIndexedFile(path string) (*indexedFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	x, err := newIndexedFile(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return x, nil
}

func newIndexedFile(f *os.File) (*indexedFile, error) {
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	x := &indexedFile{f: f, closer: f}
	var head [indexedHeader]byte
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return nil, errDamaged
	}
	if string(head[:len(indexedMagic)]) != indexedMagic {
		return nil, errors.New("not a file that postmap built, or of another version; build it again")
	}
	le := binary.LittleEndian
	if le.Uint32(head[60:]) != crc32.Checksum(head[:60], castagnoli) {
		return nil, errDamaged
	}
	x.count, x.indexAt, x.slots = le.Uint64(head[8:]), le.Uint64(head[16:]), le.Uint64(head[24:])
	size := uint64(fi.Size())
	if x.slots == 0 || x.slots&(x.slots-1) != 0 || x.slots > size/slotSize || x.count >= x.slots ||
		x.indexAt < indexedHeader || x.indexAt != size-x.slots*slotSize {
		return nil, errDamaged
	}
	if size <= maxResident {
		x.mem = make([]byte, size)
		if _, err := f.ReadAt(x.mem, 0); err != nil {
			return nil, err
		}
		x.f, x.closer = nil, nil
		return x, f.Close()
	}
	return x, nil
}

func (x *indexedFile) read(b []byte, at uint64) ([]byte, error) {
	if x.mem != nil {
		return x.mem[at : at+uint64(len(b))], nil
	}
	_, err := x.f.ReadAt(b, int64(at))
	return b, err
}

// find returns the value of key.
func (x *indexedFile) find(_ context.Context, key string) (value string, found bool, err error) {
	h := hashKey(key)
	var slot [slotSize]byte
	for n := uint64(0); n < x.slots; n++ {
		s, err := x.read(slot[:], x.indexAt+((h+n)&(x.slots-1))*slotSize)
		if err != nil {
			return "", false, err
		}
		at := binary.LittleEndian.Uint64(s[8:])
		if at == 0 {
			return "", false, nil
		}
		if binary.LittleEndian.Uint64(s) != h {
			continue
		}
		k, v, _, err := x.record(at)
		if err != nil {
			return "", false, err
		}
		if string(k) == key {
			return string(v), true, nil
		}
	}
	return "", false, errDamaged // no empty slot: the writer leaves some
}

// record reads the record at a place and returns where the next one is.
func (x *indexedFile) record(at uint64) (key, value []byte, next uint64, err error) {
	if at < indexedHeader || at > x.indexAt-recordHeader {
		return nil, nil, 0, errDamaged
	}
	var head [recordHeader]byte
	h, err := x.read(head[:], at)
	if err != nil {
		return nil, nil, 0, err
	}
	le := binary.LittleEndian
	sum, nk, nv := le.Uint32(h), uint64(le.Uint32(h[4:])), uint64(le.Uint32(h[8:]))
	if nk > MaxEntry || nv > MaxEntry || at+recordHeader+nk+nv > x.indexAt {
		return nil, nil, 0, errDamaged
	}
	var body []byte
	if x.mem == nil {
		body = make([]byte, 8+nk+nv)
	} else {
		body = x.mem[:8+nk+nv] // only for its length: read returns the place
	}
	if body, err = x.read(body, at+4); err != nil {
		return nil, nil, 0, err
	}
	if crc32.Checksum(body, castagnoli) != sum {
		return nil, nil, 0, errDamaged
	}
	return body[8 : 8+nk], body[8+nk:], at + recordHeader + nk + nv, nil
}

func (x *indexedFile) all(fn func(key, value string) bool) error {
	at := uint64(indexedHeader)
	for n := uint64(0); n < x.count; n++ {
		k, v, next, err := x.record(at)
		if err != nil {
			return err
		}
		if !fn(string(k), string(v)) {
			return nil
		}
		at = next
	}
	return nil
}

func (x *indexedFile) close() error {
	if x.closer == nil {
		return nil
	}
	return x.closer.Close()
}

// database is one version of the file that a table is in: ours, or Postfix's.
type database interface {
	find(ctx context.Context, key string) (value string, found bool, err error)
	all(fn func(key, value string) bool) error
	close() error
}

// indexedTable is hash and its like.
type indexedTable struct {
	file *watched[database]
	opt  Options
}

func openIndexed(kind, name string, o Options) (Table, error) {
	own, wait := name+Suffix, lockWait
	load := func(path string) (database, error) {
		if path == own {
			return openIndexedFile(path)
		}
		x, err := openBuiltFile(kind, path, wait)
		if err != nil {
			return nil, fmt.Errorf("%s, which Postfix has built, cannot be read: %w (build the table with %s)", path, err, builder(kind, name))
		}
		return x, nil
	}
	pick := func() string {
		path, _ := choose(kind, name)
		return path
	}
	file, err := newWatchedOf(pick, o, load)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w (build it with %s)", err, builder(kind, name))
	}
	if err != nil {
		return nil, err
	}
	wait = 0 // from now on there is an older version to go on with
	v := file.cur.Load()
	if path, both := choose(kind, name); both && path == v.path {
		o.warn("%s and %s are both there; the first is newer, and is read (%s makes the second newer)", path, own, builder(kind, name))
	}
	if src, err := os.Stat(name); err == nil && src.ModTime().After(v.id.mtime) {
		o.warn("database %s is older than source file %s", v.path, name)
	}
	return &indexedTable{file: file, opt: o}, nil
}

func (t *indexedTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	x, err := t.file.get()
	if err != nil {
		return "", false, err
	}
	key = t.opt.fold(key)
	value, found, err := x.find(ctx, key)
	if errors.Is(err, errStale) {
		return t.catchUp(ctx, x, key)
	}
	return value, found, err
}

// catchUp is a lookup in a file that has changed since x was made of it. While Postfix goes on
// writing it waits.
func (t *indexedTable) catchUp(ctx context.Context, x database, key string) (value string, found bool, err error) {
	for limit := time.Now().Add(lockWait); ; {
		if x, err = t.file.again(x); err != nil {
			return "", false, err
		}
		value, found, err = x.find(ctx, key)
		// Inside chroot the file is not opened again: the process is replaced.
		if !errors.Is(err, errStale) || time.Now().After(limit) || t.opt.Confined.Jailed() {
			return value, found, err
		}
		select {
		case <-ctx.Done():
			return "", false, err
		case <-time.After(lockPause):
		}
	}
}

func (t *indexedTable) Pattern() bool { return false }

// Owner implements Owned.
func (t *indexedTable) Owner() (int, bool) { return t.file.owner() }

// All implements Sequence.
func (t *indexedTable) All(fn func(key, value string) bool) error {
	x, err := t.file.get()
	if err != nil {
		return err
	}
	return x.all(fn)
}

// Close closes the present version of the file. Versions that were replaced
// are closed when the last lookup in them is over and they are collected.
func (t *indexedTable) Close() error { return t.file.cur.Load().value.close() }

// indexedWriter builds an indexed file; it is used by one goroutine.
type indexedWriter struct {
	path string
	f    *os.File
	buf  []byte
	at   uint64
	idx  map[string]uint64 // key -> where its record is
	keys []string          // in order
	err  error
}

func newIndexedWriter(path string) (*indexedWriter, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	return &indexedWriter{path: path, f: f, at: indexedHeader, buf: make([]byte, indexedHeader, 1<<16), idx: make(map[string]uint64)}, nil
}

// Add implements Writer.
func (b *indexedWriter) Add(key, value string) (added bool, err error) {
	if _, dup := b.idx[key]; dup {
		return false, b.err
	}
	if len(key) > MaxEntry || len(value) > MaxEntry {
		return false, fmt.Errorf("key or value of %.40q is longer than %d bytes", key, MaxEntry)
	}
	b.idx[key] = b.at
	b.keys = append(b.keys, key)
	start := len(b.buf)
	le := binary.LittleEndian
	b.buf = append(b.buf, 0, 0, 0, 0)
	b.buf = le.AppendUint32(b.buf, uint32(len(key)))
	b.buf = le.AppendUint32(b.buf, uint32(len(value)))
	b.buf = append(b.buf, key...)
	b.buf = append(b.buf, value...)
	le.PutUint32(b.buf[start:], crc32.Checksum(b.buf[start+4:], castagnoli))
	b.at += uint64(len(b.buf) - start)
	if len(b.buf) > 1<<20 {
		b.flush()
	}
	return true, b.err
}

func (b *indexedWriter) flush() {
	if b.err == nil {
		_, b.err = b.f.Write(b.buf)
	}
	b.buf = reuse.Truncated(b.buf)
}

// Commit implements Writer: the index is written and the file put in place.
func (b *indexedWriter) Commit(mode os.FileMode, uid, gid int) error {
	slots := uint64(4)
	for slots*3/4 <= uint64(len(b.keys)) {
		slots *= 2
	}
	index := make([]byte, slots*slotSize)
	le := binary.LittleEndian
	for _, key := range b.keys {
		h := hashKey(key)
		for n := h & (slots - 1); ; n = (n + 1) & (slots - 1) {
			if s := index[n*slotSize:]; le.Uint64(s[8:]) == 0 {
				le.PutUint64(s, h)
				le.PutUint64(s[8:], b.idx[key])
				break
			}
		}
	}
	b.flush()
	if b.err == nil {
		_, b.err = b.f.Write(index)
	}
	head := make([]byte, indexedHeader)
	copy(head, indexedMagic)
	le.PutUint64(head[8:], uint64(len(b.keys)))
	le.PutUint64(head[16:], b.at)
	le.PutUint64(head[24:], slots)
	le.PutUint32(head[60:], crc32.Checksum(head[:60], castagnoli))
	if b.err == nil {
		_, b.err = b.f.WriteAt(head, 0)
	}
	b.err = commitFile(b.err, b.f, b.path, mode, uid, gid)
	return b.err
}

// Abort implements Writer.
func (b *indexedWriter) Abort() error { return abandonFile(b.f) }
