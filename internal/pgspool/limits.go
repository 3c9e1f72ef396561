package pgspool

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/nodeshare"
)

// The tables of package nodeshare. They are small, and written with each exchange.
const (
	nodeShareTable  = `CREATE TABLE IF NOT EXISTS node_share (node text PRIMARY KEY, until timestamptz NOT NULL, alone boolean NOT NULL)`
	limitShareTable = `CREATE TABLE IF NOT EXISTS limit_share (node text NOT NULL, key text NOT NULL, share integer NOT NULL, demand integer NOT NULL, PRIMARY KEY (node, key))`
)

// nodeVersionTable has which nodes say of themselves that they share the limits that destinations have in common (nodeshare.Version), and
// until when they say so. A program of before says nothing, so that a node that goes back to one is found out.
const nodeVersionTable = `CREATE TABLE IF NOT EXISTS node_version (node text PRIMARY KEY, until timestamptz NOT NULL, sharing integer NOT NULL)`

// exchangeTime bounds an exchange. What comes later is of no use.
const exchangeTime = nodeshare.Lease - nodeshare.Margin

// Exchange implements storage.Sharer.
func (e *engine) Exchange(q *nodeshare.Request) (nodeshare.Reply, error) {
	r, err := e.store.exchange(q)
	if err == nil {
		e.sayOld(q.Old)
	}
	return r, err
}

// sayOld tells of nodes of an old version, when there are others than before. One that has just begun is not told of: twice in a row, at
// least, it must have been there.
func (e *engine) sayOld(nodes []string) {
	e.old.mu.Lock()
	defer e.old.mu.Unlock()
	same := slices.Equal(nodes, e.old.last)
	e.old.last = nodes
	if !same {
		e.old.seen = 0
		return
	}
	if e.old.seen++; e.old.seen != oldTimes || slices.Equal(nodes, e.old.said) {
		return
	}
	e.old.said = nodes
	if len(nodes) > 0 {
		e.opt.Warn("spool: node %s is of a version that shares the limits of destinations only: until it is brought up to date it counts as if it had an equal part of each limit of domains, sites, providers, sources and tenants", strings.Join(nodes, ", "))
	}
}

// oldTimes is after how many exchanges a node is said to be of an old version.
const oldTimes = 5

// oldNodes is which nodes are of an old version.
type oldNodes struct {
	mu         sync.Mutex
	last, said []string // in the last exchange, and in the log
	seen       int      // in how many exchanges they have been the same since
}

// exchange makes an exchange of this node's, one at a time, in the order in which they come: one that the queue manager has
// given up must not lower afterwards what a later one has got.
func (s *Store) exchange(q *nodeshare.Request) (r nodeshare.Reply, err error) {
	pool, err := s.readers()
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), exchangeTime)
	defer cancel()
	s.exchanging.Lock() // for no longer than an exchange may take
	defer s.exchanging.Unlock()
	if err := ctx.Err(); err != nil {
		return r, clean(err)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return r, clean(err)
	}
	defer conn.Release()
	q.Node = s.node
	err = pgx.BeginFunc(ctx, conn.Conn(), func(tx pgx.Tx) error {
		r, err = exchangeIn(ctx, tx, q, s.shareTime(), s.now().Unix()/86400)
		return err
	})
	return r, clean(err)
}

// shareTime is nodeshare.Lease.
func (s *Store) shareTime() time.Duration {
	if s.plant.noWait {
		return nodeshare.Lease - nodeshare.Margin - 2*time.Second
	}
	return nodeshare.Lease
}

// exchangeIn is exchange within a transaction. lasts is nodeshare.Lease, and today the number of the day by the node's clock. Each statement sees what was committed before it: the lock comes first.
func exchangeIn(ctx context.Context, tx pgx.Tx, q *nodeshare.Request, lasts time.Duration, today int64) (r nodeshare.Reply, err error) {
	// Shares that are forgotten when the server loses its power would be given out twice. One exchange at a time:
	// the only row of this table is the lock.
	_, err = tx.Exec(ctx, fmt.Sprintf("SET LOCAL synchronous_commit TO on; SET LOCAL lock_timeout = %d; SELECT number FROM version FOR UPDATE", exchangeTime.Milliseconds()))
	if err != nil {
		return r, err
	}
	// What a node had got of a day counts until that is over, by clocks that may differ by another day, whether the node lives or not.
	if _, err = tx.Exec(ctx, `DELETE FROM limit_share WHERE CASE WHEN key LIKE $1
		THEN split_part(key, ' ', 2)::bigint < floor(extract(epoch FROM clock_timestamp()) / 86400)::bigint - 1
		ELSE node NOT IN (SELECT node FROM node_share WHERE until > clock_timestamp()) END`, nodeshare.DayPrefix+"%"); err != nil {
		return r, err
	}
	if err := tx.QueryRow(ctx, "SELECT floor(extract(epoch FROM clock_timestamp()) / $1)::bigint", nodeshare.TurnTime.Seconds()).Scan(&q.Turn); err != nil {
		return r, err
	}
	nodes, rows, err := othersIn(ctx, tx, q)
	if err != nil {
		return r, err
	}
	for _, n := range nodes {
		if n.Old {
			q.Old = append(q.Old, n.Name)
		}
	}
	r = nodeshare.Exchange(q, nodes, rows)
	return r, noteIn(ctx, tx, q, &r, lasts, today)
}

