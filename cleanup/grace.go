package cleanup

import (
	"context"
	"sync"
)

// A grace lets the one who has told the queue wait for those who were queueing a message meanwhile: each of them may have
// made it durable, so that it was among what was told, and announce it only afterwards. It is the grace period of
// read-copy-update. The zero value is ready. Its methods may be called concurrently.
type grace struct {
	mu sync.Mutex
	// Whom enter adds to. nil before the first call of anything.
	now *period
}

// A period is those who came in between two calls of wait. Its fields are guarded by grace.mu.
type period struct {
	n      int           // who is in
	ended  bool          // nobody comes in any more
	empty  chan struct{} // closed when it has ended and all have left
	before *period       // who had not all left when this began; nil: none
}

// enter is called before a message may be durable, and leave, with what it returns, when it has been announced, or never
// will be.
func (g *grace) enter() *period {
	g.mu.Lock()
	defer g.mu.Unlock()
	p := g.current()
	p.n++
	return p
}

// leave is the end of what enter began.
func (g *grace) leave(p *period) {
	g.mu.Lock()
	defer g.mu.Unlock()
	p.n--
	p.closeIfOver()
}

// wait returns when all have left who were in when it was called, or when ctx ends.
func (g *grace) wait(ctx context.Context) {
	g.mu.Lock()
	p := g.current()
	p.ended = true
	p.closeIfOver()
	g.now = newPeriod(p)
	g.mu.Unlock()
	for q := p; q != nil; {
		select {
		case <-q.empty:
		case <-ctx.Done():
			return
		}
		g.mu.Lock()
		q = q.before
		g.mu.Unlock()
	}
	// Nobody before is waited for again.
	g.mu.Lock()
	p.before = nil
	g.mu.Unlock()
}

// current is the period of now. The caller holds mu.
func (g *grace) current() *period {
	if g.now == nil {
		g.now = newPeriod(nil)
	}
	return g.now
}

func newPeriod(before *period) *period { return &period{empty: make(chan struct{}), before: before} }

// closeIfOver lets those go on who wait for p. It is called once when p ends, and then for each who leaves, so that it
// closes once.
func (p *period) closeIfOver() {
	if p.ended && p.n == 0 {
		close(p.empty)
	}
}
