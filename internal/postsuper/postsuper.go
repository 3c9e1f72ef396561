// Package postsuper is the postsuper(1) command: an operator's way to delete,
// requeue, hold, release and force-expire mail that is in the queue.
//
// While the mail system runs, every change is an order to the queue manager,
// which carries it out between two of its decisions: a message that is being
// delivered is left alone until the deliveries under way have ended. While it
// is down, the command opens the spool itself; the spool's lock sees to it
// that there is never more than one writer.
//
//	postsuper [-psSv] [-c config_dir] [-d queue_id] [-e queue_id] [-f queue_id]
//	          [-h queue_id] [-H queue_id] [-r queue_id] [queue ...]
//	          [--sender=ADDRESS ...] [--dry-run]
//
// A queue ID may be "-" (IDs are read from standard input, one a line) or "ALL".
// Queues are hold, incoming, active and deferred, and when named maildrop
// (where only -d does something) and corrupt (likewise).
//
// The long options are the conditions of package selection. They narrow down what is
// named otherwise: -d ALL --sender=ADDRESS deletes what is from that sender. A message is
// changed only if it fulfils the conditions at that moment. With --dry-run nothing is changed: what
// would be is listed as mailq lists it, and counted.
//
// -r has a message go through cleanup again, as Postfix's does: under a new ID,
// with its age and attempts beginning anew, for the original addresses of the
// recipients that are not done, so that today's configuration applies: tables,
// content checks, content_filter, receive_override_options and always_bcc, as they
// are for new mail that pickup takes, and the routes that come of them. A filter or a
// redirection of the day when the message came is forgotten. It is not shown to milters
// again, and not authenticated again. A recipient who has got the message does not get it
// twice. If members of an alias have failed for good, and the sender has a report of them,
// he gets no second report, unless the alias gives other addresses now. Postfix repeats it.
//
// Of a queue that nodes share (spool_type = postgresql) all of it is meant, on whatever node the command is called.
// What another node has it changes itself, as if the command had been called there; both logs say so. A node
// that does not answer is named, and the exit status is 75: what was asked is written down as an order, and is carried out
// when another node has taken its part of the queue over, or it is back; "posthaste cluster status" lists such orders. When it is
// said that something is not known, or nothing is ordered, the status is 69.
//
// -p, and no option at all, removes files in maildrop that a sendmail program
// did not live to finish, a week after. In the spool there is nothing to purge, and no
// structure to check (-s, -S): recovery does both whenever the spool is opened. The
// command says so.
//
// # Security
//
// Only root, the mail owner, and the owner of the queue directory may use it.
// When the spool has to be opened here, root's process first becomes the
// spool's owner's.
//
// # Parameters
//
// mail_owner, queue_directory, queue_service_name, cleanup_service_name, those
// of the log, and spool_* when the mail system is down.
//
// # Diagnostics
//
// What was done goes to standard error and to the log, in Postfix's words. Exit status 0,
// also when a message was not there; 64 wrong usage; 69 the mail system is needed and down, or fails;
// 75 another process has the spool; 77 not permitted; 78 wrong configuration.
package postsuper

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
)

const usage = "usage: %s [-c config_dir] [-d queue_id (delete)] [-e queue_id (expire)] [-f queue_id (expire and/or un-hold)] " +
	"[-h queue_id (hold)] [-H queue_id (un-hold)] [-p (purge temporary files)] [-r queue_id (requeue)] " +
	"[-s (structure fix)] [-S (redundant structure fix)] [-v (verbose)] [queue...] " + queueclient.SelectionUsage

// verbs are the letters of what can be done, in the order in which it is done
// and counted.
const verbs = "rdefhH"

// words are what is said of a message, and what is said of their number.
var words = map[byte]struct{ one, all string }{
	'r': {"requeued", "Requeued"},
	'd': {"removed", "Deleted"},
	'e': {"expired", "Force-expired"},
	'h': {"placed on hold", "Placed on hold"},
	'H': {"released from hold", "Released from hold"},
}

// order of the totals: -f counts as -e and -H.
const totals = "rdehH"

// allQueues are the directories that Postfix's command knows. Those that hold
// no messages may be named and have nothing in them.
var allQueues = []string{"maildrop", "incoming", "active", "deferred", "hold", "corrupt", "bounce", "defer", "trace", "flush"}

// logName is the program's name in the log, by whatever name it was called.
const logName = "postsuper"

// A wish is one option with a queue ID.
type wish struct {
	verb byte
	all  bool
	ids  []mail.QueueID
	seen map[mail.QueueID]bool
}

