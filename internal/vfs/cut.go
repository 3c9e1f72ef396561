package vfs

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"syscall"
)

// Loss decides what a power cut leaves. The arguments say which of n such
// questions this is, and what there is to choose from. A nil function keeps
// nothing.
type Loss struct {
	// Sector is asked for each unsynced sector: 0 leaves it as it last was
	// durable, 1 to versions leaves that version of those written since, and a
	// negative answer leaves garbage.
	Sector func(i, n, versions int) int
	// Names is asked for each directory with unsynced names: how many of the
	// ops on it happened, the first ones.
	Names func(i, n, ops int) int
	// Each, if not nil, is asked instead for each of those ops by itself: not all
	// file systems keep them in order.
	Each func(op int) bool
	// Size is asked for each file whose new length is not durable.
	Size func(i, n int) bool
	// Count is asked for each file of which it is not durable that it has a name:
	// one that does not count its name is lost.
	Count func() bool
	// Garbage fills a sector.
	Garbage func(p []byte)
}

// RandomLoss draws everything.
func RandomLoss(r *rand.Rand) Loss {
	// A cut leaves all, nothing or some: the extremes deserve their share.
	bias := r.IntN(4)
	var each func(int) bool
	if r.IntN(4) == 0 {
		each = func(int) bool { return r.IntN(2) == 0 }
	}
	return Loss{
		Each:  each,
		Count: func() bool { return r.IntN(2) == 0 },
		Sector: func(_, _, versions int) int {
			switch {
			case bias == 0:
				return 0
			case bias == 1:
				return versions
			case r.IntN(16) == 0:
				return -1
			}
			return r.IntN(versions + 1)
		},
		Names: func(_, _, ops int) int { return r.IntN(ops + 1) },
		Size:  func(int, int) bool { return r.IntN(2) == 0 },
		Garbage: func(p []byte) {
			for i := range p {
				p[i] = byte(r.Uint32())
			}
		},
	}
}

// Dirty says how many sectors and how many names are not durable.
func (m *Mem) Dirty() (sectors, names int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.inodes() {
		sectors += len(n.pending)
	}
	for _, d := range m.dirs {
		names += len(d.pending)
	}
	return sectors, names
}

// inodes are the files that have a name, or may have one after a cut, in the
// order of their making.
func (m *Mem) inodes() []*inode {
	set := map[*inode]bool{}
	for _, d := range m.dirs {
		for _, n := range d.now {
			set[n] = true
		}
		for _, n := range d.durable {
			set[n] = true
		}
		for _, op := range d.pending {
			if op.node != nil {
				set[op.node] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b *inode) int { return cmp.Compare(a.id, b.id) })
}

// Cut returns the file system as it may be after a power cut now. m is not
// changed.
func (m *Mem) Cut(loss Loss) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &Mem{dirs: map[string]*memDir{}, locks: map[string]*memLock{}, mounts: m.cloneMounts(), next: m.next, sector: m.sector, limit: m.limit}
	old := m.inodes()
	sectors, sizes := 0, 0
	for _, n := range old {
		sectors += len(n.pending)
		if n.size != n.durSize {
			sizes++
		}
	}
	copies := map[*inode]*inode{}
	si, zi := 0, 0
	for _, n := range old {
		c := &inode{id: n.id, durable: slices.Clone(n.durable), durSize: n.durSize, pending: map[int64][]*page{}, bad: maps.Clone(n.bad), cut: -1, named: true, mount: n.mount}
		c.counted = n.counted || loss.Count != nil && loss.Count()
		if n.size != n.durSize {
			if loss.Size != nil && loss.Size(zi, sizes) {
				c.durSize = n.size
			}
			zi++
		}
		for int64(len(c.durable))*memPage < max(n.size, n.durSize) {
			c.durable = append(c.durable, new(page))
		}
		for _, s := range slices.Sorted(maps.Keys(n.pending)) {
			c.cutSector(s, m.sector, n.pending[s], loss, si, sectors)
			si++
		}
		c.durable = c.durable[:(c.durSize+memPage-1)/memPage]
		zeroFrom(c.durable, c.durSize)
		c.now, c.size = slices.Clone(c.durable), c.durSize
		copies[n] = c
	}
	i := 0
	dirs := 0
	for _, d := range m.dirs {
		if len(d.pending) > 0 {
			dirs++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.dirs)) {
		d := m.dirs[name]
		names := maps.Clone(d.durable)
		if len(d.pending) > 0 {
			keep := 0
			if loss.Names != nil {
				keep = loss.Names(i, dirs, len(d.pending))
			}
			i++
			for k, op := range d.pending {
				if loss.Each != nil && !loss.Each(k) || loss.Each == nil && k >= keep {
					continue
				}
				if op.node == nil {
					delete(names, op.name)
				} else {
					names[op.name] = op.node
				}
			}
		}
		nd := newMemDir()
		for base, n := range names {
			if c := copies[n]; c.counted {
				nd.now[base], nd.durable[base] = c, c
			}
		}
		out.dirs[name] = nd
	}
	return out
}

