package pgspool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

const (
	// openPages is how many pages of other nodes' shards are read before the queue is open; the rest is read beside it.
	openPages = 5
	// readAgain is how long is waited before a shard is read on that the database does not give.
	readAgain = time.Second
)

// An adoption is a part of a shard that has been read, on its way into the engine.
type adoption struct {
	r     *reading
	idx   index
	found storage.Recovery
	doubt []queue.Doubt // what is in doubt; found may have a part of it
	last  bool          // all of the shard has been read
}

// own makes a shard the engine's, of which r is still to be read. The caller holds mu.
func (e *engine) own(r *reading) {
	t := r.t
	delete(e.coming, t.id)
	if e.shards[t.id] != nil {
		return
	}
	t.shard.reading = r
	e.shards[t.id] = &t.shard
	if e.home == nil {
		e.home = &t.shard
	}
}

// takeIn makes the messages of an adoption the engine's. The committer calls it, if there is one.
func (e *engine) takeIn(a *adoption) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.own(a.r)
	sh := &a.r.t.shard
	for from, more := uint64(0), true; more; {
		from, more = a.idx.page(from, func(l *live) { sh.count(l, a.idx.bigOf(l.number), 1) })
	}
	e.idx.merge(&a.idx)
	if a.last {
		sh.reading = nil
		e.store.remember(a.r.t)
	}
}

// readFirst reads shards that have just been taken, before the queue is open: all of those that were this node's, since agents and
// tools on this node speak of their mail at once, and of the others as much as takes no time. rest is what is left.
func (e *engine) readFirst(ctx context.Context, conn *pgx.Conn, shards []*taken) (rest []*reading, err error) {
	s, began := e.store, time.Now()
	found := storage.Recovery{Exact: true}
	var froms, damage []string
	rows, records, messages, segments := 0, 0, 0, 0
	for _, t := range shards {
		r := e.newReading(t)
		if err := r.begin(ctx, conn); err != nil {
			return nil, err
		}
		e.mu.Lock()
		e.own(r)
		e.mu.Unlock()
		segments += len(r.segs)
		last := false
		for before := rows; !last && (t.own || rows < openPages*s.pageRows()); rows = before + r.rows {
			a, err := r.next(ctx, conn)
			if isOfShard(err) && !conn.IsClosed() {
				e.waits(r, err) // the others are not to wait for it
				break
			}
			if err != nil {
				return nil, err
			}
			last = a.last
			e.takeIn(a)
			found.Exact = found.Exact && a.found.Exact
			found.InDoubt, found.MoreInDoubt = append(found.InDoubt, a.found.InDoubt...), found.MoreInDoubt+a.found.MoreInDoubt
			messages += a.idx.n
		}
		if t.unclean {
			found.Unclean, found.UncleanParts = true, append(found.UncleanParts, int(t.id))
		}
		if t.from != "" && !slices.Contains(froms, t.from) {
			froms = append(froms, t.from)
		}
		records += r.records
		if damage = append(damage, r.damage...); !last {
			rest = append(rest, r)
		}
		r.damage, r.told = nil, r.messages
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.found = found; segments > 0 || len(froms) > 0 {
		e.found.Summary = tookOver(froms, messages, records, began, len(rest) > 0)
	}
	e.found.Report = report(damage)
	return rest, nil
}

// tookOver is what the log says of shards that were those of these nodes; more: they have not been read to their ends.
func tookOver(froms []string, messages, records int, began time.Time, more bool) string {
	verb, from, so := "took", "", ""
	for i, node := range froms {
		if i == 0 {
			from = " from " + node
		} else {
			from += ", " + node
		}
	}
	if more {
		verb, so = "is taking", " so far"
	}
	return fmt.Sprintf("%s over the queue%s: %d messages, %d records read in %s%s", verb, from, messages, records, time.Since(began).Round(time.Millisecond), so)
}

// report is what postmaster is told of damage; "": there is none.
func report(damage []string) (text string) {
	if len(damage) == 0 {
		return ""
	}
	text = "Records of the queue in the database are damaged:\n\n"
	for _, line := range damage[:min(len(damage), maxDamage)] {
		text += line + "\n"
	}
	return text
}

// takeMore takes what is free, and has it read in a goroutine of its own: the leases must be renewed
// meanwhile. life ends with the engine, and ctx bounds the taking.
func (e *engine) takeMore(life, ctx context.Context, conn *pgx.Conn, most int, held []*shard) {
	list, err := e.store.takeFree(ctx, conn, most, held)
	if err != nil && sqlState(err) != lockTimeout {
		e.opt.Warn("spool: what other nodes have left cannot be taken over: %v", clean(err))
	}
	if len(list) == 0 {
		return
	}
	rest := make([]*reading, len(list))
	e.mu.Lock()
	for i, t := range list {
		// Until now agents have spoken of its mail in vain, if it was this node's.
		t.resumed = false
		e.store.unremember(t)
		e.coming[t.id] = &t.shard
		rest[i] = e.newReading(t)
	}
	e.mu.Unlock()
	e.ended.Go(func() { e.adoptAll(life, rest) })
}

// adoptAll reads shards to their ends, one after the other: what is in the first is delivered while the next one is read. Each part is
// given to the committer as soon as it has been read. One that cannot be read keeps nobody from the others: it has its turn again after
// them, or is left when nothing of it has been given out, and it is not its own tables that are damaged.
func (e *engine) adoptAll(ctx context.Context, list []*reading) {
	for len(list) > 0 {
		i := nextDue(list)
		r := list[i]
		list = slices.Delete(list, i, i+1)
		e.pauseReading(ctx, time.Until(r.due))
		err := e.readOn(ctx, r)
		switch {
		case err == nil:
			e.readAll(r)
		case errors.Is(err, queue.ErrClosed), ctx.Err() != nil, e.Err() != nil:
			return // the engine ends, and all of its shards go
		case errors.Is(err, queue.ErrNotOurs) && e.has(r.t):
			e.fail(err)
			return
		case r.begun && isOfShard(err):
			e.waits(r, err)
			list = append(list, r)
		case !e.has(r.t):
			e.leave(r, err)
		default:
			e.remind(err)
			r.due = time.Now().Add(readAgain)
			list = append(list, r)
		}
	}
}

// nextDue is which of the shards is to be read first: of those that do not wait, the first.
func nextDue(list []*reading) (next int) {
	for i, r := range list {
		if r.due.Before(list[next].due) {
			next = i
		}
	}
	return next
}

// pauseReading waits, unless the engine ends.
func (e *engine) pauseReading(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-e.broken:
	case <-ctx.Done():
	}
}