// othersIn reads what other nodes have.
func othersIn(ctx context.Context, tx pgx.Tx, q *nodeshare.Request) (nodes []nodeshare.Node, rows []nodeshare.Row, err error) {
	// One that has a part of the queue and does not exchange anything is of an even older version, or has just begun.
	list, _ := tx.Query(ctx, `SELECT n.node, coalesce(bool_or(n.alone), false), NOT EXISTS (SELECT FROM node_version v WHERE v.node = n.node AND v.until > clock_timestamp() AND v.sharing >= $2)
		FROM (SELECT node, alone FROM node_share WHERE until > clock_timestamp() UNION ALL
			SELECT node, false FROM shard JOIN lease ON shard = id WHERE until > clock_timestamp()) n
		WHERE n.node <> $1 GROUP BY n.node ORDER BY n.node`, q.Node, nodeshare.Version) // its error is that of reading the rows
	nodes, err = pgx.CollectRows(list, pgx.RowToStructByPos[nodeshare.Node])
	if err != nil {
		return nil, nil, err
	}
	keys := make([]string, 0, len(q.Claims))
	for i := range q.Claims {
		if key := q.Claims[i].Key; len(nodes) > 0 || nodeshare.IsDay(key) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nodes, nil, nil
	}
	list, _ = tx.Query(ctx, "SELECT node, key, share, demand FROM limit_share WHERE node <> $1 AND key = ANY($2) ORDER BY node, key", q.Node, keys)
	if rows, err = pgx.CollectRows(list, pgx.RowToStructByPos[nodeshare.Row]); err != nil || !q.Fresh {
		return nodes, rows, err
	}
	own, err := ownIn(ctx, tx, q.Node, keys)
	return nodes, append(rows, own...), err
}

// ownIn reads what this node itself has had of days.
func ownIn(ctx context.Context, tx pgx.Tx, node string, keys []string) ([]nodeshare.Row, error) {
	days := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !nodeshare.IsDay(key) })
	list, _ := tx.Query(ctx, "SELECT node, key, share, demand FROM limit_share WHERE node = $1 AND key = ANY($2)", node, days) // its error is that of reading the rows
	return pgx.CollectRows(list, pgx.RowToStructByPos[nodeshare.Row])
}

// noteIn writes what this node has from now on. Rows that stay as they are are not written.
func noteIn(ctx context.Context, tx pgx.Tx, q *nodeshare.Request, r *nodeshare.Reply, lasts time.Duration, today int64) error {
	_, err := tx.Exec(ctx, `INSERT INTO node_share VALUES ($1, clock_timestamp() + make_interval(secs => $2), $3)
		ON CONFLICT (node) DO UPDATE SET until = excluded.until, alone = excluded.alone`, q.Node, lasts.Seconds(), q.Alone || r.Alone)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO node_version VALUES ($1, clock_timestamp() + make_interval(secs => $2), $3)
		ON CONFLICT (node) DO UPDATE SET until = excluded.until, sharing = excluded.sharing`, q.Node, nodeshare.Lease.Seconds(), nodeshare.Version)
	if err != nil {
		return err
	}
	keys, shares, demands := make([]string, 0, len(r.Grants)), make([]int32, 0, len(r.Grants)), make([]int32, 0, len(r.Grants))
	for i := range r.Grants {
		// A node that is alone needs no rows: the node's own says that it has everything, but of a day.
		if g := &r.Grants[i]; (!r.Alone || nodeshare.IsDay(g.Key)) && (g.Share > 0 || q.Claims[i].Demand > 0) {
			keys, shares, demands = append(keys, g.Key), append(shares, int32(g.Share)), append(demands, int32(q.Claims[i].Demand))
		}
	}
	// A node that comes to another day, at midnight or since its clock was set, does not name the former one any more. What it has
	// spent of that counts for the others, until it is over for them, too.
	_, err = tx.Exec(ctx, "DELETE FROM limit_share WHERE node = $1 AND key <> ALL($2) AND NOT (key LIKE $4 AND ($3 OR key NOT LIKE $5))",
		q.Node, keys, q.More || q.Fresh, nodeshare.DayPrefix+"%", fmt.Sprintf("%s%d %%", nodeshare.DayPrefix, today))
	if err != nil {
		return err
	}
	if len(keys) == 0 {
		return nil
	}
	_, err = tx.Exec(ctx, `INSERT INTO limit_share SELECT $1, * FROM unnest($2::text[], $3::integer[], $4::integer[])
		ON CONFLICT (node, key) DO UPDATE SET share = excluded.share, demand = excluded.demand
		WHERE limit_share.share <> excluded.share OR limit_share.demand <> excluded.demand`, q.Node, keys, shares, demands)
	return err
}
