// Package postqueue is the postqueue(1) command, and mailq: what is in the
// queue, and try again now. Both are asked of the queue manager. While the
// mail system is down who may read the spool is shown what lies in it.
//
//	postqueue [-v] [-c config_dir] -p | -j | -f | -i queue_id ... | -s site
//	postqueue [-v] [-c config_dir] -p | -j | -f [--dry-run] --sender=ADDRESS ...
//
// -p, -j and -f take the conditions of package selection as long options: only the mail that
// fulfils them is listed or tried.
//
// Mail that the sendmail program has left in maildrop is listed first, for those
// who may look there.
//
// Of a queue that nodes share (spool_type = postgresql) all of it is listed, on any node, by the node that has it: -p
// writes a line "-- On node NAME:" above the mail of another node, -j the field node. The mail of a node that is down is listed,
// too, and marked. What other nodes have is read from the database; a message is there in the queue active
// while it is being delivered.
//
// # Parameters
//
// authorized_flush_users, authorized_mailq_users, queue_directory,
// queue_service_name.
//
// # Diagnostics
//
// Exit status 0; 64 wrong usage; 69 the mail system is down or refuses; 74
// the output cannot be written; 77 the user is not authorized; 78 wrong
// configuration.
package postqueue

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
	"posthaste/internal/table"
	"posthaste/internal/whoami"
)

// patience is how long the queue manager may take to accept an order.
const patience = time.Minute

const usage = "usage: %[1]s -f | %[1]s -i queueid | %[1]s -j | %[1]s -p | %[1]s -s site"

// command is one run.
type command struct {
	cli.Tool
	out       *cli.ErrWriter
	configDir string
	verb      byte // f i j p s
	values    []string
	where     *selection.Selection
	dry       bool
}

// Run carries out the command called name (postqueue, mailq) and returns its
// exit status.
func Run(name string, args []string, stdout, stderr io.Writer) int {
	c := &command{Tool: cli.Tool{Name: name, Stderr: stderr}, out: &cli.ErrWriter{W: stdout}}
	if name == "mailq" {
		c.verb = 'p'
	}
	if err := c.parse(args); err != nil {
		return c.Fail(err)
	}
	queue, err := queueclient.Open(c.configDir)
	if err != nil {
		return c.Fail(err)
	}
	defer queue.Close()
	if err := c.run(context.Background(), queue); err != nil {
		return c.Fail(err)
	}
	if c.out.Err != nil {
		return c.Fatal(cli.ExitIO, "%v", c.out.Err)
	}
	return 0
}

// parse reads the options.
func (c *command) parse(args []string) error {
	wrong := cli.Errorf(cli.ExitUsage, usage, c.Name)
	where, dry, args, err := queueclient.TakeSelection(args, time.Now())
	if err != nil {
		return err
	}
	c.where, c.dry = where, dry
	opts, rest, err := cli.Getopt(args, "c:fi:jps:v")
	if err != nil {
		fmt.Fprintf(c.Stderr, "%s: %v\n", c.Name, err)
		return wrong
	}
	for _, o := range opts {
		switch o.Letter {
		case 'v':
		case 'c':
			c.configDir = o.Value
		default:
			if c.verb != 0 && c.Name != "mailq" && (c.verb != 'i' || o.Letter != 'i') {
				return wrong
			}
			c.verb, c.values = o.Letter, append(c.values, o.Value)
		}
	}
	if c.verb == 0 || len(rest) > 0 {
		return wrong
	}
	if (c.verb == 'i' || c.verb == 's') && !c.where.Empty() || c.dry && c.verb != 'f' {
		return wrong
	}
	for _, v := range c.values {
		switch {
		case c.verb == 'i' && !mail.QueueID(v).Valid():
			return cli.Errorf(cli.ExitUsage, "Cannot flush queue ID - invalid name: \"%s\"", queuelist.Printable(v))
		case c.verb == 's' && !validSite(v):
			return cli.Errorf(cli.ExitUsage, "Cannot flush mail queue - invalid destination: \"%s\"", queuelist.Printable(v))
		}
	}
	return nil
}

// validSite says whether s is a host name, as ETRN takes it, or an address in
// brackets.
func validSite(s string) bool {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		s, ok = strings.CutSuffix(inner, "]")
		return ok && s != "" && strings.Trim(s, "0123456789abcdefABCDEF.:IPv") == ""
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' {
			return false
		}
		for _, r := range label {
			if r < 0x80 && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
				return false
			}
		}
	}
	return len(s) <= 255
}

func (c *command) run(ctx context.Context, queue *queueclient.Queue) error {
	users, what := "authorized_mailq_users", "view"
	if c.verb != 'p' && c.verb != 'j' && !c.dry {
		users, what = "authorized_flush_users", "flush"
	}
	if ok, err := authorized(ctx, queue.Config, users, os.Getuid(), whoami.Name()); err != nil {
		return err
	} else if !ok {
		return cli.Errorf(cli.ExitNoPerm, "User %s(%d) is not allowed to %s the mail queue", whoami.Name(), os.Getuid(), what)
	}
	conn, err := queue.Manager(ctx)
	if err != nil && !errors.Is(err, queueclient.ErrDown) {
		return err
	}
	switch {
	case c.verb == 'p' || c.dry:
		return c.list(c.walk(ctx, queue, conn), queue.Node())
	case c.verb == 'j':
		return c.json(c.walk(ctx, queue, conn))
	case err != nil:
		return cli.Errorf(cli.ExitUnavailable, "Cannot flush mail queue - mail system is down")
	case !c.where.Empty():
		return c.flushSelected(ctx, queue, conn)
	}
	own, others, err := queue.Owners(ctx, conn)
	for _, v := range c.values {
		if err == nil {
			err = c.flush(ctx, queue.ManagerClient(), own, others, v)
		}
	}
	return err
}

