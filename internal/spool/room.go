package spool

import "fmt"

// full says why no mail can be taken now, or nil.
func (e *engine) full() error {
	if err := e.fullDisk(); err != nil {
		return err
	}
	if err := e.fullBooks(); err != nil {
		return err
	}
	// What the books say may be created is worth nothing on a full disk: keep
	// enough of what exists for dispositions (invariant 14).
	want := minSpare
	if !e.hasRoom(e.head) {
		want++ // one will be the head
	}
	for {
		e.mu.Lock()
		e.adopt()
		ready := len(e.free) >= want
		e.mu.Unlock()
		if ready {
			return nil
		}
		if err := e.create(want); err != nil {
			e.mu.Lock()
			e.diskLow = true
			e.mu.Unlock()
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
	}
}

// minSpare is how many segments must be free, and exist, after mail is taken.
const minSpare = 2

// hasRoom says whether any batch fits into s.
func (e *engine) hasRoom(s *segment) bool {
	return s != nil && s.off+e.lim.unit+2*blockSize <= s.size
}

// fullBooks is full as far as it can be known without trying.
func (e *engine) fullBooks() error {
	l := &e.lim
	e.mu.RLock()
	defer e.mu.RUnlock()
	if l.segments > 0 {
		room := (l.segments - l.reserve) * (l.segSize - blockSize)
		if live := e.liveSum + e.bigSum; live > room/10*7 {
			return fmt.Errorf("%w: %d bytes of mail are queued, %d bytes of disk may be used", ErrFull, live, l.budget)
		}
		if fit := (l.reserve - 2) * l.segSize / 10 * 8; e.metaSum > fit {
			return fmt.Errorf("%w: too many messages are queued for %d bytes of disk", ErrFull, l.budget)
		}
	}
	if e.available() <= l.reserve {
		return fmt.Errorf("%w: no free segment", ErrFull)
	}
	return nil
}

// fullDisk holds the file system's free space, and what is free in our own
// segments, which mail takes first, against MinFree.
func (e *engine) fullDisk() error {
	if e.lim.minFree == 0 {
		return nil
	}
	free, err := e.fs.Free(e.dir)
	if err != nil {
		return nil // writing will tell
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, s := range e.free {
		free += s.size
	}
	if free < e.lim.minFree {
		return fmt.Errorf("%w: %d bytes free on the file system, queue_minfree is %d", ErrFull, free, e.lim.minFree)
	}
	return nil
}

// available is the number of segments that can still be written: free ones
// and those that may be created. The caller holds mu.
func (e *engine) available() int64 {
	n := int64(len(e.free) + len(e.fresh))
	if e.diskLow {
		return n
	}
	if e.lim.segments == 0 {
		return n + 1<<30
	}
	return n + max(0, e.lim.segments-int64(len(e.segs)+len(e.fresh))-(e.bigSum+e.lim.segSize-1)/e.lim.segSize)
}
