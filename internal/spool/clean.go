package spool

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"posthaste/internal/reuse"
)

// maintain does one step of what keeps the log short, if there is one to do,
// and says whether it did: first what is under way, then the recovery point,
// then the cleaner, then giving files back. Each step is one batch of bounded
// length, so that those who commit do not wait for the whole.
func (e *engine) maintain() (bool, error) {
	if err := e.isBroken(); err != nil {
		return false, err
	}
	e.mu.Lock()
	e.adopt()
	low := e.freeLow || e.available() <= max(e.lim.reserve, e.kept())+1
	e.mu.Unlock()
	if len(e.victims) > 0 || low && e.chooseVictims(true, 0) { // wins space sooner than a checkpoint
		if did, err := e.copyStep(); did || err != nil {
			return did, err
		}
	}
	if did, err := e.checkpointStep(low); did || err != nil {
		return did, err
	}
	if !low && e.chooseVictims(false, 0) {
		return e.copyStep()
	}
	e.trim()
	return false, nil
}

// sweep wins back what is dead in closed segments, until want are free or all
// have been looked at, whatever that costs: it is for a disk that has no room
// for more. It takes no more than one segment of those that are left, and gives
// it back with what it wins.
func (e *engine) sweep(want int) error {
	if e.swept > 0 && e.stats.Written-e.swept < uint64(e.lim.segSize/8) {
		return nil // there was nothing to win
	}
	until := e.batch
	defer func() { e.sweepLeft = 0 }()
	for idle := 0; !e.ready(want); {
		e.sweepLeft = max(1, e.sweepLeft, min(forStarts, len(e.free)-1))
		before := e.batch
		did, err := e.sweepStep(until)
		if err != nil {
			return err
		}
		// A step that writes nothing leaves a segment alone, or seals one. More of them in a row
		// than there are segments come to nothing, as when books and disk disagree after a disk
		// has lied.
		if idle++; e.batch != before {
			idle = 0
		}
		did = did && idle <= len(e.segs)
		if !did {
			e.swept = e.stats.Written
			return nil
		}
	}
	e.swept = 0
	return nil
}

// sweepStep writes one batch for sweep: it empties segments with much that is
// dead, or moves the recovery point on towards batch until, so that more can be
// emptied or are empty. What is written from that batch on is left alone, so
// that there is an end to it.
func (e *engine) sweepStep(until uint64) (bool, error) {
	if len(e.victims) > 0 || e.chooseVictims(true, until) {
		if did, err := e.copyStep(); did || err != nil {
			return did, err
		}
	}
	if p := e.reachable(); p.batch > e.from.batch {
		return e.recordPoint(p)
	}
	holding, _ := e.holding()
	switch {
	case len(holding) == 0 || holding[0].firstBatch >= until || e.isLeft(holding[0]):
		return false, nil
	case holding[0] == e.head:
		if e.behindHead() < e.lim.segSize {
			return false, nil
		}
		e.turn = true
		did, err := e.recordPoint(e.from)
		e.turn = false // also when there was no room for it
		return did, err
	case e.isShort() && !e.worthwhile():
		return false, nil
	}
	return e.moveOldest(holding)
}

// behindHead is what is dead in segments that were begun after the head, with what
// the cleaner copied: the recovery point cannot pass them before the head is closed.
func (e *engine) behindHead() (dead int64) {
	for _, s := range e.segs {
		if s.state == segClosed && s.lastBatch >= e.head.firstBatch {
			dead += s.size - headRoom - s.live
		}
	}
	return dead
}

// recordPoint writes a batch that makes p the recovery point.
func (e *engine) recordPoint(p point) (bool, error) {
	e.moved = p
	e.beginStep(e.head)
	e.w.force = true
	return e.step(false)
}

// beginStep begins a batch of maintenance for the end of s.
func (e *engine) beginStep(s *segment) {
	e.begin()
	e.w.upkeep, e.w.leave, e.w.most = true, e.left(), e.stepBytes()
	if s == nil {
		return
	}
	if room := s.size - s.off - blockSize; room > 0 { // one block for the padding, and a CKPT
		e.w.most = min(e.w.most, room)
	}
}

