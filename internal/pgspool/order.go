package pgspool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/storage"
)

// orderTable has what was ordered of nodes that did not answer. A row goes when its order has been carried out: who does that
// holds the row's lock meanwhile. So an order is carried out once, unless the database ends the session in between.
const orderTable = `CREATE TABLE IF NOT EXISTS node_order (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, given timestamptz NOT NULL, until timestamptz NOT NULL,
	asker text NOT NULL, node text NOT NULL, shard integer NOT NULL, who text NOT NULL, what text NOT NULL, open boolean NOT NULL, kind integer NOT NULL, request bytea NOT NULL)`

// Owned implements storage.Owner.
func (e *engine) Owned() (list []storage.Ownership) {
	for _, sh := range e.whole() {
		list = append(list, storage.Ownership{Part: int(sh.id), Epoch: sh.epoch})
	}
	return list
}

// Reading implements storage.Owner.
func (e *engine) Reading() (list []int) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for id := range e.coming {
		list = append(list, int(id))
	}
	for id, sh := range e.shards {
		if sh.reading != nil {
			list = append(list, int(id))
		}
	}
	slices.Sort(list)
	return list
}

// Leave implements storage.Orderer.
func (r *reader) Leave(ctx context.Context, list []storage.Order) error {
	for i := range list {
		if o := &list[i]; len(o.Payload) > storage.CallSize || len(o.By) > storage.CallBy {
			return storage.ErrNotCarriedOut("it is too long to be kept as an order")
		}
	}
	room := true
	err := r.store.askOnce(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		if err := addTables(ctx, conn); err != nil {
			return fmt.Errorf("%w: %w", errNotAsked, err)
		}
		return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) (err error) {
			room, err = leaveIn(ctx, tx, r.store.node, list)
			if err == nil && !room {
				err = errNotAsked // takes it back
			}
			return err
		})
	})
	switch {
	case !room:
		return storage.ErrNotCarriedOut("too many orders wait already")
	case errors.Is(err, errNotAsked) || sqlState(err) != "" && !strings.HasPrefix(sqlState(err), classIntervention):
		return storage.ErrNotCarriedOut(clean(err).Error())
	case err != nil:
		return fmt.Errorf("whether it is ordered is not known: %w", clean(err))
	}
	return nil
}

// leaveIn writes orders within a transaction, unless there is no room for them.
func leaveIn(ctx context.Context, tx pgx.Tx, node string, list []storage.Order) (room bool, err error) {
	// An operator who is told that something is ordered goes away: it must be on the standby, too.
	if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit TO on"); err != nil {
		return false, err
	}
	// Those of one request are either all open or none. Two requests at the same time may go a little beyond the bound.
	most, have := storage.MaxOrders, 0
	if list[0].Open {
		most = storage.MaxOpenOrders
	}
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM node_order WHERE asker = $1 AND open = $2", node, list[0].Open).Scan(&have); err != nil || have+len(list) > most {
		return false, err
	}
	var b pgx.Batch
	for i := range list {
		o := &list[i]
		// The time is sent as a length, since the clocks of nodes are compared with nothing.
		keep := storage.OrderTime
		if !o.Until.IsZero() {
			keep = max(min(keep, time.Until(o.Until)), time.Second)
		}
		// What is there already is as good as ordered: only flushes are open, and to flush twice is to flush.
		b.Queue(`INSERT INTO node_order (given, until, asker, node, shard, who, what, open, kind, request)
			SELECT clock_timestamp(), clock_timestamp() + make_interval(secs => $1), $2, $3, $4, $5, $6, $7, $8, $9
			WHERE NOT ($7 AND EXISTS (SELECT FROM node_order WHERE node = $3 AND shard = $4 AND kind = $8 AND request = $9))`,
			keep.Seconds(), node, o.Node, o.Part, plainText(o.By), plainText(o.What), o.Open, int(o.Kind), append([]byte{}, o.Payload...))
	}
	if err := tx.SendBatch(ctx, &b).Close(); err != nil {
		return false, err
	}
	_, err = tx.Exec(ctx, "SELECT pg_notify($1, '')", callChannel)
	return true, err
}