type command struct {
	cli.Tool
	queue   *queueclient.Queue
	log     *maillog.Logger
	dir     string
	wishes  []wish
	queues  []string // named ones; none: those that the verb looks in
	idle    bool     // -s or -S
	purge   bool     // -p or nothing at all
	verbose bool
	counts  map[byte]int
	where   *selection.Selection
	dry     bool // nothing is to be changed
	out     *bufio.Writer
}

// Run carries out the command and returns its exit status.
func Run(name string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	written := &cli.ErrWriter{W: stdout}
	c := &command{Tool: cli.Tool{Name: name, Stdin: stdin, Stderr: stderr}, counts: make(map[byte]int), out: bufio.NewWriter(written)}
	if err := c.parse(args); err != nil {
		return c.Fail(err)
	}
	var err error
	if c.queue, err = queueclient.Open(c.dir); err != nil {
		return c.Fail(err)
	}
	defer c.queue.Close()
	if !c.queue.Permitted() {
		return c.Fatal(cli.ExitNoPerm, "use of this command is reserved for the superuser")
	}
	err = c.run(context.Background())
	c.out.Flush() // its error is written's
	if err != nil {
		return c.Fail(err)
	}
	if written.Err != nil {
		return c.Fatal(cli.ExitIO, "%v", written.Err)
	}
	return 0
}

func (c *command) parse(args []string) error {
	var err error
	if c.where, c.dry, args, err = queueclient.TakeSelection(args, time.Now()); err != nil {
		return err
	}
	opts, rest, err := cli.Getopt(args, "c:d:e:f:h:H:pr:sSv")
	if err != nil {
		fmt.Fprintf(c.Stderr, "%s: %v\n", c.Name, err)
		return cli.Errorf(cli.ExitUsage, usage, c.Name)
	}
	for _, o := range opts {
		switch o.Letter {
		case 'c':
			c.dir = o.Value
		case 'v':
			c.verbose = true
		case 'p':
			c.purge = true
		case 's', 'S':
			c.idle = true
		default:
			if err := c.wish(o.Letter, o.Value); err != nil {
				return err
			}
		}
	}
	for _, q := range rest {
		if !slices.Contains(allQueues, q) {
			return cli.Errorf(cli.ExitUsage, "invalid directory name: %s", q)
		}
	}
	c.queues = rest
	if c.selects() {
		if err := c.narrow(); err != nil {
			return err
		}
	}
	if !c.purge && len(c.wishes) == 0 {
		c.idle, c.purge = true, !c.idle
	}
	return nil
}

// wish adds what an option asks for to what is asked for already.
func (c *command) wish(verb byte, value string) error {
	i := slices.IndexFunc(c.wishes, func(w wish) bool { return w.verb == verb })
	if i < 0 {
		i = len(c.wishes)
		c.wishes = append(c.wishes, wish{verb: verb, seen: make(map[mail.QueueID]bool)})
	}
	w := &c.wishes[i]
	switch value {
	case "ALL":
		w.all = true
	case "-":
		s := bufio.NewScanner(c.Stdin)
		for s.Scan() {
			c.addID(w, s.Text())
		}
		if err := s.Err(); err != nil {
			return cli.Errorf(cli.ExitIO, "read queue IDs from standard input: %w", err)
		}
	default:
		c.addID(w, value)
	}
	return nil
}

func (c *command) addID(w *wish, text string) {
	id := mail.QueueID(text)
	if !id.Valid() {
		c.Warn("invalid mail queue id: %s", maillog.AppendClean(nil, []byte(text)))
		return
	}
	if !w.seen[id] {
		w.seen[id] = true
		w.ids = append(w.ids, id)
	}
}

// run finds out whether the mail system is up, and does everything.
func (c *command) run(ctx context.Context) error {
	if c.idle {
		fmt.Fprintf(c.Stderr, "%s: the queue's structure is put right whenever the mail system starts; "+
			"\"posthaste spool check\" looks it over now\n", c.Name)
	}
	if c.purge {
		if err := c.purgeDropped(time.Now()); err != nil {
			return err
		}
	}
	if len(c.wishes) == 0 {
		return nil
	}
	conn, err := c.queue.Manager(ctx)
	down := errors.Is(err, queueclient.ErrDown)
	if err != nil && !down {
		return err
	}
	c.openLog(down)
	defer c.closeLog()
	here := &live{queue: c.queue, conn: conn}
	var b backend = here
	if !down {
		if here.own, here.others, err = c.queue.Owners(ctx, conn); err != nil {
			return err
		}
	}
	if down {
		if c.wished('r') {
			return cli.Errorf(cli.ExitUnavailable, "%w, and requeueing needs it (mail goes through cleanup again): start it first", err)
		}
		b = &offline{queue: c.queue, warn: c.Warn}
	}
	err = c.fulfil(ctx, b)
	return errors.Join(err, b.close())
}

