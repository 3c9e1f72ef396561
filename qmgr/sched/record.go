// What is kept of every message, wherever it is, and the lists that records can be in.
// This is the part of the scheduler whose size depends on the length of the queue, so its
// layout matters: no pointers, and no object of its own for each message.

package sched

// where says in which of the scheduler's places a record is.
type where uint8

const (
	whereNone     where = iota
	whereIncoming       // its tenant's incoming
	whereActive         // s.slots[rec.active]
	whereDeferred       // s.retries, and in a site's list when rec.site != 0
	whereDue            // its tenant's due or ripe: deferred, to be taken up as soon as there is room
	whereHold           // nowhere else
)

// queue is where as the outside sees it.
func (w where) queue() Queue {
	switch w {
	case whereIncoming:
		return QueueIncoming
	case whereActive:
		return QueueActive
	case whereHold:
		return QueueHold
	}
	return QueueDeferred
}

// Kept with a record's public flags.
const (
	flagFlush  Flags = 1 << 15 // a flush: overrides defer_transports, queue-only destinations
	flagRevive Flags = 1 << 14 // a flush of this message: dead destinations on its way are forgotten
	flagFar    Flags = 1 << 13 // deferred, beyond the edge, and that has been said or is to be
	flagNow    Flags = 1 << 12 // a flush of this message by its name: it is tried before its first time
	flagRipe   Flags = 1 << 11 // due by its own time, and in its tenant's list of those
	flagEarly  Flags = 1 << 10 // due before its own time, for those recipients that have not been tried
	flagIdle   Flags = 1 << 9  // deferred, and no recipient waits for a back-off: all wait for a pause or a limit
	flagsOwn         = flagFlush | flagRevive | flagFar | flagNow | flagRipe | flagEarly | flagIdle
)

// A record is what is kept of every message that is known, wherever it is: 72 bytes without
// a pointer, so that a million of them cost neither memory nor the garbage
// collector's time.
type record struct {
	id MsgID
	// When the message came, by the wall clock, in microseconds.
	created int64
	next    int64 // deferred: when it is due
	mark    int64 // deferred: that time as it is on record, by the wall clock
	// Octets; for listings only.
	size     int64
	rcpts    int32 // without a final outcome
	site     int32 // destination on whose account it is deferred; 0: none
	prv, nxt int32 // in the list that where and site name
	heap     int32 // position + 1 in s.retries
	active   int32 // index in s.slots
	attempts uint16
	flags    Flags
	where    where
	tenant   uint16 // by s.tenants
}

// recordChunk is how many records are allocated together. Chunks do not move, so that a
// *record stays valid while others are added.
const recordChunk = 4096

// records is the store of all records. Record 0 is none.
type records struct {
	chunks []*[recordChunk]record
	free   int32 // chain of unused records through nxt
	used   int32 // records ever given out
	index  *Index
}

func newRecords() *records {
	r := new(records)
	r.index = NewIndex(func(i int32) MsgID { return r.at(i).id })
	return r
}

// find is the record of a message; 0 when there is none.
func (r *records) find(id MsgID) int32 { return r.index.Find(id) }

func (r *records) at(i int32) *record { return &r.chunks[i/recordChunk][i%recordChunk] }

// add makes a record for id, which must be new.
func (r *records) add(id MsgID) int32 {
	i := r.free
	if i != 0 {
		r.free = r.at(i).nxt
	} else {
		if r.used == 0 {
			r.used = 1
		}
		i = r.used
		r.used++
		if int(i/recordChunk) >= len(r.chunks) {
			r.chunks = append(r.chunks, new([recordChunk]record))
		}
	}
	*r.at(i) = record{id: id}
	r.index.Add(id, i)
	return i
}

// remove forgets a message. Its place is the next to be used again.
func (r *records) remove(i int32) {
	rec := r.at(i)
	r.index.Remove(rec.id)
	*rec = record{nxt: r.free}
	r.free = i
}

// recList is a first-in first-out list of records, linked through prv and nxt.
type recList struct{ head, tail, n int32 }

func (l *recList) append(r *records, i int32) {
	rec := r.at(i)
	rec.prv, rec.nxt = l.tail, 0
	if l.tail != 0 {
		r.at(l.tail).nxt = i
	} else {
		l.head = i
	}
	l.tail = i
	l.n++
}

func (l *recList) unlink(r *records, i int32) {
	rec := r.at(i)
	if rec.prv != 0 {
		r.at(rec.prv).nxt = rec.nxt
	} else {
		l.head = rec.nxt
	}
	if rec.nxt != 0 {
		r.at(rec.nxt).prv = rec.prv
	} else {
		l.tail = rec.prv
	}
	rec.prv, rec.nxt = 0, 0
	l.n--
}

// retrySlot is 16 bytes: a million deferred messages cost 16 MB here.
type retrySlot struct {
	at  int64
	rec int32
}

// retryHeap orders deferred messages by the time they are due. Messages due
// at the same microsecond go in the order of their records, which is as good
// as any and always the same.
type retryHeap struct{ s []retrySlot }

func (a retrySlot) before(b retrySlot) bool { return a.at < b.at || a.at == b.at && a.rec < b.rec }

func (h *retryHeap) push(r *records, i int32) {
	h.s = append(h.s, retrySlot{r.at(i).next, i})
	h.up(r, len(h.s)-1)
}

func (h *retryHeap) remove(r *records, i int32) {
	rec := r.at(i)
	at, last := int(rec.heap)-1, len(h.s)-1
	rec.heap = 0
	moved := h.s[last]
	h.s = h.s[:last]
	if at == last {
		return
	}
	h.s[at] = moved
	if !h.down(r, at) {
		h.up(r, at)
	}
}

func (h *retryHeap) set(r *records, i int, x retrySlot) {
	h.s[i] = x
	r.at(x.rec).heap = int32(i + 1)
}

func (h *retryHeap) up(r *records, i int) {
	x := h.s[i]
	for i > 0 && x.before(h.s[(i-1)/2]) {
		h.set(r, i, h.s[(i-1)/2])
		i = (i - 1) / 2
	}
	h.set(r, i, x)
}

func (h *retryHeap) down(r *records, i int) bool {
	start, x, n := i, h.s[i], len(h.s)
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && h.s[child+1].before(h.s[child]) {
			child++
		}
		if !h.s[child].before(x) {
			break
		}
		h.set(r, i, h.s[child])
		i = child
	}
	h.set(r, i, x)
	return i > start
}
