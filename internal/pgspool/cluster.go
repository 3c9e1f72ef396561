package pgspool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// MaxShards is how many shards a queue can have.
	MaxShards = 64
	// DefaultShards is how many a queue has unless somebody says more or less: two nodes have eight each, so that those of a dead node
	// are spread over up to eight others, and each of five still has three. What a shard costs is a table that is not full.
	DefaultShards = 16
)

// errShards is for a number that is not possible.
func errShards(n int) error { return fmt.Errorf("%d shards: from 1 to %d are possible", n, MaxShards) }

// Init makes the tables of a queue with so many shards, 1 to MaxShards, and tells say of each statement before it is
// carried out. A queue that is there is left as it is: the error says so.
func (s *Store) Init(ctx context.Context, shards int, say func(sql string)) error {
	if shards < 1 || shards > MaxShards {
		return errShards(shards)
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	switch err := checkSchema(ctx, conn); {
	case err == nil:
		return errors.New("the database has a queue already")
	case !errors.Is(err, errNoSchema):
		return clean(err)
	}
	if err := initSchema(ctx, conn, s.config.RuntimeParams["search_path"], shards, say); err != nil {
		return clean(err)
	}
	return nil
}

// AddShards has the queue have so many shards, up to MaxShards: those that it lacks are made, and are free and empty. Nodes find them
// within a second. It tells say of each statement before it is carried out. There is no way to have fewer: the error says how many
// there are.
func (s *Store) AddShards(ctx context.Context, shards int, say func(sql string)) error {
	if shards < 1 || shards > MaxShards {
		return errShards(shards)
	}
	conn, err := s.look(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	return clean(pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		// One at a time. Nodes that look at the shards do not wait for it.
		if _, err := tx.Exec(ctx, "SELECT number FROM version FOR UPDATE"); err != nil {
			return err
		}
		have := 0
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM shard").Scan(&have); err != nil {
			return err
		}
		if have > shards {
			return fmt.Errorf("there are %d shards, and they cannot be made fewer", have)
		}
		for _, text := range newShards(have+1, shards) {
			say(text + ";")
			if _, err := tx.Exec(ctx, text); err != nil {
				return err
			}
		}
		return nil
	}))
}

// A Node is one that has ever opened the queue.
type Node struct {
	Name    string
	Seen    time.Duration // how long ago it last said that it lives
	Drained bool          // it takes no shards
}

// A Shard is a part of the queue.
type Shard struct {
	ID       int
	Node     string // "": nobody's
	Epoch    int64
	Lease    time.Duration // what is left of it; negative: it has run out so long ago
	Segments int
	Unread   string        // why not all of it can be read; "": it can, as far as is known
	Since    time.Duration // how long it has been so
}

// A Status is how the cluster stands.
type Status struct {
	Server   string // its version
	Standbys int    // that are synchronous
	Standby  []Standby
	Nodes    []Node
	Shards   []Shard
	Differ   []Difference // parameters that are not the same on all nodes
	Doubtful int          // rows
	Indexes  []DamagedIndex
	Ordered  []Ordered // orders that wait for nodes that do not answer, the oldest ones
	Orders   int       // all of them
}

// Status asks the database how the cluster stands, by its clock.
func (s *Store) Status(ctx context.Context) (*Status, error) {
	conn, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.Background())
	st := new(Status)
	err = conn.QueryRow(ctx, "SELECT current_setting('server_version'), (SELECT count(*) FROM doubtful)").Scan(&st.Server, &st.Doubtful)
	if err == nil {
		st.Standby, err = standbys(ctx, conn)
	}
	if err == nil {
		err = addTables(ctx, conn) // of an older program's queue
	}
	if err == nil {
		st.Differ, err = differences(ctx, conn)
	}
	if err == nil {
		st.Indexes, err = damagedIndexes(ctx, conn)
	}
	if err == nil {
		st.Ordered, st.Orders, err = ordered(ctx, conn)
	}
	if err != nil {
		return nil, clean(err)
	}
	for _, s := range st.Standby {
		if s.State == "sync" || s.State == "quorum" {
			st.Standbys++
		}
	}
	rows, _ := conn.Query(ctx, "SELECT name, greatest(extract(epoch FROM clock_timestamp() - seen), 0)::float8, drained FROM node ORDER BY name") // its error is that of reading the rows
	var n Node
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&n.Name, &seconds, &n.Drained}, func() error {
		n.Seen = time.Duration(seconds * float64(time.Second))
		st.Nodes = append(st.Nodes, n)
		return nil
	})
	if err != nil {
		return nil, clean(err)
	}
	rows, _ = conn.Query(ctx, `SELECT id, coalesce(node, ''), shard.epoch, CASE WHEN until = '-infinity' THEN 0 ELSE extract(epoch FROM until - clock_timestamp())::float8 END,
		(SELECT count(*) FROM segment WHERE shard = id), coalesce(why, ''), coalesce(extract(epoch FROM clock_timestamp() - since), 0)::float8
		FROM shard JOIN lease ON lease.shard = id LEFT JOIN unreadable ON unreadable.shard = id AND unreadable.epoch = shard.epoch ORDER BY id`)
	var sh Shard
	var since float64
	_, err = pgx.ForEachRow(rows, []any{&sh.ID, &sh.Node, &sh.Epoch, &seconds, &sh.Segments, &sh.Unread, &since}, func() error {
		sh.Lease, sh.Since = time.Duration(seconds*float64(time.Second)), time.Duration(since*float64(time.Second))
		st.Shards = append(st.Shards, sh)
		return nil
	})
	if err != nil {
		return nil, clean(err)
	}
	return st, nil
}

// look connects for somebody who only looks.
func (s *Store) look(ctx context.Context) (*pgx.Conn, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	if err := checkSchema(ctx, conn); err != nil {
		conn.Close(context.Background())
		return nil, clean(err)
	}
	return conn, nil
}

// A Doubt is a recipient that may have got a message, and may get it again.
type Doubt struct {
	ID        string
	Recipient int // by its position in the envelope
	Nexthop   string
	Handed    time.Time // when an agent was given leave to deliver, by its node's clock; of Lost, when the message was queued
	Found     time.Time
	Node      string // that took the shard over
	LostBy    string // whose it was; "": the same node's
	// Lost says that records of the queue are lost, one of which may have said that the message was delivered.
	Lost bool
	// Shard, if it is not 0, says that this stands for all messages of that shard whose records are lost and that are not named one by one; ID
	// and Recipient say nothing then.
	Shard int
}

// EachDoubt calls f for all of them, oldest first, until it returns an error.
func (s *Store) EachDoubt(ctx context.Context, f func(*Doubt) error) error {
	conn, err := s.look(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.Background())
	rows, _ := conn.Query(ctx, "SELECT id, recipient, nexthop, handed, found, node, coalesce(lost_by, '') FROM doubtful ORDER BY found, id, recipient")
	var d Doubt
	_, err = pgx.ForEachRow(rows, []any{&d.ID, &d.Recipient, &d.Nexthop, &d.Handed, &d.Found, &d.Node, &d.LostBy}, func() error {
		if d.Lost, d.Shard = d.Nexthop == lostRecords, 0; d.Lost {
			d.Nexthop = ""
		}
		if d.ID == anyMessage {
			d.ID, d.Recipient, d.Shard = "", 0, d.Recipient
		}
		return f(&d)
	})
	return clean(err)
}
