package pgspool

import (
	"posthaste/internal/queue"
)

// A handing is what the index keeps of a delivery that an agent has in hand. One that is found when a queue
// is taken over is doubtful.
type handing = queue.Handing

// pending returns list without those that are done.
func pending(list []handing, l *live, more []uint64) []handing {
	if len(list) == 0 {
		return list
	}
	return queue.Settled(list, func(i uint32) bool { return isDone(l, more, uint64(i)) })
}
