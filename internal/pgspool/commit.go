package pgspool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/queue"
)

const (
	// groupLimit is how many octets of changes go into one transaction, about, and groupMost how many
	// batches.
	groupLimit = 4 << 20
	groupMost  = 2000
	// batchLimit is the longest batch that is taken.
	batchLimit = 64 << 20
	// transactionTime bounds a transaction. After that its end is not known.
	transactionTime = 20 * time.Second
	// retryDelay is how often what the database has no room for is tried again.
	retryDelay = time.Second
	// remindTime is how often the log says that it still has none.
	remindTime = time.Minute
)

// commit is the committer's goroutine: whatever waits goes into the next transaction, which all of them
// share.
func (e *engine) commit() {
	for {
		list, last := e.next()
		if err := e.Err(); err != nil {
			e.giveUp(list, err)
			return
		}
		if len(list) > 0 {
			if wait := e.process(list); wait > 0 && !last {
				e.rest(wait)
			}
		} else if last {
			return
		}
	}
}

// next waits for something to do, and returns some of it, in order. last says that the engine is closing.
func (e *engine) next() (list []*request, last bool) {
	q := &e.queue
	for {
		q.mu.Lock()
		var delay time.Duration
		if !q.oldest.IsZero() {
			delay = time.Until(q.oldest.Add(e.opt.PostDelay))
		}
		ready := len(q.list) > 0 && (q.urgent || q.closing || delay <= 0)
		if ready || q.closing || e.Err() != nil {
			list, last = q.take(), q.closing
			q.mu.Unlock()
			return list, last
		}
		q.urgent = false // there was nothing to hurry
		waiting := len(q.list) > 0
		q.mu.Unlock()
		if waiting {
			e.rest(delay)
		} else {
			<-e.wake
		}
	}
}

// rest waits for so long, or until something happens.
func (e *engine) rest(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-e.wake:
	case <-t.C:
	}
}

// take takes what goes into one transaction off the list. mu is held.
func (q *queued) take() (list []*request) {
	cost, n := 0, 0
	for n < len(q.list) && n < groupMost && (n == 0 || cost < groupLimit) {
		if r := q.list[n]; r.b != nil {
			cost += r.b.cost
		}
		n++
	}
	list = append(list, q.list[:n]...)
	clear(q.list[:n])
	q.list = append(q.list[:0], q.list[n:]...)
	if len(q.list) == 0 {
		q.urgent, q.oldest = false, time.Time{}
	}
	return list
}

// process makes list durable, and answers those who wait. If it returns a time, there was no room, and what adds
// no mail is to be tried again then.
func (e *engine) process(list []*request) (wait time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), transactionTime)
	defer cancel()
	if e.drained.Load() {
		list = e.withhold(list)
	}
	if e.store.plant.noRecord {
		list = e.forgo(list)
	}
	e.working.Store(max(1, int64(time.Since(e.born))))
	defer e.working.Store(0)
	err := e.write(ctx, list)
	switch {
	case err == nil:
		e.answer(list)
		return 0
	case errors.Is(err, errRefused):
		return e.refused(list, err)
	}
	err = e.fail(err)
	e.giveUp(list, err)
	return 0
}

// withhold keeps those who ask for leave to deliver from being answered before the engine ends.
func (e *engine) withhold(list []*request) (rest []*request) {
	e.lease.mu.Lock()
	defer e.lease.mu.Unlock()
	for _, r := range list {
		if r.b != nil && r.b.hands() {
			e.lease.waiting = append(e.lease.waiting, r)
		} else {
			rest = append(rest, r)
		}
	}
	return rest
}

// forgo is a planted fault: those who ask for leave to deliver get it, and nothing is recorded.
func (e *engine) forgo(list []*request) (rest []*request) {
	for _, r := range list {
		if r.b == nil || !r.b.hands() {
			rest = append(rest, r)
		} else if !e.lease.postpone(r) {
			r.finish(nil)
		}
	}
	return rest
}

