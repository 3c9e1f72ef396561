package spool

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/queue"
	"posthaste/internal/reuse"
	"posthaste/internal/vfs"
)

// engine is the log and its index: everything but the goroutines. One
// goroutine at a time calls its methods, save those that say otherwise; so
// the tests can drive it one file operation at a time.
//
// The invariants that its safety rests on are numbered, and named where
// they are kept:
//
//  1. Acknowledged means that the sync of its batch returned nil.
//  2. Batch n+1 is written after batch n is durable, and no record's
//     promise exceeds what is durable.
//  3. A block that holds acknowledged bytes is not written again before its
//     segment is recycled.
//  4. A segment is recycled only if all its batches are before a durable
//     recovery point, nothing in it is live, and the records that say so are
//     durable.
//  5. Every live message has a MSG or STATE record at or after the recovery
//     point, and no DONE for it before that record matters; the point moves
//     only in a batch that finds this true.
//  6. No process appends to a segment of an earlier process.
//  7. Nothing of the tail that was never promised is acted on before it has
//     been written again; BOOT and what it writes again are one batch.
//  8. After the first failed write or sync this process writes nothing more.
//  9. Segment numbers with their salt, and message numbers, never repeat.
//  10. A batch is all or nothing, and at most half a segment, so that a
//     recovery can write it again.
//  11. Content is given out only when its checksum has been verified: in full,
//     or by chunk for big files.
//  12. A bounce and the disposition that causes it are one batch (the
//     caller's part).
//  13. Damage below what was promised is an alarm, never a silent end.
//  14. A disposition can always be recorded: free segments are kept from new
//     mail, and won back before one is taken (room.go).
type engine struct {
	// Set when the spool is opened, and not changed afterwards.
	fs       vfs.FS
	dir      string
	opt      Options // as they were given; zero in an engine that only reads
	lim      limits  // what follows from opt
	warn     func(string, ...any)
	random   func([]byte)        // fills its argument: the spool's identity, the salts of segments
	now      func() time.Time    // the wall clock
	sleep    func(time.Duration) // between reads that fail
	tenants  tenants             // whose names the index has as numbers
	wake     func()              // has maintain called soon; nil in an engine without goroutines
	readOnly bool                // nothing is written: see view
	lock     io.Closer           // of the directory; nil in an engine that only reads
	planter                      // empty but in the tests that prove the tests

	hasty time.Time  // until when there is no sleep for an update; see putUpdated
	disk  *diskWatch // nil in an engine that only reads

	bigBufs reuse.Pool[[]byte] // one chunk of a content file
	content contentPlace       // of content files
	bigSync sharedSync         // of the directory of content files
	spent   spentFiles         // content files of messages that are gone, to be written anew

	// mu is held by the writer while it changes what others read, and by others while they
	// read it. It guards the fields from here to byQueue.
	mu       sync.RWMutex
	idx      index               // the messages that are alive
	segs     map[uint32]*segment // all segments but those in fresh, by the number of their file
	free     []*segment          // recycled or new, to be used next; all of the present size
	odd      []*segment          // free ones of another size: see pickOdd
	mixed    bool                // some segments are of another size than the present one, or have been
	largest  int64               // size of the largest of those, in bytes
	fresh    []*segment          // made by another goroutine, not in segs yet
	drop     []*segment          // to be closed and removed
	gone     []goneFile          // whose content files are not needed any more
	liveSum  int64               // bytes of live records
	metaSum  int64               // about what states of all live messages would take
	stateSum int64               // bytes of live STATE records, which are in liveSum, too
	bigSum   int64               // bytes of big files, arriving ones included
	stats    Stats               // counters
	broken   error               // the first write or sync that failed: nothing is written after it; nil: none has
	diskLow  bool                // the file system has less than MinFree, or a file could not be made
	freeLow  bool                // mail was refused last for the sake of MinFree
	diskErr  string              // the last reason for diskLow that was told; "": none, or it is only full
	out      outage              // of the place for content files
	aheadAt  time.Time           // when makeAhead is to be tried again; zero: it has not failed
	nextFile uint32              // number of the next segment file; no number is used twice
	byQueue  [numQueues]int      // live messages in each queue

	createMu sync.Mutex  // one segment file is made at a time
	closing  atomic.Bool // the housekeeper makes no more

	// What follows belongs to the writer. It is also set by recovery, before the writer starts.

	head, cold *segment   // where new records go, and copies that cleaning makes; nil: to be taken
	uuid       [16]byte   // the spool's identity
	key        uint32     // keyOf(uuid)
	nextSegno  uint64     // of the segment that was begun last: they are numbered by use, not by file
	batch, seq uint64     // of the next batch and record
	promised   uint64     // highest durable batch
	said       uint64     // the batch that promise wrote last
	exact      bool       // Options.ExactDoubt
	from       point      // durable recovery point
	moved      point      // the one to be recorded with the next batch, if not zero
	victims    []*segment // being emptied by cleaning, the first one now
	turn       bool       // the next batch begins a new head
	swept      uint64     // Stats.Written when a sweep last won too little; 0: none did
	sweepLeft  int        // how many free segments the sweep under way leaves; 0: there is none

	w batchWriter
}

