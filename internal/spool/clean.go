package spool

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"
)

// maintain does one step of what keeps the log short, if there is one to do,
// and says whether it did: first what is under way, then the recovery point,
// then the cleaner, then giving files back. Each step is one batch of bounded
// length, so that those who commit do not wait for the whole.
func (e *engine) maintain() (bool, error) {
	if e.broken != nil {
		return false, e.broken
	}
	e.mu.Lock()
	e.adopt()
	low := e.available() <= e.lim.reserve+1
	e.mu.Unlock()
	if len(e.victims) > 0 || low && e.chooseVictims(true) { // wins space sooner than a checkpoint
		if did, err := e.copyStep(); did || err != nil {
			return did, err
		}
	}
	if did, err := e.checkpointStep(low); did || err != nil {
		return did, err
	}
	if !low && e.chooseVictims(false) {
		return e.copyStep()
	}
	e.trim()
	return false, nil
}

// stepBytes bounds what one step of maintenance writes.
func (e *engine) stepBytes() int64 { return min(1<<20, e.lim.unit/2) }

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
	var window int64
	var holding []*segment // whose states hold the point where it is, and back from where it may go
	for _, s := range e.segs {
		if !e.inWindow(s) {
			continue
		}
		window++
		if s.nstates > 0 || s.state == segOpen {
			holding = append(holding, s)
		}
	}
	slices.SortFunc(holding, func(a, b *segment) int { return cmp.Compare(a.firstBatch, b.firstBatch) })
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
		e.begin()
		e.w.force = true
		return true, e.flush(false)
	}
	if e.moved != (point{}) && !low {
		return false, nil // enough is done once that is durable
	}
	if oldest == e.head || oldest == nil || e.isLeft(oldest) || !e.mayWrite(e.head) {
		return false, nil
	}
	if oldest == e.cold {
		e.sealHead(true)
		return true, nil
	}
	return true, e.moveStates(holding)
}

// worthwhile says whether moving the recovery point over the whole window
// would free, or let the cleaner free, clearly more than it takes to write.
// When space is short it must not be spent for nothing.
func (e *engine) worthwhile() bool {
	var gain, states int64
	for _, s := range e.segs {
		if s.state == segClosed && s.lastBatch >= e.from.batch {
			gain += s.size - blockSize - (s.live - s.stateLive)
			states += int64(s.nstates)
		}
	}
	cost := states * e.metaSum / int64(max(1, e.idx.len()))
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
func (e *engine) moveStates(list []*segment) error {
	e.begin()
	for _, s := range list {
		if s.state == segOpen || e.isLeft(s) || !e.moveFrom(s) {
			break
		}
	}
	e.w.moved = uint64(e.w.size())
	return e.flush(false)
}

// moveFrom stages the states in s; false says that the batch has all that it may have.
func (e *engine) moveFrom(s *segment) bool {
	for slot := s.states; slot != 0; {
		if e.w.size() >= e.stepBytes() {
			return false
		}
		l := e.idx.at(slot - 1)
		slot = l.stateNext
		e.w.unread = nil
		m, ok := e.readMeta(&staged{number: l.number, live: *l})
		if e.w.unread != nil {
			e.leave(s, e.w.unread)
			return false
		}
		e.putStateOf(e.stage(l.number, l.created), &m, ok, nil)
	}
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
// log-structured file system.
func (e *engine) chooseVictims(low bool) bool {
	var cand []*segment
	var occupied int64
	for _, s := range e.segs {
		if s.state != segClosed || e.isLeft(s) {
			continue
		}
		occupied += s.size
		if s.lastBatch < e.from.batch && s.live > 0 {
			cand = append(cand, s)
		}
	}
	if !low && occupied <= 2*e.liveSum+(e.windowLimit()+4)*e.lim.segSize {
		return false
	}
	score := func(s *segment) float64 {
		u := float64(s.live) / float64(s.size)
		return (1 - u) * float64(e.nextSegno-s.segno+1) / (1 + u)
	}
	slices.SortFunc(cand, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(score(b), score(a)), cmp.Compare(a.file, b.file))
	})
	var dead int64
	for i, s := range cand {
		dead += s.size - blockSize - s.live
		if dead >= e.lim.segSize { // a segment is won: worth it
			e.victims = append(e.victims[:0], cand[:i+1]...)
			return true
		}
		if i == maxVictims {
			break
		}
	}
	return false
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
	if !e.mayWrite(e.cold) {
		e.victims = nil
		return false, nil
	}
	e.begin()
	for _, v := range e.victims {
		for slot := v.contents; slot != 0; {
			l := e.idx.at(slot - 1)
			slot = l.contNext
			next := int64(l.conLen) + int64(l.refMeta) + stateSlack
			if e.w.size() > 0 && e.w.size()+next > e.stepBytes() {
				return true, e.flush(true)
			}
			c := e.readCopy(&staged{number: l.number, live: *l})
			if c.unread != nil {
				e.leave(v, c.unread)
				return true, e.flush(true)
			}
			e.putCopy(e.stage(l.number, l.created), &c)
			e.w.copied += uint64(l.conLen)
		}
	}
	return true, e.flush(true)
}

