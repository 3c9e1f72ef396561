package sasl

import (
	"container/list"
	"sync"
	"time"
)

// failures counts logins that failed, so that passwords cannot be guessed by trying. In a time of
// its own after the first one there may be
//
//	n       of an account from one client network,
//	5 * n   from a client network, of whatever accounts,
//	10 * n  of an account, from whatever clients.
//
// The second bound does not hold for a network that many users share, as its caller says. An account
// that has logged in from a network before is spared the second and third bound there:
// strangers who guess cannot lock a user out. An attempt counts when it begins, and is taken back
// when it succeeds, so that many at the same time do not pass. Methods may be called concurrently.
// With n = 0 there is no bound, and nothing is kept.
type failures struct {
	n    int
	time time.Duration
	mu   sync.Mutex
	// counts are by key; the one that was used last is at the front of order. Their number is
	// bounded by maxFailures: the one that was not used for longest is forgotten.
	counts map[failureKey]*list.Element
	order  *list.List // of *failureCount
}

// A failureKey is what is counted: of an account, from a client, or of both when neither is empty.
type failureKey struct{ account, client string }

// A failureCount is how often it failed since a time.
type failureCount struct {
	key   failureKey
	n     int
	since time.Time
	known bool // of a pair: it has succeeded
}

// maxFailures bounds how many counts are kept, of some 300 octets each.
const maxFailures = 100_000

func newFailures(n int, d time.Duration) *failures {
	return &failures{n: n, time: d, counts: make(map[failureKey]*list.Element), order: list.New()}
}

// An attempt is a login that has begun. The zero attempt is one that nobody counts.
type attempt struct {
	f    *failures
	keys [3]failureKey // the pair, the client, the account
}

// begin counts an attempt. ok is false where there were too many failures, and then it is not
// counted.
func (f *failures) begin(account, client string, shared bool, now time.Time) (a attempt, ok bool) {
	if f.n <= 0 {
		return attempt{}, true
	}
	a = attempt{f, [3]failureKey{{account, client}, {"", client}, {account, ""}}}
	f.mu.Lock()
	defer f.mu.Unlock()
	pair := f.count(a.keys[0], now)
	if pair.n >= f.n {
		return attempt{}, false
	}
	for i, times := range [...]int{1: 5, 2: 10} {
		if i > 0 && !pair.known && !(i == 1 && shared) && f.count(a.keys[i], now).n >= times*f.n {
			return attempt{}, false
		}
	}
	for _, k := range a.keys {
		f.count(k, now).n++
	}
	return a, true
}

// withdraw takes an attempt back: nothing is known of its password.
func (a attempt) withdraw(now time.Time) {
	if a.f == nil {
		return
	}
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	a.back(now)
}

// back takes the counts back. The caller has the lock.
func (a attempt) back(now time.Time) {
	for _, k := range a.keys {
		if c := a.f.count(k, now); c.n > 0 {
			c.n--
		}
	}
}

// succeed takes an attempt back, forgives the account its failures from the client, and remembers
// that it may come from there.
func (a attempt) succeed(now time.Time) {
	if a.f == nil {
		return
	}
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	a.back(now)
	pair := a.f.count(a.keys[0], now)
	pair.n, pair.known = 0, true
}

// count is the count of a key, a new one if its time is over. The caller has the lock.
func (f *failures) count(k failureKey, now time.Time) *failureCount {
	if e, ok := f.counts[k]; ok {
		f.order.MoveToFront(e)
		c := e.Value.(*failureCount)
		if age := now.Sub(c.since); age >= f.time || age < 0 {
			c.n, c.since = 0, now
		}
		return c
	}
	if len(f.counts) >= maxFailures {
		last := f.order.Back()
		delete(f.counts, last.Value.(*failureCount).key)
		f.order.Remove(last)
	}
	c := &failureCount{key: k, since: now}
	f.counts[k] = f.order.PushFront(c)
	return c
}
