package nodesim

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// A row is one of a table: its columns as text. null is a column without a value.
type row []string

const null = "\x00"

// A cell is where a row is.
type cell struct{ table, key string }

// A change is what a transaction does to a row; nil: it is deleted.
type change struct {
	cell
	row row
}

// tables are what is committed.
type tables map[string]map[string]row

func (t tables) apply(list []change) {
	for _, c := range list {
		m := t[c.table]
		if m == nil {
			m = map[string]row{}
			t[c.table] = m
		}
		if c.row == nil {
			delete(m, c.key)
		} else {
			m[c.key] = c.row
		}
	}
}

// A host is a server of the database: the primary, or its standby. What is said of mu holds for all that follows it.
type host struct {
	name string
	run  *run
	skew time.Duration // of its clock
	mail *rand.Rand    // ship's own

	mu       sync.Mutex
	up       bool
	full     bool              // no room on its disk
	ambushed map[string][]bool // by node: whether the next commits come before their connection is lost
	silent   bool              // it is not even there to refuse
	primary  bool
	data     tables
	locks    map[cell]*lock
	sessions map[*session]bool
	next     int // number of the next session
	// The log goes to the standby in its order, and is applied there.
	standby *host // nil: there is none
	lsn     int
	shipped int
	pending []*commitment // not shipped yet
	moved   chan struct{} // closed and made anew when something is shipped, or the host dies
	wake    chan struct{}
	stalled time.Time     // until then nothing is shipped
	flush   time.Duration // the longest time of a write to its disk
}

// A commitment is a transaction in the log.
type commitment struct {
	lsn     int
	changes []change
	visible bool
}

// now is the host's clock, in µs.
func (h *host) now() int64 { return time.Now().Add(h.skew).UnixMicro() }

// A lock is one of a row.
type lock struct {
	shared  map[*tx]bool
	owner   *tx
	waiters []*waiter
}

type waiter struct {
	t       *tx
	alone   bool
	granted chan struct{}
}

// A tx is a transaction: what it has changed is seen by itself alone.
type tx struct {
	s       *session
	changes map[cell]row
	order   []cell
	held    []cell
	waits   *lock
	patient time.Duration // lock_timeout; 0: none
	idle    time.Duration // idle_in_transaction_session_timeout; 0: idleTime
	async   bool          // synchronous_commit is off
	// What the node believes to own, by its first statement: of each shard the epoch.
	claims map[string]string
}

// A pgError is what the server answers.
type pgError struct{ code, text string }

func (e *pgError) Error() string { return e.text }

// errGone ends a session.
var errGone = errors.New("the session has ended")

func (t *tx) get(table, key string) row {
	if r, ok := t.changes[cell{table, key}]; ok {
		return r
	}
	return t.s.host.data[table][key]
}

// keys are those of a table's rows, as the transaction sees them.
func (t *tx) keys(table string) []string {
	list := slices.Collect(maps.Keys(t.s.host.data[table]))
	for c, r := range t.changes {
		if c.table == table && r != nil && t.s.host.data[table][c.key] == nil {
			list = append(list, c.key)
		}
	}
	list = slices.DeleteFunc(list, func(k string) bool { return t.get(table, k) == nil })
	slices.Sort(list)
	return list
}

// put changes a row, which the caller has locked if it was there.
func (t *tx) put(table, key string, r row) {
	c := cell{table, key}
	if _, ok := t.changes[c]; !ok {
		t.order = append(t.order, c)
	}
	t.changes[c] = r
}

// has says whether the transaction holds a lock that is enough.
func (l *lock) has(t *tx, alone bool) bool { return l.owner == t || !alone && l.shared[t] }

// free says whether it can be granted.
func (l *lock) free(t *tx, alone bool) bool {
	if l.owner != nil && l.owner != t {
		return false
	}
	if !alone {
		return true
	}
	for other := range l.shared {
		if other != t {
			return false
		}
	}
	return true
}

// take grants it.
func (l *lock) take(t *tx, c cell, alone bool) {
	if l.owner != t && !l.shared[t] {
		t.held = append(t.held, c)
	}
	if alone {
		delete(l.shared, t)
		l.owner = t
	} else if l.owner != t {
		l.shared[t] = true
	}
}

// deadlockTime is how long a transaction waits before the server looks for a deadlock.
const deadlockTime = time.Second