func (n *inode) cutSector(s, sector int64, versions []*page, loss Loss, i, of int) {
	v := 0
	if loss.Sector != nil {
		v = loss.Sector(i, of, len(versions))
	}
	switch {
	case v > 0:
		n.keep(s, sector, versions[v-1])
	case v < 0:
		var pg page
		o := s * sector % memPage
		loss.Garbage(pg[o : o+sector])
		n.keep(s, sector, &pg)
	}
}

// Damage kinds.
const (
	FlipBit = iota
	ZeroSector
	RandomSector
	BadSector // cannot be read until it is written
	NumDamages
)

// Damage spoils the 512-byte sector of a file that off is in, durably.
func (m *Mem) Damage(name string, off int64, kind int, r *rand.Rand) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, base, err := m.dir(path.Clean(name))
	if err != nil {
		return err
	}
	n := d.now[base]
	if n == nil || off >= n.size {
		return syscall.EINVAL
	}
	if kind == BadSector {
		if n.bad == nil {
			n.bad = map[int64]bool{}
		}
		n.bad[off/512] = true
		return nil
	}
	for _, pages := range [][]*page{n.now, n.durable} {
		i := off / memPage
		if i >= int64(len(pages)) {
			continue
		}
		pg := new(page)
		*pg = *pages[i]
		sector := pg[off%memPage/512*512:][:512]
		switch kind {
		case FlipBit:
			pg[off%memPage] ^= 1 << (off % 8)
		case ZeroSector:
			clear(sector)
		case RandomSector:
			for j := range sector {
				sector[j] = byte(r.Uint32())
			}
		}
		pages[i] = pg
	}
	return nil
}

// Clone returns the file system as it is, with all that is not durable still
// in doubt: what a process finds that was started after another was killed.
func (m *Mem) Clone() *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &Mem{dirs: map[string]*memDir{}, locks: map[string]*memLock{}, mounts: m.cloneMounts(), next: m.next, sector: m.sector, limit: m.limit}
	copies := map[*inode]*inode{nil: nil}
	for _, n := range m.inodes() {
		c := &inode{id: n.id, now: slices.Clone(n.now), durable: slices.Clone(n.durable), size: n.size, durSize: n.durSize,
			pending: map[int64][]*page{}, bad: maps.Clone(n.bad), cut: n.cut, named: n.named, counted: n.counted, mount: n.mount}
		for s, v := range n.pending {
			c.pending[s] = slices.Clone(v)
		}
		copies[n] = c
	}
	for name, d := range m.dirs {
		nd := newMemDir()
		for base, n := range d.now {
			nd.now[base] = copies[n]
		}
		for base, n := range d.durable {
			nd.durable[base] = copies[n]
		}
		for _, op := range d.pending {
			nd.pending = append(nd.pending, dirOp{op.name, copies[op.node]})
		}
		out.dirs[name] = nd
	}
	return out
}
