package spool

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pack"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
)

// boot starts this process's part of the log: one batch with BOOT and, again,
// all that the tail said (invariants 6 and 7).
func (r *recovery) boot() error {
	e := r.e
	durable := r.freeSegments() // before the tail: what is free whether or not it survives
	for _, b := range r.tail {
		r.unanswered(b)
		r.apply(b)
		for i := range b.recs {
			if t := b.recs[i].h.typ; t <= recDONE || t == recHANDED {
				r.rep.Tail++
			}
		}
	}
	r.passTail()
	for _, l := range r.lost {
		r.alarm("%s", l.text)
	}
	if err := r.rescue(); err != nil {
		return err
	}
	after := r.freeSegments()
	for _, s := range sorted(e.segs) {
		if after[s] && (durable[s] || e.planted(plantRecycleUnpromised)) {
			e.addFree(s)
		}
	}
	e.batch, e.seq = r.maxBatch+1, r.maxSeq+1
	e.batch = max(e.batch, e.promised+1)
	r.setLost()
	r.doubt()

	if err := r.settlePlace(); err != nil {
		return err
	}
	r.settleSize()
	room, err := r.bootRoom()
	if err != nil {
		return err
	}
	e.begin()
	w := &e.w
	w.meta = e.appendMode(pack.Uint(appendPoint(reuse.Truncated(w.meta), e.from), tagVoid, e.promised))
	w.record(recBOOT, 0, 0, w.meta, nil)
	if e.planted(plantBootTwoBatches) {
		if err := e.flush(false); err != nil {
			return err
		}
		e.begin()
	}
	if e.planted(plantAppendOld) {
		e.plantAppendOld()
	}
	if !e.planted(plantNoRewrite) {
		r.rewriteTail()
	}
	r.checkpoint(room)
	if err := r.unreadable(); err != nil {
		return err
	}
	if err := e.flush(false); err != nil {
		return err
	}
	// Everything replayed is durable now, the tail included; what it voids
	// is over.
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range sorted(e.segs) {
		e.reap(s)
	}
	return nil
}

// unanswered lists the messages that b, of the tail, adds.
func (r *recovery) unanswered(b *logBatch) {
	for i := range b.recs {
		rc := &b.recs[i]
		if rc.h.typ != recMSG {
			continue
		}
		if r.e.idx.has(rc.h.number) {
			continue // the cleaner's copy
		}
		if len(r.rep.Unanswered) == maxInDoubt {
			r.rep.MoreUnanswered++
			continue
		}
		id := mail.MakeQueueID(time.UnixMicro(rc.m.created), rc.h.number)
		if !slices.Contains(r.rep.Unanswered, id) { // an earlier start may have written it again
			r.rep.Unanswered = append(r.rep.Unanswered, id)
		}
	}
}

// bootRoom is how long BOOT's batch may become with what need not be in it: a
// segment of a former, smaller size holds less, and may be all that there is on a
// disk without room for another. The error is that none can be made, for another reason.
func (r *recovery) bootRoom() (int64, error) {
	e := r.e
	if e.ready(1) {
		return e.lim.segSize - headRoom - 2*blockSize, nil
	}
	err := e.provide(1)
	if err == nil {
		return e.lim.segSize - headRoom - 2*blockSize, nil
	}
	if len(e.odd) == 0 || !isFull(err) && !errors.Is(err, errNearlyFull) {
		return 0, fmt.Errorf("%w: no segment to write to: %w", ErrFull, err)
	}
	var room int64
	for _, s := range e.odd {
		room = max(room, s.size-headRoom-2*blockSize)
	}
	return min(room, e.lim.segSize-headRoom-2*blockSize), nil
}

// regain gives back the segment that the start took, if the disk has no room
// for another.
func (e *engine) regain() error {
	want := int(e.kept())
	missing := int64(want - e.provenFree())
	if missing <= 0 {
		return nil
	}
	free, err := e.fs.Free(path.Join(e.dir, segDir))
	room := err == nil && free >= missing*e.lim.segSize+e.lim.minFree
	if room && e.mayCreate() {
		return nil // the housekeeper does
	}
	p := e.from
	if q := e.reachable(); q.batch > p.batch {
		p = q
	}
	if _, err := e.recordPoint(p); err != nil || e.ready(want) { // a batch that proves what BOOT freed
		return err
	}
	e.mu.Lock()
	e.diskLow = e.diskLow || !room
	e.mu.Unlock()
	if err := e.sweep(want); err != nil {
		return err
	}
	_, err = e.recordPoint(e.from) // and what this did
	return err
}

// freeSegments is the set of segments that nothing needs as things are
// replayed so far.
func (r *recovery) freeSegments() map[*segment]bool {
	set := map[*segment]bool{}
	for _, s := range r.e.segs {
		if s.live == 0 && r.anyUse[s] < max(r.e.from.batch, 1) {
			set[s] = true
		}
	}
	return set
}

