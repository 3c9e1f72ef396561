package resolver

import (
	"container/list"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// key names one question.
type key struct {
	qtype uint16
	name  string // lower case, no trailing dot
}

// result is what is known about a question: what the answer section held, or
// why there was nothing.
type result struct {
	reply  *reply
	err    *Error
	expire time.Time
}

// maxCached bounds the octets of what is kept, about. Who writes a zone has a reply as large
// as it likes, up to 64 KB, and as many as it has names that somebody asks for.
const maxCached = 32 << 20

// cache keeps results until they expire; when it is full the one that was not
// used for longest goes.
type cache struct {
	mu    sync.Mutex
	limit int
	size  int // octets of what is kept
	byKey map[key]*list.Element
	order *list.List // of *cached; the front was used last
}

type cached struct {
	key key
	result
	size int
}

// sizeOf is how much memory a result takes, about.
func sizeOf(k key, r result) int {
	const entry, record = 400, 100 // besides the texts
	n := entry + len(k.name)
	if r.reply != nil {
		n += len(r.reply.name)
		for _, rr := range r.reply.rrs {
			n += record + dns.Len(rr)
		}
	}
	return n
}

func newCache(limit int) *cache {
	return &cache{limit: limit, byKey: make(map[key]*list.Element), order: list.New()}
}

func (c *cache) get(k key, now time.Time) (result, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	el := c.byKey[k]
	if el == nil {
		return result{}, false
	}
	e := el.Value.(*cached)
	if !now.Before(e.expire) {
		c.remove(el)
		return result{}, false
	}
	c.order.MoveToFront(el)
	return e.result, true
}

func (c *cache) put(k key, r result, now time.Time) {
	if c.limit <= 0 || !now.Before(r.expire) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if el := c.byKey[k]; el != nil {
		c.remove(el)
	}
	n := sizeOf(k, r)
	for c.order.Len() > 0 && (c.order.Len() >= c.limit || c.size+n > maxCached) {
		c.remove(c.order.Back())
	}
	c.byKey[k] = c.order.PushFront(&cached{k, r, n})
	c.size += n
}

// remove is called with the lock held.
func (c *cache) remove(el *list.Element) {
	e := el.Value.(*cached)
	c.size -= e.size
	delete(c.byKey, e.key)
	c.order.Remove(el)
}

// clear forgets everything, for when the name servers change.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.byKey)
	c.order.Init()
	c.size = 0
}
