package pgspool

import (
	"context"
	"encoding/hex"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Simulation is what a node's Store has around it in package nodesim: a network and a clock that are no real ones, and
// faults that the simulation must find.
type Simulation struct {
	Node string
	URL  string                                                            // with all hosts of the database
	Dial func(ctx context.Context, network, addr string) (net.Conn, error) // to a host of the URL
	Wall func() time.Time                                                  // the node's clock, which may be set
	// NoEpoch, NoSync and NoLease are planted faults: a transaction does not look whether the shard is still the node's;
	// it is not durable when it is committed; a delivery begins although the lease has run out.
	NoEpoch, NoSync, NoLease bool
}

// Simulate makes a Store that lives in a simulation. Its statements are those of every Store; their values are sent as text,
// in one round trip, so that the model of the database need not know of types.
func Simulate(o *Simulation) (*Store, error) {
	c, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	c.RuntimeParams["application_name"] = sessionName(o.Node)
	c.DialFunc, c.DefaultQueryExecMode = o.Dial, pgx.QueryExecModeExec
	c.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	return &Store{config: c, node: o.Node, instance: o.Node, segmentSize: 64 << 20, wall: o.Wall,
		plant: plant{noEpoch: o.NoEpoch, noSync: o.NoSync, noLease: o.NoLease}}, nil
}

// simulateCopy sends the rows beside the statement: within pgconn's CopyFrom a goroutine waits for a mutex that another one
// holds while it reads, and while anybody waits for a mutex no virtual time passes.
func simulateCopy(ctx context.Context, conn *pgx.Conn, sql string, rows []byte) error {
	_, err := conn.Exec(ctx, sql, hex.EncodeToString(rows))
	return err
}

// now is the time by the node's clock, for what is shown to people and compared with nothing but itself.
func (s *Store) now() time.Time {
	if s.wall != nil {
		return s.wall()
	}
	return time.Now()
}