// step writes the batch of maintenance that was made. It is false when there is
// no room for it.
func (e *engine) step(cold bool) (bool, error) {
	err := e.flush(cold)
	if errors.Is(err, ErrFull) {
		return false, nil
	}
	return true, err
}

// stepBytes bounds what one step of maintenance writes.
func (e *engine) stepBytes() int64 { return min(1<<20, e.lim.unit/2, e.batchLimit()) }

// windowLimit is how many segments a recovery may have to read: enough that
// the states in it are a small part of what is written, so that moving the
// recovery point over them costs little.
func (e *engine) windowLimit() int64 {
	w := max(e.lim.window, 4*e.metaSum/e.lim.segSize)
	if e.lim.segments > 0 {
		w = max(e.lim.window, min(w, e.lim.segments/4))
	}
	return w
}

// inWindow says whether a recovery would read s.
func (e *engine) inWindow(s *segment) bool {
	return s.state == segOpen || s.state == segClosed && s.lastBatch >= e.from.batch
}

// checkpointStep moves the recovery point on, or does a part of the work
// that this takes (invariant 5).
func (e *engine) checkpointStep(low bool) (bool, error) {
	holding, window := e.holding()
	var oldest *segment
	if len(holding) > 0 {
		oldest = holding[0]
	}
	over := window > e.windowLimit()
	cheap := len(e.free) == 0 && window > 1 && oldest.live <= oldest.size/32
	low = low && window > 1 && e.worthwhile()
	if !over && !cheap && !low {
		return false, nil
	}
	if p := e.reachable(); p.batch > e.from.batch && p != e.moved {
		e.moved = p // rides with the next batch
		if !low {
			return false, nil
		}
		return e.recordPoint(p)
	}
	if e.moved != (point{}) && !low {
		return false, nil // enough is done once that is durable
	}
	if oldest == e.head || oldest == nil || e.isLeft(oldest) || !e.mayWrite(e.head) {
		return false, nil
	}
	return e.moveOldest(holding)
}

// holding are the segments whose states hold the recovery point where it is,
// and back from where it may go, oldest first; and of how many segments the
// window consists. After a disk has lied there may be states before the recovery
// point, which the next start would not find: those come first.
func (e *engine) holding() (list []*segment, window int64) {
	for _, s := range e.segs {
		if e.inWindow(s) {
			window++
		}
		if s.nstates > 0 || s.state == segOpen {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(a.firstBatch, b.firstBatch) })
	return list, window
}

