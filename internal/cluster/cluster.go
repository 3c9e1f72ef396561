// Package cluster is the command "posthaste cluster": it makes the database for a queue that several
// nodes share (spool_type = postgresql), and shows how the nodes stand.
//
//	posthaste cluster init [-n SHARDS]
//	posthaste cluster shards SHARDS
//	posthaste cluster status [-j]
//	posthaste cluster doubtful [-j]
//	posthaste cluster drain [NODE]
//	posthaste cluster undrain [NODE]
//
// init makes the tables, and prints each statement before it is carried out. The account in
// spool_postgresql_url must be allowed to make a schema, or to make tables in one that is there. It is done once, and
// not for each node. SHARDS is the number of parts of the queue, 16 if it is not given, and 64 at most. There must be one for each
// node. With several for each, those of a node that dies are spread over the others, and each part takes less time to be read.
//
// shards adds parts, so that there are so many; they are empty, and nodes take their share of them within seconds. Parts
// cannot be taken away.
//
// status shows the nodes, and which of them owns each part of the queue. The times are by the database's
// clock. It shows the standbys of the database, if its account may see them (pg_read_all_stats), with how much of the
// primary's log is not on their disks yet, and the parameters that main.cf does not set to the same on all nodes that live;
// those that are each node's own, such as myhostname, are left out, and so are those that may be secrets. It warns when there is no synchronous standby: mail is then as safe as the one server's disk.
//
// doubtful lists deliveries that may have been made twice: those that were under way when a node lost its part of
// the queue, and those of which a record may be lost, since the database did not give all.
//
// drain has a node, this one if none is named, give up its parts of the queue to the others, and waits until it
// has. It takes no mail from then on, and can be stopped, for an upgrade say. Deliveries under way may take
// 30 seconds; those that take longer are doubtful. undrain ends that: the node takes its share again.
//
// # Parameters
//
// cluster_node_name, spool_postgresql_password_file, spool_postgresql_url.
//
// # Diagnostics
//
// The exit status is 0, or that of sysexits.h: 64 for wrong usage, 69 when the database does not answer or
// refuses, 78 for a mistake in main.cf.
//
// # Security
//
// Only who can read the password file can use it.
package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/pgspool"
)

const usage = "usage: %s [-c config_dir] init [-n shards] | shards number | status [-j] | doubtful [-j] | drain [node] | undrain [node]"

// patience bounds the command. A node that is drained has 30 seconds for its deliveries.
const patience = 60 * time.Second

type command struct {
	cli.Tool
	store *pgspool.Store
	node  string // cluster_node_name
	out   *cli.ErrWriter
}

// Run carries out the command and returns its exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stderr: stderr}, out: &cli.ErrWriter{W: stdout}}
	err := c.run(args)
	switch {
	case err != nil:
		return c.Fail(err)
	case c.out.Err != nil:
		return c.Fatal(cli.ExitIO, "%v", c.out.Err)
	}
	return 0
}

// A request is what the command line wants.
type request struct {
	verb, dir, node string
	shards          int
	json            bool
}

// parse reads the command line; false: it is wrong.
func parse(args []string) (q request, ok bool) {
	opts, rest, err := cli.Getopt(args, "c:")
	if err != nil || len(rest) == 0 {
		return q, false
	}
	for _, o := range opts {
		q.dir = o.Value
	}
	q.verb, q.shards = rest[0], pgspool.DefaultShards
	letters, known := map[string]string{"init": "n:", "shards": "", "status": "j", "doubtful": "j", "drain": "", "undrain": ""}[q.verb]
	if opts, rest, err = cli.Getopt(rest[1:], letters); err != nil || !known {
		return q, false
	}
	number := ""
	for _, o := range opts {
		switch o.Letter {
		case 'j':
			q.json = true
		case 'n':
			number = o.Value
		}
	}
	switch q.verb {
	case "shards":
		if len(rest) != 1 {
			return q, false
		}
		number, rest = rest[0], nil
	case "drain", "undrain":
		if len(rest) == 1 {
			q.node, rest = rest[0], nil
		}
	}
	if number != "" {
		q.shards, err = strconv.Atoi(number)
	}
	return q, err == nil && len(rest) == 0
}

func (c *command) run(args []string) error {
	q, ok := parse(args)
	if !ok {
		return cli.Errorf(cli.ExitUsage, usage, c.Name)
	}
	cfg, err := config.ReadFor(config.Dir(q.dir), append(maillog.Parameters(), "spool_postgresql_url", "spool_postgresql_password_file", "cluster_node_name", "spool_segment_size")...)
	if err == nil {
		c.store, err = pgspool.New(cfg)
	}
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	defer c.store.Close()
	c.node = cmp.Or(q.node, cfg.String("cluster_node_name"))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	say := func(sql string) { fmt.Fprintln(c.out, sql) }
	switch q.verb {
	case "init":
		err = c.store.Init(ctx, q.shards, say)
	case "shards":
		err = c.store.AddShards(ctx, q.shards, say)
	case "status":
		err = c.status(ctx, q.json)
	case "doubtful":
		err = c.doubtful(ctx, q.json)
	case "drain":
		err = c.drain(ctx)
	case "undrain":
		err = c.store.Drain(ctx, c.node, false)
	}
	if err != nil {
		return cli.Errorf(cli.ExitUnavailable, "%w", err)
	}
	return nil
}

