package spool

import (
	"encoding/binary"
	"math/bits"
	"runtime"
	"syscall"
)

// arena is memory for the packed leaves of an index. It is not the garbage
// collector's: with millions of messages in the queue that would let as much
// garbage lie as half of what is alive. Memory is given out in multiples of
// arenaUnit, and what was given back is used again for what is as long or shorter.
//
// It is used by one goroutine at a time, or by several that only read.
type arena struct {
	maps  *mappings
	at    uint32                // next unit that was never given out
	end   uint32                // where the present region ends
	free  [maxUnits]uint32      // by length in units: first free piece +1, which begins with the next one +1
	bits  [maxUnits / 64]uint64 // of the lengths that have one
	taken int64                 // bytes given out
}

const (
	arenaUnit   = 32      // bytes
	arenaRegion = 1 << 20 // bytes of the system's memory that are taken at a time
	regionUnits = arenaRegion / arenaUnit
	maxUnits    = 512 // the longest piece is one less
)

// mappings are the regions.
type mappings struct{ list [][]byte }

// drop gives them back to the system.
func (m *mappings) drop() {
	for _, b := range m.list {
		syscall.Munmap(b)
	}
	m.list = nil
}

func newArena() *arena {
	a := &arena{maps: new(mappings)}
	runtime.AddCleanup(a, (*mappings).drop, a.maps)
	return a
}

// size is how many bytes it has of the system.
func (a *arena) size() int64 { return int64(len(a.maps.list)) * arenaRegion }

// piece is the memory that begins at a unit.
func (a *arena) piece(at uint32, n int) []byte {
	off := int(at%regionUnits) * arenaUnit
	return a.maps.list[at/regionUnits][off : off+n : off+n]
}

// units is how many units n bytes take.
func units(n int) int { return (n + arenaUnit - 1) / arenaUnit }

// put copies b, and gives the place.
func (a *arena) put(b []byte) uint32 {
	n := units(len(b))
	at := a.take(n)
	a.taken += int64(n) * arenaUnit
	copy(a.piece(at, n*arenaUnit), b)
	return at
}

// give takes back what put gave for n bytes.
func (a *arena) give(at uint32, n int) {
	a.taken -= int64(units(n)) * arenaUnit
	a.list(at, units(n))
}

// list notes n units from at on as free.
func (a *arena) list(at uint32, n int) {
	binary.LittleEndian.PutUint32(a.piece(at, 4), a.free[n])
	a.free[n] = at + 1
	a.bits[n/64] |= 1 << (n % 64)
}

// unlist takes a free piece of n units.
func (a *arena) unlist(n int) uint32 {
	at := a.free[n] - 1
	a.free[n] = binary.LittleEndian.Uint32(a.piece(at, 4))
	if a.free[n] == 0 {
		a.bits[n/64] &^= 1 << (n % 64)
	}
	return at
}

// take finds n units: of that length, then cut from a longer one, then new.
func (a *arena) take(n int) uint32 {
	if a.free[n] != 0 {
		return a.unlist(n)
	}
	if m, ok := a.longer(n); ok {
		at := a.unlist(m)
		a.list(at+uint32(n), m-n)
		return at
	}
	if a.at+uint32(n) > a.end {
		if rest := a.end - a.at; rest > 0 { // less than n
			a.list(a.at, int(rest))
		}
		a.at = uint32(len(a.maps.list)) * regionUnits
		a.end = a.at + regionUnits
		a.maps.list = append(a.maps.list, newRegion())
	}
	at := a.at
	a.at += uint32(n)
	return at
}

// longer finds the shortest length over n of which there is a free piece.
func (a *arena) longer(n int) (int, bool) {
	for w := n / 64; w < len(a.bits); w++ {
		b := a.bits[w]
		if w == n/64 {
			b &= ^uint64(0) << (n % 64)
		}
		if b != 0 {
			return w*64 + bits.TrailingZeros64(b), true
		}
	}
	return 0, false
}

func newRegion() []byte {
	b, err := syscall.Mmap(-1, 0, arenaRegion, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil { // as when a program's own memory cannot be had
		panic("spool: no memory for the index: " + err.Error())
	}
	return b
}
