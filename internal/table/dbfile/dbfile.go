// Package dbfile reads files of Berkeley DB, of the access methods hash and btree, as
// Postfix's postmap makes them on hash: and btree: tables (NAME.db). It does not write.
//
// # Format
//
// A file is pages of one size, numbered from 0. Numbers are in the byte order of the
// machine that made the file, which its magic number shows. Page 0 says what it is:
//
//	 8  4  its own number, 0
//	12  4  magic: 0x053162 is btree, 0x061561 hash
//	16  4  version
//	20  4  size of a page, a power of two from 512 to 65536
//	24  1  encryption; 25 type of page: 8 hash, 9 btree; 26 flags: checksums, partitions
//	32  4  number of the last page
//	48  4  flags: duplicates, record numbers, databases in one file
//	72     hash: number of the last bucket, high mask, low mask, fill, number of
//	       elements, a sample of the hash function, 32 numbers that say where buckets are
//	88  4  btree: number of the root
//
// All other pages begin with 26 octets: 8 its own number, 16 the next page, 20 the number of
// items, 22 where items begin (of an overflow page: how much it holds), 24 level, 25
// type. Then the places of the items, 2 octets each.
//
// # Errors
//
// Every number of a file is checked before it is used, and every page has to have its own
// number and the type that it should have where it stands. [File.Verify] reads all of a
// file. So a file that was cut off, or written in part, is an error, and not one in which
// keys are missing.
package dbfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxItem bounds a key and a value, in octets.
const MaxItem = 16 << 20

// ErrDamaged is the error of a file whose parts do not agree.
var ErrDamaged = errors.New("the file is damaged, or is not written to its end")

// ErrForeign is the error of a file of a kind that is not read here. What wraps it says
// which.
var ErrForeign = errors.New("not a file that is read here")

const (
	btreeMagic = 0x053162
	hashMagic  = 0x061561

	headSize = 26 // of a page

	pageHashUnsorted = 2
	pageInternal     = 3
	pageLeaf         = 5
	pageOverflow     = 7
	pageHashMeta     = 8
	pageBtreeMeta    = 9
	pageHash         = 13

	// metaSize is what is read of page 0 before the size of a page is known.
	metaSize = 512

	// sample is what the hash function makes of the text that files are marked with.
	sample = "%$sniglet^&\x00"
)

// A File is one file, of either kind. It may be used concurrently, as long as what it
// reads from may be, and does not change.
type File struct {
	r     io.ReaderAt
	mem   []byte // all of it, instead of r
	size  int64
	order binary.ByteOrder
	page  uint32 // size of one
	last  uint32 // number of the last page

	hash bool
	root uint32 // of a btree

	maxBucket, highMask, lowMask uint32 // of a hash
	elements                     uint32
	spares                       [32]uint32
}

// Open reads page 0 of a file of size octets.
func Open(r io.ReaderAt, size int64) (*File, error) { return open(&File{r: r, size: size}) }

// New is Open for a file that is in memory. What Get returns is part of it.
func New(mem []byte) (*File, error) { return open(&File{mem: mem, size: int64(len(mem))}) }

func open(f *File) (*File, error) {
	if f.size < metaSize {
		return nil, fmt.Errorf("%w: it has only %d octets", ErrDamaged, f.size)
	}
	m, err := f.bytes(0, metaSize)
	if err != nil {
		return nil, err
	}
	magic := binary.LittleEndian.Uint32(m[12:])
	if f.order = binary.LittleEndian; magic != btreeMagic && magic != hashMagic {
		f.order, magic = binary.BigEndian, binary.BigEndian.Uint32(m[12:])
	}
	f.hash = magic == hashMagic
	f.page, f.last = f.order.Uint32(m[20:]), f.order.Uint32(m[32:])
	version := f.order.Uint32(m[16:])
	switch {
	case magic != btreeMagic && magic != hashMagic:
		return nil, fmt.Errorf("%w: it is not a Berkeley DB hash or btree file", ErrForeign)
	case f.hash && (version < 8 || version > 9) || !f.hash && version != 9:
		return nil, fmt.Errorf("%w: version %d of Berkeley DB's format", ErrForeign, version)
	case m[24] != 0:
		return nil, fmt.Errorf("%w: it is encrypted", ErrForeign)
	case m[26] != 0:
		return nil, fmt.Errorf("%w: it has checksums or partitions", ErrForeign)
	case f.order.Uint32(m[48:]) != 0:
		return nil, fmt.Errorf("%w: it has duplicate keys, record numbers or several databases (flags %#x)", ErrForeign, f.order.Uint32(m[48:]))
	case f.page < 512 || f.page > 65536 || f.page&(f.page-1) != 0 || f.order.Uint32(m[8:]) != 0,
		int64(f.last) >= f.size/int64(f.page):
		return nil, ErrDamaged
	case f.hash && m[25] != pageHashMeta || !f.hash && m[25] != pageBtreeMeta:
		return nil, ErrDamaged
	}
	if !f.hash {
		f.root = f.order.Uint32(m[88:])
		return f, nil
	}
	return f, f.openHash(m)
}

