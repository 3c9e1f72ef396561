package nodesim

import (
	"math/rand/v2"
	"sync"
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
	return shared(uint64(s), h)
}

// A locked source may be used by several goroutines, each at an instant of its own.
type locked struct {
	mu  sync.Mutex
	pcg *rand.PCG
}

// Uint64 implements rand.Source.
func (l *locked) Uint64() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pcg.Uint64()
}

// shared is a source for several goroutines.
func shared(a, b uint64) *rand.Rand { return rand.New(&locked{pcg: rand.NewPCG(a, b)}) }

// pick gives one of list.
func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// between draws a time.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)+1))
}
