package pgspool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/mail"
	"posthaste/internal/metrics"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// An engine implements storage.Engine. Its goroutines are the committer, which alone writes records and
// changes the index, and the renewer of the leases; Maintain adds the cleaner.
//
// The invariants that its safety rests on are numbered, and named where they are kept:
//
//  1. Acknowledged means that the COMMIT of its transaction was answered with COMMIT.
//  2. Each transaction that writes locks the rows of its shards and finds them to be this node's, with the
//     epoch that the engine was opened with. A takeover changes them, and so waits for the transactions
//     that were there before, and fails those that come after.
//  3. Rows are never changed. No process writes to a segment of an earlier epoch.
//  4. A segment is dropped only when every message that is alive has its state and its content in others, and
//     every end of a message whose records are in older segments is recorded in a newer one.
//  5. After a transaction with an unknown end the engine writes nothing more.
//  6. Content is given out only when its checksum has been verified.
//  7. An agent is told that it may deliver only when that is recorded (2), and while the lease is good.
type engine struct {
	store *Store
	opt   storage.Options
	lease *lease
	found storage.Recovery
	old   oldNodes
	// unclean is what LeaveUnclean has set.
	unclean atomic.Bool

	// mu is held by the committer while it changes what others read, and by others while they read it.
	// It guards the fields from here to err.
	mu     sync.RWMutex
	idx    index
	shards map[uint32]*shard           // that this node owns, by number
	coming map[uint32]*shard           // that it has taken, and has not read yet
	home   *shard                      // new mail goes there
	named  map[uint64]map[uint32]int64 // recipients of messages that have been named as doubtful since the engine was opened, and when, in µs
	stats  stats
	// readSaid is when the log was last told that shards cannot be read on; zero: never.
	readSaid time.Time
	err      error // why nothing is written any more; nil: it is

	// drained is set when the node is to give up what it has: agents get no leave any more, and when nothing is in
	// hand the engine ends.
	drained atomic.Bool
	// turnsAway is set besides when new mail is refused: at once by a node that is to have nothing, by one that keeps something
	// not before it gives up the rest. What comes until then goes with the shard that it is in.
	turnsAway atomic.Bool

	making sync.Mutex // held while a segment is made; taken before mu

	numbers struct { // of messages, reserved for this node
		mu         sync.Mutex
		next, left uint64
	}

	queue   queued
	wake    chan struct{} // capacity 1: the committer is to look
	broken  chan struct{} // closed when err is set
	ended   sync.WaitGroup
	stop    context.CancelFunc // ends the renewer
	working atomic.Int64       // when the transaction under way began, in ns since born; 0: there is none
	born    time.Time

	bal balance // the renewer's own

	// The committer's own.
	conn     *pgx.Conn
	cache    restCache
	g        group
	fullSaid time.Time // when the log was last told that the database has no room; zero: never
}

// queued is what waits for the committer.
type queued struct {
	mu      sync.Mutex
	list    []*request
	urgent  bool // somebody waits
	closing bool
	oldest  time.Time // when the first that has not been taken came; zero: there is none
}

// stats are counters since the engine was opened.
type stats struct {
	transactions, commits, written, copied uint64
}

// A request is a batch on its way.
type request struct {
	b      *batch
	done   func(error) // Post
	ch     chan error  // Commit
	upkeep *copying    // of the cleaner; b is nil
	adopt  *adoption   // b is nil
	err    error
}

// InlineLimit implements storage.Engine.
func (e *engine) InlineLimit() int { return e.opt.InlineLimit }

// NewBatch implements storage.Engine.
func (e *engine) NewBatch() storage.Batch { return new(batch) }

// Commit implements storage.Engine.
func (e *engine) Commit(sb storage.Batch) error {
	b := sb.(*batch)
	r := &request{b: b, ch: make(chan error, 1)}
	var err error
	if b.adds > 0 {
		err = e.Silent()
	}
	if err == nil {
		err = e.upload(b)
	}
	if err == nil {
		err = e.enqueue(r, true)
	}
	if err != nil {
		b.settle()
		return err
	}
	return <-r.ch
}

// Post implements storage.Engine.
func (e *engine) Post(sb storage.Batch, done func(error)) {
	r := &request{b: sb.(*batch), done: done}
	err := e.upload(r.b)
	if err == nil {
		err = e.enqueue(r, false)
	}
	if err != nil {
		r.b.settle()
		done(err)
	}
}

// enqueue hands r to the committer.
func (e *engine) enqueue(r *request, urgent bool) error {
	q := &e.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closing {
		return queue.ErrClosed
	}
	if err := e.Err(); err != nil {
		return err
	}
	q.list = append(q.list, r)
	q.urgent = q.urgent || urgent
	if q.oldest.IsZero() {
		q.oldest = time.Now()
	}
	signal(e.wake)
	return nil
}

