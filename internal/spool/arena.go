package spool

import (
	"encoding/binary"
	"runtime"
	"syscall"
)

// arena is memory for the packed leaves of an index, as a log in regions: a piece is put behind
// the last one, and does not change. What is not used any more is counted, and when that is too
// much the pieces of the region that has most of it are put behind the last one, and the region is given back.
//
// It is not the garbage collector's memory: with millions of messages in the queue
// that would let as much garbage lie as half of what is alive.
//
// It is used by one goroutine at a time, or by several that only read.
type arena struct {
	maps    *mappings
	size    int      // of a region, in bytes
	regions []region // by number
	empty   []int    // numbers of those without memory, to be used again
	ready   []int    // numbers of those with memory in which nothing is, to be used before
	open    int      // the one that is written; -1: none
	held    int      // how many have memory
	taken   int64    // bytes of pieces in use
	scratch []byte
}

type region struct {
	used  int // bytes written
	taken int // of those, bytes of pieces in use
}

const (
	arenaRegion = 256 << 10 // bytes
	arenaUnit   = 8         // bytes; a place is counted in them, over all regions
	// A piece begins with its length, all in all, and the number of the message that its leaf
	// begins with.
	pieceHead = 4 + 8
	// arenaSlack is how many regions there may be over what is used, and a seventh of it.
	arenaSlack = 4
	// arenaReady is how many of them are kept for use again: new memory costs more than what is put
	// there.
	arenaReady = 2
)

// mappings are the regions' memory.
type mappings struct{ list [][]byte }

// drop gives all back to the system.
func (m *mappings) drop() {
	for i := range m.list {
		m.give(i)
	}
}

func (m *mappings) give(i int) {
	if m.list[i] != nil {
		syscall.Munmap(m.list[i])
		m.list[i] = nil
	}
}

func newArena(size int) *arena {
	a := &arena{maps: new(mappings), size: size, open: -1}
	runtime.AddCleanup(a, (*mappings).drop, a.maps)
	return a
}

// bytes is how much it has of the system.
func (a *arena) bytes() int64 { return int64(a.held) * int64(a.size) }

// at finds a place: its region, and the offset in it.
func (a *arena) at(place uint32) (r, off int) {
	units := a.size / arenaUnit
	return int(place) / units, int(place) % units * arenaUnit
}

// piece is what was put at a place. The arena must be alive as long as that is used.
func (a *arena) piece(place uint32) []byte {
	r, off := a.at(place)
	b := a.maps.list[r][off:]
	return b[pieceHead:binary.LittleEndian.Uint32(b)]
}

// put copies b, of a leaf that begins with number, and gives the place.
func (a *arena) put(number uint64, b []byte) uint32 {
	n := int(alignUp(int64(pieceHead+len(b)), arenaUnit))
	if a.open < 0 || a.regions[a.open].used+n > a.size {
		a.next()
	}
	r := &a.regions[a.open]
	off := r.used
	p := a.maps.list[a.open][off : off+n]
	binary.LittleEndian.PutUint32(p, uint32(pieceHead+len(b)))
	binary.LittleEndian.PutUint64(p[4:], number)
	copy(p[pieceHead:], b)
	r.used += n
	r.taken += n
	a.taken += int64(n)
	runtime.KeepAlive(a)
	return uint32((a.open*a.size + off) / arenaUnit)
}

// give takes back what is at a place.
func (a *arena) give(place uint32) {
	r, off := a.at(place)
	n := int(alignUp(int64(binary.LittleEndian.Uint32(a.maps.list[r][off:])), arenaUnit))
	a.taken -= int64(n)
	a.regions[r].taken -= n
	if a.regions[r].taken == 0 && r != a.open {
		a.release(r)
	}
}

// next begins another region.
func (a *arena) next() {
	if old := a.open; old >= 0 && a.regions[old].taken == 0 {
		a.release(old)
	}
	if n := len(a.ready); n > 0 {
		a.open = a.ready[n-1]
		a.ready = a.ready[:n-1]
		return
	}
	b, err := syscall.Mmap(-1, 0, a.size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil { // as when a program's own memory cannot be had
		panic("spool: no memory for the index: " + err.Error())
	}
	if n := len(a.empty); n > 0 {
		a.open = a.empty[n-1]
		a.empty = a.empty[:n-1]
	} else {
		a.open = len(a.regions)
		a.regions = append(a.regions, region{})
		a.maps.list = append(a.maps.list, nil)
	}
	a.maps.list[a.open] = b
	a.held++
}

// release gives back a region in which nothing is used.
func (a *arena) release(r int) {
	a.regions[r] = region{}
	if len(a.ready) < arenaReady {
		a.ready = append(a.ready, r)
		return
	}
	a.maps.give(r)
	a.empty = append(a.empty, r)
	a.held--
}

// wasteful says whether clean is to be called.
func (a *arena) wasteful() bool {
	return a.bytes()-a.taken > a.taken/7+arenaSlack*int64(a.size)
}

// clean moves the pieces that are in use out of the region that has fewest of them. owner says where the
// place of a piece is kept by the leaf that begins with number, and gives nil when that leaf has
// another.
func (a *arena) clean(owner func(number uint64, place uint32) *uint32) {
	worst := -1
	for i := range a.regions {
		if i != a.open && a.regions[i].used > 0 && (worst < 0 || a.regions[i].taken < a.regions[worst].taken) {
			worst = i
		}
	}
	if worst < 0 {
		return
	}
	used := a.regions[worst].used
	a.scratch = append(a.scratch[:0], a.maps.list[worst][:used]...) // the last one that moves gives the region back
	for off := 0; off < used; {
		b := a.scratch[off:]
		n := int(binary.LittleEndian.Uint32(b))
		number, place := binary.LittleEndian.Uint64(b[4:]), uint32((worst*a.size+off)/arenaUnit)
		if at := owner(number, place); at != nil {
			*at = a.put(number, b[pieceHead:n])
			a.give(place)
		}
		off += int(alignUp(int64(n), arenaUnit))
	}
	runtime.KeepAlive(a)
}
