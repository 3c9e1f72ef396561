//go:build !poison

package reuse

// Poison says whether this build overwrites what was given back: not in the product.
const Poison = false

// quarantine is nothing, in the product.
type quarantine[T any] struct{}

func (quarantine[T]) hold(*T)     {}
func (quarantine[T]) release() *T { return nil }

func spoil[S ~[]T, T any](buf S) S { return buf[:0] }
