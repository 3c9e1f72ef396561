package spool

import (
	"errors"
	"fmt"
)

// full says why no mail can be taken now, or nil. Mail that settles other mail
// may take a part of what is kept for dispositions, and of what is to be left
// free on the file system: a queue full of mail that nobody can deliver would
// never get any shorter.
func (e *engine) full(settles bool) error {
	if !settles {
		if err := e.fullDisk(); err != nil {
			return err
		}
	}
	if err := e.fullBooks(settles); err != nil && (!e.giveUpSpent() || e.fullBooks(settles) != nil) {
		return err
	}
	// What the books say may be created is worth nothing on a full disk: keep
	// enough of what exists for dispositions (invariant 14).
	if err := e.provide(e.wanted(settles)); err != nil {
		return fmt.Errorf("%w: %w", ErrFull, err)
	}
	return nil
}

// What the free segments that exist are kept for, when the disk has no room for
// more (invariant 14).
const (
	// forStarts is how many the next starts may need. A start takes one for what
	// it writes first. When it dies before it has written more, the next cannot
	// know whether that was durable: it can use neither that one nor what the dead
	// one had freed, and takes another.
	forStarts = 3
	// forWork is one for the log's head, and one to clean with, which gives
	// back what it took.
	forWork = 2
	// minFloor is enough for a spool with so little in it that cleaning takes a
	// part of a segment. It is also how many exist when nothing is queued.
	minFloor = 2
)

// isSmall says whether there is little in the spool.
func (e *engine) isSmall(live int64) bool { return live <= e.lim.segSize/2 }

// floor is how many segments must be free, and exist, after mail is taken.
func (e *engine) floor() int { return e.floorFor(e.liveSum) }

func (e *engine) floorFor(live int64) int {
	if e.isSmall(live) {
		return minFloor
	}
	if e.inBudget() {
		return int(min(forStarts+forWork, e.lim.reserve))
	}
	return forStarts + forWork
}

// inBudget says whether the reserve of a budget is enough for what is queued. It is
// not when the budget was lowered under mail that was there already.
func (e *engine) inBudget() bool {
	l := &e.lim
	return l.segments > 0 && e.metaSum <= l.statesFit(90) && e.liveSum <= l.mailFits()
}

// statesFit is how much the states of all mail may be under a budget, in bytes, if
// they may fill so many per cent of what is reserved for them.
func (l *limits) statesFit(fill int64) int64 { return (l.reserve - 2) * l.segSize / 100 * fill }

// mailFits is how much mail has room in what a budget does not reserve, in bytes.
func (l *limits) mailFits() int64 { return (l.segments - l.reserve) * (l.segSize - headRoom) }

// left is how many of these maintenance leaves. A sweep that begins with fewer
// leaves one less than there are: whoever commits would take that segment anyway,
// and not give it back.
func (e *engine) left() int {
	switch {
	case e.isSmall(e.liveSum):
		return minFloor - 1
	case e.sweepLeft > 0 && !e.planted(plantSweepStops):
		return e.sweepLeft
	}
	return forStarts
}

// isShort says whether even those are touched that are left for starts.
func (e *engine) isShort() bool { return !e.isSmall(e.liveSum) && !e.ready(forStarts+1) }

// forStates is how many segments starts may take, one after the other, until each
// state is written again, when these do not fit into one batch: a start that dies
// early has written one batch of them, and its own segment is free when the others
// have been through all.
func (e *engine) forStates() int64 {
	return min(maxForStates, e.metaSum*9/8/max(blockSize, e.lim.unit-2*blockSize))
}

// maxForStates bounds that: it is enough for four segments of states.
const maxForStates = 9

// kept is floor and what it takes to write states, in the end, of mail that has
// none yet, and what starts take that die while they write them. It is what new
// mail leaves, and what is won back before another segment is begun.
func (e *engine) kept() int64 {
	n := int64(e.floor()) + (max(0, e.metaSum-e.stateSum)*5/4+e.lim.segSize*3/4)/e.lim.segSize + e.forStates()
	if e.inBudget() {
		n = min(n, e.lim.reserve)
	}
	return n
}

// ready says whether n segments are free.
func (e *engine) ready(n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.adopt()
	return len(e.free) >= n
}

// provide sees to it that n segments are free by making what is missing.
func (e *engine) provide(n int) error {
	for !e.ready(n) {
		if err := e.create(n, nil); err != nil {
			e.noteDisk(err)
			return err
		}
		e.noteDisk(nil)
	}
	return nil
}

// noteDisk remembers whether segments can be made, and tells of news.
func (e *engine) noteDisk(err error) {
	e.mu.Lock()
	was := e.diskErr
	e.diskLow, e.diskErr = err != nil, ""
	if err != nil {
		e.diskErr = err.Error()
	}
	news := e.diskErr != was
	e.mu.Unlock()
	if err != nil && news {
		e.warn("spool: no spare segment: %v; new mail is taken only while there is room in those that there are", err)
	}
}

// mayCreate says whether segments may be made, for all that is known.
func (e *engine) mayCreate() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.available() > int64(len(e.free)+len(e.fresh))
}

// wanted is how many segments must be free before a batch with new mail, or with
// mail that settles other mail.
func (e *engine) wanted(settles bool) int {
	n := e.floor()
	if !settles && !e.planted(plantNoReserve) {
		n = int(e.kept())
	}
	if !e.hasRoom(e.head) {
		n++ // one will be the head
	}
	return n
}

// makeRoom comes before a batch with new mail, or one that may begin a segment:
// it sees to it that enough free ones are left behind, by making some, or else by
// winning back what is dead in others. The error is that the log is broken.
func (e *engine) makeRoom(mail bool) error {
	if !mail && e.hasRoom(e.head) {
		return nil
	}
	want := e.wanted(false)
	if e.ready(want) {
		return nil
	}
	if e.mayCreate() || e.giveUpSpent() && e.mayCreate() {
		if err := e.provide(want); err == nil || errors.Is(err, ErrBroken) {
			return err
		}
	}
	return e.sweep(want)
}

// hasRoom says whether any batch fits into s.
func (e *engine) hasRoom(s *segment) bool {
	return s != nil && s.off+e.lim.unit+2*blockSize <= s.size
}

// fullBooks is full as far as it can be known without trying.
func (e *engine) fullBooks(settles bool) error {
	l := &e.lim
	share, fill, reserve := int64(70), int64(80), l.reserve // per cent, per cent, segments
	if settles {
		share, fill, reserve = 80, 90, max(l.reserve*3/4, minFloor)
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if l.segments > 0 {
		if live := e.liveSum + e.bigHere(); live > l.mailFits()/100*share {
			return fmt.Errorf("%w: %d bytes of mail are queued, %d bytes of disk may be used", ErrFull, live, l.budget)
		}
		if e.metaSum > l.statesFit(fill) {
			return fmt.Errorf("%w: too many messages are queued for %d bytes of disk", ErrFull, l.budget)
		}
	}
	if l.segments > 0 && e.allowed() <= reserve {
		return fmt.Errorf("%w: no free segment", ErrFull)
	}
	return nil // who makes a segment for it finds out whether that can be had
}

// fullDisk holds the file system's free space, and what is free in our own
// segments, which mail takes first, against MinFree. When that is too little, maintain wins
// back what is dead in the others.
func (e *engine) fullDisk() error {
	if e.lim.minFree == 0 {
		return nil
	}
	var ours int64
	e.mu.RLock()
	for _, s := range e.free {
		ours += s.size
	}
	was := e.freeLow
	e.mu.RUnlock()
	free, err := e.freeBytes(e.dir, e.lim.minFree-ours)
	low := err == nil && free+ours < e.lim.minFree // after an error writing will tell
	if low != was {
		e.mu.Lock()
		e.freeLow = low
		e.mu.Unlock()
		if low && e.wake != nil {
			e.wake()
		}
	}
	if low {
		return fmt.Errorf("%w: %d bytes free on the file system, queue_minfree is %d", ErrFull, free+ours, e.lim.minFree)
	}
	return nil
}

// available is the number of segments that can still be written: free ones
// and those that may be created. The caller holds mu.
func (e *engine) available() int64 {
	if e.diskLow {
		return int64(len(e.free) + len(e.fresh))
	}
	return e.allowed()
}

// allowed is available if the disk has room for what Options allow. The caller
// holds mu.
func (e *engine) allowed() int64 {
	n := int64(len(e.free) + len(e.fresh))
	if e.lim.segments == 0 {
		return n + 1<<30
	}
	return n + max(0, e.lim.segments-e.segFiles()-(e.bigFiles()+e.lim.segSize-1)/e.lim.segSize)
}

// mayAdd says whether Options allow one segment file more. The caller holds mu.
func (e *engine) mayAdd() bool {
	return e.lim.segments == 0 || e.segFiles() < e.lim.segments-e.bigFiles()/e.lim.segSize
}

// bigFiles is what content files take of the log's room, spent ones included. The caller
// holds mu.
func (e *engine) bigFiles() int64 {
	if e.content.away {
		return 0
	}
	return e.bigSum + e.spent.sum()
}

// bigHere is the same without spent ones. The caller holds mu.
func (e *engine) bigHere() int64 {
	if e.content.away {
		return 0
	}
	return e.bigSum
}
