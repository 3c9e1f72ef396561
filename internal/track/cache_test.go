package track

import "testing"

// The room of a block is used again when nobody has the block any more, and not before.
func TestCache(t *testing.T) {
	t.Parallel()
	var c cache
	fill := func(from int64) {
		for at := from; at < from+2*cacheBlocks; at++ {
			c.release(c.put(at, make([]byte, 1)))
		}
	}
	// taken says whether the room of a text is given away.
	taken := func(text []byte) bool {
		for {
			_, room := c.get(-1)
			if room == nil {
				return false
			}
			if &room[0] == &text[0] {
				return true
			}
		}
	}
	first, second := []byte("first"), []byte("second")
	a := c.put(1, first)
	c.release(c.put(2, second))
	b, room := c.get(2)
	if b == nil || room != nil || string(b.text) != "second" {
		t.Fatalf("%+v, %q", b, room)
	}
	fill(10)
	if p, _ := c.get(1); p != nil || c.recent.Len() != cacheBlocks || len(c.pages) != cacheBlocks {
		t.Errorf("%d blocks are kept", c.recent.Len())
	}
	if taken(first) || taken(second) {
		t.Error("the room of a block is used that somebody has")
	}
	c.release(a)
	if !taken(first) {
		t.Error("the room of a block is not used again")
	}
	c.release(b)
	if !taken(second) {
		t.Error("the room of a block is not used again that was there twice")
	}
	// Two that read one block at the same time: each has its own.
	p, q := c.put(1000, first), c.put(1000, second)
	c.release(p)
	fill(2000)
	if taken(second) || string(q.text) != "second" {
		t.Error("the room is used of a block that was read twice")
	}
	c.release(q)
	if !taken(second) {
		t.Error("the room is lost of a block that was read twice")
	}
}