// mayWrite says whether maintenance may write a batch without taking what
// those who record dispositions may need (invariant 14): the last free segment
// is for them.
func (e *engine) mayWrite(s *segment) bool {
	need := 1
	if !e.hasRoom(s) {
		need = 2
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adopt()
	return len(e.free) >= need || e.available() > e.lim.reserve
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
	w.meta = c.m.append(w.meta[:0])
	off := w.record(recMSG, flags, s.number, w.meta, c.body)
	n := uint32(headerLen + len(w.meta) + len(c.body))
	s.live.refOff, s.live.refLen, s.live.refMeta = off, n, uint32(len(w.meta))
	s.live.conOff, s.live.conLen = off, n
	s.refHere, s.conHere = true, true
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
// everything would fill, and one.
func (e *engine) spares() int64 {
	n := max(minSpare, 1+e.metaSum/e.lim.segSize)
	if e.lim.segments > 0 {
		n = min(n, e.lim.reserve)
	}
	return n
}

// trim gives a segment file back when there are more than the bound allows:
// twice the live bytes and a fixed number.
func (e *engine) trim() {
	e.mu.Lock()
	defer e.mu.Unlock()
	keep := 2*e.liveSum/e.lim.segSize + e.windowLimit() + minReserve + 4
	if int64(len(e.segs)) <= keep || int64(len(e.free)) <= e.spares()+1 {
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
// back files, and removes the content of messages that are gone. It may
// run beside the writer, in one goroutine.
func (e *engine) housekeep() {
	e.mu.Lock()
	gone, drop := e.gone, e.drop
	e.gone, e.drop = nil, nil
	want := int(e.spares())
	missing := want - len(e.free) - len(e.fresh)
	broken := e.broken
	may := e.lim.segments == 0 || int64(len(e.segs)+len(e.fresh)) < e.lim.segments-e.bigSum/e.lim.segSize
	e.mu.Unlock()
	if broken != nil {
		return
	}
	for _, id := range gone {
		if err := e.fs.Remove(bigName(e.dir, id)); err != nil {
			e.warn("spool: content of a delivered message: %v", err) // swept at the next start
		}
	}
	for _, s := range drop {
		err := errors.Join(s.f.Close(), e.fs.Remove(segName(e.dir, s.file)))
		if err != nil {
			e.warn("spool: giving back a segment: %v", err)
		}
	}
	if missing > 0 && may {
		e.makeSpare(want)
	}
}

func (e *engine) makeSpare(want int) {
	free, err := e.fs.Free(path.Join(e.dir, segDir))
	if err == nil && free >= e.lim.minFree+e.lim.segSize {
		err = e.create(want)
	} else if err == nil {
		err = errors.New("the file system is nearly full")
	}
	e.mu.Lock()
	was := e.diskErr
	e.diskLow, e.diskErr = err != nil, ""
	if err != nil {
		e.diskErr = err.Error()
	}
	news := e.diskErr != was
	e.mu.Unlock()
	if err != nil && news {
		e.warn("spool: no spare segment: %v; no mail is taken until there is room", err)
	}
}
