package dbfile

import (
	"bytes"
	"cmp"
	"sort"
)

// Types of items of a btree. An item begins with its length (2 octets) and type; 12 octets
// that stand for overflow pages have the first of them at 4 and the total length at 8.
const (
	btreeData     = 1
	btreeOverflow = 3
	btreeDeleted  = 0x80 // added to the type
)

// leafItem is item i of a leaf: a key if i is even, else a value.
func (n node) leafItem(i int) (content []byte, deleted bool, err error) {
	at := n.place(i)
	if at < headSize+2*n.count() || at+3 > len(n.data) {
		return nil, false, ErrDamaged
	}
	kind := n.data[at+2]
	content, err = n.value(at, at+3, kind&^btreeDeleted)
	return content, kind&btreeDeleted != 0, err
}

// value is what an item at a place stands for; its own octets, if it has them, are at text.
func (n node) value(at, text int, kind byte) ([]byte, error) {
	switch kind {
	case btreeData:
		end := text + int(n.f.order.Uint16(n.data[at:]))
		if end > len(n.data) {
			return nil, ErrDamaged
		}
		return n.data[text:end:end], nil
	case btreeOverflow:
		over := text
		if text == at+3 { // in a leaf the item itself is such a piece
			over = at
		}
		if over+12 > len(n.data) {
			return nil, ErrDamaged
		}
		return n.f.overflow(n.f.order.Uint32(n.data[over+4:]), n.f.order.Uint32(n.data[over+8:]))
	}
	return nil, ErrDamaged
}

// child is item i of an internal page: the least key of a page, and its number.
func (n node) child(i int) (key []byte, number uint32, err error) {
	at := n.place(i)
	if at < headSize+2*n.count() || at+12 > len(n.data) {
		return nil, 0, ErrDamaged
	}
	number = n.f.order.Uint32(n.data[at+4:])
	if i == 0 {
		return nil, number, nil // less than any key, whatever is there
	}
	key, err = n.value(at, at+12, n.data[at+2])
	return key, number, err
}

// tree reads a page of a btree, of a level: 1 is a leaf. Level 0 is any.
func (f *File) tree(number uint32, level byte) (node, error) {
	n, err := f.at(number, pageInternal, pageLeaf)
	if err != nil {
		return node{}, err
	}
	leaf := n.kind() == pageLeaf
	if n.level() == 0 || leaf != (n.level() == 1) || level != 0 && n.level() != level || leaf && n.count()%2 != 0 || !leaf && n.count() == 0 {
		return node{}, ErrDamaged
	}
	return n, nil
}

func (f *File) getBtree(key []byte) (value []byte, found bool, err error) {
	n, err := f.tree(f.root, 0)
	for err == nil && n.kind() == pageInternal {
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
		var number uint32
		if _, number, err = n.child(at); err == nil {
			n, err = f.tree(number, n.level()-1)
		}
	}
	if err != nil {
		return nil, false, err
	}
	return n.search(key)
}

// search looks a key up in a leaf.
func (n node) search(key []byte) (value []byte, found bool, err error) {
	var damage error
	i, found := sort.Find(n.count()/2, func(i int) int {
		k, _, err := n.leafItem(2 * i)
		damage = cmp.Or(damage, err)
		return bytes.Compare(key, k)
	})
	if damage != nil || !found {
		return nil, false, damage
	}
	value, deleted, err := n.leafItem(2*i + 1)
	return value, err == nil && !deleted, err
}

// A walk is All or Verify of a btree.
type walk struct {
	f     *File
	fn    func(key, value []byte) bool
	pages uint32 // that were read: no more than there are
}

// below calls fn with all that is below a page, in order. Keys have to be at least low and
// less than high; nil is no bound.
func (w *walk) below(number uint32, level byte, low, high []byte) error {
	n, err := w.f.tree(number, level)
	if err != nil {
		return err
	}
	if w.pages++; w.pages > w.f.last {
		return ErrDamaged
	}
	if n.kind() == pageLeaf {
		return w.leaf(n, low, high)
	}
	_, child, err := n.child(0)
	if err != nil {
		return err
	}
	for i := 0; i < n.count(); i++ {
		var next []byte
		var nextChild uint32
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
		if err := w.below(child, n.level()-1, low, end); err != nil {
			return err
		}
		low, child = next, nextChild
	}
	return nil
}

func (w *walk) leaf(n node, low, high []byte) error {
	var before []byte
	for i := 0; i < n.count(); i += 2 {
		key, _, err := n.leafItem(i)
		if err != nil {
			return err
		}
		if bytes.Compare(key, low) < 0 || high != nil && bytes.Compare(key, high) >= 0 || i > 0 && bytes.Compare(key, before) <= 0 {
			return ErrDamaged
		}
		before = key
		value, deleted, err := n.leafItem(i + 1)
		if err != nil {
			return err
		}
		if !deleted && !w.fn(key, value) {
			return errEnough
		}
	}
	return nil
}