// saysMore says whether rc knows of a recipient done that l does not. What an
// operator removed is no delivery.
func saysMore(rc *rec, l *live, known []uint64) bool {
	var claim live
	var more []uint64
	switch rc.h.typ {
	case recMSG, recSTATE:
		claim = rc.m
		more = loadDone(&claim, rc.done)
	case recDONE:
		if rc.h.flags&recAll != 0 {
			return rc.h.flags&recRemoved == 0
		}
		claim.nrcpt, claim.npending = l.nrcpt, l.nrcpt
		if queue.EachRcpt(rc.done, tagRcpts, func(i uint64) {
			if i < uint64(l.nrcpt) {
				more = setDone(&claim, more, i)
			}
		}) != nil {
			return false
		}
	default:
		return false
	}
	for i := range uint64(min(claim.nrcpt, l.nrcpt)) {
		if isDone(&claim, more, i) && !isDone(l, known, i) {
			return true
		}
	}
	return false
}

// setLost puts messages aside whose content is not where it should be.
func (r *recovery) setLost() {
	if r.rep.Followed {
		return // there are none, see settled; and to look takes time in which no mail is taken
	}
	var gone []uint64
	r.e.idx.each(func(l *live) {
		if l.flags&msgLost != 0 {
			gone = append(gone, l.number)
		}
	})
	for _, n := range gone {
		r.contentGone(r.e.idx.edit(n))
	}
	r.e.idx.tidy()
}

func (r *recovery) contentGone(l *live) {
	r.rep.Alarms++
	r.find(string(l.id()), false, "its content is gone; what is known of it is in the corrupt queue")
	r.setAside(l)
}

func (r *recovery) setAside(l *live) {
	r.e.byQueue[l.queue]--
	l.queue, l.flags = uint8(Corrupt), l.flags&^msgLost|msgDamaged
	r.e.byQueue[l.queue]++
}

// rewriteTail stages what the tail said.
func (r *recovery) rewriteTail() {
	e := r.e
	inTail := func(s *segment, off uint32) bool {
		for _, b := range r.tail {
			if b.seg == s && len(b.recs) > 0 && off >= b.recs[0].off && off <= b.recs[len(b.recs)-1].off {
				return true
			}
		}
		return false
	}
	for _, b := range r.tail {
		for i := range b.recs {
			rc := &b.recs[i]
			if rc.h.typ > recDONE && rc.h.typ != recHANDED {
				continue
			}
			s, l := e.current(rc.h.number)
			switch {
			case l == nil && s == nil && rc.h.typ == recDONE && rc.h.flags&recAll != 0:
				e.w.record(recDONE, rc.h.flags&(recAll|recRemoved), rc.h.number, nil, nil)
			case l == nil && rc.h.typ == recDONE:
				e.w.record(recDONE, 0, rc.h.number, rc.done, nil)
			case l == nil, s != nil: // gone since, or written again already with all that happened
			case l.conLen > 0 && inTail(e.segs[l.conSeg], l.conOff):
				e.copyMessage(e.stage(l.number, l.created))
			case inTail(e.segs[l.refSeg], l.refOff):
				e.putState(e.stage(l.number, l.created), nil)
			case rc.h.typ == recHANDED:
				e.w.record(recHANDED, 0, rc.h.number, rc.handed, nil)
			default: // only recipients were done
				e.w.record(recDONE, 0, rc.h.number, rc.done, nil)
			}
		}
	}
}

// checkpoint adds a STATE of every message when these are few, so that a
// spool with little in it has a short log after each start.
//
// room bounds the batch with it. When few segments are free, it is added if it can
// be: it frees what earlier starts took that did not live.
func (r *recovery) checkpoint(room int64) {
	e := r.e
	if len(r.lost) > 0 {
		e.moved = point{} // not over the damage, before quarantine and recordRestored are done
		return
	}
	few := len(e.free) <= int(forStarts+forWork+e.forStates())
	if few && e.w.size()+e.metaSum > min(room, e.lim.unit) {
		if !e.planted(plantBootIdle) {
			r.moveSome(min(room, e.lim.unit))
		}
		return
	}
	if !few && (e.idx.len() > maxBootStates || e.metaSum > e.lim.segSize/4) || e.w.size()+e.metaSum > room {
		if p := e.reachable(); p.batch > max(e.from.batch, e.moved.batch) {
			e.moved = p
		}
		return
	}
	e.idx.each(func(l *live) {
		if _, ok := e.w.staged[l.number]; !ok {
			e.putState(e.stage(l.number, l.created), nil)
		}
	})
	e.moved = point{batch: e.batch, segno: e.nextSegno + 1}
}

const maxBootStates = 4096

// moveSome writes as many states again as a batch of room bytes holds, those that hold
// the recovery point first: so each start brings it on, even one that dies as soon
// as this is durable, and what those before it took becomes free in the end.
func (r *recovery) moveSome(room int64) {
	e := r.e
	e.w.most = room - blockSize
	holding, _ := e.holding()
	for _, s := range holding {
		if _, all := e.moveFrom(s, 0); !all {
			break
		}
	}
}