// limits are the bounds derived from Options.
type limits struct {
	segSize  int64
	inline   int64
	lend     int   // contents from this length on are lent to a batch
	unit     int64 // longest request
	batch    int64 // where a log batch is full
	state    int64 // longest metadata of a STATE
	copyEnv  int   // envelopes up to this are copied into STATE records
	budget   int64
	minFree  int64
	segments int64 // most segment files, 0: no bound
	reserve  int64 // segments that new mail may not use
	window   int64 // segments that recovery may have to read
}

func deriveLimits(o *Options) (limits, error) {
	l := limits{segSize: o.SegmentSize, inline: o.InlineLimit, budget: o.Budget, minFree: o.MinFree}
	if l.segSize == 0 {
		l.segSize = 64 << 20
		for l.budget > 0 && l.segSize > 1<<20 && l.segSize*minSegments*2 > l.budget {
			l.segSize /= 2
		}
	}
	if l.segSize < minSegment || l.segSize > maxSegment || l.segSize%blockSize != 0 {
		return l, fmt.Errorf("spool: segment size %d: want a multiple of %d from %d to %d", l.segSize, blockSize, minSegment, maxSegment)
	}
	if l.inline == 0 {
		l.inline = 128 << 10
	}
	l.inline = max(0, min(l.inline, l.segSize/8))
	l.lend = int(max(1, min(minLent, l.inline/8))) // of small segments, with which tests work, some are lent as well
	l.unit = l.segSize/2 - blockSize               // with padding and a CKPT at most half a segment
	l.batch = min(4<<20, l.unit)
	l.state = l.unit / 2
	l.copyEnv = int(min(4096, l.segSize/16))
	l.reserve = minReserve
	l.window = 12
	if l.budget > 0 {
		l.segments = l.budget / l.segSize
		if l.segments < minSegments {
			return l, fmt.Errorf("spool: a budget of %d bytes is %d segments of %d; at least %d are needed", l.budget, l.segments, l.segSize, minSegments)
		}
		l.reserve = max(minReserve, l.segments/8)
		l.window = min(l.window, max(2, l.segments/4))
	}
	return l, nil
}

const (
	minSegments = 10
	minReserve  = 4
)

// request is a caller's batch on its way.
type request struct {
	b    *Batch
	done func(error) // Post
	ch   chan error  // Commit
	err  error
	cost int64
	next int // of a batch whose changes stand apart: the one to go on with
	from int // next, before the log batch being made
}

