// Package reuse hands the memory of lists on from one message to the next.
//
// Services that handle thousands of messages a second keep what one of them took
// for those that follow. A list that is handed on must hold nothing of the message
// that it was for, or that stays in memory and may come to light in another; and it
// must not be long, or one message with very many recipients would hold its memory
// for ever. [Emptied] sees to both.
//
// # Limits
//
// What has been handed on is still the memory of the old list: nobody may look at
// that any more.
package reuse

// Most is how many elements a list may have room for that is kept. One that has
// grown to the 50 recipients that a delivery has at most by default has room for some
// 70.
const Most = 100

// Emptied is list to be filled again, with nothing left in its memory, behind
// its end neither. It is nil when there is room for over Most elements in it.
func Emptied[T any](list []T) []T {
	if cap(list) > Most {
		return nil
	}
	clear(list[:cap(list)]) // the end may have been further on
	return list[:0]
}
