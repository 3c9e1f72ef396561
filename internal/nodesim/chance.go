package nodesim

import (
	"math/rand/v2"
	"time"
)

// A seed is where all chance of a run comes from. What is drawn for one thing does not depend on what has been drawn for
// another: each has a source of its own, by its name.
type seed uint64

// source is the chance of what has that name.
func (s seed) source(name string) *rand.Rand {
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return rand.New(rand.NewPCG(uint64(s), h))
}

// pick gives one of list.
func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// between draws a time.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)+1))
}
