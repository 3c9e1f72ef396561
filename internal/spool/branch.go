package spool

import "slices"

// branch is a row of leaves of the index that follow each other. It has one at least.
type branch struct {
	firsts []uint64 // the lowest number that each leaf is for
	leaves []*leaf
}

// branchLen is the most leaves of a branch: ten million messages are in some 300 of them.
const branchLen = 512

// leafPlace is where a leaf is.
type leafPlace struct{ b, i int }

// below is the place of the last of firsts that is not over number, or 0.
func below(firsts []uint64, number uint64) int {
	i, found := slices.BinarySearch(firsts, number)
	if found {
		return i
	}
	return max(i-1, 0)
}

// seek finds the leaf that number is in, or would be. The index must not be empty.
func (x *index) seek(number uint64) (leafPlace, *leaf) {
	b := below(x.firsts, number)
	i := below(x.boughs[b].firsts, number)
	return leafPlace{b, i}, x.boughs[b].leaves[i]
}

// newLeaf makes a loose leaf at p with these entries, all of which are there, and gives the first of them.
func (x *index) newLeaf(p leafPlace, ents []live) *live {
	lf := &leaf{ents: append(x.room(), ents...), n: uint8(len(ents))}
	x.addLoose(lf)
	if len(x.boughs[p.b].leaves) == branchLen {
		p = x.splitBranch(p, ents[0].number)
	}
	b := x.boughs[p.b]
	b.firsts = slices.Insert(b.firsts, p.i, ents[0].number)
	b.leaves = slices.Insert(b.leaves, p.i, lf)
	return &lf.ents[0]
}

// splitBranch makes room for a leaf that is to come to p, and begins with number, in a full
// branch, and gives the place where it comes then. Behind all of the branch a new one begins.
func (x *index) splitBranch(p leafPlace, number uint64) leafPlace {
	b := x.boughs[p.b]
	keep := branchLen / 2
	if p.i == branchLen {
		keep = branchLen
	}
	right := &branch{firsts: slices.Clone(b.firsts[keep:]), leaves: slices.Clone(b.leaves[keep:])}
	clear(b.leaves[keep:])
	b.firsts, b.leaves = b.firsts[:keep], b.leaves[:keep]
	if len(right.firsts) > 0 {
		number = right.firsts[0]
	}
	x.firsts = slices.Insert(x.firsts, p.b+1, number)
	x.boughs = slices.Insert(x.boughs, p.b+1, right)
	if p.i > keep || keep == branchLen {
		return leafPlace{p.b + 1, p.i - keep}
	}
	return p
}

// dropLeaf takes out a loose leaf that nothing is in.
func (x *index) dropLeaf(p leafPlace, lf *leaf) {
	x.dropLoose(lf)
	x.cut(p)
	if len(x.boughs[p.b].leaves) == 0 {
		x.firsts = slices.Delete(x.firsts, p.b, p.b+1)
		x.boughs = slices.Delete(x.boughs, p.b, p.b+1)
	}
}

// cut takes the leaf at p out of its branch.
func (x *index) cut(p leafPlace) {
	b := x.boughs[p.b]
	b.firsts = slices.Delete(b.firsts, p.i, p.i+1)
	b.leaves = slices.Delete(b.leaves, p.i, p.i+1)
}
