// Package lmdbfile reads files of LMDB, as Postfix's postmap makes them of lmdb: tables
// (NAME.lmdb). It does not write, and takes no lock.
//
// # Format
//
// That of LMDB 0.9, data version 1, of machines with 64 bits and little-endian numbers.
// A file is pages of one size, numbered from 0. A page begins with 16 octets: 0 its own number
// (8), 10 flags (2), 12 where the free space begins and ends (2, 2), or of the first of several
// overflow pages how many they are (4). Then the places of the entries, 2 octets each.
//
// Pages 0 and 1 say what the file is, after those 16 octets:
//
//	  0  4  magic 0xbeefc0de, 4 version
//	 24     the database of free pages (48); its first 4 octets are the size of a page
//	 72     the main database: 4 flags (2), 6 depth (2), 8 how many pages are branches (8),
//	        16 leaves, 24 overflow pages, 32 entries (8), 40 the root
//	120  8  the last page, 128 8 the transaction that wrote this
//
// The one of the later transaction is in force. A transaction writes pages that nobody uses,
// and then the older one of pages 0 and 1.
//
// An entry is 8 octets, then the key, then the value: 0 length of the value (4), of a branch
// the page below (6); 4 flags: 1 the value is the number of overflow pages; 6 length of the key.
//
// # Change
//
// What a transaction frees, the next but one may write to. So a lookup looks afterwards
// whether another transaction has ended meanwhile, and begins anew if one has.
//
// # Errors
//
// Every number of a file is checked before it is used, and every page has to have its own
// number and the type that it should have where it stands. [File.Verify] reads all of a
// file.
package lmdbfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
)

// MaxValue bounds a value, in octets.
const MaxValue = 16 << 20

// ErrDamaged is the error of a file whose parts do not agree.
var ErrDamaged = errors.New("the file is damaged, or is not written to its end")

// ErrForeign is the error of a file of a kind that is not read here. What wraps it says
// which.
var ErrForeign = errors.New("not a file that is read here")

// ErrBusy is the error of a lookup during which the file was written to again and again.
var ErrBusy = errors.New("the file is being written to all the time")

const (
	magic   = 0xbeefc0de
	version = 1

	headSize  = 16 // of a page
	entrySize = 8  // of an entry, before its key
	metaSize  = headSize + 136

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagOverflow = 0x04
	flagMeta     = 0x08
	typeFlags    = 0x6f // all but one that says that a page is not written yet

	entryBig = 0x01

	noPage = math.MaxUint64

	// maxDepth bounds a tree; LMDB's own cursors hold 32.
	maxDepth = 32
	// tries is how often a lookup begins anew.
	tries = 100
)

var le = binary.LittleEndian

// A File is one file. It may be used concurrently, also while LMDB writes to what it
// reads from.
type File struct {
	r    io.ReaderAt
	mem  []byte // all of it, instead of r
	size int64
	page int64
}

// Open reads pages 0 and 1 of a file of size octets, or more when it grows.
func Open(r io.ReaderAt, size int64) (*File, error) { return open(&File{r: r, size: size}) }

// New is Open for a file that is in memory, and does not change.
func New(mem []byte) (*File, error) { return open(&File{mem: mem, size: int64(len(mem))}) }

// Load is Open for a file that is to be read into memory, as one transaction has left it.
func Load(r io.ReaderAt, size int64) (*File, error) {
	f, err := Open(r, size)
	if err != nil {
		return nil, err
	}
	var mem []byte
	err = f.steady(func(s *state) (err error) {
		if int64(s.last) >= f.size/f.page+f.size { // it may grow, but not as much
			return ErrDamaged
		}
		mem, err = f.bytes(0, int64(s.last+1)*f.page)
		return err
	})
	if err != nil {
		return nil, err
	}
	return New(mem)
}

func open(f *File) (*File, error) {
	m, err := f.bytes(0, metaSize)
	if err != nil {
		return nil, fmt.Errorf("%w: it has only %d octets", ErrDamaged, f.size)
	}
	m = m[headSize:]
	switch {
	case le.Uint32(m) == magic && le.Uint32(m[4:]) == version:
	case le.Uint32(m) == magic:
		return nil, fmt.Errorf("%w: version %d of LMDB's format", ErrForeign, le.Uint32(m[4:]))
	default:
		return nil, fmt.Errorf("%w: it is not an LMDB file, or it is from a machine with another byte order or word size", ErrForeign)
	}
	f.page = int64(le.Uint32(m[24:]))
	if f.page < 512 || f.page > 65536 || f.page&(f.page-1) != 0 {
		return nil, ErrDamaged
	}
	_, err = f.now()
	return f, err
}

// Recognized says whether the first octets of a file, 20 or more, are LMDB's.
func Recognized(head []byte) bool { return le.Uint32(head[headSize:]) == magic }