// lock locks a row for t, and waits for that. The host's mu is held, and given up meanwhile.
func (t *tx) lock(table, key string, alone bool) error {
	h, c := t.s.host, cell{table, key}
	l := h.locks[c]
	if l == nil {
		l = &lock{shared: map[*tx]bool{}}
		h.locks[c] = l
	}
	if l.has(t, alone) {
		return nil
	}
	if l.free(t, alone) {
		l.take(t, c, alone)
		return nil
	}
	w := &waiter{t, alone, make(chan struct{})}
	l.waiters = append(l.waiters, w)
	t.waits = l
	h.mu.Unlock()
	err := t.await(w)
	h.run.turn(t.s.rnd)
	h.mu.Lock()
	t.waits = nil
	if err != nil {
		select {
		case <-w.granted:
			return nil // at the same time
		default:
		}
		l.waiters = slices.DeleteFunc(l.waiters, func(x *waiter) bool { return x == w })
	}
	return err
}

// await waits until w is granted.
func (t *tx) await(w *waiter) error {
	var patience <-chan time.Time
	if t.patient > 0 {
		timer := t.s.host.run.timer(t.patient)
		defer timer.Stop()
		patience = timer.C
	}
	look := t.s.host.run.timer(deadlockTime)
	defer look.Stop()
	for {
		select {
		case <-w.granted:
			return nil
		case <-patience:
			return &pgError{"55P03", "canceling statement due to lock timeout"}
		case <-t.s.killed:
			return errGone
		case <-t.s.cancel:
			return &pgError{"57014", "canceling statement due to user request"}
		case <-look.C:
			t.s.host.mu.Lock()
			dead := t.deadlocked(t, map[*tx]bool{})
			t.s.host.mu.Unlock()
			if dead {
				return &pgError{"40P01", "deadlock detected"}
			}
		}
	}
}

// deadlocked says whether at waits, over others, for t.
func (t *tx) deadlocked(at *tx, seen map[*tx]bool) bool {
	if at.waits == nil || seen[at] {
		return false
	}
	seen[at] = true
	blockers := slices.Collect(maps.Keys(at.waits.shared))
	if at.waits.owner != nil {
		blockers = append(blockers, at.waits.owner)
	}
	return slices.ContainsFunc(blockers, func(b *tx) bool { return b != at && (b == t || t.deadlocked(b, seen)) })
}

// release gives up all locks of t. The host's mu is held.
func (t *tx) release() {
	h := t.s.host
	for _, c := range t.held {
		l := h.locks[c]
		if l == nil {
			continue // the host has been restarted
		}
		delete(l.shared, t)
		if l.owner == t {
			l.owner = nil
		}
		l.waiters = slices.DeleteFunc(l.waiters, func(w *waiter) bool {
			if !l.free(w.t, w.alone) {
				return false
			}
			l.take(w.t, c, w.alone)
			close(w.granted)
			return true
		})
	}
	t.held = nil
}

// commit makes t durable: on the host's disk, and on the standby's. Meanwhile nobody sees it, and its locks are held.
func (t *tx) commit() error {
	h := t.s.host
	if len(t.changes) == 0 {
		h.mu.Lock()
		t.release()
		h.mu.Unlock()
		return nil
	}
	sleep := h.run.timer(between(t.s.rnd, 100*time.Microsecond, h.flush))
	defer sleep.Stop()
	select {
	case <-sleep.C:
	case <-t.s.killed:
		h.run.turn(t.s.rnd)
		h.mu.Lock()
		t.release() // taken back
		h.mu.Unlock()
		return errGone
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.up || t.s.over {
		t.release()
		return errGone
	}
	h.run.books.recorded(t)
	h.lsn++
	c := &commitment{lsn: h.lsn}
	for _, at := range t.order {
		c.changes = append(c.changes, change{at, t.changes[at]})
	}
	h.pending = append(h.pending, c)
	h.ring()
	var err error
	for !t.async && h.standby != nil && h.shipped < c.lsn && err == nil {
		moved := h.moved
		h.mu.Unlock()
		select {
		case <-moved:
		case <-t.s.killed:
			err = errGone
		case <-t.s.cancel:
			err = &pgError{"57014", "canceling the wait for the standby"} // it is committed nevertheless: nobody reads this
		}
		h.run.turn(t.s.rnd)
		h.mu.Lock()
		if !h.up {
			return errGone // restart applies what its disk has
		}
	}
	h.reveal(c)
	t.release()
	return err
}

// reveal makes a transaction visible.
func (h *host) reveal(c *commitment) {
	if !c.visible {
		c.visible = true
		h.data.apply(c.changes)
	}
}

func (h *host) ring() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// ship has the standby follow, until the run is over. It is a goroutine.
func (h *host) ship() {
	for {
		h.mu.Lock()
		var c *commitment
		wait := time.Until(h.stalled)
		if len(h.pending) > 0 && wait <= 0 && h.up {
			c = h.pending[0]
		}
		h.mu.Unlock()
		switch {
		case h.run.isOver():
			return
		case c == nil && wait > 0:
			h.run.sleep(wait)
			continue
		case c == nil:
			<-h.wake
			continue
		}
		h.run.sleep(between(h.mail, 100*time.Microsecond, h.flush))
		h.mu.Lock()
		if h.up && len(h.pending) > 0 && h.pending[0] == c {
			h.pending = h.pending[1:]
			if h.standby != nil {
				h.standby.mu.Lock()
				h.standby.data.apply(c.changes)
				h.standby.mu.Unlock()
			}
			h.shipped = c.lsn
			h.signal()
		}
		h.mu.Unlock()
	}
}

// signal wakes all who wait for the standby. mu is held.
func (h *host) signal() {
	close(h.moved)
	h.moved = make(chan struct{})
}

// die ends the host. Its clients hear of it, or not, when silent.
func (h *host) die(silent bool) {
	h.mu.Lock()
	h.up = false
	h.signal()
	list := make([]*session, 0, len(h.sessions))
	for s := range h.sessions {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *session) int { return a.number - b.number })
	h.mu.Unlock()
	for _, s := range list {
		if silent {
			s.conn.vanish()
		}
		s.kill()
	}
}

