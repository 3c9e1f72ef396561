package resolver

import (
	"container/list"
	"sync"
	"time"
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

// cache keeps results until they expire; when it is full the one that was not
// used for longest goes.
type cache struct {
	mu    sync.Mutex
	limit int
	byKey map[key]*list.Element
	order *list.List // of *cached; the front was used last
}

type cached struct {
	key key
	result
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
		c.order.Remove(el)
		delete(c.byKey, k)
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
		el.Value.(*cached).result = r
		c.order.MoveToFront(el)
		return
	}
	for c.order.Len() >= c.limit {
		last := c.order.Back()
		delete(c.byKey, last.Value.(*cached).key)
		c.order.Remove(last)
	}
	c.byKey[k] = c.order.PushFront(&cached{k, r})
}

// clear forgets everything, for when the name servers change.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.byKey)
	c.order.Init()
}