// commit makes as many of reqs durable as go into one log batch, sets their
// err, and returns how many that were. What it refuses for its own reasons
// has an err, too. An error of commit itself is that the log is broken, or, when
// it is ErrFull, that nothing can be written now and nothing has happened.
func (e *engine) commit(reqs []*request) (n int, err error) {
	if err := e.isBroken(); err != nil {
		return 0, err
	}
	adds := func(r *request) bool { return r.b.adds > 0 }
	if err := e.makeRoom(slices.ContainsFunc(reqs, adds)); err != nil {
		return 0, err
	}
	e.begin()
	e.w.leave = 1
	e.w.full = e.batchLimit()
	for n < len(reqs) {
		r := reqs[n]
		r.from = r.next
		if r.b.apart {
			if !e.putApart(r) {
				break
			}
			n++
			continue
		}
		if r.err = e.check(r); r.err == nil {
			if e.w.size() > 0 && e.w.size()+r.cost > e.w.full {
				break
			}
			for i := range r.b.ops {
				e.putOp(r.b, &r.b.ops[i])
			}
		}
		n++
	}
	if err := e.flush(false); err != nil {
		for _, r := range reqs[:min(n+1, len(reqs))] {
			r.next = r.from
		}
		return n, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range reqs[:n] {
		if r.err == nil {
			e.setPlaces(r.b)
			e.stats.Commits++
			e.stats.Added += uint64(r.b.adds)
		}
	}
	return n, nil
}

// check refuses a request that contradicts the spool, does not fit into a
// batch, or for which there is no room, and finds out what it costs.
func (e *engine) check(r *request) error {
	b := r.b
	if b.err != nil {
		return b.err
	}
	if b.adds > 0 {
		if err := e.full(b.settles()); err != nil {
			return err
		}
	}
	if b.twice() {
		return fmt.Errorf("%w: a message is added twice", ErrInvalid)
	}
	var cost int64
	for i := range b.ops {
		n, err := e.checkOp(&b.ops[i])
		if err != nil {
			return err
		}
		cost += n
	}
	if unit := e.longest(b.adds > 0); cost > unit {
		return fmt.Errorf("%w: %d bytes in one batch, %d are possible", ErrTooLarge, cost, unit)
	}
	r.cost = cost
	return nil
}

// checkOp is check for one change.
func (e *engine) checkOp(o *op) (cost int64, err error) {
	switch o.kind {
	case opAdd:
		if _, l := e.current(o.number); l != nil {
			return 0, fmt.Errorf("%w: message %q is there already", ErrInvalid, string(o.id))
		}
		return alignUp(headerLen+int64(o.hi-o.lo)+int64(len(o.body)), recAlign), nil
	case opRemove, opFinish:
		return headerLen, nil
	case opHanded:
		return e.checkHanded(o)
	case opDone:
		cost = alignUp(headerLen+4+5*int64(len(o.rcpts)), recAlign)
	case opUpdate:
		// What there is of outcomes and envelope goes up to a bound into a
		// STATE, and what is over it stays out (putState).
		cost = int64(o.hi - o.lo)
		if _, l := e.current(o.number); l != nil {
			cost += int64(l.refMeta)
			cost = min(cost, e.lim.state) + int64(l.nrcpt+7)/8 + e.idx.handedLen(o.number)
		}
		cost += headerLen + stateSlack
	}
	return cost, e.checkRcpts(o)
}

// putApart encodes the changes of a batch in which each stands for itself,
// from where it was left on. It is false when the log batch is full before
// the last.
func (e *engine) putApart(r *request) bool {
	b := r.b
	if r.err = b.err; r.err == nil && b.adds > 0 {
		r.err = fmt.Errorf("%w: messages are added by changes that stand apart", ErrInvalid)
	}
	if r.err != nil {
		return true
	}
	for ; r.next < len(b.ops); r.next++ {
		o := &b.ops[r.next]
		cost, err := e.checkOp(o)
		if unit := e.longest(false); err == nil && cost > unit {
			err = fmt.Errorf("%w: %d bytes in one change, %d are possible", ErrTooLarge, cost, unit)
		}
		switch {
		case err != nil:
			if b.refused == nil {
				b.refused = map[int]error{}
			}
			b.refused[r.next] = err
		case e.w.size() > 0 && e.w.size()+cost > e.w.full:
			return false
		default:
			e.putOp(b, o)
		}
	}
	return true
}

// stateSlack bounds what a STATE's metadata may have over the message's last
// and the new outcomes.
const stateSlack = 128

func (e *engine) checkRcpts(o *op) error {
	_, l := e.current(o.number)
	if l == nil || l.created != o.created {
		return nil
	}
	for _, i := range o.rcpts {
		if i < 0 || i >= int(l.nrcpt) {
			return fmt.Errorf("%w: recipient %d of message %q, which has %d", ErrInvalid, i, string(o.id), l.nrcpt)
		}
	}
	if o.kind == opUpdate && o.change.Set&SetQueue != 0 && o.change.Queue >= numQueues {
		return fmt.Errorf("%w: message %q into %v", ErrInvalid, string(o.id), o.change.Queue)
	}
	return nil
}

// current is how message number stands with what is staged. What it gives is good until
// the next call, or a change of what is staged.
func (e *engine) current(number uint64) (*staged, *live) {
	if i, ok := e.w.staged[number]; ok {
		s := &e.w.list[i]
		if s.gone {
			return s, nil
		}
		return s, &s.live
	}
	return nil, e.idx.find(number, &e.w.found)
}

// putOp encodes a change into the batch being made.
func (e *engine) putOp(b *Batch, o *op) {
	if o.kind == opAdd {
		e.putAdd(b, o)
		return
	}
	s := e.stage(o.number, o.created)
	if o.staged = 0; s == nil {
		return
	}
	o.staged = s.at + 1
	switch o.kind {
	case opDone:
		e.putDone(s, o.rcpts)
	case opRemove:
		s.gone = true
		e.w.record(recDONE, recAll|recRemoved, o.number, nil, nil)
	case opFinish:
		s.gone = true
		e.w.record(recDONE, recAll, o.number, nil, nil)
	case opHanded:
		e.putHanded(s, o)
	case opUpdate:
		e.putUpdate(s, b, o)
	}
}

func (e *engine) putAdd(b *Batch, o *op) {
	off, at := e.w.header(recMSG, 0, o.number, b.buf[o.lo:o.hi], len(o.body), o.metaCRC, o.bodyCRC)
	if len(o.body) < e.lim.lend {
		e.w.buf = append(e.w.buf, o.body...)
	} else {
		e.w.lend(o.body)
	}
	e.w.align()
	s := e.w.stage(staged{number: o.number, live: o.msg, added: true})
	s.refHere, s.conHere = true, true
	s.refAt, s.conAt = at, at
	o.staged = s.at + 1
	s.live.tenant = e.tenants.number([]byte(o.tenant))
	s.live.refOff = off
	s.live.refLen = uint32(headerLen + o.hi - o.lo + len(o.body))
	s.live.refMeta = uint32(o.hi - o.lo)
	s.live.conOff, s.live.conLen = s.live.refOff, s.live.refLen
	if o.large != nil {
		s.bigLen = o.large.File.size
	}
}

func (e *engine) putDone(s *staged, rcpts []int) {
	before := s.live.npending
	for _, i := range rcpts {
		s.more = setDone(&s.live, s.more, uint64(i))
	}
	s.settleDone()
	switch {
	case s.live.npending == before:
		return // nothing new
	case s.live.npending == 0:
		s.gone = true
		e.w.record(recDONE, recAll, s.number, nil, nil)
	default:
		e.w.meta = queue.AppendRcpts(reuse.Truncated(e.w.meta), tagRcpts, rcpts)
		e.w.record(recDONE, 0, s.number, e.w.meta, nil)
	}
}

func (e *engine) putUpdate(s *staged, b *Batch, o *op) {
	c := &o.change
	for _, i := range o.rcpts {
		s.more = setDone(&s.live, s.more, uint64(i))
	}
	if s.live.npending == 0 {
		s.gone = true
		e.w.record(recDONE, recAll, s.number, nil, nil)
		return
	}
	s.settleDone()
	s.settleOutcomes(c.Outcomes)
	l := &s.live
	if c.Set&SetQueue != 0 {
		l.queue = uint8(c.Queue)
	}
	if c.Set&SetNextAttempt != 0 {
		l.next = queue.Micros(c.NextAttempt)
	}
	if c.Set&SetAttempts != 0 {
		l.attempts = uint32(max(c.Attempts, 0))
	}
	setFlag := func(set Field, bit uint8, on bool) {
		if c.Set&set != 0 {
			l.flags &^= bit
			if on {
				l.flags |= bit
			}
		}
	}
	setFlag(SetWarned, msgWarned, c.Warned)
	setFlag(SetExpire, msgExpire, c.Expire)
	e.putUpdated(s, b.buf[o.lo:o.hi])
}

// setPlaces tells b where the messages that it added or updated are now.
func (e *engine) setPlaces(b *Batch) {
	b.entries = reuse.Truncated(b.entries)
	if b.adds+b.updates == 0 {
		return
	}
	for i := range b.ops {
		o := &b.ops[i]
		var en Entry
		if o.kind == opAdd || o.kind == opUpdate {
			if l := e.after(b, o); l != nil {
				en = e.entry(l)
				en.ID = o.id
			}
		}
		b.entries = append(b.entries, en)
	}
}

// after is how the message of a change stands after its batch; nil: it is gone. The caller holds mu.
func (e *engine) after(b *Batch, o *op) *live {
	if !b.apart { // all of it was in the log batch that was written last
		if o.staged == 0 || e.w.list[o.staged-1].gone {
			return nil
		}
		return &e.w.list[o.staged-1].live
	}
	if l := e.idx.find(o.number, &e.w.found); l != nil && l.created == o.created {
		return l
	}
	return nil
}

// entry describes l. Its ID is left out.
func (e *engine) entry(l *live) Entry {
	en := Entry{Ref: Ref{File: l.refSeg, Offset: l.refOff, Length: l.refLen},
		Queue: Queue(l.queue), NextAttempt: queue.FromMicros(l.next), Attempts: int(l.attempts), Size: l.size,
		NRcpt: int(l.nrcpt), NPending: int(l.npending), Trace: traceOf(l), Null: l.flags&msgNull != 0,
		Warned: l.flags&msgWarned != 0, Expire: l.flags&msgExpire != 0, Tenant: e.tenants.name(l.tenant)}
	if s := e.segs[l.refSeg]; s != nil {
		en.Ref.Segno = s.segno
	}
	if l.npending != l.nrcpt {
		en.Done = doneBitmap(l, e.idx.more[l.number])
	}
	return en
}

// isBroken is why the log is broken, or nil. A batch under way goes on when it breaks
// elsewhere; the next is not begun. Everything that changes the disk asks before it
// does (invariant 8). It may be called by any goroutine.
func (e *engine) isBroken() error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.planted(plantWriteOn) {
		return nil
	}
	return e.broken
}

// fail breaks the log for good (invariant 8).
func (e *engine) fail(what string, err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.broken == nil {
		e.broken = fmt.Errorf("%w: %s: %w; nothing more is written before it is opened again", ErrBroken, what, err)
	}
	return e.broken
}
