// Package boltcheck looks at a database file of bbolt before the library opens it, and finds what
// would have the library panic, or go round in circles. What values mean it does not know.
package boltcheck

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"time"

	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// The library follows what its file says: a page that is above itself in the
// tree is an endless loop or a stack without end, a length that is wrong an
// allocation of any size, and none of that can be caught. So before it opens a
// file every page of it that can be reached is looked at, once. The format is
// bbolt's version 2: pages with a header (number, kind, count of elements,
// further pages); branch pages refer to pages, leaf pages have keys and values,
// of which some are trees of their own; one page lists those that are free.

const (
	pageHeader  = 16
	element     = 16
	metaLen     = 64
	boltMagic   = 0xED0CDAED
	boltVersion = 2
	noFreelist  = ^uint64(0)

	branchPage   = 0x01
	leafPage     = 0x02
	freelistPage = 0x10

	bucketValue = 0x01 // the value of a leaf's element is a tree's root
	bucketLen   = 16

	// maxOverflow bounds how long a page that holds more than a page is: a
	// record is a kilobyte, a list of free pages as long as the file may be.
	maxOverflow = 1 << 16
)

// A pageCheck is a walk through a file.
type pageCheck struct {
	f        io.ReaderAt
	pageSize int64
	pages    uint64 // number of the first page that is not in the file
	seen     []bool
}

// ErrDamaged is what is wrong with a file that must not be opened. Other errors are the system's.
var ErrDamaged = errors.New("the file is damaged")

func layout(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

// Free is File, when no other process has the file open. It waits for that, as long as patience, and then
// returns bbolt's ErrTimeout.
func Free(f *os.File, patience time.Duration) error {
	for late := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err == nil {
			return File(f) // closing it unlocks it
		} else if err != unix.EWOULDBLOCK {
			return err
		}
		if time.Now().After(late) {
			return bolterrors.ErrTimeout
		}
	}
}

// File says whether the file may be given to the library. One that is
// empty may.
func File(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return nil
	}
	c := &pageCheck{f: f}
	meta, err := c.meta(info.Size())
	if err != nil {
		return err
	}
	c.seen = make([]bool, c.pages)
	c.seen[0], c.seen[1] = true, true
	if err := c.tree(u64(meta, 16)); err != nil {
		return err
	}
	return c.free(u64(meta, 32))
}

func u16(b []byte, i int) uint16 { return binary.NativeEndian.Uint16(b[i:]) }
func u32(b []byte, i int) uint32 { return binary.NativeEndian.Uint32(b[i:]) }
func u64(b []byte, i int) uint64 { return binary.NativeEndian.Uint64(b[i:]) }

// meta finds the description of the file that is in force: of the two that the
// first pages have, the newer one that is whole.
func (c *pageCheck) meta(size int64) ([]byte, error) {
	var newest []byte
	var failed error // of the disk
	try := func(at int64) {
		b := make([]byte, metaLen)
		if _, err := c.f.ReadAt(b, at+pageHeader); err != nil {
			if err != io.EOF {
				failed = err
			}
			return
		}
		sum := fnv.New64a()
		sum.Write(b[:metaLen-8])
		if u32(b, 0) != boltMagic || u32(b, 4) != boltVersion || u64(b, 56) != sum.Sum64() {
			return
		}
		if newest == nil || u64(b, 48) > u64(newest, 48) {
			newest = b
		}
	}
	// Where the second one lies the first one says; if that is not whole, it is
	// looked for as the library does.
	try(0)
	if newest != nil {
		try(int64(u32(newest, 8)))
	} else {
		for at := int64(1 << 10); at <= 1<<15 && newest == nil; at *= 2 {
			try(at)
		}
	}
	if failed != nil {
		return nil, failed
	}
	if newest == nil {
		return nil, layout("it does not begin as it should")
	}
	c.pageSize, c.pages = int64(u32(newest, 8)), u64(newest, 40)
	if c.pageSize < 1<<10 || c.pageSize > 1<<16 || c.pages < 3 || c.pages > uint64(size/c.pageSize) {
		return nil, layout("%d pages of %d octets are not in %d", c.pages, c.pageSize, size)
	}
	return newest, nil
}