// moveOldest does a part of what lets the recovery point pass the oldest of
// these segments, which is not the head.
func (e *engine) moveOldest(holding []*segment) (bool, error) {
	oldest := holding[0]
	if oldest != e.cold {
		return e.moveStates(holding)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cold = nil
	e.seal(oldest)
	return true, nil
}

// worthwhile says whether moving the recovery point over the whole window
// would free, or let the cleaner free, clearly more than it takes to write.
// When space is short it must not be spent for nothing.
func (e *engine) worthwhile() bool {
	var gain, states int64
	for _, s := range e.segs {
		if s.state == segClosed && s.lastBatch >= e.from.batch {
			gain += s.size - headRoom - (s.live - s.stateLive)
			states += int64(s.nstates)
		}
	}
	cost := states * e.metaSum / int64(max(1, e.idx.len()))
	cost += (1 + cost/e.stepBytes()) * blockSize // which is lost again, with each batch
	return gain > cost+e.lim.segSize
}

// reachable is the furthest recovery point that invariant 5 allows now.
func (e *engine) reachable() point {
	p := point{batch: e.batch, segno: e.nextSegno + 1}
	for _, s := range e.segs {
		if s.state == segOpen || s.state == segClosed && s.nstates > 0 {
			p.batch = min(p.batch, s.firstBatch)
		}
	}
	for _, s := range e.segs {
		if s.state == segOpen || s.state == segClosed && s.lastBatch >= p.batch {
			p.segno = min(p.segno, s.segno)
		}
	}
	return p
}

// moveStates records again, at the head, states whose newest record is in these
// segments, the first of them first. A batch takes whole blocks, however little
// is in it: of segments that hold few states it empties several.
func (e *engine) moveStates(list []*segment) (bool, error) {
	e.beginStep(e.head)
	at := map[*segment]uint64{}
	for _, s := range list {
		if s.state == segOpen || e.isLeft(s) {
			break
		}
		next, all := e.moveFrom(s, s.statesFrom)
		at[s] = next
		if !all {
			break
		}
	}
	e.w.moved = uint64(e.w.size())
	did, err := e.step(false)
	if did && err == nil {
		for s, next := range at {
			s.statesFrom = next
		}
	}
	return did, err
}

// moveFrom stages the states in s of messages from a number on, and gives the number to go
// on from once they are durable: 0 when those were all, and false when the batch has all that it
// may have. Nothing is ever added to the states in a closed segment.
func (e *engine) moveFrom(s *segment, from uint64) (next uint64, all bool) {
	var room [leafLen]live
	for left := s.nstates; left > 0; {
		list, next, more := e.idx.page(from, inStates(s.file), &room)
		if !more {
			break
		}
		for i := range list {
			if !e.moveState(s, &list[i]) {
				return list[i].number, false
			}
		}
		from, left = next, left-len(list)
	}
	return 0, true
}

// moveState stages the state of l, which is in s. It is false when there is no room for it,
// or it cannot be read.
func (e *engine) moveState(s *segment, l *live) bool {
	if _, ok := e.w.staged[l.number]; ok {
		return true
	}
	if e.w.size() > 0 && e.w.size()+e.stateCost(l) > e.w.most {
		return false
	}
	e.w.unread = nil
	m, ok := e.readMeta(&staged{number: l.number, live: *l})
	if e.w.unread != nil {
		e.leave(s, e.w.unread)
		return false
	}
	e.putStateOf(e.stage(l.number, l.created), &m, ok, nil)
	return true
}

// advance makes p the recovery point, which is durable now, and frees what
// it passed.
func (e *engine) advance(p point) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.from = p
	if e.moved == p {
		e.moved = point{}
	}
	for _, s := range sorted(e.segs) {
		e.reap(s)
	}
}

func sorted(m map[uint32]*segment) []*segment {
	list := make([]*segment, 0, len(m))
	for _, s := range m {
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b *segment) int { return cmp.Compare(a.file, b.file) })
	return list
}

// chooseVictims picks segments whose live records are worth copying, by what
// is won for what it costs: (1-u)*age/(1+u), as in Rosenblum and Ousterhout's
// log-structured file system. With until they are for a sweep: of segments begun
// before that batch, and as many as it takes.
func (e *engine) chooseVictims(low bool, until uint64) bool {
	var cand []*segment
	var occupied int64
	for _, s := range e.segs {
		if s.state != segClosed || e.isLeft(s) {
			continue
		}
		occupied += s.size
		if s.lastBatch < e.from.batch && s.ncontents > 0 && (until == 0 || s.firstBatch < until) {
			cand = append(cand, s)
		}
	}
	if !low && occupied <= 2*e.liveSum+(e.windowLimit()+4)*e.lim.segSize {
		return false
	}
	short := until > 0 && e.isShort()
	score := func(s *segment) float64 {
		u := float64(s.live) / float64(s.size)
		if short { // soonest won
			return 1 - u
		}
		return (1 - u) * float64(e.nextSegno-s.segno+1) / (1 + u)
	}
	slices.SortFunc(cand, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(score(b), score(a)), cmp.Compare(a.file, b.file))
	})
	if short && len(cand) > 0 && cand[0].live+e.lossOf(cand[0], false) <= e.roomLeft() {
		e.victims = append(e.victims[:0], cand[0]) // takes no segment, and gives one
		return true
	}
	var won int64
	for i, s := range cand {
		won += s.size - headRoom - s.live - e.lossOf(s, until > 0)
		if won >= e.lim.segSize { // worth it
			e.victims = append(e.victims[:0], cand[:i+1]...)
			return true
		}
		if i == maxVictims && until == 0 {
			break
		}
	}
	return false
}

