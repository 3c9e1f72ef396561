package whatif

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/queueclient"
)

const (
	usage = "usage: %s [-j] [-c config_dir] [-s seed] [-o name=value ...]"
	// askTime bounds how long the queue manager may take, and runTime all runs together.
	askTime = 2 * time.Minute
	runTime = 5 * time.Minute
)

type command struct {
	cli.Tool
	dir  string
	json bool
	seed uint64
	over []config.Override
}

// Command is the program "posthaste whatif". It returns the exit status: 0; 64 wrong usage, or a
// parameter that has no effect; 65 there is no forecast for this queue; 69 the mail system is down;
// 74 the output cannot be written; 77 not permitted; 78 wrong configuration.
func Command(name string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &command{Tool: cli.Tool{Name: name, Stdout: stdout, Stderr: stderr}, seed: 1}
	if err := c.parse(args); err != nil {
		return c.Fail(err)
	}
	if err := c.run(ctx); err != nil {
		return c.Fail(err)
	}
	return 0
}

func (c *command) parse(args []string) error {
	opts, rest, err := cli.Getopt(args, "jc:o:s:")
	if err != nil || len(rest) > 0 {
		if err != nil {
			fmt.Fprintf(c.Stderr, "%s: %v\n", c.Name, err)
		}
		return cli.Errorf(cli.ExitUsage, usage, c.Name)
	}
	for _, o := range opts {
		switch o.Letter {
		case 'j':
			c.json = true
		case 'c':
			c.dir = o.Value
		case 's':
			if c.seed, err = strconv.ParseUint(o.Value, 10, 32); err != nil {
				return cli.Errorf(cli.ExitUsage, "option -s: expected a number, 0 to 4294967295, found %q", o.Value)
			}
		case 'o':
			over, err := config.ParseOverride(o.Value)
			if err != nil {
				return cli.Errorf(cli.ExitUsage, "option -o: %w", err)
			}
			c.over = append(c.over, over)
		}
	}
	return nil
}

func (c *command) run(ctx context.Context) error {
	queue, err := queueclient.Open(c.dir)
	if err != nil {
		return err
	}
	defer queue.Close()
	cfg, err := config.Load(config.Dir(c.dir))
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	settings, err := ReadSettings(cfg)
	if err != nil {
		return err
	}
	mail, err := c.take(ctx, queue)
	if err != nil {
		return err
	}
	report, err := settings.Ask(ctx, mail, Question{Changes: c.over, Seed: c.seed, Within: runTime})
	if err != nil {
		return err
	}
	for _, text := range report.Warnings {
		c.Warn("%s", text)
	}
	out := report.Text()
	if c.json {
		if out, err = json.Marshal(report); err != nil {
			return err
		}
		out = append(out, '\n')
	}
	if _, err := c.Stdout.Write(out); err != nil {
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	return nil
}

// take takes a copy of the queue.
func (c *command) take(ctx context.Context, queue *queueclient.Queue) (*Copy, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	conn, err := queue.Manager(ctx)
	if errors.Is(err, queueclient.ErrDown) {
		return nil, cli.Errorf(cli.ExitUnavailable, "%w", err)
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	mail, err := Take(ctx, conn, now)
	if err != nil || queue.Node() == "" {
		return mail, err
	}
	parts, err := queue.Parts(ctx, conn)
	if err != nil {
		return nil, err
	}
	others, missing := parts.Living(conn, "")
	mail.Beside(ctx, queue.Node(), others, missing, now)
	return mail, nil
}
