package table

import (
	"context"
	"sync/atomic"
	"time"
)

// MatchBudget is what a [Budget] has: how long backtracking matchers may work for
// one message, or one command of a client. Most messages need microseconds of it.
const MatchBudget = 3 * time.Second

// A Budget bounds the time that all patterns together take which need a
// backtracking matcher, over all lookups with its context. A lookup for which
// nothing is left fails, like one in a table that cannot be read. A match under way
// may go over it, by no more than Options.MatchTimeout. A lookup with a context that has no
// Budget has one of its own. It may be used concurrently.
type Budget struct {
	left atomic.Int64 // nanoseconds; not over zero: nothing more is tried
	all  time.Duration
}

// A scope is what a context says of lookups. It is one value, so that one step finds
// that there is no trace.
type scope struct {
	budget  *Budget  // nil: each lookup has its own
	trace   Trace    // nil: nobody follows
	answers *Answers // nil: none are kept
}

type scopeKey struct{}

func scopeOf(ctx context.Context) scope {
	if s, ok := ctx.Value(scopeKey{}).(*scope); ok {
		return *s
	}
	return scope{}
}

// NewBudget returns a context with a Budget of d.
func NewBudget(ctx context.Context, d time.Duration) (context.Context, *Budget) {
	b := &Budget{all: d}
	b.Renew()
	s := scopeOf(ctx)
	s.budget = b
	return context.WithValue(ctx, scopeKey{}, &s), b
}

// Renew makes b what it was at first: for the next message or command.
func (b *Budget) Renew() { b.left.Store(int64(b.all)) }

// budgetOf is the budget of a context, or a new one.
func budgetOf(ctx context.Context) *Budget {
	b := scopeOf(ctx).budget
	if b == nil {
		b = &Budget{all: MatchBudget}
		b.Renew()
	}
	return b
}