// lossOf is how much of the room that its live records take is lost when they
// are copied, at the ends of batches and segments: at most, so that cleaning wins
// what it is to win and comes to an end, or on average, for a sweep, which ends
// in any case.
func (e *engine) lossOf(s *segment, average bool) int64 {
	batches := 1 + s.live/e.stepBytes()
	record := s.live / int64(max(1, s.ncontents))
	if average {
		return (batches*blockSize + record) / 2
	}
	return batches*blockSize + record
}

// roomLeft is what the cleaner can write without another segment.
func (e *engine) roomLeft() int64 {
	room := e.head.size - e.head.off
	if e.cold != nil {
		room = max(room, e.cold.size-e.cold.off)
	}
	return room
}

// maxVictims bounds how many segments are emptied into one.
const maxVictims = 16

// copyStep copies live records of the victims forward. The old segments are
// free only when the batch with the copies is durable. It is false when there
// is no room to do anything.
func (e *engine) copyStep() (bool, error) {
	for len(e.victims) > 0 && (e.victims[0].ncontents == 0 || e.victims[0].state != segClosed) {
		e.victims = e.victims[1:]
		e.mu.Lock()
		e.stats.Cleaned++
		e.mu.Unlock()
	}
	cold := e.cold != nil && e.cold.off+2*blockSize <= e.cold.size || !e.tight()
	to := e.head // rather than to begin another segment
	if cold {
		to = e.cold
	}
	if !e.mayWrite(to) {
		e.victims = nil
		return false, nil
	}
	e.beginStep(to)
	at := map[*segment]uint64{}
	for _, v := range slices.Clone(e.victims) {
		next, all := e.copyFrom(v, v.contentsFrom)
		at[v] = next
		if !all {
			break
		}
	}
	did, err := e.step(cold)
	if !did {
		e.victims = nil
	} else if err == nil {
		for v, next := range at {
			v.contentsFrom = next
		}
	}
	return did, err
}

// copyFrom stages copies of the messages in v, as moveFrom does with states.
func (e *engine) copyFrom(v *segment, from uint64) (next uint64, all bool) {
	var room [leafLen]live
	for left := v.ncontents; left > 0; {
		list, next, more := e.idx.page(from, inContents(v.file), &room)
		if !more {
			break
		}
		for i := range list {
			if !e.copyOf(v, &list[i]) {
				return list[i].number, false
			}
		}
		from, left = next, left-len(list)
	}
	return 0, true
}

// copyOf stages a copy of l, which is in v. It is false when there is no room for it, or
// it cannot be read.
func (e *engine) copyOf(v *segment, l *live) bool {
	next := int64(l.conLen) + int64(l.refMeta) + stateSlack
	if e.w.size() > 0 && e.w.size()+next > e.w.most {
		return false
	}
	c := e.readCopy(&staged{number: l.number, live: *l})
	if c.unread != nil {
		e.leave(v, c.unread)
		return false
	}
	e.putCopy(e.stage(l.number, l.created), &c)
	e.w.copied += uint64(l.conLen)
	return true
}

// tight says whether there are few free segments, and no more can be made.
func (e *engine) tight() bool { return !e.mayCreate() && !e.ready(int(e.kept())+1) }

// mayWrite says whether maintenance may write a batch to s, or if need be to
// a new segment, without taking what is left for others (invariant 14).
func (e *engine) mayWrite(s *segment) bool {
	return s != nil && s.off+2*blockSize <= s.size || e.ready(e.left()+1) || e.mayCreate()
}

