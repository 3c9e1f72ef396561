package spool

import "path"

// The size of segments may change between two starts. Those of the former size are used on
// until there are enough others, which takes room on the disk. Without that room the former
// size stays: what is kept free for dispositions and for starts (room.go) is counted in segments
// of one size, and a batch must fit into any of them.

// settleSize goes back to the size of most segments when the disk has no room for what must
// be kept of the present one. It comes when it is known what is free, and before anything is
// written.
func (r *recovery) settleSize() {
	e := r.e
	if !e.mixed || e.planted(plantNewSize) || e.hasRoomFor(int64(e.kept())+1-int64(len(e.free))) {
		return
	}
	size := e.commonSize()
	if size == e.lim.segSize {
		return
	}
	o := e.opt
	o.SegmentSize = size
	lim, err := deriveLimits(&o)
	if err != nil { // as when a budget is too small for it
		return
	}
	e.warn("spool: the disk has no room for segments of %d octets (spool_segment_size): their size stays %d until a start finds room", e.lim.segSize, size)
	e.lim = lim
	list := append(e.free, e.odd...)
	e.free, e.odd, e.mixed = nil, nil, false
	for _, s := range list {
		e.addFree(s)
	}
	for _, s := range e.segs {
		e.mixed = e.mixed || s.size != size
	}
}

// hasRoomFor says whether n segments of the present size can be made, as far as the disk
// tells.
func (e *engine) hasRoomFor(n int64) bool {
	if n <= 0 {
		return true
	}
	free, err := e.fs.Free(path.Join(e.dir, segDir))
	return err == nil && free >= n*e.lim.segSize
}

// commonSize is the size that most of the log's octets are in segments of; of two that
// are equal the larger one.
func (e *engine) commonSize() (size int64) {
	octets := map[int64]int64{}
	for _, s := range e.segs {
		octets[s.size] += s.size
	}
	for n, sum := range octets {
		if sum > octets[size] || sum == octets[size] && n > size {
			size = n
		}
	}
	return size
}

// sizesInUse are those of the segments that have been used. A file without a use that has
// one of them is a spare of a former process.
func (e *engine) sizesInUse() map[int64]bool {
	sizes := map[int64]bool{e.lim.segSize: true}
	for _, s := range e.segs {
		if s.segno != 0 {
			sizes[s.size] = true
		}
	}
	return sizes
}
