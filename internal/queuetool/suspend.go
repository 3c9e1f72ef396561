package queuetool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/jsontext"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
	"posthaste/internal/spooltool/cli"
	"posthaste/internal/whoami"
)

// An order is a command line of suspend, resume or suspended.
type order struct {
	dir   string
	json  bool
	entry proto.OverrideEntry
}

// overrides carries out suspend, resume and suspended.
func (c *command) overrides(verb string, args []string, now time.Time) int {
	o, err := parseOrder(verb, args, now)
	if err != nil {
		return c.Fail(err)
	}
	queue, err := cli.Open(o.dir)
	if err != nil {
		return c.Fail(err)
	}
	defer queue.Close()
	if !queue.Permitted() {
		return c.Fatal(cli.ExitNoPerm, "use of this command is reserved for the superuser")
	}
	ctx := context.Background()
	conn, err := queue.Manager(ctx)
	if errors.Is(err, cli.ErrDown) {
		return c.Fatal(cli.ExitUnavailable, "%v; the queue manager keeps the suspensions: start it first", err)
	}
	if err != nil {
		return c.Fail(err)
	}
	switch verb {
	case "suspend":
		_, err = ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry})
		if err == nil {
			fmt.Fprintf(c.Stderr, "%s: %s is suspended%s\n", c.Name, queuelist.Printable(o.entry.Target), end(o.entry.Until))
		}
	case "resume":
		err = c.resume(ctx, conn, o)
	default:
		err = c.suspended(ctx, conn, o)
	}
	if err != nil {
		return c.Fail(err)
	}
	return 0
}

func (c *command) resume(ctx context.Context, conn *ipc.Conn, o *order) error {
	reply, err := ask(ctx, conn, &proto.Override{Op: proto.OverrideRemove, Entry: o.entry})
	if err != nil {
		return err
	}
	if !reply.Found {
		return cli.Errorf(cli.ExitNoInput, "%s is not suspended under that name: \"%s suspended\" lists the suspensions", queuelist.Printable(o.entry.Target), c.Name)
	}
	fmt.Fprintf(c.Stderr, "%s: %s is resumed\n", c.Name, queuelist.Printable(o.entry.Target))
	return nil
}

// suspended lists what is suspended.
func (c *command) suspended(ctx context.Context, conn *ipc.Conn, o *order) error {
	reply, err := ask(ctx, conn, &proto.Override{Op: proto.OverrideList})
	if err != nil {
		return err
	}
	out := &cli.ErrWriter{W: c.Stdout}
	w := bufio.NewWriter(out)
	for i, e := range reply.Entries {
		if e.Of != string(override.Suspension) || i >= len(reply.Waiting) {
			continue
		}
		if o.json {
			fmt.Fprintf(w, `{"destination": %s, "by": %s, "since": %d`, jsontext.Quote(e.Target), jsontext.Quote(e.By), e.Since.Unix())
			if !e.Until.IsZero() {
				fmt.Fprintf(w, `, "until": %d`, e.Until.Unix())
			}
			fmt.Fprintf(w, `, "reason": %s, "waiting": %d}`+"\n", jsontext.Quote(e.Reason), reply.Waiting[i])
			continue
		}
		text := fmt.Sprintf("%s: suspended by %s since %s%s, %s wait", e.Target, e.By, e.Since.Local().Format(time.DateTime), end(e.Until), cli.Messages(reply.Waiting[i]))
		if e.Reason != "" {
			text += ": " + e.Reason
		}
		fmt.Fprintln(w, queuelist.Printable(text))
	}
	w.Flush() // its error is out's
	if out.Err != nil {
		return cli.Errorf(cli.ExitIO, "%w", out.Err)
	}
	return nil
}

func end(until time.Time) string {
	if until.IsZero() {
		return ""
	}
	return " until " + until.Local().Format(time.DateTime)
}

// retryTime is how long a queue manager that takes over from another is waited for.
const retryTime = 10 * time.Second

// ask asks the queue manager. During a reload the one that answers may not yet
// be the owner of the overrides: it is asked again.
func ask(ctx context.Context, conn *ipc.Conn, q *proto.Override) (*proto.OverrideReply, error) {
	for limit := time.Now().Add(retryTime); ; time.Sleep(retryTime / 50) {
		reply := new(proto.OverrideReply)
		if err := conn.Call(ctx, q, reply); err != nil {
			return nil, cli.Errorf(cli.ExitUnavailable, "ask the queue manager: %w", err)
		}
		switch {
		case reply.Refused == "":
			return reply, nil
		case reply.Refused != override.ErrNotOwner.Error() || time.Now().After(limit):
			return nil, cli.Errorf(cli.ExitUnavailable, "%s", reply.Refused)
		}
	}
}

func parseOrder(verb string, args []string, now time.Time) (*order, error) {
	o := &order{entry: proto.OverrideEntry{Of: string(override.Suspension), By: who()}}
	for i := 0; i < len(args); i++ {
		name, value, given := strings.Cut(args[i], "=")
		take := func() error {
			if given {
				return nil
			}
			if i++; i >= len(args) {
				return cli.Errorf(cli.ExitUsage, "%s: there is no value", name)
			}
			value = args[i]
			return nil
		}
		var err error
		switch {
		case name == "-c" && !given:
			if err = take(); err == nil {
				o.dir = value
			}
		case verb == "suspend" && name == "--reason":
			if err = take(); err == nil {
				o.entry.Reason = value
			}
		case verb == "suspend" && (name == "--until" || name == "--for"):
			if err = take(); err == nil {
				err = o.until(name, value, now)
			}
		case verb == "suspended" && args[i] == "-j":
			o.json = true
		case strings.HasPrefix(name, "-") || o.entry.Target != "" || verb == "suspended":
			err = cli.Errorf(cli.ExitUsage, "%q is not understood; usage: %s", args[i], fmt.Sprintf(suspendUsage, "posthaste queue"))
		default:
			var dest selection.Destination
			dest, err = selection.ParseDestination(args[i])
			o.entry.Target = dest.String()
		}
		if err != nil {
			return nil, cli.Errorf(cli.ExitUsage, "%w", err)
		}
	}
	switch {
	case verb != "suspended" && o.entry.Target == "":
		return nil, cli.Errorf(cli.ExitUsage, "%s what? Name a domain, .domain, [host]:port, transport:nexthop, or * for all mail", verb)
	case len(o.entry.Reason) > override.MaxReason:
		return nil, cli.Errorf(cli.ExitUsage, "--reason: more than %d octets", override.MaxReason)
	}
	return o, nil
}

// until reads the end of a suspension.
func (o *order) until(name, value string, now time.Time) error {
	if !o.entry.Until.IsZero() {
		return cli.Errorf(cli.ExitUsage, "--until and --for: one end is enough")
	}
	if name == "--for" {
		d, err := selection.ParseTime(value)
		o.entry.Until = now.Add(d).Truncate(time.Second)
		return err
	}
	t, clock, err := cli.ParseMoment(value, now)
	switch {
	case err != nil:
		return cli.Errorf(cli.ExitUsage, "--until: %w", err)
	case t.After(now):
	case clock:
		t = t.AddDate(0, 0, 1)
	default:
		return cli.Errorf(cli.ExitUsage, "--until: %s lies in the past", value)
	}
	o.entry.Until = t
	return nil
}

// who orders it: the user, and who has become root for it, as sudo says.
func who() string {
	name := whoami.Name()
	if by := os.Getenv("SUDO_USER"); by != "" && os.Getuid() == 0 && by != name {
		return by + " as " + name
	}
	return name
}