// leave lets a segment be what it is for a while: something in it cannot be
// read. Were it freed, what is on the disk would be lost for good.
func (e *engine) leave(s *segment, err error) {
	e.warn("spool: %s is left as it is for now: %v", segName(e.dir, s.file), err)
	s.left = e.now()
	e.victims = slices.DeleteFunc(e.victims, func(v *segment) bool { return v == s })
}

// leaveTime is how long.
const leaveTime = 5 * time.Minute

func (e *engine) isLeft(s *segment) bool { return !s.left.IsZero() && e.now().Sub(s.left) < leaveTime }

// copyMessage stages a MSG record of s as it stands, with its content.
func (e *engine) copyMessage(s *staged) {
	c := e.readCopy(s)
	e.putCopy(s, &c)
}

// messageCopy is what is on the disk of a message. What is damaged is there as
// it is: better than nothing for the operator who looks.
type messageCopy struct {
	m       meta // into a buffer of the batchWriter
	body    []byte
	damaged bool
	unread  error // some of it could not be read
}

func (e *engine) readCopy(s *staged) (c messageCopy) {
	e.w.unread = nil
	var ok bool
	c.body, c.damaged = e.fetchBody(s)
	c.m, ok = e.readMeta(s)
	c.damaged = c.damaged || !ok
	c.unread = e.w.unread
	return c
}

func (e *engine) putCopy(s *staged, c *messageCopy) {
	w := &e.w
	var flags uint8
	if c.damaged {
		if s.live.flags&msgDamaged == 0 {
			e.warn("spool: message %s: damaged: put aside in the corrupt queue", s.live.id())
		}
		s.live.queue, s.live.flags = uint8(Corrupt), s.live.flags|msgDamaged
	}
	if s.live.flags&msgDamaged != 0 {
		flags |= recDamaged
	}
	e.fillMeta(s, &c.m, nil)
	w.meta = c.m.append(reuse.Truncated(w.meta))
	off, at := w.record(recMSG, flags, s.number, w.meta, c.body)
	n := uint32(headerLen + len(w.meta) + len(c.body))
	s.live.refOff, s.live.refLen, s.live.refMeta = off, n, uint32(len(w.meta))
	s.live.conOff, s.live.conLen = off, n
	s.refHere, s.conHere = true, true
	s.refAt, s.conAt = at, at
}

// fetchBody reads the content in a MSG record.
func (e *engine) fetchBody(s *staged) (body []byte, damaged bool) {
	l := &s.live
	seg := e.segs[l.conSeg]
	if l.conLen == 0 || seg == nil {
		return nil, true
	}
	buf := make([]byte, l.conLen)
	if bad := readAround(seg.f, buf, int64(l.conOff)); bad > 0 {
		e.w.unread = fmt.Errorf("message %s: %d bytes cannot be read", l.id(), bad)
		e.warn("spool: %v", e.w.unread)
		damaged = true
	}
	h, ok := parseHeader(buf, e.key)
	if !ok || h.number != s.number || h.recLen() != int64(len(buf)) {
		return buf[headerLen:], true
	}
	body = buf[headerLen+h.metaLen:]
	return body, damaged || h.flags&recDamaged != 0 || checksum(body) != h.bodyCRC
}

// spares is how many free segments to have ready: what a checkpoint of
// everything would fill, and one, or what new mail has to leave, and will have to
// when there is twice as much.
func (e *engine) spares() int64 {
	n := max(1+e.metaSum/e.lim.segSize, e.kept()+int64(e.floorFor(2*e.liveSum)-e.floor()))
	if e.inBudget() {
		n = min(n, e.lim.reserve)
	}
	return n
}

const (
	// aheadSegments is how many more are made where there is plenty of room, so that nobody
	// who commits waits for one to be filled with zeros: the next head, for which
	// wanted asks as soon as the present one is half full, and the next start's.
	aheadSegments = 2
	// plenty is how many segments the disk must have room for before that.
	plenty = 8
	// aheadDelay is how often it is looked whether there is.
	aheadDelay = 10 * time.Second
)

