package track

import (
	"container/list"
	"sync"
)

// cacheBlocks bounds what is kept, but for the blocks that are just read.
const cacheBlocks = 256

// A cache has the blocks that were read last: what a group of messages is found in is most of what their lines are in. Its methods
// may be called concurrently. The zero value is empty.
type cache struct {
	mu     sync.Mutex
	pages  map[int64]*page
	recent list.List // of pages, the one used last at the front
	room   [][]byte  // of pages that are gone
	reads  int       // how often a block was not there
}

// A page is the text of a block, by its position.
type page struct {
	at      int64
	text    []byte
	users   int
	gone    bool
	element *list.Element
}

// get is a page, which is the caller's until it is released; nil: it is not there, and room may be used to read it.
func (c *cache) get(at int64) (p *page, room []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p = c.pages[at]; p != nil {
		p.users++
		c.recent.MoveToFront(p.element)
		return p, nil
	}
	c.reads++
	if n := len(c.room); n > 0 {
		room, c.room = c.room[n-1], c.room[:n-1]
	}
	return nil, room
}

// put keeps a text, and returns its page, which is the caller's until it is released.
func (c *cache) put(at int64, text []byte) *page {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := &page{at: at, text: text, users: 1}
	if c.pages[at] != nil { // another has read it meanwhile
		p.gone = true
		return p
	}
	if c.pages == nil {
		c.pages = map[int64]*page{}
	}
	c.pages[at] = p
	p.element = c.recent.PushFront(p)
	for c.recent.Len() > cacheBlocks {
		old := c.recent.Remove(c.recent.Back()).(*page)
		old.gone = true
		delete(c.pages, old.at)
		c.free(old)
	}
	return p
}

// release ends the use of a page.
func (c *cache) release(p *page) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.users--
	c.free(p)
}

// free keeps the room of a page that nobody has. The caller holds mu.
func (c *cache) free(p *page) {
	if p.gone && p.users == 0 {
		c.room = append(c.room, p.text)
	}
}