// bytes are n octets of the file. The caller does not change them.
func (f *File) bytes(at, n int64) ([]byte, error) {
	if f.mem != nil {
		if at < 0 || n < 0 || at > f.size-n {
			return nil, ErrDamaged
		}
		return f.mem[at : at+n : at+n], nil
	}
	b := make([]byte, n)
	if _, err := f.r.ReadAt(b, at); err != nil {
		if errors.Is(err, io.EOF) {
			err = ErrDamaged
		}
		return nil, err
	}
	return b, nil
}

// state is the file as one transaction has left it.
type state struct {
	f           *File
	transaction uint64
	last        uint64 // page
	depth       uint16
	entries     uint64
	root        uint64 // noPage: it is empty
}

// now is the state that is in force.
func (f *File) now() (*state, error) {
	var newest *state
	for number := range int64(2) {
		m, err := f.bytes(number*f.page, metaSize)
		if err != nil {
			return nil, err
		}
		if le.Uint64(m) != uint64(number) || le.Uint16(m[10:])&flagMeta == 0 {
			return nil, ErrDamaged
		}
		m = m[headSize:]
		if le.Uint32(m) != magic || le.Uint32(m[4:]) != version || int64(le.Uint32(m[24:])) != f.page {
			return nil, ErrDamaged
		}
		s := &state{f: f, transaction: le.Uint64(m[128:]), last: le.Uint64(m[120:]), depth: le.Uint16(m[78:]), entries: le.Uint64(m[104:]), root: le.Uint64(m[112:])}
		if newest != nil && newest.transaction >= s.transaction {
			continue
		}
		if flags := le.Uint16(m[76:]); flags != 0 {
			return nil, fmt.Errorf("%w: its keys have another order, or duplicates (flags %#x)", ErrForeign, flags)
		}
		newest = s
	}
	if newest.last > 1<<47 || newest.depth > maxDepth || (newest.root == noPage) != (newest.entries == 0) || (newest.root == noPage) != (newest.depth == 0) {
		return nil, ErrDamaged
	}
	return newest, nil
}

// steady calls do with the state in force, again if that has changed meanwhile: what
// do has seen may then be of two transactions.
func (f *File) steady(do func(s *state) error) error {
	for range tries {
		s, err := f.now()
		if err == nil {
			err = do(s)
		} else if errors.Is(err, ErrForeign) {
			return err
		}
		if f.mem != nil {
			return err
		}
		after, aerr := f.now()
		if err == nil && aerr == nil && after.transaction == s.transaction {
			return nil
		}
		if err != nil && (aerr != nil || s != nil && after.transaction == s.transaction) {
			return err // it is damaged, and not because of a change
		}
	}
	return ErrBusy
}

// node is a page of a tree.
type node struct {
	s    *state
	data []byte
}

// at reads a page of a type.
func (s *state) at(number uint64, flags uint16) (node, error) {
	if number < 2 || number > s.last {
		return node{}, ErrDamaged
	}
	b, err := s.f.bytes(int64(number)*s.f.page, s.f.page)
	if err != nil {
		return node{}, err
	}
	if le.Uint64(b) != number || le.Uint16(b[10:])&typeFlags != flags {
		return node{}, ErrDamaged
	}
	n := node{s, b}
	lower, upper := int(le.Uint16(b[12:])), int(le.Uint16(b[14:]))
	if flags != flagOverflow && (lower < headSize || lower%2 != 0 || lower > upper || upper > len(b) || n.count() == 0) {
		return node{}, ErrDamaged
	}
	return n, nil
}

// tree reads a page of the main database: a leaf if it is at the depth of the leaves.
func (s *state) tree(number uint64, depth uint16) (node, error) {
	if depth == s.depth {
		return s.at(number, flagLeaf)
	}
	return s.at(number, flagBranch)
}

// count is how many entries a page has.
func (n node) count() int { return (int(le.Uint16(n.data[12:])) - headSize) / 2 }

// entry is entry i: its head, key, and what is behind.
func (n node) entry(i int) (head, key, rest []byte, err error) {
	at := int(le.Uint16(n.data[headSize+2*i:]))
	if at < headSize+2*n.count() || at+entrySize > len(n.data) {
		return nil, nil, nil, ErrDamaged
	}
	head, rest = n.data[at:at+entrySize], n.data[at+entrySize:]
	size := int(le.Uint16(head[6:]))
	if size > len(rest) {
		return nil, nil, nil, ErrDamaged
	}
	return head, rest[:size:size], rest[size:], nil
}

// child is entry i of a branch: the least key below it, and the page.
func (n node) child(i int) (key []byte, number uint64, err error) {
	head, key, _, err := n.entry(i)
	if err != nil {
		return nil, 0, err
	}
	number = uint64(le.Uint32(head)) | uint64(le.Uint16(head[4:]))<<32
	if i == 0 {
		key = nil // less than any key, whatever is there
	}
	return key, number, nil
}