// status prints how the cluster stands.
func (c *command) status(ctx context.Context, asJSON bool) error {
	st, err := c.store.Status(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return json.NewEncoder(c.out).Encode(st)
	}
	fmt.Fprintf(c.out, "database: PostgreSQL %s, %d synchronous standbys\n", st.Server, st.Standbys)
	c.standbys(st)
	for _, n := range st.Nodes {
		drained := ""
		if n.Drained {
			drained = ", drained"
		}
		fmt.Fprintf(c.out, "node %s: seen %v ago%s\n", clean(n.Name), n.Seen.Round(100*time.Millisecond), drained)
	}
	for _, s := range st.Shards {
		switch {
		case s.Node == "":
			fmt.Fprintf(c.out, "shard %d: nobody's\n", s.ID)
		case s.Lease <= 0:
			fmt.Fprintf(c.out, "shard %d: %s, whose lease has run out %v ago; epoch %d, %d segments\n", s.ID, clean(s.Node), -s.Lease.Round(100*time.Millisecond), s.Epoch, s.Segments)
		default:
			fmt.Fprintf(c.out, "shard %d: %s, for %v more; epoch %d, %d segments\n", s.ID, clean(s.Node), s.Lease.Round(100*time.Millisecond), s.Epoch, s.Segments)
		}
		if s.Unread != "" {
			fmt.Fprintf(c.out, "shard %d: some of its mail cannot be read, and waits, for %v: %s\n", s.ID, s.Since.Round(time.Second), clean(s.Unread))
		}
	}
	for i := range st.Indexes {
		fmt.Fprintln(c.out, indexLine(&st.Indexes[i]))
	}
	for _, d := range st.Differ {
		groups := make([]string, len(d.Nodes))
		for i, nodes := range d.Nodes {
			groups[i] = clean(strings.Join(nodes, " "))
		}
		fmt.Fprintf(c.out, "main.cf: %s is not the same on %s\n", clean(d.Name), strings.Join(groups, " and "))
	}
	c.orders(st)
	if st.Doubtful > 0 {
		fmt.Fprintf(c.out, "%d deliveries may have been made twice: see %s doubtful\n", st.Doubtful, c.Name)
	}
	return nil
}

// standbys prints how the servers stand that follow the primary one.
func (c *command) standbys(st *pgspool.Status) {
	hidden := 0
	for _, s := range st.Standby {
		if s.State == "" {
			hidden++
			continue
		}
		fmt.Fprintf(c.out, "standby %s: %s, %d octets behind\n", clean(s.Name), s.State, s.Behind)
	}
	switch {
	case hidden > 0:
		c.Warn("%d standbys: the database's account may not see whether they are synchronous; GRANT pg_read_all_stats to it", hidden)
	case st.Standbys == 0:
		c.Warn("no standby is synchronous: what is queued is on the disk of one server")
	}
}

// orders prints what waits for nodes that did not answer.
func (c *command) orders(st *pgspool.Status) {
	for _, o := range st.Ordered {
		node, until := "node "+clean(o.Node), "until it is back"
		if o.Node == "" {
			node = "no node"
		}
		if o.Shard > 0 {
			until = fmt.Sprintf("until a node has shard %d", o.Shard)
		}
		fmt.Fprintf(c.out, "order %d for %s: %s; given %v ago by %s on %s; it waits %s\n", o.Number, node, clean(o.What), o.Ago.Round(time.Second), clean(o.By), clean(o.On), until)
	}
	if n := st.Orders - len(st.Ordered); n > 0 {
		fmt.Fprintf(c.out, "%d more orders wait\n", n)
	}
}

// drain has the node give up what it has, and waits until it has.
func (c *command) drain(ctx context.Context) error {
	if err := c.store.Drain(ctx, c.node, true); err != nil {
		return err
	}
	for {
		st, err := c.store.Status(ctx)
		if err != nil {
			return err
		}
		left := 0
		for _, s := range st.Shards {
			if s.Node == c.node && s.Lease > 0 {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-time.After(drainPoll):
		case <-ctx.Done():
			return fmt.Errorf("node %s still has %d shards; it goes on giving them up", clean(c.node), left)
		}
	}
}

// drainPoll is how often it is looked whether a node has given up what it had.
const drainPoll = 200 * time.Millisecond

// doubtful lists deliveries that may have been made twice.
func (c *command) doubtful(ctx context.Context, asJSON bool) error {
	enc := json.NewEncoder(c.out)
	return c.store.EachDoubt(ctx, func(d *pgspool.Doubt) error {
		if asJSON {
			return enc.Encode(d)
		}
		fmt.Fprintln(c.out, doubtLine(d))
		return c.out.Err
	})
}

// doubtLine is the line of a delivery that may have been made twice.
func doubtLine(d *pgspool.Doubt) string {
	from := ""
	if d.LostBy != "" {
		from = " from " + clean(d.LostBy)
	}
	found := fmt.Sprintf("found %s by %s, which took the queue over%s", d.Found.Format(time.RFC3339), clean(d.Node), from)
	switch {
	case d.Shard > 0:
		return fmt.Sprintf("any other message of shard %d: records of it are lost; %s", d.Shard, found)
	case d.Lost:
		return fmt.Sprintf("%s recipient %d, if it was begun: records are lost; %s", clean(d.ID), d.Recipient, found)
	}
	return fmt.Sprintf("%s recipient %d, to %s, begun %s; %s", clean(d.ID), d.Recipient, clean(d.Nexthop), d.Handed.Format(time.RFC3339), found)
}

// indexLine is the line of an index that is damaged.
func indexLine(d *pgspool.DamagedIndex) string {
	return fmt.Sprintf("shard %d: the index of table %s is damaged, for %v: %s. All of it can be read. REINDEX TABLE %s, then reload the node that has the shard",
		d.Shard, clean(d.Table), d.Since.Round(time.Second), clean(d.Why), clean(d.Table))
}

// clean is text from the database for a terminal.
func clean(s string) string { return string(maillog.AppendClean(nil, []byte(s))) }