func (f *File) openHash(m []byte) error {
	f.maxBucket, f.highMask, f.lowMask = f.order.Uint32(m[72:]), f.order.Uint32(m[76:]), f.order.Uint32(m[80:])
	f.elements = f.order.Uint32(m[88:])
	if f.order.Uint32(m[92:]) != hashOf([]byte(sample)) {
		return fmt.Errorf("%w: it was made with another hash function", ErrForeign)
	}
	for i := range f.spares {
		f.spares[i] = f.order.Uint32(m[96+4*i:])
	}
	if f.highMask&(f.highMask+1) != 0 || f.lowMask != f.highMask>>1 || f.maxBucket > f.highMask || f.maxBucket < f.lowMask || f.maxBucket > f.last {
		return ErrDamaged
	}
	return nil
}

// Recognized says whether the first octets of a file, 16 or more, are those of a hash or btree of
// Berkeley DB, of any version.
func Recognized(head []byte) bool {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if magic := order.Uint32(head[12:]); magic == btreeMagic || magic == hashMagic {
			return true
		}
	}
	return false
}

// bytes are n octets of the file. The caller does not change them.
func (f *File) bytes(at, n int64) ([]byte, error) {
	if at < 0 || n < 0 || at > f.size-n {
		return nil, ErrDamaged
	}
	if f.mem != nil {
		return f.mem[at : at+n : at+n], nil
	}
	b := make([]byte, n)
	if _, err := f.r.ReadAt(b, at); err != nil {
		if errors.Is(err, io.EOF) {
			err = ErrDamaged // it has become shorter
		}
		return nil, err
	}
	return b, nil
}

// node is a page that is not page 0.
type node struct {
	f    *File
	data []byte
}

// at reads a page, which has to be of one of two types.
func (f *File) at(number uint32, types ...byte) (node, error) {
	if number == 0 || number > f.last {
		return node{}, ErrDamaged
	}
	b, err := f.bytes(int64(number)*int64(f.page), int64(f.page))
	if err != nil {
		return node{}, err
	}
	if f.order.Uint32(b[8:]) != number || bytes.IndexByte(types, b[25]) < 0 {
		return node{}, ErrDamaged
	}
	n := node{f, b}
	if b[25] != pageOverflow && headSize+2*n.count() > len(b) {
		return node{}, ErrDamaged
	}
	return n, nil
}

func (n node) count() int   { return int(n.f.order.Uint16(n.data[20:])) }
func (n node) next() uint32 { return n.f.order.Uint32(n.data[16:]) }
func (n node) level() byte  { return n.data[24] }
func (n node) kind() byte   { return n.data[25] }

// place is where item i is.
func (n node) place(i int) int { return int(n.f.order.Uint16(n.data[headSize+2*i:])) }

// overflow reads what is on overflow pages: total octets, from page first on.
func (f *File) overflow(first, total uint32) ([]byte, error) {
	if total > MaxItem || int64(total) > f.size {
		return nil, ErrDamaged
	}
	out := make([]byte, 0, total)
	for number := first; number != 0; {
		n, err := f.at(number, pageOverflow)
		if err != nil {
			return nil, err
		}
		held := int(f.order.Uint16(n.data[22:]))
		if held == 0 || held > len(n.data)-headSize || len(out)+held > int(total) {
			return nil, ErrDamaged
		}
		out = append(out, n.data[headSize:headSize+held]...)
		number = n.next()
	}
	if len(out) != int(total) {
		return nil, ErrDamaged
	}
	return out, nil
}

// Get returns the value of key, octet for octet as it is in the file.
func (f *File) Get(key []byte) (value []byte, found bool, err error) {
	if f.hash {
		return f.getHash(key)
	}
	return f.getBtree(key)
}

// All calls fn with all keys and values, until fn returns false: of a btree in the order of
// the keys, of a hash in none.
func (f *File) All(fn func(key, value []byte) bool) error {
	var err error
	if f.hash {
		_, err = f.allHash(fn)
	} else {
		err = (&walk{f: f, fn: fn}).below(f.root, 0, nil, nil)
	}
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// Verify reads all of the file. Nil says that every key and every value can be found.
func (f *File) Verify() error {
	every := func(_, _ []byte) bool { return true }
	if !f.hash {
		return (&walk{f: f, fn: every}).below(f.root, 0, nil, nil)
	}
	n, err := f.allHash(every)
	// Berkeley DB begins to count at the number of elements that it is told to expect, and
	// Postfix tells it 4096.
	if more := int64(f.elements) - n; err == nil && more != 0 && more != 4096 {
		return fmt.Errorf("%w: it has %d entries but declares %d", ErrDamaged, n, f.elements)
	}
	return err
}

var errEnough = errors.New("enough")
