package pgspool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
)

// A share is what a node may have of the queue now.
type share struct {
	most    int  // shards
	drained bool // it is to have none
}

// share asks how many shards each node may have: all of them, divided by the nodes that are alive, those that
// stand by among them, rounded up.
func (s *Store) share(ctx context.Context, conn *pgx.Conn) (sh share, err error) {
	var shards, nodes int
	err = conn.QueryRow(ctx, `SELECT (SELECT count(*) FROM shard), count(*) FILTER (WHERE NOT drained AND (name = $1 OR seen > clock_timestamp() - make_interval(secs => $2))),
		coalesce(bool_or(drained) FILTER (WHERE name = $1), false) FROM node`, s.node, s.leaseTime().Seconds()).Scan(&shards, &nodes, &sh.drained)
	sh.most = (shards + max(nodes, 1) - 1) / max(nodes, 1)
	if sh.drained {
		sh.most = 0
	}
	return sh, err
}

// takeFor bounds how long shards are taken before the leases of the first are renewed.
func (s *Store) takeFor() time.Duration { return s.leaseTime() / 3 }

// takeFree takes shards that are free, until the node has most of them, its own first: those in have it
// has already.
func (s *Store) takeFree(ctx context.Context, conn *pgx.Conn, most int, have []*shard) (list []*taken, err error) {
	rows, _ := conn.Query(ctx, `SELECT id FROM shard JOIN lease ON shard = id WHERE node IS NULL OR node = $1 OR until < clock_timestamp()
		ORDER BY node IS NOT NULL AND node = $1 DESC, id`, s.node) // its error is that of reading the rows
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		return nil, err
	}
	for began := time.Now(); len(ids) > 0; ids = ids[1:] {
		// What commits are too slow for is taken a second later: the leases of the first must be renewed.
		id := ids[0]
		if len(have)+len(list) >= most || time.Since(began) > s.takeFor() {
			break
		}
		if slices.ContainsFunc(have, func(sh *shard) bool { return int(sh.id) == id }) {
			continue
		}
		got, err := s.takeOne(ctx, conn, id)
		if err != nil {
			return list, err
		}
		if got != nil {
			list = append(list, got)
		}
	}
	return list, nil
}