// lacksAhead says whether one of these is to be made. The caller holds mu.
func (e *engine) lacksAhead() bool {
	n := int64(len(e.free) + len(e.fresh))
	if e.diskLow || n >= e.spares()+aheadSegments || !e.now().After(e.aheadAt) {
		return false
	}
	return e.lim.segments == 0 || int64(len(e.segs)+len(e.fresh)) < e.lim.segments/2
}

// makeAhead makes one of these, if there is plenty of room.
func (e *engine) makeAhead() {
	free, err := e.freeBytes(path.Join(e.dir, segDir), e.lim.minFree+plenty*e.lim.segSize)
	if err == nil && free >= e.lim.minFree+plenty*e.lim.segSize {
		e.mu.RLock()
		want := int(e.spares()) + aheadSegments
		e.mu.RUnlock()
		if err := e.create(want, e.closing.Load); err != errClosing {
			e.noteDisk(err)
		}
		return
	}
	e.mu.Lock()
	e.aheadAt = e.now().Add(aheadDelay)
	e.mu.Unlock()
}

// trim gives a segment file back when there are more than the bound allows:
// twice the live bytes and a fixed number.
func (e *engine) trim() {
	e.mu.Lock()
	defer e.mu.Unlock()
	keep := 2*e.liveSum/e.lim.segSize + e.windowLimit() + minReserve + 4
	if e.segFiles() <= keep || int64(len(e.free)) <= e.spares()+aheadSegments+1 {
		return
	}
	last := 0
	for i, s := range e.free {
		if s.file > e.free[last].file {
			last = i
		}
	}
	s := e.free[last]
	e.free = slices.Delete(e.free, last, last+1)
	delete(e.segs, s.file)
	e.drop = append(e.drop, s)
}

// housekeep does what is no part of the log: it makes spare segments, gives
// back files, and spends the content files of messages that are gone. It may
// run beside the writer, in one goroutine.
func (e *engine) housekeep() {
	e.mu.Lock()
	want := int(e.spares())
	e.retireOdd(want)
	gone, drop := e.gone, e.drop
	e.gone, e.drop = nil, nil
	missing, low := want-len(e.free)-len(e.fresh), e.diskLow
	broken := e.broken
	may, ahead := e.mayAdd(), e.lacksAhead()
	e.mu.Unlock()
	if broken != nil {
		return
	}
	for _, g := range gone {
		e.spend(g)
	}
	for _, s := range drop {
		err := errors.Join(s.f.Close(), e.fs.Remove(segName(e.dir, s.file)))
		if err != nil {
			e.warn("spool: giving back a segment: %v", err)
		}
	}
	switch {
	case missing > 0 && may:
		e.makeSpare(want)
	case low:
		e.makeSpare(0) // none, but there may be room again for others to make some
	case may && ahead:
		e.makeAhead()
	}
}

// makeSpare makes a segment, if fewer than want are free and the disk has room,
// and notes whether it has.
func (e *engine) makeSpare(want int) {
	need := e.lim.minFree + e.lim.segSize
	free, err := e.freeBytes(path.Join(e.dir, segDir), need)
	if err == nil && free >= need {
		err = e.create(want, e.closing.Load)
	} else if err == nil {
		err = errNearlyFull
	}
	if err == errClosing {
		return
	}
	e.noteDisk(err)
}

// promise writes a batch that says that the one before was durable, so that damage to
// that is told from a torn write: it is for a time when nothing else is written. It does
// nothing when there is nothing to say, or no room for it in the head.
func (e *engine) promise() error {
	if !e.unpromised() {
		return nil
	}
	e.beginStep(e.head)
	e.w.force = true
	e.moved = cmp.Or(e.moved, e.from)
	err := e.flush(false)
	if err == nil {
		e.mu.Lock()
		e.said = e.promised
		e.mu.Unlock()
	}
	return err
}

// unpromised says whether promise has something to do.
func (e *engine) unpromised() bool {
	return e.promised > e.said && e.head != nil && e.head.off+2*blockSize <= e.head.size
}
