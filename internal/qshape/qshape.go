// Package qshape is the qshape(1) command: how the mail in the queue is spread
// over domains and over time.
//
//	qshape [-s] [-p] [-m min_subdomains] [-b bucket_count] [-t bucket_time] [-l]
//	       [-w terminal_width] [-N batch_msg_count] [-n batch_top_domains]
//	       [-c config_directory] [--at time] [--by tenant|source] [queue_name ...]
//
// Each row is a domain: the total, and how much of it is how old, in minutes. A bucket's age
// limit is twice that of the one before it, with -l it is bucket_time (-t) more; the last has
// none. Recipients are counted, those with something still to do, or with -s messages by their
// sender's domain. With -p there are rows for parent domains, too, marked by a dot: those with at
// least min_subdomains (5) different names below them.
//
// The queues are incoming and active unless named: also deferred, hold, corrupt and
// maildrop. While the mail system runs the queue manager counts, from
// memory. For some time after its start it has not read all envelopes; those it leaves to us,
// as when it is down: then the spool is looked through, by several goroutines.
//
// Of a queue that nodes share (spool_type = postgresql) all of it is counted, on any node. What other nodes have
// is read from the database, where only what is being delivered is in the queue active.
//
// Behind a row stands "suspended" when a suspension is for all its mail, as far as the domain
// tells: of the domain, of a next hop of that name, with -s of the sender's domain. "limited"
// stands there, without -s, when a next hop of that name has a limit for now (posthaste limit),
// and "diverted" when the mail goes by another next hop for now (posthaste divert).
//
// Results come at once, so that the intermediate ones of -N are not needed: the option is accepted
// and does nothing. On a terminal the 20 first rows are shown (-n, 0 is all).
//
// With --at the table is that of an earlier time, from the samples that the console service keeps
// (package history): the last one that was taken before. The domains that it does not name are
// added up in the last row, "(others)"; mail that the queue manager had not read then is "(not
// read yet)". What was suspended or limited is not marked. The columns are those without -l and -t.
//
// With --by tenant the rows are tenants, and with --by source the egress sources that messages wait
// for. Messages are counted, those that have one. Sources are known while the mail system runs.
//
// # Security
//
// As with Postfix, who may read the queue's files may use it: root and the mail owner.
//
// # Diagnostics
//
// Exit status 0; 64 wrong usage; 66 there is no sample of that time; 69 the queue manager does
// not answer; 74 the output cannot be written; 77 not permitted; 78 wrong configuration.
package qshape

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/queueclient"
	"posthaste/internal/storage"
)

const usage = "usage: %s [-s] [-p] [-m min_subdomains] [-l] [-b bucket_count] [-t bucket_time] [-w terminal_width] " +
	"[-N batch_msg_count] [-n batch_top_domains] [-c config_directory] [--at time] [--by tenant|source] [queue_name ...]"

var queueNames = []string{"incoming", "active", "deferred", "hold", "corrupt", "maildrop"}

type command struct {
	cli.Tool
	dir    string
	queues []string
	shape  *shape
	// answers are what the queue manager has counted.
	answers *shape
	// missing says whose mail is not in the table; nil: all of it is.
	missing error
	width   int
	top     int       // rows; 0: all
	at      time.Time // zero: now
	by      string    // byTenant or bySource; empty: domains are counted
}

// Run carries out the command and returns its exit status. kind is the engine that the program has for the queue
// beside the log; nil: none.
func Run(name string, args []string, kind storage.Kind, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stderr: stderr}, width: 80}
	c.shape = newShape(time.Now())
	if isTerminal(stdout) {
		c.top = 20
	}
	if err := c.parse(args); err != nil {
		return c.Fail(err)
	}
	queue, err := queueclient.Open(c.dir)
	if err != nil {
		return c.Fail(err)
	}
	defer queue.Close()
	queue.Storage = kind
	if c.at.IsZero() {
		err = c.collect(context.Background(), queue)
	} else {
		err = c.earlier(queue.Config)
	}
	if err != nil {
		return c.Fail(err)
	}
	if _, err := stdout.Write(c.shape.table(c.width, c.top)); err != nil {
		return c.Fatal(cli.ExitIO, "%v", err)
	}
	if c.missing != nil {
		return c.Fail(c.missing)
	}
	return 0
}

func (c *command) parse(args []string) error {
	args, err := c.takeLong(args)
	if err != nil {
		return err
	}
	opts, rest, err := cli.Getopt(args, "lhc:psw:b:t:m:n:N:")
	if err != nil {
		fmt.Fprintf(c.Stderr, "%s: %v\n", c.Name, err)
		return cli.Errorf(cli.ExitUsage, usage, c.Name)
	}
	s := c.shape
	for _, o := range opts {
		n := 0
		switch o.Letter {
		case 'h':
			return cli.Errorf(cli.ExitUsage, usage, c.Name)
		case 'w', 'b', 't', 'm', 'n', 'N':
			if n, err = strconv.Atoi(o.Value); err != nil || n < 0 || n > 1e6 {
				return cli.Errorf(cli.ExitUsage, "option -%c: expected a number, found %q", o.Letter, o.Value)
			}
		}
		switch o.Letter {
		case 'c':
			c.dir = o.Value
		case 's':
			s.senders = true
		case 'p':
			s.parents = true
		case 'l':
			s.linear = true
		case 'w':
			c.width = max(n, 80)
		case 'b':
			if s.buckets = n; n < 1 || n > 1000 {
				return cli.Errorf(cli.ExitUsage, "option -b: expected 1 to 1000, found %d", n)
			}
		case 't':
			if s.tick = n; n < 1 {
				return cli.Errorf(cli.ExitUsage, "option -t: expected minutes, at least 1")
			}
		case 'm':
			s.minSub = n
		case 'n':
			c.top = n
		}
	}
	for _, q := range rest {
		if !slices.Contains(queueNames, q) {
			return cli.Errorf(cli.ExitUsage, "%s: no such queue: expected one of %v", q, queueNames)
		}
	}
	if c.queues = rest; len(rest) == 0 {
		c.queues = []string{"incoming", "active"}
	}
	if err := c.checkBy(); err != nil {
		return err
	}
	return c.checkAt()
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
