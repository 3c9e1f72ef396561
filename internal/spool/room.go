package spool

import "fmt"

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
	if err := e.fullBooks(settles); err != nil {
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
func (e *engine) fullBooks(settles bool) error {
	l := &e.lim
	share, fill, reserve := int64(70), int64(80), l.reserve // per cent, per cent, segments
	if settles {
		share, fill, reserve = 80, 90, max(l.reserve*3/4, minSpare)
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if l.segments > 0 {
		room := (l.segments - l.reserve) * (l.segSize - blockSize)
		if live := e.liveSum + e.bigSum; live > room/100*share {
			return fmt.Errorf("%w: %d bytes of mail are queued, %d bytes of disk may be used", ErrFull, live, l.budget)
		}
		if fit := (l.reserve - 2) * l.segSize / 100 * fill; e.metaSum > fit {
			return fmt.Errorf("%w: too many messages are queued for %d bytes of disk", ErrFull, l.budget)
		}
	}
	available := e.available()
	if settles {
		available = e.allowed() // who makes a segment for it finds out whether that can be had
	}
	if available <= reserve {
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
	return n + max(0, e.lim.segments-int64(len(e.segs)+len(e.fresh))-(e.bigSum+e.lim.segSize-1)/e.lim.segSize)
}