// takeOne is take. When a transaction of the former owner is in the way, the database ends it, if the
// lease has run out: its process hangs, or its machine is cut off, and the row would stay locked until the network
// notices.
func (s *Store) takeOne(ctx context.Context, conn *pgx.Conn, id int) (*taken, error) {
	got, err := s.take(ctx, conn, id)
	if sqlState(err) != lockTimeout {
		return got, err
	}
	_, err = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND usename = current_user AND application_name =
			(SELECT left('posthaste ' || node, 63) FROM shard JOIN lease ON shard = id WHERE id = $1 AND until < clock_timestamp())`, id)
	if err != nil {
		return nil, err
	}
	return s.take(ctx, conn, id)
}

const (
	// steadyTime is how long a node must have more than its share before it gives some up: a node that
	// has just been seen may be gone again, and to hand over takes a moment in which this node takes no mail.
	steadyTime = 5 * time.Second
	// drainTime is how long deliveries under way may take when shards are handed over. What then has no
	// outcome is doubtful.
	drainTime = 30 * time.Second
)

// A balance is what the renewer remembers of how the nodes stand. It belongs to that goroutine.
type balance struct {
	over     time.Time // since when the node has more than its share; zero: it has not
	handOver time.Time // when it began to give up shards; zero: it does not
	keep     int       // how many it keeps then
}

// balance compares what the node has with its share, after each renewal: it takes what is free, and gives up
// what is too much. The renewer calls it. life ends with the engine.
func (e *engine) balance(life, ctx context.Context, conn *pgx.Conn) {
	sh, err := e.store.share(ctx, conn)
	if err != nil {
		return // the next renewal tells
	}
	b, held := &e.bal, e.held()
	switch {
	case !b.handOver.IsZero():
		e.goOnHandingOver(ctx, conn)
	case sh.drained:
		e.beginHandOver(0)
	case len(held) > sh.most && b.over.IsZero():
		b.over = time.Now()
	case len(held) > sh.most && time.Since(b.over) >= steadyTime:
		e.beginHandOver(sh.most)
	case len(held) < sh.most:
		e.takeMore(life, ctx, conn, sh.most, held)
	}
	if len(held) <= sh.most {
		b.over = time.Time{}
	}
}

// beginHandOver has agents get no leave any more, and new mail be refused, if nothing is kept: it goes to other nodes then.
func (e *engine) beginHandOver(keep int) {
	e.bal.handOver, e.bal.keep = time.Now(), keep
	e.lease.mu.Lock()
	e.lease.ending = true
	e.lease.mu.Unlock()
	e.turnsAway.Store(keep == 0)
	e.drained.Store(true)
}

// goOnHandingOver waits until no agent has anything in hand, gives up the shards, and ends the engine. cleanup
// opens it again with what the node keeps.
func (e *engine) goOnHandingOver(ctx context.Context, conn *pgx.Conn) {
	if e.busy() && time.Since(e.bal.handOver) < drainTime {
		return
	}
	held := e.held()
	surplus := held[min(e.bal.keep, len(held)):]
	e.turnsAway.Store(true) // the moment until the queue is open again
	if err := e.store.release(ctx, conn, surplus); err != nil {
		return // it is tried again after the next renewal
	}
	err := e.fail(fmt.Errorf("%w: %d of %d shards have been handed over to other nodes", queue.ErrNotOurs, len(surplus), len(held)))
	for _, r := range e.lease.takeDeferred() {
		r.finish(err)
	}
}

// busy says whether agents have deliveries under way, as far as it is known. Those that are named as doubtful are not:
// nobody will say any more what came of them.
func (e *engine) busy() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for number, list := range e.idx.handed {
		if slices.ContainsFunc(list, func(h handing) bool { return !e.isNamed(number, &h) }) {
			return true
		}
	}
	return false
}

// release makes shards nobody's. Nothing can be written to them by this node from then on.
func (s *Store) release(ctx context.Context, conn *pgx.Conn, shards []*shard) error {
	if len(shards) == 0 {
		return nil
	}
	return s.transact(ctx, conn, shards, func() error {
		for _, sh := range shards {
			_, err := run(ctx, conn, fmt.Sprintf("UPDATE shard SET node = NULL WHERE id = %d; UPDATE lease SET until = '-infinity' WHERE shard = %d", sh.id, sh.id))
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// releaseLeft makes shards nobody's that this node's former process has left in order, and that this one does not take, since it has
// its share without them. The next process would go on with them as if agents had been heard in between; and no other node need
// wait for their leases to run out.
func (s *Store) releaseLeft(ctx context.Context, conn *pgx.Conn) error {
	// One that has been taken has another epoch by now.
	rows, _ := conn.Query(ctx, `SELECT id, shard.epoch FROM shard JOIN closed ON closed.shard = id AND closed.epoch = shard.epoch
		WHERE node = $1 ORDER BY id`, s.node) // its error is that of reading the rows
	var list []*shard
	var id int
	var epoch int64
	_, err := pgx.ForEachRow(rows, []any{&id, &epoch}, func() error {
		list = append(list, &shard{id: uint32(id), epoch: epoch})
		return nil
	})
	if err != nil {
		return err
	}
	for _, sh := range list {
		// Each by itself: another node may just have taken one.
		if err := s.release(ctx, conn, []*shard{sh}); err != nil && !errors.Is(err, queue.ErrNotOurs) {
			return err
		}
	}
	return nil
}

// Drain has a node give up its shards, and take none, or ends that. The error says that there is no such node.
func (s *Store) Drain(ctx context.Context, node string, on bool) error {
	conn, err := s.look(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	tag, err := conn.Exec(ctx, "UPDATE node SET drained = $2 WHERE name = $1", node, on)
	if err == nil && tag.RowsAffected() == 0 {
		return errors.New("there is no node of this name")
	}
	return clean(err)
}