// pair is entry i of a leaf.
func (n node) pair(i int) (key, value []byte, err error) {
	head, key, rest, err := n.entry(i)
	if err != nil {
		return nil, nil, err
	}
	size := int64(le.Uint32(head))
	switch flags := le.Uint16(head[4:]); {
	case flags == 0 && size <= int64(len(rest)):
		return key, rest[:size:size], nil
	case flags == entryBig && len(rest) >= 8:
		value, err = n.s.overflow(le.Uint64(rest), size)
		return key, value, err
	}
	return nil, nil, ErrDamaged
}

// overflow reads a value that has pages of its own, which are in one piece.
func (s *state) overflow(number uint64, size int64) ([]byte, error) {
	if size > MaxValue {
		return nil, ErrDamaged
	}
	n, err := s.at(number, flagOverflow)
	if err != nil {
		return nil, err
	}
	pages := int64(le.Uint32(n.data[12:]))
	if pages < 1 || uint64(pages) > s.last-number+1 || pages*s.f.page-headSize < size {
		return nil, ErrDamaged
	}
	return s.f.bytes(int64(number)*s.f.page+headSize, size)
}

// Get returns the value of key, octet for octet as it is in the file.
func (f *File) Get(key []byte) (value []byte, found bool, err error) {
	err = f.steady(func(s *state) (err error) {
		value, found, err = s.get(key)
		return err
	})
	if err != nil {
		return nil, false, err
	}
	return value, found, nil
}

func (s *state) get(key []byte) (value []byte, found bool, err error) {
	if s.root == noPage {
		return nil, false, nil
	}
	number := s.root
	for depth := uint16(1); ; depth++ {
		n, err := s.tree(number, depth)
		if err != nil {
			return nil, false, err
		}
		if depth == s.depth {
			return n.search(key)
		}
		// The child is the last one whose least key is not greater than this one.
		var damage error
		at := sort.Search(n.count()-1, func(i int) bool {
			least, _, err := n.child(i + 1)
			damage = cmp.Or(damage, err)
			return bytes.Compare(least, key) > 0
		})
		if damage != nil {
			return nil, false, damage
		}
		if _, number, err = n.child(at); err != nil {
			return nil, false, err
		}
	}
}

// search looks a key up in a leaf.
func (n node) search(key []byte) (value []byte, found bool, err error) {
	var damage error
	i, found := sort.Find(n.count(), func(i int) int {
		_, k, _, err := n.entry(i)
		damage = cmp.Or(damage, err)
		return bytes.Compare(key, k)
	})
	if damage != nil || !found {
		return nil, false, damage
	}
	_, value, err = n.pair(i)
	return value, err == nil, err
}

// Verify reads all of the file. Nil says that every key and every value can be found.
func (f *File) Verify() error {
	return f.steady(func(s *state) error { return s.all(func(_, _ []byte) bool { return true }) })
}

// All calls fn with all keys and values, in the order of the keys, until fn returns false. If
// the file is written to meanwhile it begins anew, with all of them.
func (f *File) All(fn func(key, value []byte) bool) error {
	return f.steady(func(s *state) error { return s.all(fn) })
}

// walk is All under way.
type walk struct {
	s       *state
	fn      func(key, value []byte) bool
	pages   uint64 // that were read: no more than there are
	entries uint64
}

var errEnough = errors.New("enough")

func (s *state) all(fn func(key, value []byte) bool) error {
	if s.root == noPage {
		return nil
	}
	w := &walk{s: s, fn: fn}
	err := w.below(s.root, 1, nil, nil)
	if errors.Is(err, errEnough) {
		return nil
	}
	if err == nil && w.entries != s.entries {
		return fmt.Errorf("%w: it has %d entries but declares %d", ErrDamaged, w.entries, s.entries)
	}
	return err
}

// below calls fn with all that is below a page. Keys have to be at least low and less than
// high; nil is no bound.
func (w *walk) below(number uint64, depth uint16, low, high []byte) error {
	n, err := w.s.tree(number, depth)
	if err != nil {
		return err
	}
	if w.pages++; w.pages > w.s.last {
		return ErrDamaged
	}
	if depth == w.s.depth {
		return w.leaf(n, low, high)
	}
	_, child, err := n.child(0)
	if err != nil {
		return err
	}
	for i := range n.count() {
		var next []byte
		var nextChild uint64
		end := high
		if i+1 < n.count() {
			if next, nextChild, err = n.child(i + 1); err != nil {
				return err
			}
			if bytes.Compare(next, low) <= 0 || high != nil && bytes.Compare(next, high) >= 0 {
				return ErrDamaged
			}
			end = next
		}
		if err := w.below(child, depth+1, low, end); err != nil {
			return err
		}
		low, child = next, nextChild
	}
	return nil
}

func (w *walk) leaf(n node, low, high []byte) error {
	var before []byte
	for i := range n.count() {
		key, value, err := n.pair(i)
		if err != nil {
			return err
		}
		if bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 || i > 0 && bytes.Compare(key, before) <= 0 {
			return ErrDamaged
		}
		before = key
		w.entries++
		if !w.fn(key, value) {
			return errEnough
		}
	}
	return nil
}
