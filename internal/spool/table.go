package spool

import "math/bits"

// table finds slots by message number: open addressing, with half of the hash
// beside each slot, so that neither growth nor a search looks at slots that it
// does not want. A map takes twice the space, and with a million messages much
// of a recovery's time. It is in parts, each of which grows by itself, so that
// no commit waits while all of it does.
type table [1 << partBits]tablePart

const (
	partBits = 8
	minPart  = 8
)

// tablePart is one part. It is three quarters full at most.
type tablePart struct {
	entries []tableEntry // a power of two of them
	n       int
}

type tableEntry struct {
	hash uint32 // the bits of hashOf after those that say which part
	slot uint32 // +1; 0: none
}

// hashOf spreads numbers, which are given out in a row, more evenly than
// chance does: Fibonacci hashing, as Knuth has it in volume 3, section 6.4.
// Nobody outside chooses a number.
func hashOf(number uint64) (part int, hash uint32) {
	h := number * 0x9e3779b97f4a7c15
	return int(h >> (64 - partBits)), uint32(h >> (32 - partBits))
}

// home is where the search for a hash begins. The part must not be empty.
func (p *tablePart) home(hash uint32) int {
	return int(hash >> (32 - bits.Len(uint(len(p.entries)-1))))
}

// slot finds a message's slot.
func (x *index) slot(number uint64) (uint32, bool) {
	part, hash := hashOf(number)
	p := &x.table[part]
	if p.n == 0 {
		return 0, false
	}
	i, ok := p.search(x, number, hash)
	return p.entries[i].slot - 1, ok
}

// search finds a number's entry, or where the search for it ends.
func (p *tablePart) search(x *index, number uint64, hash uint32) (int, bool) {
	mask := len(p.entries) - 1
	i := p.home(hash)
	for ; p.entries[i].slot != 0; i = (i + 1) & mask {
		if e := p.entries[i]; e.hash == hash && x.at(e.slot-1).number == number {
			return i, true
		}
	}
	return i, false
}

// enter adds a number that is not there.
func (x *index) enter(number uint64, slot uint32) {
	part, hash := hashOf(number)
	p := &x.table[part]
	if (p.n+1)*4 > len(p.entries)*3 {
		old := p.entries
		p.entries = make([]tableEntry, max(minPart, 2*len(old)))
		for _, e := range old {
			if e.slot != 0 {
				p.put(e)
			}
		}
	}
	p.put(tableEntry{hash, slot + 1})
	p.n++
}

func (p *tablePart) put(e tableEntry) {
	mask := len(p.entries) - 1
	i := p.home(e.hash)
	for p.entries[i].slot != 0 {
		i = (i + 1) & mask
	}
	p.entries[i] = e
}

// leave takes out a number that is there, and that its slot still names.
// Entries after it move up, so that no search meets a gap before what it looks
// for.
func (x *index) leave(number uint64) {
	part, hash := hashOf(number)
	p := &x.table[part]
	mask := len(p.entries) - 1
	gap, _ := p.search(x, number, hash)
	for i := (gap + 1) & mask; p.entries[i].slot != 0; i = (i + 1) & mask {
		if home := p.home(p.entries[i].hash); (i-home)&mask >= (i-gap)&mask {
			p.entries[gap] = p.entries[i]
			gap = i
		}
	}
	p.entries[gap] = tableEntry{}
	p.n--
}
