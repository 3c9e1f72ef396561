package pgspool

// A shard is a part of the queue that one node owns as a whole. Guarded by engine.mu, but for id and epoch,
// which are not changed.
type shard struct {
	id      uint32
	epoch   int64
	segs    map[uint32]*segment // all that there are
	head    *segment            // where new rows go; nil: nothing has been written yet
	nextSeg uint32              // number of the next segment; no number is used twice
	reading *reading            // what of it is still to be read; nil: nothing is
	bad     bool                // the database does not give the rest of it: new mail goes to others
}

// A segment is a table. Guarded by engine.mu, but for segno.
type segment struct {
	segno uint32
	next  uint32 // position of the next row
	bytes int64  // octets of all rows
	live  int64  // octets of those that a live message needs
	pins  int    // transactions and uploads under way to it, see engine.head
	// read says that content has been copied from it that may be read at this moment, and since when: it is
	// left for a while. 0: there is none.
	read      int64
	lost      bool // it has rows that the database did not give when it was read: it is kept, so that they can be restored
	unindexed bool // its index is damaged: it is read without, and kept
	// failed is when it could not be cleaned, in ns since the engine was born, and fails how often, one after the other. 0: it has not.
	failed int64
	fails  int
}

// reserve takes n positions of the head. The caller holds engine.mu.
func (s *segment) reserve(n uint32) (pos uint32) {
	pos = s.next
	s.next += n
	return pos
}

// count adds the octets of a message's records to what is alive in the segments, or takes them away.
func (sh *shard) count(l *live, big *place, sign int64) {
	if s := sh.segs[l.msgSeg]; s != nil {
		s.live += sign * int64(l.msgLen)
	}
	if s := sh.segs[l.refSeg]; s != nil && (l.refSeg != l.msgSeg || l.refPos != l.msgPos) {
		s.live += sign * int64(l.refLen)
	}
	if big != nil {
		if s := sh.segs[big.seg]; s != nil {
			s.live += sign * big.size
		}
	}
}

// anyIn says whether a segment exists with a number from first on, and below end.
func (sh *shard) anyIn(first, end uint32) bool {
	for n := range sh.segs {
		if n >= first && n < end {
			return true
		}
	}
	return false
}
