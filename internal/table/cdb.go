package table

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"posthaste/internal/reuse"
)

// The cdb format, by D. J. Bernstein: 256 pointers (place and number of slots
// of a hash table), records (length of key, length of value, key, value), the
// hash tables (hash, place of the record). All numbers have 32 bits and are
// little-endian; a file has 4 GiB at most.

const (
	cdbHeader = 2048
	// CDBSuffix is what is added to the name of a cdb: table.
	CDBSuffix = ".cdb"
)

func cdbHash(key string) uint32 {
	h := uint32(5381)
	for i := 0; i < len(key); i++ {
		h = h<<5 + h ^ uint32(key[i])
	}
	return h
}

type cdbFile struct {
	f    *os.File
	mem  []byte
	size int64
}

func openCDBFile(path string) (*cdbFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && fi.Size() < cdbHeader {
		err = fmt.Errorf("%s: not a cdb file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	x := &cdbFile{f: f, size: fi.Size()}
	if x.size <= maxResident {
		x.mem = make([]byte, x.size)
		if _, err := f.ReadAt(x.mem, 0); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return x, f.Close()
	}
	return x, nil
}

// pair reads two numbers.
func (x *cdbFile) pair(at int64) (a, b uint32, err error) {
	buf, err := x.bytes(at, 8)
	if err != nil {
		return 0, 0, err
	}
	return binary.LittleEndian.Uint32(buf), binary.LittleEndian.Uint32(buf[4:]), nil
}

func (x *cdbFile) bytes(at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || at > x.size-n {
		return nil, errDamaged
	}
	if x.mem != nil {
		return x.mem[at : at+n], nil
	}
	buf := make([]byte, n)
	_, err := x.f.ReadAt(buf, at)
	return buf, err
}

func (x *cdbFile) record(at int64) (key, value []byte, next int64, err error) {
	nk, nv, err := x.pair(at)
	if err != nil {
		return nil, nil, 0, err
	}
	if nk > MaxEntry || nv > MaxEntry {
		return nil, nil, 0, errDamaged
	}
	b, err := x.bytes(at+8, int64(nk)+int64(nv))
	if err != nil {
		return nil, nil, 0, err
	}
	return b[:nk], b[nk:], at + 8 + int64(nk) + int64(nv), nil
}

func (x *cdbFile) find(key string) (string, bool, error) {
	h := cdbHash(key)
	at, slots, err := x.pair(int64(h&255) * 8)
	if err != nil || slots == 0 {
		return "", false, err
	}
	for i := uint32(0); i < slots; i++ {
		slot := (h>>8 + i) % slots
		sh, pos, err := x.pair(int64(at) + int64(slot)*8)
		if err != nil {
			return "", false, err
		}
		if pos == 0 {
			return "", false, nil
		}
		if sh != h {
			continue
		}
		k, v, _, err := x.record(int64(pos))
		if err != nil {
			return "", false, err
		}
		if string(k) == key {
			return string(v), true, nil
		}
	}
	return "", false, nil
}

// cdbTable is cdb. Other programs write keys and values with a zero byte at the
// end or without; what the table does is found out from the first key looked
// up and found, as both are tried.
type cdbTable struct {
	file *watched[*cdbFile]
	opt  Options
}

func openCDB(name string, o Options) (Table, error) {
	path := name + CDBSuffix
	file, err := newWatched(path, o, openCDBFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w (build it with \"postmap cdb:%s\", or postalias for aliases)", err, name)
	}
	if err != nil {
		return nil, err
	}
	return &cdbTable{file: file, opt: o}, nil
}

func (t *cdbTable) Lookup(_ context.Context, key string) (string, bool, error) {
	x, err := t.file.get()
	if err != nil {
		return "", false, err
	}
	key = t.opt.fold(key)
	value, found, err := x.find(key)
	if err != nil || found {
		return value, found, err
	}
	value, found, err = x.find(key + "\x00")
	if found && value != "" && value[len(value)-1] == 0 {
		value = value[:len(value)-1]
	}
	return value, found, err
}

func (t *cdbTable) Pattern() bool { return false }

// Owner implements Owned.
func (t *cdbTable) Owner() (int, bool) { return t.file.owner() }

// All implements Sequence.
func (t *cdbTable) All(fn func(key, value string) bool) error {
	x, err := t.file.get()
	if err != nil {
		return err
	}
	// The hash tables begin where the records end.
	end := x.size
	for i := int64(0); i < 256; i++ {
		at, _, err := x.pair(i * 8)
		if err != nil {
			return err
		}
		end = min(end, int64(at))
	}
	for at := int64(cdbHeader); at < end; {
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

// Close implements Table.
func (t *cdbTable) Close() error {
	if x := t.file.cur.Load().value; x.mem == nil {
		return x.f.Close()
	}
	return nil
}

// cdbWriter builds a cdb file; it is used by one goroutine.
type cdbWriter struct {
	path string
	f    *os.File
	buf  []byte
	at   int64
	seen map[string]struct{}
	slot [256][]cdbSlot
	err  error
}

type cdbSlot struct{ hash, at uint32 }

func newCDBWriter(path string) (*cdbWriter, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	return &cdbWriter{path: path, f: f, buf: make([]byte, cdbHeader, 1<<16), at: cdbHeader, seen: make(map[string]struct{})}, nil
}

// Add implements Writer.
func (w *cdbWriter) Add(key, value string) (bool, error) {
	if _, dup := w.seen[key]; dup {
		return false, w.err
	}
	if len(key) > MaxEntry || len(value) > MaxEntry {
		return false, fmt.Errorf("key or value of %.40q is longer than %d bytes", key, MaxEntry)
	}
	if w.at > 1<<32-1<<26 {
		return false, errors.New("a cdb file cannot be larger than 4 GiB; use hash: instead")
	}
	w.seen[key] = struct{}{}
	h := cdbHash(key)
	w.slot[h&255] = append(w.slot[h&255], cdbSlot{h, uint32(w.at)})
	n := len(w.buf)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(key)))
	w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(len(value)))
	w.buf = append(append(w.buf, key...), value...)
	w.at += int64(len(w.buf) - n)
	if len(w.buf) > 1<<20 {
		w.flush()
	}
	return true, w.err
}

func (w *cdbWriter) flush() {
	if w.err == nil {
		_, w.err = w.f.Write(w.buf)
	}
	w.buf = reuse.Truncated(w.buf)
}

// Commit implements Writer: the hash tables are written and the file put in place.
func (w *cdbWriter) Commit(mode os.FileMode, uid, gid int) error {
	head := make([]byte, 0, cdbHeader)
	for _, list := range w.slot {
		n := uint32(len(list) * 2)
		head = binary.LittleEndian.AppendUint32(head, uint32(w.at))
		head = binary.LittleEndian.AppendUint32(head, n)
		table := make([]cdbSlot, n)
		for _, s := range list {
			i := s.hash >> 8 % n
			for table[i].at != 0 {
				i = (i + 1) % n
			}
			table[i] = s
		}
		for _, s := range table {
			w.buf = binary.LittleEndian.AppendUint32(w.buf, s.hash)
			w.buf = binary.LittleEndian.AppendUint32(w.buf, s.at)
		}
		w.at += int64(n) * 8
	}
	w.flush()
	if w.err == nil {
		_, w.err = w.f.WriteAt(head, 0)
	}
	w.err = commitFile(w.err, w.f, w.path, mode, uid, gid)
	return w.err
}

// Abort implements Writer.
func (w *cdbWriter) Abort() error { return abandonFile(w.f) }
