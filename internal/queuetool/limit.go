package queuetool

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/jsontext"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
)

const limitUsage = "posthaste limit DESTINATION NUMBER [--raise] [--reason TEXT] [--until TIME | --for TIME] [-n] [-j] | posthaste unlimit DESTINATION [-j] | posthaste limited [-j]; " +
	"a DESTINATION is a domain, .domain, [host]:port, transport:nexthop, transport: or *, or one of --nexthop=NEXTHOP --transport=NAME"

// parseMost reads how many deliveries at a time are allowed.
func parseMost(text string) (int, error) {
	n, err := strconv.Atoi(text)
	switch {
	case err == nil && n == 0:
		return 0, fmt.Errorf("a limit of 0 would be a suspension: use \"posthaste suspend\"")
	case err != nil || n < 1 || n > override.MaxMost:
		return 0, fmt.Errorf("%q is not a number from 1 to %d", text, override.MaxMost)
	}
	return n, nil
}

// nexthop makes the target that of a limit, which is for next hops alone.
func (o *order) nexthop() (err error) {
	switch by, value := o.target.Condition(); by {
	case "destination":
	case "nexthop":
		o.target, err = selection.NewTarget("destination", value)
	default:
		err = fmt.Errorf("a limit is of next hops, and %s is none: name a domain that is the next hop, .domain, [host]:port, transport:nexthop, transport: or *", o.target.Name())
	}
	return err
}

// limits carries out limit, unlimit and limited.
func (c *command) limits(ctx context.Context, conn *ipc.Conn, o *order, now time.Time) error {
	switch o.verb {
	case "limited":
		return c.limited(ctx, conn, o)
	case "unlimit":
		return c.unlimit(ctx, conn, o)
	}
	reply, err := ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry, Dry: o.dry})
	if err != nil {
		return err
	}
	use := proto.OverrideUse{}
	if len(reply.Uses) > 0 {
		use = reply.Uses[0]
	}
	o.entry.Since = now
	switch {
	case o.json:
		return c.print(limitJSON(&o.entry, &use, o.dry))
	case o.dry:
		c.say("dry run, nothing is changed: %s would be limited to %d at a time%s; %s", o.target.Name(), o.entry.Most, end(o.entry.Until), used(&use))
	default:
		c.say("%s is limited to %d at a time%s; %s", o.target.Name(), o.entry.Most, end(o.entry.Until), used(&use))
	}
	return nil
}

// used is what a limit is for at the moment, in words.
func used(u *proto.OverrideUse) string {
	switch u.Destinations {
	case 0:
		return "no mail goes there now"
	case 1:
		return fmt.Sprintf("%d deliveries are under way, %d wait", u.Busy, u.Todo)
	}
	return fmt.Sprintf("%d destinations, each for itself; %d deliveries are under way, %d wait", u.Destinations, u.Busy, u.Todo)
}

func (c *command) unlimit(ctx context.Context, conn *ipc.Conn, o *order) error {
	reply, err := ask(ctx, conn, &proto.Override{Op: proto.OverrideRemove, Entry: o.entry})
	if err != nil {
		return err
	}
	if !reply.Found {
		return cli.Errorf(cli.ExitNoInput, "%s has no limit under that name: \"posthaste limited\" lists the limits", queuelist.Printable(o.target.Name()))
	}
	if o.json {
		return c.print(fmt.Sprintf(`{"target": %s, "lifted": true, "by": %s}`, jsontext.Quote(o.target.String()), jsontext.Quote(o.entry.By)))
	}
	c.say("the limit of %s is lifted", o.target.Name())
	return nil
}

// limited lists the limits.
func (c *command) limited(ctx context.Context, conn *ipc.Conn, o *order) error {
	reply, err := ask(ctx, conn, &proto.Override{Op: proto.OverrideList})
	if err != nil {
		return err
	}
	out := &cli.ErrWriter{W: c.Stdout}
	w := bufio.NewWriter(out)
	for i := range reply.Entries {
		e := &reply.Entries[i]
		if e.Of != string(override.Limit) || i >= len(reply.Uses) {
			continue
		}
		if o.json {
			fmt.Fprintln(w, limitJSON(e, &reply.Uses[i], false))
			continue
		}
		text := fmt.Sprintf("%s: limited to %d at a time", e.Target, e.Most)
		if e.Raises {
			text += ", whatever main.cf allows,"
		}
		text += fmt.Sprintf(" by %s since %s%s; %s", e.By, e.Since.Local().Format(time.DateTime), end(e.Until), used(&reply.Uses[i]))
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

// limitJSON is a limit as an object.
func limitJSON(e *proto.OverrideEntry, u *proto.OverrideUse, dry bool) string {
	text := fmt.Sprintf(`{"target": %s, "limit": %d, "raises": %t, "by": %s, "since": %d`, jsontext.Quote(e.Target), e.Most, e.Raises, jsontext.Quote(e.By), e.Since.Unix())
	if !e.Until.IsZero() {
		text += fmt.Sprintf(`, "until": %d`, e.Until.Unix())
	}
	text += fmt.Sprintf(`, "reason": %s, "destinations": %d, "under_way": %d, "waiting": %d`, jsontext.Quote(e.Reason), u.Destinations, u.Busy, u.Todo)
	if dry {
		text += `, "dry_run": true`
	}
	return text + "}"
}
