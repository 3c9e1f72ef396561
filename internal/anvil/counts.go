package anvil

import (
	"fmt"
	"sync"
	"time"

	"posthaste/internal/maillog"
)

// An Event is something that a client does and that is counted.
type Event uint8

// The events. Connections are those open at a time; all others are counted for an interval.
const (
	Connections Event = iota
	Connect
	Message
	Recipient
	NewTLS
	Auth
	TLSTrace
	events
)

// statistics are the words for each event in the log, in the order of its lines.
var statistics = [...]struct {
	event Event
	what  string
}{
	{Connect, "connection rate"}, {Connections, "connection count"}, {Message, "message rate"}, {Recipient, "recipient rate"},
	{NewTLS, "newtls rate"}, {Auth, "auth rate"}, {TLSTrace, "tlstrace rate"},
}

// Counts has the number of each event: those of one client in the present interval.
type Counts [events]int

// Options are what a Table is made for.
type Options[K comparable] struct {
	Unit    time.Duration      // how long an interval lasts: anvil_rate_time_unit
	Updates time.Duration      // how often peaks are logged: anvil_status_update_time
	Now     func() time.Time   // the clock
	Log     *maillog.Logger    // of peaks
	Name    func(K) string     // a client in the log: smtp:192.0.2.1
	Quiet   func(e Event) bool // peaks that are not logged; nil: all are
	Room    int                // so many clients at most are remembered; 0: any number
}

// A Table counts what each client does. An interval begins with a client's first event and
// lasts a unit. Its methods may be called concurrently. Nothing of it is kept on disk.
type Table[K comparable] struct {
	o Options[K]

	mu      sync.Mutex
	clients map[K]*client
	others  others[K]
	swept   time.Time
	peaks   [events]peak[K] // since statistics were logged
	peakAll int             // most clients at a time, likewise
	peakAt  time.Time
	said    time.Time // when statistics were logged
}

type client struct {
	began  time.Time // of the interval
	counts Counts
}

type peak[K comparable] struct {
	value int
	who   K
	at    time.Time
}

// NewTable makes an empty table.
func NewTable[K comparable](o Options[K]) *Table[K] {
	return &Table[K]{o: o, clients: make(map[K]*client), said: o.Now()}
}

// Add counts an event and returns the client's number of them, in this interval, with those elsewhere
// (SetOthers). It is 0 for a client for whom there is no room.
func (t *Table[K]) Add(k K, e Event) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	c := t.client(k, now)
	if c == nil {
		return 0
	}
	c.counts[e]++
	n := c.counts[e]
	if p := &t.peaks[e]; n > p.value {
		*p = peak[K]{n, k, now}
	}
	return n + t.others.of(k, now)[e]
}

// client returns a client's counters, begun anew when the interval is over. Called with mu held.
func (t *Table[K]) client(k K, now time.Time) *client {
	c := t.clients[k]
	if c == nil {
		t.sweep(now)
		if t.o.Room > 0 && len(t.clients) >= t.o.Room {
			return nil
		}
		c = &client{began: now}
		t.clients[k] = c
		if len(t.clients) > t.peakAll {
			t.peakAll, t.peakAt = len(t.clients), now
		}
	}
	if now.Sub(c.began) >= t.o.Unit {
		*c = client{began: now, counts: Counts{Connections: c.counts[Connections]}}
	}
	return c
}

// Has reports whether a client is remembered.
func (t *Table[K]) Has(k K) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.clients[k] != nil
}

// Drop takes a connection back.
func (t *Table[K]) Drop(k K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.clients[k]; c != nil && c.counts[Connections] > 0 {
		c.counts[Connections]--
	}
}

// Lookup returns a client's numbers, with those elsewhere, and counts nothing.
func (t *Table[K]) Lookup(k K) Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.o.Now()
	sum := t.others.of(k, now)
	if c := t.clients[k]; c != nil {
		for e, n := range c.present(now, t.o.Unit) {
			sum[e] += n
		}
	}
	return sum
}

// sweep drops clients that are gone for longer than an interval, now and then, and logs
// statistics when they are due. Called with mu held.
func (t *Table[K]) sweep(now time.Time) {
	if t.o.Updates > 0 && now.Sub(t.said) >= t.o.Updates {
		t.statistics(now)
	}
	if now.Sub(t.swept) < t.o.Unit {
		return
	}
	t.swept = now
	for k, c := range t.clients {
		if c.counts[Connections] == 0 && now.Sub(c.began) >= t.o.Unit {
			delete(t.clients, k)
		}
	}
}

// statistics logs the peaks since the last time. Called with mu held.
func (t *Table[K]) statistics(now time.Time) {
	t.said = now
	for _, s := range statistics {
		p := t.peaks[s.event]
		if p.value == 0 || t.o.Quiet != nil && t.o.Quiet(s.event) {
			continue
		}
		value := fmt.Sprint(p.value)
		if s.event != Connections {
			value += fmt.Sprintf("/%ds", int(t.o.Unit/time.Second))
		}
		t.o.Log.Log(maillog.ClientStatistics{What: s.what, Value: value, For: t.o.Name(p.who), At: p.at.Format("Jan _2 15:04:05")})
	}
	if t.peakAll > 0 {
		t.o.Log.Info("statistics: max cache size %d at %s", t.peakAll, t.peakAt.Format("Jan _2 15:04:05"))
	}
	t.peaks, t.peakAll = [events]peak[K]{}, 0
}

// Finish logs what is left of the statistics.
func (t *Table[K]) Finish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.statistics(t.o.Now())
}