// Hurry implements storage.Engine.
func (e *engine) Hurry() {
	e.queue.mu.Lock()
	e.queue.urgent = true
	e.queue.mu.Unlock()
	signal(e.wake)
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// silentTime is how long a transaction may take before new mail is refused.
const silentTime = 10 * time.Second

// A silent is queue.ErrSilent, and says what does not answer: it is no disk of this machine.
type silent string

func (s silent) Error() string      { return "spool: " + string(s) }
func (silent) Is(target error) bool { return target == queue.ErrSilent }

// A handedOver is a silent of a node whose part of the queue others are to have, or have: queue.ErrNotOurs, too.
type handedOver struct{ silent }

func (h handedOver) Is(target error) bool { return target == queue.ErrNotOurs || h.silent.Is(target) }

// Silent implements storage.Engine.
func (e *engine) Silent() error {
	if at := e.working.Load(); at != 0 && time.Since(e.born)-time.Duration(at) >= silentTime {
		return silent(fmt.Sprintf("the database has not answered for %v and more", silentTime))
	}
	if e.turnsAway.Load() {
		return handedOver{"this node's part of the queue is being handed over to other nodes, which take new mail"}
	}
	if e.lease.overdue() {
		return silent(fmt.Sprintf("the database has not renewed this node's lease for %v", e.store.leaseTime()))
	}
	return nil
}

// Lease implements storage.Engine. Once for a million numbers it asks the database.
func (e *engine) Lease(n int) (first uint64, err error) {
	if n < 1 || n > numberStep {
		return 0, fmt.Errorf("%w: %d message numbers", queue.ErrInvalid, n)
	}
	if err := e.Err(); err != nil {
		return 0, err
	}
	x := &e.numbers
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.left < uint64(n) {
		var next int64
		err := e.store.ask(func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, "SELECT nextval('message_number')").Scan(&next)
		})
		if err != nil {
			return 0, fmt.Errorf("%w: %w", silent("the database gives no numbers for messages"), clean(err))
		}
		x.next, x.left = uint64(next), numberStep
	}
	first = x.next
	x.next, x.left = x.next+uint64(n), x.left-uint64(n)
	return first, nil
}

// Find implements storage.Engine.
func (e *engine) Find(number uint64) (queue.Entry, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if l := e.idx.find(number); l != nil {
		return l.entry(e.idx.more[number]), true
	}
	return queue.Entry{}, false
}

// Locate implements storage.Engine.
func (e *engine) Locate(id mail.QueueID) (queue.Entry, bool) {
	_, number, err := id.Parse()
	if err != nil {
		return queue.Entry{}, false
	}
	en, ok := e.Find(number)
	return en, ok && en.ID == id
}

// pageStep is how many chunks of the index are looked at while commits wait.
const pageStep = 8

// some calls f for some messages in the order of their numbers, from a number on, and returns the number to go
// on from. The index is locked meanwhile.
func (e *engine) some(from uint64, f func(*live)) (next uint64, more bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for range pageStep {
		if from, more = e.idx.page(from, f); !more {
			return from, false
		}
	}
	return from, true
}

// Entries implements storage.Engine.
func (e *engine) Entries(yield func(queue.Entry) bool) {
	var list []queue.Entry
	for from, more := uint64(0), true; more; {
		list = list[:0]
		from, more = e.some(from, func(l *live) { list = append(list, l.entry(e.idx.more[l.number])) })
		for _, en := range list {
			if !yield(en) {
				return
			}
		}
	}
}

// Due implements storage.Engine.
func (e *engine) Due(q *queue.DueQuery, yield func(queue.Entry) bool) (last queue.Mark, whole bool) {
	d := queue.NewDueSearch(q)
	for from, more := uint64(0), true; more; {
		from, more = e.some(from, func(l *live) {
			if queue.Name(l.queue) == queue.Deferred {
				d.Show(l.number, l.next)
			}
		})
	}
	return d.Found(q, e.Find, yield)
}

// Page implements storage.Engine.
func (e *engine) Page(cursor uint64, list []queue.Placed) (_ []queue.Placed, next uint64) {
	next, more := e.some(cursor, func(l *live) {
		list = append(list, queue.Placed{Entry: l.entry(e.idx.more[l.number]), Next: l.number + 1})
	})
	if !more {
		next = 0
	}
	return list, next
}

// Hands implements storage.Engine.
func (e *engine) Hands(yield func(queue.Doubt) bool) {
	for _, d := range e.hands() {
		if !yield(d) {
			return
		}
	}
}

// hands is a copy of what agents have in hand, so that yield does not hold up the writer.
func (e *engine) hands() (list []queue.Doubt) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, number := range slices.Sorted(maps.Keys(e.idx.handed)) {
		l := e.idx.find(number)
		for i := range e.idx.handed[number] {
			if h := &e.idx.handed[number][i]; l != nil && !e.isNamed(number, h) {
				list = append(list, h.Doubt(l.id()))
			}
		}
	}
	return list
}