// leave gives up a shard that cannot be read because of err, and of which nothing has been given out. It is taken again, by whoever is
// the first.
func (e *engine) leave(r *reading, err error) {
	e.remind(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.coming, r.t.id)
}

// has says whether a shard is the engine's already.
func (e *engine) has(t *taken) bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.shards[t.id] != nil
}

// readOn reads what is left of a shard over one connection.
func (e *engine) readOn(ctx context.Context, r *reading) error {
	conn, err := e.store.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	r.beside = true
	if !r.begun {
		if err := r.begin(ctx, conn); err != nil {
			return err
		}
	}
	for last := false; !last; {
		if s := e.store; s.pause != nil {
			s.pause()
		}
		a, err := r.next(ctx, conn)
		if err != nil {
			return err
		}
		q := &request{adopt: a, ch: make(chan error, 1)}
		if err := e.enqueue(q, true); err != nil {
			return err
		}
		if err := <-q.ch; err != nil {
			return err
		}
		e.tell(a)
		last = a.last
	}
	e.store.setUntold(r.t.id, false)
	return nil
}

// tell tells cleanup that there is more mail, which has the queue manager hear the whole queue: at once when it is the first of the
// shard, and then when it is as much again as it was told of, so that all telling takes no more than twice the last. What is in doubt
// cleanup hears of in any case.
func (e *engine) tell(a *adoption) {
	r := a.r
	a.found.Report, r.damage = report(r.damage), nil
	first := r.told == 0
	if first && r.t.unclean { // what was on its way in is in the end of the log, which has been read first
		a.found.Unclean, a.found.UncleanParts = true, []int{int(r.t.id)}
	}
	a.found.More = !first && !a.last && r.messages < 2*r.told
	if a.found.More && len(a.found.InDoubt) == 0 && a.found.Report == "" {
		return
	}
	if first || a.last {
		var froms []string
		if r.t.from != "" {
			froms = []string{r.t.from}
		}
		if r.segments > 0 || r.t.from != "" {
			a.found.Summary = tookOver(froms, r.messages, r.records, r.began, !a.last)
		}
	}
	if !a.found.More {
		r.told = max(r.messages, 1)
	}
	if e.opt.Adopted != nil {
		e.opt.Adopted(e, a.found)
	}
}

// maxInDoubt bounds the messages that a Recovery names.
const maxInDoubt = 1000

// inDoubt lists what was in hand of agents. In a shard that is resumed it still is: if an agent has ended meanwhile, the
// queue manager will find nobody who speaks for its delivery, and say so.
func (a *adoption) inDoubt() {
	if a.r.t.resumed {
		return
	}
	for _, number := range slices.Sorted(maps.Keys(a.idx.handed)) {
		l := a.idx.find(number)
		for i := range a.idx.handed[number] {
			h := &a.idx.handed[number][i]
			h.Reported = true
			a.doubt = append(a.doubt, h.Doubt(l.id()))
		}
	}
	a.found.InDoubt = slices.Clip(a.doubt[:min(len(a.doubt), maxInDoubt)]) // others are added
	a.found.MoreInDoubt = len(a.doubt) - len(a.found.InDoubt)
}
