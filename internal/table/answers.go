package table

import (
	"context"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/reuse"
)

// Answers are what the proxymap service has said in one mail transaction. Whoever judges a
// recipient looks at the tables that cleanup looks at a moment later, when it rewrites the
// recipient, and every recipient of a domain has the same last keys: each question is a way to the
// database and back. So the answers stay for the transaction, while they are young, and go to
// cleanup with the message. Failures are not kept. Of tables that a process reads itself nothing
// is kept: they cost less.
//
// The zero value keeps nothing until Open. It belongs to one goroutine at a time.
type Answers struct {
	clock func() time.Time // nil: they are closed
	since time.Time        // when the first of them was asked for
	asked time.Time        // when the question was asked of which there is no answer yet
	list  []proto.Answer
	size  int // octets of the keys and values
}

// Bounds of what is kept in one transaction. What changes in a database is in force for a
// transaction after answersLife at the latest; what does not fit is asked for each time.
const (
	answersLife = 10 * time.Second
	maxAnswers  = 64
	maxAnswered = 32 << 10
)

// Open has lookups use the answers, and add to them, until Close. now is asked at each lookup: one
// message may have so many recipients, and a database be so slow, that they become too old meanwhile.
func (a *Answers) Open(now func() time.Time) { a.clock = now }

// Close has lookups ask again, and leave no answers.
func (a *Answers) Close() { a.clock = nil }

// Forget is the end of the transaction. The memory stays.
func (a *Answers) Forget() {
	*a = Answers{list: reuse.Emptied(a.list)}
}

// Told are the answers, and when the first of them was asked for. They are good until Forget.
func (a *Answers) Told() ([]proto.Answer, time.Time) { return a.list, a.since }

// Hear takes the answers that another process had, since then, in the same transaction, and opens
// them. They are not used if they are too old.
func (a *Answers) Hear(list []proto.Answer, since time.Time, now func() time.Time) {
	a.Forget()
	for i := range list {
		a.add(&list[i])
	}
	a.since = since
	a.Open(now)
}

// young says whether answers of this time may be used. A clock that was set back makes none young.
func young(since, now time.Time) bool {
	age := now.Sub(since)
	return age >= 0 && age < answersLife
}

// find is the answer to a question, nil if there is none. Those that have become too old are
// forgotten first.
func (a *Answers) find(q *proto.Lookup) *proto.LookupReply {
	if a == nil || a.clock == nil {
		return nil
	}
	if a.asked = a.clock(); len(a.list) > 0 && !young(a.since, a.asked) {
		a.list, a.size = reuse.Emptied(a.list), 0
	}
	for i := range a.list {
		if a.list[i].To == *q {
			return &a.list[i].Reply
		}
	}
	return nil
}

// keep adds the answer to the question that find had none to, if there is room.
func (a *Answers) keep(q *proto.Lookup, r *proto.LookupReply) {
	if a == nil || a.clock == nil {
		return
	}
	if len(a.list) == 0 {
		a.since = a.asked
	}
	a.add(&proto.Answer{To: *q, Reply: *r})
}

func (a *Answers) add(n *proto.Answer) {
	size := len(n.To.Table) + len(n.To.Key) + len(n.Reply.Value)
	if len(a.list) >= maxAnswers || a.size+size > maxAnswered {
		return
	}
	a.list, a.size = append(a.list, *n), a.size+size
}

// WithAnswers returns a context whose lookups use a while it is open.
func WithAnswers(ctx context.Context, a *Answers) context.Context {
	s := scopeOf(ctx)
	s.answers = a
	return context.WithValue(ctx, scopeKey{}, &s)
}