// write stages list and writes it.
func (e *engine) write(ctx context.Context, list []*request) error {
	g := &e.g
	g.begin(e)
	defer g.unpin()
	// First, since it needs nothing of the database, and so succeeds whatever becomes of the transaction.
	for _, r := range list {
		if r.adopt != nil {
			e.takeIn(r.adopt)
		}
	}
	if err := e.loadRests(ctx, list); err != nil {
		return err
	}
	for _, r := range list {
		r.err = nil
		switch {
		case r.upkeep != nil:
			r.err = g.upkeep(ctx, r.upkeep)
		case r.adopt != nil: // nothing is written: it has been read
		default:
			r.err = g.put(ctx, r.b)
		}
		// The database's errors are for all, those of the batch for its caller.
		if g.err != nil {
			return g.err
		}
	}
	if len(g.heads) > 0 {
		if err := e.transact(ctx, e.conn, g.shardList(), func() error { return g.flush(ctx) }); err != nil {
			return err
		}
	}
	g.install()
	return nil
}

// answer tells those who wait. A request for leave to deliver is answered while the lease is good
// (invariant 7), or when it has been renewed.
func (e *engine) answer(list []*request) {
	for _, r := range list {
		if r.err == nil && r.b != nil && r.b.hands() && !e.store.plant.noLease && e.lease.postpone(r) {
			continue
		}
		r.finish(r.err)
	}
}

// refused deals with a transaction that has been taken back: new mail is refused, and the rest waits.
func (e *engine) refused(list []*request, err error) time.Duration {
	if errors.Is(err, errTable) && slices.ContainsFunc(list, func(r *request) bool { return r.upkeep != nil }) {
		// The table that is to be cleaned, most likely. The cleaner can do without it.
		e.putBack(list, err, func(r *request) bool { return r.upkeep == nil })
		return 0
	}
	if !errors.Is(err, queue.ErrFull) {
		// Nothing says that the next attempt would succeed: the engine is opened again, which reads
		// what there is.
		err = e.fail(fmt.Errorf("%w: %w", queue.ErrBroken, err))
		e.giveUp(list, err)
		return 0
	}
	e.putBack(list, err, func(r *request) bool { return r.upkeep == nil && r.b.adds == 0 })
	// Each message that comes in tries once more.
	if time.Since(e.fullSaid) >= remindTime {
		e.fullSaid = time.Now()
		e.opt.Warn("spool: %v; delivery results wait until the database has room", err)
	}
	return retryDelay
}

// putBack has those of list wait that are to be tried again, and refuses the others because of err.
func (e *engine) putBack(list []*request, err error, again func(*request) bool) {
	var wait []*request
	for _, r := range list {
		switch {
		case r.adopt != nil:
			r.finish(nil) // it has been taken in, and the queue manager must hear of it
		case again(r):
			wait = append(wait, r)
		default:
			r.finish(err)
		}
	}
	q := &e.queue
	q.mu.Lock()
	q.list = append(wait, q.list...)
	if len(wait) > 0 {
		q.urgent, q.oldest = true, time.Now()
	}
	q.mu.Unlock()
}

// giveUp refuses list and all that waits, once the engine writes nothing more.
func (e *engine) giveUp(list []*request, err error) {
	q := &e.queue
	q.mu.Lock()
	list = append(list, q.list...)
	q.list = nil
	q.mu.Unlock()
	for _, r := range append(list, e.lease.takeDeferred()...) {
		r.finish(err)
	}
}

func (r *request) finish(err error) {
	if r.b != nil {
		r.b.settle()
	}
	if r.done != nil {
		r.done(err)
	} else {
		r.ch <- err
	}
}

// hands says whether b asks for leave to deliver.
func (b *batch) hands() bool {
	for i := range b.ops {
		if b.ops[i].kind == opHanded {
			return true
		}
	}
	return false
}
