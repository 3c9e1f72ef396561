// Package reuse hands the memory of one message on to the next.
//
// Services that handle thousands of messages a second keep what one of them took
// for those that follow. This package holds the rule for that, and the only ways to
// do it: [Pool] for values that goroutines share, [Free] for values of one
// goroutine, [Emptied] for lists, and [Truncated] for buffers.
//
// # The rule
//
// Memory has one owner at a time.
//
//   - Who owns: whoever has taken a value, from [Pool.Get], [Free.Get] or new. To own a
//     value is to own every slice in its fields, to its capacity, and nothing behind its
//     pointers, nor what the elements of a list point to: a list of pieces owns no piece. A list or a buffer in a field belongs to the owner of the field.
//   - Until when: until it calls Put, Emptied or Truncated. From then on it may neither
//     read nor write what it gave, through any name. The owner waits for goroutines
//     that it has lent the value to, and only then gives it back, once.
//   - Who may keep: nobody but the owner. A function that is passed a slice, or that
//     returns a part of a longer-lived buffer, has it until it returns, or until the next call
//     on the same value where its comment says so. Effects of the scheduler, pieces of
//     content, payloads of calls and lines of the log are such loans.
//   - What must be copied: whatever outlives the loan. Convert it to a string, or
//     clone it (slices.Clone, bytes.Clone, strings.Clone), before it goes into a map, a channel, another
//     goroutine, or a field of something that lives longer. Strings are safe: none
//     may stand on memory that is given back.
//   - What is given back is empty: it holds nothing of the message that it was for, or
//     that stays in memory and may come to light in another message. Put takes values that
//     their owner has emptied. Octets behind the end of a buffer may remain, since only
//     octets that were written since are ever read.
//   - What is given back is small: one message with very many recipients must not hold
//     its memory for ever. Emptied sees to that for lists; owners of buffers bound them.
//
// A list that is filtered or shifted in place (kept := list[:0], then append to kept)
// never changes its owner. The rule has nothing to say of it, nor of buffers on the stack.
//
// # The poisoned build
//
// With the build tag "poison", what was given back is overwritten at once: octets and numbers
// with 0xDB, strings with a word that says so, pointers, maps, channels, functions, interfaces and slices with
// nil. A list or buffer gets new memory, so that the old stays poisoned. A value of a Pool or Free
// is kept aside until [ward] others have been given back behind it; then it is looked at. Whoever read it
// meanwhile has seen the poison, and whoever wrote to it, or gave it back twice, makes the program
// panic. With the race detector, the poison itself is a write that conflicts with every late reader.
// Without the tag, [Poison] is the constant false and nothing of this is compiled.
package reuse

import "sync"

// Most is how many elements a list may have room for that is kept. One that has
// grown to the 50 recipients that a delivery has at most by default has room for some
// 70.
const Most = 100

// Emptied is list to be filled again, with nothing left in its memory, behind
// its end neither. It is nil when there is room for over Most elements in it.
func Emptied[T any](list []T) []T {
	if cap(list) > Most {
		if Poison {
			spoil(list)
		}
		return nil
	}
	if Poison {
		return spoil(list)
	}
	clear(list[:cap(list)]) // the end may have been further on
	return list[:0]
}

// Truncated is buf to be filled again. What was in it stays behind its end, so that it
// serves octets, numbers, and lists that hold on to nothing that is large or private.
func Truncated[S ~[]T, T any](buf S) S {
	if Poison {
		return spoil(buf)
	}
	return buf[:0]
}

// Pool keeps values that were given back, for any goroutine to take. The collector may
// empty it at any time. The zero Pool makes values with new. It must not be copied.
type Pool[T any] struct {
	held quarantine[T] // of no size in the product
	New  func() *T     // makes a value when there is none to take; nil: new(T)
	pool sync.Pool     // of *T
}

// Get returns a value that the caller owns until it calls Put.
func (p *Pool[T]) Get() *T {
	if Poison {
		if v := p.held.release(); v != nil {
			return v
		}
	}
	if v, _ := p.pool.Get().(*T); v != nil {
		return v
	}
	if p.New != nil {
		return p.New()
	}
	return new(T)
}

// Put gives back v, which the caller has emptied and does not look at again.
func (p *Pool[T]) Put(v *T) {
	if Poison {
		p.held.hold(v)
		return
	}
	p.pool.Put(v)
}

// Free keeps values that were given back for its owner, which alone calls it: it locks nothing,
// and gives what came last first, so that the same calls always have the same outcome. The zero Free is empty.
type Free[T any] struct {
	held quarantine[T]
	list []*T
}

// Get returns the value that was given back last, or a new one.
func (f *Free[T]) Get() *T {
	if Poison {
		if v := f.held.release(); v != nil {
			return v
		}
	}
	if n := len(f.list); n > 0 {
		v := f.list[n-1]
		f.list = f.list[:n-1]
		return v
	}
	return new(T)
}

// Put gives back v, as that of Pool does.
func (f *Free[T]) Put(v *T) {
	if Poison {
		f.held.hold(v)
		return
	}
	f.list = append(f.list, v)
}
