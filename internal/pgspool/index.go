package pgspool

import (
	"maps"
	"slices"
)

// chunkLen is how many messages a chunk of the index has at most: to put one in or take one out moves
// half of them in memory.
const chunkLen = 64

// index holds the messages that are alive, in the order of their numbers. A message takes about 130 octets
// of memory. Any number of goroutines may read it while nobody changes it; the caller sees to that.
// All methods but each take time that grows with the logarithm of the number of messages.
type index struct {
	chunks []*chunk
	n      int // messages

	more   map[uint64][]uint64  // done bits from recipient 64 on
	big    map[uint64]place     // content with rows of its own
	handed map[uint64][]handing // what agents have in hand
}

// A chunk is a sorted run of messages. None is empty.
type chunk struct{ list []live }

func newIndex() index {
	return index{more: map[uint64][]uint64{}, big: map[uint64]place{}, handed: map[uint64][]handing{}}
}

// seek returns the chunk that number is in, if it is in any, and its place there.
func (x *index) seek(number uint64) (c, i int, found bool) {
	c, _ = slices.BinarySearchFunc(x.chunks, number, func(c *chunk, n uint64) int {
		if c.list[0].number <= n {
			return -1
		}
		return 1
	})
	if c = max(c-1, 0); c == len(x.chunks) {
		return c, 0, false
	}
	i, found = slices.BinarySearchFunc(x.chunks[c].list, number, func(l live, n uint64) int {
		switch {
		case l.number < n:
			return -1
		case l.number > n:
			return 1
		}
		return 0
	})
	return c, i, found
}

// find returns a message's entry, or nil. It is good until the index is changed.
func (x *index) find(number uint64) *live {
	if c, i, ok := x.seek(number); ok {
		return &x.chunks[c].list[i]
	}
	return nil
}

// put adds l, or replaces the entry of that number.
func (x *index) put(l *live) {
	c, i, found := x.seek(l.number)
	if found {
		x.chunks[c].list[i] = *l
		return
	}
	x.n++
	if c == len(x.chunks) {
		x.chunks = append(x.chunks, newChunk(*l))
		return
	}
	ch := x.chunks[c]
	if len(ch.list) == chunkLen {
		// Behind all of it a chunk begins, as with new mail, and before the first one, as when a shard is read backwards; otherwise
		// half goes into one of its own.
		if i == chunkLen || i == 0 {
			x.chunks = slices.Insert(x.chunks, c+min(i, 1), newChunk(*l))
			return
		}
		x.chunks = slices.Insert(x.chunks, c+1, newChunk(ch.list[chunkLen/2:]...))
		ch.list = ch.list[:chunkLen/2]
		if i > chunkLen/2 {
			ch, i = x.chunks[c+1], i-chunkLen/2
		}
	}
	ch.list = slices.Insert(ch.list, i, *l)
}

func newChunk(list ...live) *chunk {
	return &chunk{append(make([]live, 0, chunkLen), list...)}
}

// merge adds all of y, none of which x has, and leaves y to x. Runs of y that lie between two chunks of x are not gone through.
func (x *index) merge(y *index) {
	for list := y.chunks; len(list) > 0; {
		n := 0
		at, free := x.gap(list[0].list[0].number)
		for free && n < len(list) && (at == len(x.chunks) || list[n].list[len(list[n].list)-1].number < x.chunks[at].list[0].number) {
			x.n += len(list[n].list)
			n++
		}
		if n > 0 {
			x.chunks = slices.Insert(x.chunks, at, list[:n]...)
			list = list[n:]
			continue
		}
		for i := range list[0].list {
			x.put(&list[0].list[i])
		}
		list = list[1:]
	}
	maps.Copy(x.more, y.more)
	maps.Copy(x.big, y.big)
	maps.Copy(x.handed, y.handed)
}

// gap is where a chunk that begins with number would be put; false: within another one.
func (x *index) gap(number uint64) (at int, free bool) {
	switch c, i, found := x.seek(number); {
	case found:
		return 0, false
	case c == len(x.chunks) || i == 0: // then c is 0
		return c, true
	default:
		return c + 1, i == len(x.chunks[c].list)
	}
}

// remove takes a message out, with what is beside its entry.
func (x *index) remove(number uint64) {
	c, i, found := x.seek(number)
	if !found {
		return
	}
	x.n--
	delete(x.more, number)
	delete(x.big, number)
	delete(x.handed, number)
	ch := x.chunks[c]
	if ch.list = slices.Delete(ch.list, i, i+1); len(ch.list) == 0 {
		x.chunks = slices.Delete(x.chunks, c, c+1)
	}
}

// page calls f for the messages of one chunk from number on, and returns the number to go on from. It
// is false when there are no more.
func (x *index) page(from uint64, f func(*live)) (next uint64, more bool) {
	c, i, _ := x.seek(from)
	if c < len(x.chunks) && i == len(x.chunks[c].list) { // from is between two chunks
		c, i = c+1, 0
	}
	if c >= len(x.chunks) {
		return from, false
	}
	list := x.chunks[c].list
	for ; i < len(list); i++ {
		f(&list[i])
	}
	return list[len(list)-1].number + 1, true
}

// setBeside keeps what of a message is beside its entry.
func (x *index) setBeside(number uint64, more []uint64, big *place, handed []handing) {
	if more != nil {
		x.more[number] = more
	}
	if big != nil {
		x.big[number] = *big
	}
	if len(handed) > 0 {
		x.handed[number] = handed
	} else {
		delete(x.handed, number)
	}
}

// bigOf is where the content of a message has rows of its own; nil: it is in the MSG row.
func (x *index) bigOf(number uint64) *place {
	if p, ok := x.big[number]; ok {
		return &p
	}
	return nil
}
