package simtest

import "math/rand/v2"

// A seed is where all chance of a run comes from. What is drawn for one thing does not depend on
// what has been drawn for another: each has a source of its own, by its name.
type seed uint64

// source is the chance of what has that name.
func (s seed) source(name string) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(s), hash(name)))
}

// hash is FNV-1a.
func hash(name string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(name) {
		h = (h ^ uint64(name[i])) * 1099511628211
	}
	return h
}

// A stream is a small source, for what there are thousands of: splitmix64.
type stream uint64

func (s seed) stream(name string) stream { return stream(uint64(s)*0x9e3779b97f4a7c15 ^ hash(name)) }

func (r *stream) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// pick gives one of list.
func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }
