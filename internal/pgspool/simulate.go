package pgspool

import (
	"context"
	"encoding/hex"
	"fmt"
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
	// Older: the node's programs are of a version that does not make the tables node_note and node_call.
	Older bool
	// SegmentSize is spool_segment_size. PageRows is how many rows of a shard are read at a time when it is taken over, and Pause is
	// called before each page that is read while the queue is open.
	SegmentSize int64
	PageRows    int
	Pause       func()
	// Plant names a planted fault, a field of plant; "": there is none.
	Plant string
}

// planted are the faults by name.
var planted = map[string]plant{
	"":         {},
	"epoch":    {noEpoch: true},
	"sync":     {noSync: true},
	"lease":    {noLease: true},
	"margin":   {noMargin: true},
	"doubtful": {noRecord: true},
	"shares":   {noWait: true},
	"twice":    {twice: true},
	"late":     {late: true},
}

// Simulate makes a Store that lives in a simulation. Its statements are those of every Store; their values are sent as text,
// in one round trip, so that the model of the database need not know of types.
func Simulate(o *Simulation) (*Store, error) {
	p, ok := planted[o.Plant]
	if !ok {
		return nil, fmt.Errorf("there is no planted fault %q", o.Plant)
	}
	c, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	c.RuntimeParams["application_name"] = sessionName(o.Node)
	c.DialFunc, c.DefaultQueryExecMode = o.Dial, pgx.QueryExecModeExec
	c.StatementCacheCapacity, c.DescriptionCacheCapacity = 0, 0 // that mode has no use for them, and they are large
	c.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	return &Store{config: c, node: o.Node, instance: o.Node, segmentSize: o.SegmentSize, page: o.PageRows, pause: o.Pause,
		wall: o.Wall, plant: p, older: o.Older}, nil
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