func (c *command) wished(verb byte) bool {
	return slices.ContainsFunc(c.wishes, func(w wish) bool { return w.verb == verb })
}

// openLog opens the log of the running system, or its file.
func (c *command) openLog(down bool) {
	open := maillog.Open
	if down {
		open = maillog.OpenDirect
	}
	var err error
	if c.log, err = open(c.queue.Config, logName); err != nil {
		c.Warn("the log cannot be opened: %v", err)
	}
}

func (c *command) closeLog() {
	if c.log == nil {
		return
	}
	if err := c.log.Close(); err != nil {
		c.Warn("the log cannot be written: %v", err)
	}
}

func (c *command) say(e maillog.Event) {
	fmt.Fprintf(c.Stderr, "%s: %s\n", c.Name, e.Append(nil))
	if c.log != nil {
		c.log.Log(e)
	}
}

// fulfil does what is wished and gives the totals, also of what was done
// before something failed.
func (c *command) fulfil(ctx context.Context, b backend) error {
	var err error
	_, running := b.(*live)
	for _, verb := range []byte(verbs) {
		for _, w := range c.wishes {
			// What is ordered keeps nothing else from being done.
			if w.verb == verb && (err == nil || running && queueclient.Later(err)) {
				err = queueclient.Join(err, c.do(ctx, b, &w))
			}
		}
	}
	for _, verb := range []byte(totals) {
		if c.wished(verb) || (verb == 'e' || verb == 'H') && c.wished('f') {
			if c.dry {
				c.sayDry(verb)
				continue
			}
			c.say(maillog.QueueActions{What: words[verb].all, N: c.counts[verb]})
		}
	}
	return err
}

// do fulfils one wish.
func (c *command) do(ctx context.Context, b backend, w *wish) error {
	if c.selects() {
		return c.doSelected(ctx, b, w)
	}
	if l, running := b.(*live); running && l.queue.Node() != "" {
		err := c.doShared(ctx, l, w)
		if w.verb == 'd' && slices.Contains(c.queues, "maildrop") {
			err = queueclient.Join(err, c.deleteDropped(w))
		}
		return err
	}
	if len(w.ids) > 0 {
		if err := b.find(ctx, w.ids, c.queues, func(list []target) error { return c.apply(ctx, b, w.verb, list, true) }); err != nil {
			return err
		}
	}
	if w.all {
		if err := b.each(ctx, c.queues, func(list []target) error { return c.apply(ctx, b, w.verb, list, c.verbose) }); err != nil {
			return err
		}
	}
	if w.verb == 'd' && slices.Contains(c.queues, "maildrop") {
		return c.deleteDropped(w)
	}
	return nil
}

// apply does one thing to some messages, and counts and says what was done.
func (c *command) apply(ctx context.Context, b backend, verb byte, list []target, tell bool) error {
	for _, step := range stepsOf(verb) {
		var eligible []target
		for _, t := range list {
			if applies(step, t) {
				eligible = append(eligible, t)
			}
		}
		if len(eligible) == 0 {
			continue
		}
		done, err := b.apply(ctx, step, verb == 'f', eligible, len(c.queues) > 0)
		c.counts[step] += len(done)
		for _, id := range done {
			c.did(string(id), step, tell)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// applies says whether something can be done to a message, as Postfix counts:
// only what is not on hold is put there, and so on.
func applies(step byte, t target) bool {
	if t.queue == "corrupt" {
		return step == 'd'
	}
	switch step {
	case 'h':
		return t.queue != "hold"
	case 'H':
		return t.queue == "hold"
	case 'e':
		return !t.expired
	}
	return true
}

// did says what was done to a message. That one was deleted is logged in any case, unlike Postfix does with
// ALL: no other line says what has become of it.
func (c *command) did(id string, step byte, tell bool) {
	switch {
	case tell:
		c.say(action(id, step))
	case step == 'd' && c.log != nil:
		c.log.Log(action(id, step))
	}
}

func action(id string, step byte) maillog.QueueAction {
	return maillog.QueueAction{ID: id, Action: words[step].one}
}
