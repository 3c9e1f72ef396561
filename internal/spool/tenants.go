package spool

import "sync"

// maxTenants bounds the tenants whose names are kept.
const maxTenants = 1<<16 - 1

// tenants gives the names of tenants numbers, for the index: a number is less than a name for each
// message. 0 is no tenant. Names are kept until the spool is closed, maxTenants of them. Further ones get 0:
// their mail is only known as theirs when it is read. The zero value has no names. Methods may be
// called concurrently.
type tenants struct {
	mu      sync.RWMutex
	names   []string // by number, less one
	numbers map[string]uint32
}

// number is the number of a name, which is given one if it has none yet. Nothing is kept of name.
func (t *tenants) number(name []byte) uint32 {
	if len(name) == 0 {
		return 0
	}
	t.mu.RLock()
	n, ok := t.numbers[string(name)]
	t.mu.RUnlock()
	if ok {
		return n
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.numbers[string(name)]; ok || len(t.names) >= maxTenants {
		return n
	}
	if t.numbers == nil {
		t.numbers = make(map[string]uint32)
	}
	s := string(name)
	t.names = append(t.names, s)
	n = uint32(len(t.names))
	t.numbers[s] = n
	return n
}

// take has t go on with the names of o, whose numbers an index has that t's owner has taken over. o is not used any more.
func (t *tenants) take(o *tenants) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names, t.numbers = o.names, o.numbers
}

// name is the name that has a number; empty: none.
func (t *tenants) name(n uint32) string {
	if n == 0 {
		return ""
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.names[n-1]
}