// InHand implements storage.Engine.
func (e *engine) InHand(id mail.QueueID, rcpts []int) (in []int) {
	_, number, err := id.Parse()
	if err != nil {
		return nil
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	has := map[int]bool{}
	for _, h := range e.idx.handed[number] {
		for _, i := range h.Rcpts {
			has[int(i)] = true
		}
	}
	for _, i := range rcpts {
		if has[i] {
			in = append(in, i)
		}
	}
	return in
}

// Recovery implements storage.Engine.
func (e *engine) Recovery() storage.Recovery { return e.found }

// Broken implements storage.Engine.
func (e *engine) Broken() <-chan struct{} { return e.broken }

// Err implements storage.Engine.
func (e *engine) Err() error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.err
}

// fail ends all writing (invariant 5). The first reason counts, and is returned.
func (e *engine) fail(err error) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err == nil {
		e.err = err
		close(e.broken)
		signal(e.wake)
	}
	return e.err
}

// Offer implements storage.Engine.
func (e *engine) Offer(o *metrics.Offer) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	var bytes, alive int64
	segments := 0
	for _, sh := range e.shards {
		segments += len(sh.segs)
		for _, s := range sh.segs {
			bytes, alive = bytes+s.bytes, alive+s.live
		}
	}
	o.Gauge(metrics.SpoolMessages, float64(e.idx.n))
	o.Gauge(metrics.SpoolLiveBytes, float64(alive))
	o.Gauge(metrics.SpoolDiskBytes, float64(bytes))
	o.Gauge(metrics.SpoolSegments, float64(segments), "used")
	o.Total(metrics.SpoolBatches, float64(e.stats.transactions))
	o.Total(metrics.SpoolCommits, float64(e.stats.commits))
	o.Total(metrics.SpoolWrittenBytes, float64(e.stats.written))
	o.Total(metrics.SpoolCopiedBytes, float64(e.stats.copied))
}

// noteClosed records that the engine has ended in order. If it cannot, the next one takes it for one that was killed.
func (e *engine) noteClosed(ctx context.Context) {
	// Of one that has not been read to its end, not all that was in hand of the former owner's agents is known to be doubtful.
	shards := e.whole()
	if len(shards) == 0 {
		return
	}
	err := e.transact(ctx, e.conn, shards, func() error {
		for _, sh := range shards {
			_, err := run(ctx, e.conn, fmt.Sprintf("INSERT INTO closed VALUES (%d, %d) ON CONFLICT (shard) DO UPDATE SET epoch = excluded.epoch", sh.id, sh.epoch))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil && !errors.Is(err, queue.ErrNotOurs) { // another node has it, and had to guess
		e.opt.Warn("spool: the orderly end of the queue cannot be recorded: %v", err)
	}
}

// Doubtful implements storage.Engine.
func (e *engine) Doubtful(id mail.QueueID, rcpts []int) {
	_, number, err := id.Parse()
	if err != nil {
		return
	}
	now := e.store.now().UnixMicro()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.idx.handed[number]) == 0 {
		return
	}
	if e.named == nil {
		e.named = map[uint64]map[uint32]int64{}
	}
	if e.named[number] == nil {
		e.named[number] = map[uint32]int64{}
	}
	for _, i := range rcpts {
		e.named[number][uint32(i)] = now
	}
}

// isNamed says whether a delivery of message number is known to be doubtful. The caller holds mu.
func (e *engine) isNamed(number uint64, h *handing) bool {
	return h.Reported || slices.ContainsFunc(h.Rcpts, func(i uint32) bool { at, ok := e.named[number][i]; return ok && at >= h.At })
}

// closeTime bounds how long Close waits for the database.
const closeTime = 5 * time.Second

// LeaveUnclean implements storage.Engine.
func (e *engine) LeaveUnclean() { e.unclean.Store(true) }

// Close implements storage.Engine. The lease goes on until it runs out, so that a successor on this node has the
// queue again before another node may.
func (e *engine) Close() error {
	e.queue.mu.Lock()
	again := e.queue.closing
	e.queue.closing = true
	e.queue.mu.Unlock()
	if again {
		return queue.ErrClosed
	}
	signal(e.wake)
	e.ended.Wait()
	// Those who wait for a lease that nobody renews any more.
	for _, r := range e.lease.takeDeferred() {
		r.finish(queue.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	err := e.Err()
	if err == nil && !e.unclean.Load() {
		e.noteClosed(ctx)
	}
	e.conn.Close(ctx) // all that it has done is committed
	e.fail(queue.ErrClosed)
	if errors.Is(err, queue.ErrClosed) {
		return nil
	}
	return err
}
