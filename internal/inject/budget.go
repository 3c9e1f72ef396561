package inject

import (
	"context"
	"sync"
	"time"
)

// roomTime is how long a request may wait for memory.
const roomTime = 30 * time.Second

// A budget bounds the memory of all requests, in octets. Methods may be called concurrently.
type budget struct {
	mu    sync.Mutex
	left  int64
	total int64
	freed chan struct{} // closed, and made anew, when there is more
}

func newBudget(total int64) *budget {
	return &budget{left: total, total: total, freed: make(chan struct{})}
}

// take takes n octets, and waits for them for a while. What is more than there is at all is taken when
// nobody else has any.
func (b *budget) take(ctx context.Context, n int64) error {
	var timer *time.Timer
	for {
		b.mu.Lock()
		if b.left >= min(n, b.total) {
			b.left -= n
			b.mu.Unlock()
			return nil
		}
		freed := b.freed
		b.mu.Unlock()
		if timer == nil {
			timer = time.NewTimer(roomTime)
			defer timer.Stop()
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return later(retryTime, "too many large requests are under way (inject_memory_limit)")
		}
	}
}

// give gives n octets back.
func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	close(b.freed)
	b.freed = make(chan struct{})
}

// A share is what one request has taken of it.
type share struct {
	b *budget
	n int64
}

// take takes more.
func (s *share) take(ctx context.Context, n int) error {
	if err := s.b.take(ctx, int64(n)); err != nil {
		return err
	}
	s.n += int64(n)
	return nil
}

// end gives all back.
func (s *share) end() {
	if s.n > 0 {
		s.b.give(s.n)
		s.n = 0
	}
}