// A walk calls its argument for each message until that returns false.
type walk func(func(*proto.Item) bool) error

// walk goes over maildrop and then over the queue; conn is nil when the mail
// system is down.
func (c *command) walk(ctx context.Context, queue *queueclient.Queue, conn *ipc.Conn) walk {
	if !c.where.Empty() {
		return func(f func(*proto.Item) bool) error { return queue.SelectedOfAll(ctx, conn, c.where, c.Warn, f) }
	}
	return func(f func(*proto.Item) bool) error {
		more := true
		err := queue.Dropped(func(it *proto.Item) bool {
			more = f(it)
			return more
		})
		if err != nil || !more {
			return err
		}
		if conn != nil {
			return queue.EachOfAll(ctx, conn, f)
		}
		if err := queue.Readable(); err != nil {
			return cli.Errorf(cli.ExitUnavailable, "Queue report unavailable - mail system is down (%w)", err)
		}
		c.Warn("Mail system is down -- accessing queue directly")
		return queue.Items(c.Warn, f)
	}
}

// authorized says whether the user is in the list. Root need not be.
func authorized(ctx context.Context, cfg *config.Config, parameter string, uid int, name string) (bool, error) {
	if uid == 0 {
		return true, nil
	}
	l, err := table.NewList(parameter, cfg.List(parameter), table.ListOptions{Kind: table.Strings})
	if err != nil {
		return false, err
	}
	return l.Match(ctx, name)
}

// list prints the queue as people know it. own is the name of this node.
func (c *command) list(each walk, own string) error {
	w := bufio.NewWriter(c.out)
	defer w.Flush() // its error is out's
	t := queuelist.Text{W: w, Own: own}
	err := each(func(it *proto.Item) bool {
		t.Add(it)
		return c.out.Err == nil
	})
	if err == nil {
		t.End()
	}
	return err
}

// json prints one object a line.
func (c *command) json(each walk) error {
	w := bufio.NewWriter(c.out)
	defer w.Flush()
	return each(func(it *proto.Item) bool {
		queuelist.JSON(w, it)
		return c.out.Err == nil
	})
}

// flushSelected has the mail tried that the conditions are fulfilled by.
func (c *command) flushSelected(ctx context.Context, queue *queueclient.Queue, conn *ipc.Conn) error {
	n := 0
	err := queue.OnAll(ctx, conn, func(m queueclient.Caller) error {
		return queueclient.Select(ctx, m, &proto.Select{Where: c.where.Encode(), Verb: proto.VerbFlush}, func(r *proto.SelectReply) error {
			n += len(r.IDs)
			return nil
		})
	})
	fmt.Fprintf(c.Stderr, "%s: Flushed: %s\n", c.Name, queueclient.Messages(n))
	return err
}

// flush asks the manager that there is when a reload has one follow the other: to flush
// twice does no harm. Those of other nodes are asked, too; own says whether this node has some of the queue.
func (c *command) flush(ctx context.Context, manager *ipc.Client, own bool, others []*queueclient.Node, value string) error {
	q := &proto.Command{Verb: proto.VerbFlush}
	switch c.verb {
	case 'f':
		q.All = true
	case 'i':
		q.ID = mail.QueueID(value)
	case 's':
		q.Site = strings.Trim(value, "[]")
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	denied, done := "", false
	var unread error
	heard := func(reply *proto.CommandReply) {
		unread = queueclient.Join(unread, queueclient.UnreadError(&reply.Unread))
		denied, done = cmp.Or(denied, reply.Denied), done || reply.Denied == ""
	}
	if own {
		var reply proto.CommandReply
		if err := manager.CallAgain(ctx, q, &reply); err != nil {
			return cli.Errorf(cli.ExitUnavailable, "Cannot flush mail queue - %w", err)
		}
		heard(&reply)
	}
	err := queueclient.EachNode(others, func(m queueclient.Caller) error {
		var reply proto.CommandReply
		err := m.Call(ctx, q, &reply)
		if err == nil {
			heard(&reply)
		}
		return err
	})
	switch {
	case err != nil && (!done || c.verb != 'i'): // a message is on one node, and it does not matter that another is down
		return cli.Errorf(cli.Status(err), "Cannot flush mail queue - %w", err)
	case unread != nil:
		return unread
	case denied == "" || done:
	case c.verb == 's':
		return cli.Errorf(cli.ExitUnavailable, "Flush service is not configured for destination \"%s\"", value)
	default: // as with Postfix, it is no failure that a message is gone
		c.Warn("%s: %s", value, denied)
	}
	return nil
}
