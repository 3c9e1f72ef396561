package spoolmove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/pgspool"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/queuelog"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/statedir"
	"posthaste/internal/storage"
)

const usage = "usage: %s [-c config_dir] migrate [-v] log|postgresql"

const (
	// turnTime bounds how long it waits for a part of the queue in the database: another node may have to hand one
	// over, after deliveries of 30 seconds. turnPoll is how often it looks.
	turnTime = time.Minute
	turnPoll = 500 * time.Millisecond
	// logName is the program's name in the log: the line is that of the queue manager when postsuper -r has a message
	// queued again under another ID, and whoever follows a message through the log knows it.
	logName = "qmgr"
	// postDelay is for batches that nobody waits for; there are none.
	postDelay = 50 * time.Millisecond
)

// A command is one call.
type command struct {
	cli.Tool
	queue   *queueclient.Queue
	cfg     *config.Config
	out     *cli.ErrWriter
	from    string // the engine that has the mail; the other gets it
	verbose bool

	say   *maillog.Logger
	store *pgspool.Store
	log   queuelog.Engine
	pg    storage.Engine
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

// parse reads the command line, and the configuration.
func (c *command) parse(args []string) error {
	wrong := cli.Errorf(cli.ExitUsage, usage, c.Name)
	opts, rest, err := cli.Getopt(args, "c:")
	if err != nil || len(rest) == 0 || rest[0] != "migrate" {
		return wrong
	}
	dir := ""
	for _, o := range opts {
		dir = o.Value
	}
	if opts, rest, err = cli.Getopt(rest[1:], "v"); err != nil || len(rest) != 1 {
		return wrong
	}
	c.verbose = len(opts) > 0
	if c.from = rest[0]; c.from != storage.Log && c.from != storage.PostgreSQL {
		return wrong
	}
	if c.queue, err = queueclient.Open(dir); err != nil {
		return err
	}
	c.cfg, err = config.ReadFor(config.Dir(dir), append(maillog.Parameters(), "queue_minfree", "spool_content_directory", "spool_directories", "spool_directories_absent", "spool_exact_doubt",
		"spool_inline_limit", "spool_segment_size", "spool_size_limit", "spool_type", "spool_postgresql_url", "spool_postgresql_password_file",
		"cluster_node_name", "queue_directory")...)
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	if c.cfg.String("spool_type") == c.from {
		return cli.Errorf(cli.ExitConfig, "spool_type = %s: the mail would go to where it is; set it to the engine that is to have it", c.from)
	}
	return nil
}

func (c *command) run(args []string) error {
	if err := c.parse(args); err != nil {
		return err
	}
	defer c.queue.Close()
	if !c.queue.Permitted() {
		return cli.Errorf(cli.ExitNoPerm, "only root and the mail owner may use this")
	}
	ctx := context.Background()
	if _, err := c.queue.Cleanup(ctx); !errors.Is(err, queueclient.ErrDown) {
		return cli.Errorf(cli.ExitTemp, "the mail system is running: stop it first")
	}
	var err error
	if c.store, err = pgspool.New(c.cfg); err != nil { // reads the password file, with root's rights
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	defer c.store.Close()
	dir := c.queue.Spool()
	if err := c.whole(dir); err != nil {
		return err
	}
	content, err := queueread.OpenContent(c.cfg)
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return cli.Errorf(cli.ExitNoInput, "%s: the mail system has never been started here: start it once, and stop it", dir)
	}
	if c.say, err = maillog.OpenDirect(c.queue.Config, logName); err != nil {
		return cli.Errorf(cli.ExitUnavailable, "the log cannot be opened: %w", err)
	}
	defer c.say.Close() // what cannot be written is not worth more than the move
	if err := c.queue.BecomeOwner(); err != nil {
		return err
	}
	files, err := statedir.Open(dir)
	if err != nil {
		return cli.Errorf(cli.ExitNoPerm, "%w", err)
	}
	defer files.Close()
	journal, err := OpenJournal(files, c.direction())
	if err != nil {
		return cli.Errorf(cli.ExitUnavailable, "%w", err)
	}
	o := spool.Options{Dir: dir, ContentDir: c.cfg.String("spool_content_directory"), SegmentSize: c.cfg.Bytes("spool_segment_size"),
		InlineLimit: c.cfg.Bytes("spool_inline_limit"), Budget: c.cfg.Bytes("spool_size_limit"), MinFree: c.cfg.Bytes("queue_minfree"),
		ExactDoubt: c.cfg.Bool("spool_exact_doubt"), Warn: c.Warn}
	if content != nil {
		defer content.Close()
		o.ContentFS = content
	}
	if err := c.open(ctx, o); err != nil {
		return err
	}
	return c.move(ctx, o, journal)
}

// whole sees to it that all mail of the log is in the spool in dir, as nothing else is moved.
func (c *command) whole(dir string) error {
	plan, err := spools.Find(nil, dir, c.cfg)
	if err != nil {
		return cli.Errorf(cli.ExitConfig, "%w", err)
	}
	if plan.Several() {
		return cli.Errorf(cli.ExitConfig, "the queue is in several directories: move the mail of all but the first to that with \"posthaste spool drain\" before")
	}
	if away := plan.Away(); len(away) > 0 && c.from == storage.Log {
		return cli.Errorf(cli.ExitConfig, "the queue has mail in %s, which spool_directories_absent names, and which would stay behind: "+
			"have it mounted, and move its mail with \"posthaste spool drain\" before; or give it up with \"posthaste spool forget\"", strings.Join(away, " and "))
	}
	return nil
}

// direction names the move in its journal.
func (c *command) direction() string { return c.from + " to " + c.cfg.String("spool_type") }

// open opens both engines.
func (c *command) open(ctx context.Context, o spool.Options) error {
	sp, err := spool.Open(o)
	if err != nil {
		return cli.Errorf(cli.ExitUnavailable, "the queue in %s: %w", o.Dir, err)
	}
	c.log = queuelog.Engine{Spool: sp}
	ctx, cancel := context.WithTimeout(ctx, turnTime)
	defer cancel()
	for told := false; ; told = true {
		c.pg, err = c.store.Open(ctx, storage.Options{TempDir: o.Dir, InlineLimit: int(o.InlineLimit), PostDelay: postDelay, Warn: c.Warn})
		if err == nil {
			return nil
		}
		if !errors.Is(err, queue.ErrNotOurs) && !errors.Is(err, queue.ErrBroken) {
			break
		}
		if !told {
			c.Warn("waiting for a part of the queue in the database: %v", err)
		}
		select {
		case <-time.After(turnPoll):
			continue
		case <-ctx.Done():
		}
		break
	}
	sp.Close() // nothing has been written
	return cli.Errorf(cli.ExitUnavailable, "the queue in the database: %w", err)
}

// move moves the mail, and ends both engines.
func (c *command) move(ctx context.Context, o spool.Options, journal *Journal) error {
	m := &Mover{From: c.log, To: c.pg, Journal: journal, Warn: c.Warn}
	elsewhere := func(ids []mail.QueueID) (map[mail.QueueID]pgspool.Whereabout, error) {
		return c.store.Whereabouts(ctx, ids)
	}
	if c.from == storage.Log {
		m.Reader, m.Doubts = queueread.Log(spool.NewReader(nil, o.Dir)), c.log.Recovery().InDoubt
		m.ToElsewhere = elsewhere
	} else {
		m.From, m.To, m.Reader, m.Doubts = c.pg, c.log, c.store.Reader(), c.pg.Recovery().InDoubt
		m.FromElsewhere = elsewhere
	}
	m.Moved = func(from, to mail.QueueID) {
		c.say.Info("%s: requeued as %s", from, to)
		if c.verbose {
			fmt.Fprintf(c.out, "%s: now %s\n", from, to)
		}
	}
	report, err := m.Run()
	m.Reader.Close()
	// What both have said is durable is so, whatever they say of their ends.
	if err2 := errors.Join(c.log.Close(), c.pg.Close()); err == nil {
		err = err2
	}
	fmt.Fprintf(c.out, "%d messages moved from %s\n", report.Moved, c.direction())
	for _, h := range report.Held {
		if h.Node == "" {
			c.Warn("%s is on hold in a part of the queue that nobody has: release it with postsuper -H %s at the node that takes it over", h.ID, h.ID)
			continue
		}
		c.Warn("%s is on hold at node %s, which took it over: release it there with postsuper -H %s", h.ID, maillog.AppendClean(nil, []byte(h.Node)), h.ID)
	}
	switch {
	case err != nil:
		return cli.Errorf(cli.ExitUnavailable, "the move has been interrupted, and the same command goes on with it: %w", err)
	case report.Left > 0:
		return cli.Errorf(cli.ExitData, "%d messages are damaged, and stay where they are", report.Left)
	}
	if c.from == storage.PostgreSQL {
		if others, err := c.store.Others(ctx); err == nil && others != "" {
			c.Warn("other nodes have the rest of the queue: shard %s", others)
		}
	}
	return nil
}