// Carry implements storage.Orderer.
func (r *reader) Carry(ctx context.Context, parts func() ([]int, error), f func(context.Context, *storage.Order) error) error {
	there := false
	err := r.store.ask(func(ctx context.Context, conn *pgx.Conn) error {
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM node_order)").Scan(&there); err != nil || !there {
			return err
		}
		// Not in the transaction that carries one out: nobody is to wait for that but who wants the same order. One that somebody is just
		// carrying out goes with that, or later.
		_, err := conn.Exec(ctx, "DELETE FROM node_order WHERE number IN (SELECT number FROM node_order WHERE until < clock_timestamp() FOR UPDATE SKIP LOCKED)")
		return err
	})
	if sqlState(err) == undefinedTable {
		return nil // no node has left any
	}
	if err != nil || !there {
		return clean(err)
	}
	own, err := parts()
	if err != nil {
		return err
	}
	for more := true; more && err == nil && ctx.Err() == nil; {
		more, err = r.store.carryOne(ctx, own, f)
	}
	return err
}

// Waits implements storage.Orderer.
func (r *reader) Waits(ctx context.Context, part int) (there bool, err error) {
	err = r.store.ask(func(limited context.Context, conn *pgx.Conn) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return conn.QueryRow(limited, "SELECT EXISTS (SELECT FROM node_order WHERE shard = $1 AND until >= clock_timestamp())", part).Scan(&there)
	})
	if sqlState(err) == undefinedTable {
		return false, nil // no node has left any
	}
	return there, clean(err)
}

// carryOne carries the oldest order out that is for this node, or for a part in own. more is false if there is none.
func (s *Store) carryOne(ctx context.Context, own []int, f func(context.Context, *storage.Order) error) (more bool, err error) {
	pool, err := s.readers()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, storage.OrderPatience+readTime)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, clean(err)
	}
	defer conn.Release()
	err = pgx.BeginFunc(ctx, conn.Conn(), func(tx pgx.Tx) error {
		o, err := orderIn(ctx, tx, s.node, own)
		if o == nil || err != nil {
			return clean(err)
		}
		more = true
		calling, end := context.WithTimeout(ctx, storage.OrderPatience)
		defer end()
		if err := f(calling, o); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "DELETE FROM node_order WHERE number = $1", o.Number)
		return clean(err)
	})
	return more, err
}

// orderIn finds that order, and locks it until the transaction ends; nil: there is none, or somebody else has just carried it out.
func orderIn(ctx context.Context, tx pgx.Tx, node string, own []int) (*storage.Order, error) {
	// The session waits for the order to be carried out, for longer than other sessions of ours may. The lock of one that hangs
	// keeps others from this order so long, and from nothing else.
	_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL synchronous_commit TO on; SET LOCAL idle_in_transaction_session_timeout = %d",
		(storage.OrderPatience+readTime).Milliseconds()))
	if err != nil {
		return nil, err
	}
	ids := make([]int32, len(own))
	for i, id := range own {
		ids[i] = int32(id)
	}
	o, kind := new(storage.Order), 0
	err = tx.QueryRow(ctx, `SELECT number, given, asker, node, shard, who, what, open, kind, request FROM node_order
		WHERE until >= clock_timestamp() AND (shard = 0 AND node = $1 OR shard = ANY($2)) ORDER BY number LIMIT 1 FOR UPDATE`, node, ids).
		Scan(&o.Number, &o.Given, &o.From, &o.Node, &o.Part, &o.By, &o.What, &o.Open, &kind, &o.Payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	o.Kind = uint16(kind)
	return o, err
}

// An Ordered is an order that waits, as a Status has it.
type Ordered struct {
	Number int64
	Ago    time.Duration // since when
	By, On string        // who gave it, and on which node
	Node   string        // that did not answer; "": nobody had the shard
	Shard  int           // 0: only the node carries it out
	What   string
}

// maxOrdered bounds the orders that a Status names.
const maxOrdered = 100

// ordered lists the oldest orders, and counts all.
func ordered(ctx context.Context, conn *pgx.Conn) (list []Ordered, all int, err error) {
	if err := conn.QueryRow(ctx, "SELECT count(*) FROM node_order").Scan(&all); err != nil {
		return nil, 0, err
	}
	rows, _ := conn.Query(ctx, `SELECT number, extract(epoch FROM clock_timestamp() - given)::float8, who, asker, node, shard, what FROM node_order
		ORDER BY number LIMIT $1`, maxOrdered) // its error is that of reading the rows
	var o Ordered
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&o.Number, &seconds, &o.By, &o.On, &o.Node, &o.Shard, &o.What}, func() error {
		o.Ago = time.Duration(seconds * float64(time.Second))
		list = append(list, o)
		return nil
	})
	return list, all, err
}
