package qshape

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/history"
	"posthaste/internal/queueclient"
)

// othersName is the row of the domains that a sample does not name.
const othersName = "(others)"

// takeLong takes --at and --by off the arguments.
func (c *command) takeLong(args []string) (rest []string, err error) {
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		set := map[string]func(string) error{"--at": c.setAt, "--by": c.setBy}[name]
		switch {
		case set == nil:
			rest = append(rest, args[i])
			continue
		case given:
		case i+1 == len(args):
			return nil, cli.Errorf(cli.ExitUsage, "%s: there is no value", name)
		default:
			i++
			value = args[i]
		}
		if err := set(value); err != nil {
			return nil, err
		}
	}
	return rest, nil
}

// setAt sets the time of the table.
func (c *command) setAt(value string) error {
	at, clock, err := queueclient.ParseMoment(value, c.shape.now)
	if err != nil {
		return cli.Errorf(cli.ExitUsage, "--at: %w", err)
	}
	if clock && at.After(c.shape.now) {
		at = at.AddDate(0, 0, -1)
	}
	if at.After(c.shape.now) {
		return cli.Errorf(cli.ExitUsage, "--at: %s lies in the future", value)
	}
	if !c.at.IsZero() {
		return cli.Errorf(cli.ExitUsage, "--at: one time is enough")
	}
	c.at = at
	return nil
}

// checkAt says why the samples cannot tell what the options ask for.
func (c *command) checkAt() error {
	s := c.shape
	if c.at.IsZero() {
		return nil
	}
	if s.linear || time.Duration(s.tick)*time.Minute != history.Tick || s.buckets > history.Buckets {
		return cli.Errorf(cli.ExitUsage, "--at: samples have %d columns, the first of %d minutes: -l, -t and a larger -b cannot be used",
			history.Buckets, history.Tick/time.Minute)
	}
	for _, q := range c.queues {
		if !slices.Contains(history.Queues, q) {
			return cli.Errorf(cli.ExitUsage, "--at: there are no samples of the queue %s, only of %v", q, history.Queues)
		}
	}
	return nil
}

// earlier has the table of an earlier time.
func (c *command) earlier(cfg *config.Config) error {
	dir := cfg.String("queue_history_directory")
	s, err := history.At(dir, c.at)
	switch {
	case errors.Is(err, history.ErrNone):
		if first, last, err := history.Span(dir); err == nil {
			return cli.Errorf(cli.ExitNoInput, "there is no sample of %s; the first is of %s, the last of %s", c.at.Local().Format(time.DateTime),
				first.Local().Format(time.DateTime), last.Local().Format(time.DateTime))
		}
		return cli.Errorf(cli.ExitNoInput, "there are no samples in %s: the console service takes them, and master.cf must have it", dir)
	case errors.Is(err, fs.ErrPermission):
		return cli.Errorf(cli.ExitNoPerm, "%w", err)
	case err != nil:
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	for i := range s.Tables {
		if t := &s.Tables[i]; c.means(t) && slices.Contains(c.queues, t.Queue) {
			c.shape.addTable(t)
		}
	}
	return nil
}

// addTable adds what a sample has of a queue.
func (s *shape) addTable(t *history.Table) {
	add := func(c *history.Counts) []int {
		counts := make([]int, s.buckets)
		for i, n := range c {
			counts[min(i, s.buckets-1)] += int(n)
		}
		return counts
	}
	for i := range t.Rows {
		if t.Domains() || t.Senders {
			s.addRow(t.Rows[i].Domain, add(&t.Rows[i].Counts))
		} else {
			s.addCounts(t.Rows[i].Domain, add(&t.Rows[i].Counts))
		}
	}
	if t.Names > 0 {
		s.addRow(othersName, add(&t.Others))
		s.others += t.Names
	}
}