// restart brings back what the host's disk has.
func (h *host) restart() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.pending {
		h.reveal(c)
	}
	h.locks = map[cell]*lock{}
	h.up = true
	h.ring()
}

// promote makes the standby the primary, with what it has.
func (h *host) promote() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.primary, h.up = true, true
	h.locks = map[cell]*lock{}
}

func newHost(r *run, name string, skew, flush time.Duration) *host {
	return &host{name: name, run: r, skew: skew, mail: r.seed.source("standby of " + name), data: tables{}, locks: map[cell]*lock{}, sessions: map[*session]bool{}, ambushed: map[string][]bool{},
		moved: make(chan struct{}), wake: make(chan struct{}, 1), flush: flush}
}

// fill makes the tables of a queue with so many shards, as "posthaste cluster init" does.
func (h *host) fill(shards int, older bool) {
	if !older {
		h.data.apply([]change{{cell{"class", "node_note"}, row{}}, {cell{"class", "node_call"}, row{}}, {cell{"class", "node_order"}, row{}}})
	}
	h.data.apply([]change{{cell{"version", "1"}, row{"1"}}, {cell{"sequence", "message_number"}, row{"1"}}})
	for i := range shards {
		id := fmt.Sprint(i + 1)
		h.data.apply([]change{{cell{"shard", id}, row{id, null, "0"}}, {cell{"lease", id}, row{id, "-1"}}})
	}
}

func (h *host) isUp() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.up
}

func (h *host) setFull(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.full = on
}

// ambush has the next n transactions of a node lose their connection at COMMIT: when they are committed, or before.
func (h *host) ambush(node string, n int, committed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range n {
		h.ambushed[node] = append(h.ambushed[node], committed)
	}
}

// lost says whether a node's transaction is one of those, and which.
func (h *host) lost(node string) (lost, committed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if list := h.ambushed[node]; len(list) > 0 {
		h.ambushed[node] = list[1:]
		return true, list[0]
	}
	return false, false
}

func (h *host) isSilent() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.silent
}

func (h *host) setSilent(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.silent = on
}

// operator is a session of somebody who is not a node.
func (h *host) operator(name string) *session {
	return &session{host: h, node: "operator", killed: make(chan struct{}), cancel: make(chan struct{}, 1), rnd: h.run.seed.source("operator of " + name)}
}

// lockLeases keeps the rows of the leases locked for so long.
func (h *host) lockLeases(d time.Duration) {
	t := &tx{s: h.operator("leases"), changes: map[cell]row{}, patient: time.Second}
	h.mu.Lock()
	for _, k := range t.keys("lease") {
		_ = t.lock("lease", k, true) // if somebody else has it for long, it is not locked
	}
	h.mu.Unlock()
	h.run.sleep(d)
	h.mu.Lock()
	t.release()
	h.mu.Unlock()
}

// drain sets whether a node is drained; false: it is not known, or something is in the way.
func (h *host) drain(name, on string) bool {
	s := h.operator(name)
	t := &tx{s: s, changes: map[cell]row{}, patient: time.Second} // the host may die meanwhile
	if _, err := t.carryOut("UPDATE node SET drained", []string{name, on}); err != nil || len(t.changes) == 0 {
		h.mu.Lock()
		t.release()
		h.mu.Unlock()
		return false
	}
	return t.commit() == nil
}
