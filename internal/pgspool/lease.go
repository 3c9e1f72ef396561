package pgspool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
)

const (
	// defaultLeaseTime is cluster_lease_time, where main.cf does not set it.
	defaultLeaseTime = 3 * time.Second
	// renewPeriod is how often a lease is renewed.
	renewPeriod = time.Second
	// takeTime is how long a takeover waits for transactions of the former owner before it has the
	// database end them. They cannot be of any use: the lease has run out.
	takeTime = 500 * time.Millisecond
)

// A lease is what this node knows of the leases of its shards, which are renewed together. Its methods may
// be called concurrently. Time is this process's monotonic clock: the renewal began no later than the database's
// clock was read for it, so that the lease is good for at least so long.
type lease struct {
	mu      sync.Mutex
	renewed time.Time     // when the last successful renewal began
	ending  bool          // nobody gets leave any more
	waiting []*request    // leave to deliver, recorded, that waits for the lease to be good again
	lasts   time.Duration // Store.leaseTime
	margin  time.Duration // Store.margin
}

// leaseTime is how long a lease is good after it was renewed, by the database's clock.
func (s *Store) leaseTime() time.Duration {
	if s.lease == 0 {
		return defaultLeaseTime
	}
	return s.lease
}

// margin is how much earlier than its lease ends this node stops to begin deliveries, by its own monotonic clock. It is a part
// of that time, since clocks that run at different speeds move apart by a part of it.
func (s *Store) margin() time.Duration {
	if s.plant.noMargin {
		return 0
	}
	return s.leaseTime() / 3
}

// renewTime bounds one attempt to renew the leases: after it, deliveries do not begin any more.
func (s *Store) renewTime() time.Duration { return s.leaseTime() * 2 / 3 }

// good says whether deliveries may begin. mu is held.
func (l *lease) good() bool { return time.Since(l.renewed) < l.lasts-l.margin }

// overdue says that the lease has run out, or nearly, by this node's clock.
func (l *lease) overdue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.renewed) >= l.lasts
}

// postpone keeps r until the lease is good. It is false when it is good now.
func (l *lease) postpone(r *request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.good() {
		return false
	}
	l.waiting = append(l.waiting, r)
	return true
}

// takeDeferred takes those that wait.
func (l *lease) takeDeferred() (list []*request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, l.waiting = l.waiting, nil
	return list
}

// extend notes a renewal that began at began, and returns those who may go on now.
func (l *lease) extend(began time.Time) (list []*request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed = began
	if l.good() && !l.ending {
		list, l.waiting = l.waiting, nil
	}
	return list
}

// renew is the renewer's goroutine. It has a connection of its own, so that a long transaction does not keep
// it waiting.
func (e *engine) renew(ctx context.Context) {
	t := time.NewTicker(renewPeriod)
	defer t.Stop()
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			conn.Close(context.Background())
		}
	}()
	said := false // that it cannot be renewed
	for {
		select {
		case <-t.C:
		case <-e.broken:
			return
		case <-ctx.Done():
			return
		}
		if e.Err() != nil || ctx.Err() != nil {
			return // of several reasons to go on the tick was taken
		}
		// Of the servers in the URL the first may be dead, and say nothing for connectTime: the time for the
		// attempt begins when another has let us in.
		var err error
		if conn == nil || conn.IsClosed() {
			conn, err = e.store.connect(ctx)
		}
		began := time.Now()
		attempt, cancel := context.WithTimeout(ctx, e.store.renewTime())
		if err == nil {
			err = e.store.renewLeases(attempt, conn, e.held())
		}
		if err == nil {
			e.balance(ctx, attempt, conn)
		}
		cancel()
		if errors.Is(err, queue.ErrBroken) && conn != nil {
			conn.Close(ctx) // it may be in the middle of the transaction, which keeps rows locked
		}
		switch {
		case err == nil:
			said = false
			for _, r := range e.lease.extend(began) {
				r.finish(nil)
			}
		case errors.Is(err, queue.ErrNotOurs):
			err = e.fail(err)
			for _, r := range e.lease.takeDeferred() {
				r.finish(err)
			}
			return
		case !said && e.lease.overdue() && ctx.Err() == nil:
			said = true
			e.opt.Warn("spool: the lease cannot be renewed, and mail is refused until it is: %v", err)
		}
	}
}

// owned is the shards that the engine has.
func (e *engine) owned() (list []*shard) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.SortedFunc(maps.Values(e.shards), byID)
}

