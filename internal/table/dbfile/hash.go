package dbfile

import (
	"bytes"
	"errors"
	"math/bits"
)

// Types of items of a hash.
const (
	hashData    = 1 // the octets themselves
	hashOffPage = 3 // 4 the first overflow page, 8 how much is there
)

// hashOf is Berkeley DB's hash function: FNV-1 that begins at 0.
func hashOf(key []byte) uint32 {
	h := uint32(0)
	for _, c := range key {
		h = h*16777619 ^ uint32(c)
	}
	return h
}

// bucketOf is the bucket of a key. Buckets are added one by one: of those that the
// high mask has some do not exist yet.
func (f *File) bucketOf(key []byte) uint32 {
	b := hashOf(key) & f.highMask
	if b > f.maxBucket {
		b &= f.lowMask
	}
	return b
}

// pageOf is the first page of a bucket. Each doubling of the table has its pages in one
// piece, and spares says how many other pages are before it.
func (f *File) pageOf(bucket uint32) uint32 { return bucket + f.spares[bits.Len32(bucket)] }

// bucket calls fn with the pages of a bucket, until it returns false.
func (f *File) bucket(bucket uint32, fn func(n node) (more bool, err error)) error {
	if bucket >= 1<<31 {
		return ErrDamaged
	}
	number := f.pageOf(bucket)
	for range f.last { // no chain has more pages than there are
		n, err := f.at(number, pageHash, pageHashUnsorted)
		if errors.Is(err, ErrDamaged) && number == f.pageOf(bucket) && f.blank(number) {
			return nil
		}
		if err != nil {
			return err
		}
		if n.count()%2 != 0 {
			return ErrDamaged
		}
		more, err := fn(n)
		if err != nil || !more || n.next() == 0 {
			return err
		}
		number = n.next()
	}
	return ErrDamaged
}

// blank says whether the first page of a bucket has never been written: nothing has been put
// there yet. That it was lost is seen by the number of entries, in Verify.
func (f *File) blank(number uint32) bool {
	if number == 0 || number > f.last {
		return false
	}
	b, err := f.bytes(int64(number)*int64(f.page), int64(f.page))
	return err == nil && bytes.Count(b, []byte{0}) == len(b)
}

// item is item i of a page of a hash. Items are put there from the end on: one ends where the
// one before it begins.
func (n node) item(i int) ([]byte, error) {
	end := len(n.data)
	if i > 0 {
		end = n.place(i - 1)
	}
	start := n.place(i)
	if start < headSize+2*n.count() || end > len(n.data) || start >= end {
		return nil, ErrDamaged
	}
	return n.data[start:end:end], nil
}

// content is what an item stands for.
func (n node) content(item []byte) ([]byte, error) {
	switch {
	case item[0] == hashData:
		return item[1:], nil
	case item[0] == hashOffPage && len(item) == 12:
		return n.f.overflow(n.f.order.Uint32(item[4:]), n.f.order.Uint32(item[8:]))
	}
	return nil, ErrDamaged
}

// is says whether an item is key. Overflow pages are read only if the length is right.
func (n node) is(item, key []byte) (bool, error) {
	if item[0] == hashOffPage && len(item) == 12 && n.f.order.Uint32(item[8:]) != uint32(len(key)) {
		return false, nil
	}
	b, err := n.content(item)
	return err == nil && bytes.Equal(b, key), err
}

func (f *File) getHash(key []byte) (value []byte, found bool, err error) {
	err = f.bucket(f.bucketOf(key), func(n node) (bool, error) {
		for i := 0; i < n.count(); i += 2 {
			item, err := n.item(i)
			if err != nil {
				return false, err
			}
			if same, err := n.is(item, key); err != nil {
				return false, err
			} else if !same {
				continue
			}
			data, err := n.item(i + 1)
			if err != nil {
				return false, err
			}
			value, err = n.content(data)
			found = err == nil
			return false, err
		}
		return true, nil
	})
	return value, found, err
}

// allHash is All and Verify. It returns how many entries there were.
func (f *File) allHash(fn func(key, value []byte) bool) (count int64, err error) {
	pages := uint32(0)
	for b := uint32(0); b <= f.maxBucket; b++ {
		err := f.bucket(b, func(n node) (bool, error) {
			if pages++; pages > f.last {
				return false, ErrDamaged // two buckets have the same pages
			}
			for i := 0; i < n.count(); i += 2 {
				if err := n.pair(i, b, fn); err != nil {
					return false, err
				}
				count++
			}
			return true, nil
		})
		if err != nil {
			return count, err
		}
	}
	return count, nil
}

// pair calls fn with the key that is item i, and its value. The key has to belong to
// the bucket.
func (n node) pair(i int, bucket uint32, fn func(key, value []byte) bool) error {
	var text [2][]byte
	for j := range text {
		item, err := n.item(i + j)
		if err != nil {
			return err
		}
		if text[j], err = n.content(item); err != nil {
			return err
		}
	}
	if n.f.bucketOf(text[0]) != bucket {
		return ErrDamaged
	}
	if !fn(text[0], text[1]) {
		return errEnough
	}
	return nil
}