// page reads page id, with what belongs to it. Nothing refers to it a second time.
func (c *pageCheck) page(id uint64) ([]byte, error) {
	if id >= c.pages {
		return nil, layout("page %d is not in it", id)
	}
	var h [pageHeader]byte
	if _, err := c.f.ReadAt(h[:], int64(id)*c.pageSize); err != nil {
		return nil, err
	}
	more := uint64(u32(h[:], 12))
	if u64(h[:], 0) != id || more > maxOverflow || id+more >= c.pages {
		return nil, layout("page %d is another one, or of impossible length", id)
	}
	for i := id; i <= id+more; i++ {
		if c.seen[i] {
			return nil, layout("page %d is used twice", i)
		}
		c.seen[i] = true
	}
	b := make([]byte, int64(more+1)*c.pageSize)
	_, err := c.f.ReadAt(b, int64(id)*c.pageSize)
	return b, err
}

// tree looks at a page and all below it. Pages are used once, and so there is
// an end.
func (c *pageCheck) tree(id uint64) error {
	todo := []uint64{id}
	for len(todo) > 0 {
		id := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		b, err := c.page(id)
		if err != nil {
			return err
		}
		switch u16(b, 8) {
		case branchPage:
			if u16(b, 10) == 0 {
				return layout("page %d refers to none", id)
			}
			err = c.elements(b, func(e []byte) (pos, key, value uint32) { return u32(e, 0), u32(e, 4), 0 },
				func(e, _ []byte) error {
					todo = append(todo, u64(e, 8))
					return nil
				})
		case leafPage:
			err = c.leaf(b, func(root uint64) { todo = append(todo, root) })
		default:
			return layout("page %d is of no kind", id)
		}
		if err != nil {
			return fmt.Errorf("%w (page %d)", err, id)
		}
	}
	return nil
}

// leaf looks at a leaf page, which may be in another one's value, and calls
// root with the pages of the trees in it.
func (c *pageCheck) leaf(b []byte, root func(uint64)) error {
	return c.elements(b, func(e []byte) (pos, key, value uint32) { return u32(e, 4), u32(e, 8), u32(e, 12) },
		func(e, value []byte) error {
			switch {
			case u32(e, 0)&bucketValue == 0:
				return nil
			case len(value) < bucketLen:
				return layout("a tree has no root")
			case u64(value, 0) != 0:
				root(u64(value, 0))
				return nil
			case len(value) < bucketLen+pageHeader || u16(value, bucketLen+8) != leafPage:
				return layout("a small tree is no page")
			}
			return c.leaf(value[bucketLen:], root)
		})
}

// elements calls f with each element of a page, and the value that belongs to
// it. Keys and values lie within the page, and keys are in order.
func (c *pageCheck) elements(b []byte, parts func(e []byte) (pos, key, value uint32), f func(e, value []byte) error) error {
	var last []byte
	for i := range int(u16(b, 10)) {
		at := pageHeader + i*element
		if at+element > len(b) {
			return layout("more elements than there is room for")
		}
		e := b[at : at+element]
		pos, klen, vlen := parts(e)
		from := uint64(at) + uint64(pos)
		to := from + uint64(klen) + uint64(vlen)
		if to > uint64(len(b)) {
			return layout("an element lies outside")
		}
		key := b[from : from+uint64(klen)]
		if i > 0 && bytes.Compare(last, key) >= 0 {
			return layout("keys are not in order")
		}
		last = key
		if err := f(e, b[from+uint64(klen):to]); err != nil {
			return err
		}
	}
	return nil
}

// free looks at the list of free pages: none of them is in use, and none there twice.
func (c *pageCheck) free(id uint64) error {
	if id == noFreelist {
		return nil
	}
	b, err := c.page(id)
	if err != nil {
		return err
	}
	if u16(b, 8) != freelistPage {
		return layout("page %d lists no free pages", id)
	}
	list, n := b[pageHeader:], uint64(u16(b, 10))
	if n == 0xFFFF { // the number itself is too large for its place
		n, list = u64(list, 0), list[8:]
	}
	if n > uint64(len(list)/8) {
		return layout("more free pages than there is room for")
	}
	for i := range int(n) {
		page := u64(list, 8*i)
		if page >= c.pages || c.seen[page] {
			return layout("free page %d is in use", page)
		}
		c.seen[page] = true
	}
	return nil
}