// whole is those that have been read to their end.
func (e *engine) whole() []*shard {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return slices.SortedFunc(func(yield func(*shard) bool) {
		for _, sh := range e.shards {
			if sh.reading == nil && !yield(sh) {
				return
			}
		}
	}, byID)
}

// byID is the order of shards in statements: always the same, so that a simulation is repeated as it was.
func byID(a, b *shard) int { return int(a.id) - int(b.id) }

// held is those, and the ones that are being read.
func (e *engine) held() (list []*shard) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	list = slices.AppendSeq(slices.Collect(maps.Values(e.shards)), maps.Values(e.coming))
	slices.SortFunc(list, byID)
	return list
}

// renewLeases extends the leases of shards that are this node's. A takeover locks a shard's row before it looks
// at the lease: so does this.
func (s *Store) renewLeases(ctx context.Context, conn *pgx.Conn, shards []*shard) error {
	return s.transact(ctx, conn, shards, func() error {
		ids := make([]string, len(shards))
		for i, sh := range shards {
			ids[i] = fmt.Sprint(sh.id)
		}
		_, err := run(ctx, conn, fmt.Sprintf("UPDATE lease SET until = clock_timestamp() + interval '%d milliseconds' WHERE shard IN (%s); UPDATE node SET seen = clock_timestamp() WHERE name = %s",
			s.leaseTime().Milliseconds(), strings.Join(ids, ", "), quote(s.node)))
		return err
	})
}

// A taken is a shard that a node has just come to own.
type taken struct {
	shard
	from string // whose it was; "": nobody's, or this node's
	own  bool   // it was this node's
	// It was somebody's, who has not given it back, nor ended in order: this process's predecessor, or another node.
	unclean bool
	// It was this node's until now, and either this process had it, or its predecessor has ended in order. What agents
	// had in hand they still have.
	resumed bool
}

// register makes this node known. The error, of another installation that has the same name and is alive, is
// for a person to mend.
func (s *Store) register(ctx context.Context, conn *pgx.Conn) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // nothing after Commit
	if _, err := tx.Exec(ctx, "INSERT INTO node VALUES ($1, $2, clock_timestamp()) ON CONFLICT (name) DO NOTHING", s.node, s.instance); err != nil {
		return err
	}
	var instance string
	var alive bool
	if err := tx.QueryRow(ctx, "SELECT instance, seen > clock_timestamp() - interval '10 seconds' FROM node WHERE name = $1 FOR UPDATE", s.node).Scan(&instance, &alive); err != nil {
		return err
	}
	if instance != s.instance && alive {
		return fmt.Errorf("cluster_node_name = %s: another installation has this name (%s), and was seen less than 10 seconds ago", s.node, instance)
	}
	if err := s.publishSettings(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "UPDATE node SET instance = $2, seen = clock_timestamp() WHERE name = $1", s.node, s.instance); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// take makes a shard this node's, with the next epoch, if it is free: it is nobody's or this node's, or its
// lease has run out. Otherwise it returns nil.
func (s *Store) take(ctx context.Context, conn *pgx.Conn, id int) (got *taken, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) // nothing after Commit
	if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", takeTime.Milliseconds())); err != nil {
		return nil, err
	}
	var owner string
	var epoch int64
	var free bool
	// The row is locked before the lease is looked at, in a statement of its own, which sees what was
	// committed meanwhile.
	if err := tx.QueryRow(ctx, "SELECT coalesce(node, ''), epoch FROM shard WHERE id = $1 FOR UPDATE", id).Scan(&owner, &epoch); err != nil {
		return nil, err
	}
	if err := tx.QueryRow(ctx, "SELECT until < clock_timestamp() FROM lease WHERE shard = $1", id).Scan(&free); err != nil {
		return nil, err
	}
	if owner != "" && owner != s.node && !free {
		return nil, nil
	}
	var orderly bool
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM closed WHERE shard = $1 AND epoch = $2)", id, epoch).Scan(&orderly); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, "UPDATE shard SET node = $2, epoch = epoch + 1 WHERE id = $1", id, s.node); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, "UPDATE lease SET until = clock_timestamp() + make_interval(secs => $2) WHERE shard = $1", id, s.leaseTime().Seconds()); err != nil {
		return nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		return nil, err
	}
	got = &taken{shard: shard{id: uint32(id), epoch: epoch + 1, segs: map[uint32]*segment{}}, own: owner == s.node, unclean: owner != "" && !orderly,
		resumed: owner == s.node && (orderly && s.beforeOpen() || s.had(uint32(id), epoch))}
	if owner != s.node {
		got.from = owner
	}
	if got.resumed {
		s.remember(got) // should it be taken once more before it has been read: agents have still what they had
	}
	return got, nil
}
