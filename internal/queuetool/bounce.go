package queuetool

import (
	"context"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
)

const bounceUsage = "posthaste bounce TARGET --for TIME | --until TIME [--reason TEXT] [-n] [-j] | posthaste unbounce TARGET [-j] | posthaste bounced [-j]; " +
	"a TARGET is one of DOMAIN --domain=DOMAIN --sender=ADDRESS --sender-domain=DOMAIN --tenant=NAME --campaign=TENANT/NAME"

// recipients makes a domain's the target that a name alone is: mail is returned for whom it is for, whatever way it goes.
func (o *order) recipients() (err error) {
	if by, value := o.target.Condition(); by == "destination" && value != "*" {
		o.target, err = selection.NewTarget("domain", value)
	}
	return err
}

// checkBounce says what an order about mail that is returned lacks.
func (o *order) checkBounce() error {
	if !o.given {
		return nil
	}
	if err := o.recipients(); err != nil {
		return cli.Errorf(cli.ExitUsage, "%w", err)
	}
	// A notice cannot be called back. Nobody is to find out after a week that mail has been returned since.
	if o.verb == "bounce" && o.entry.Until.IsZero() {
		return cli.Errorf(cli.ExitUsage, "bounce %s until when? Say --for 30m, or --until 18:00; usage: %s", queuelist.Printable(o.target.Name()), bounceUsage)
	}
	return nil
}

// bounces carries out bounce, unbounce and bounced.
func (c *command) bounces(ctx context.Context, conn *ipc.Conn, o *order, now time.Time) error {
	switch o.verb {
	case "bounced":
		return c.orders(ctx, conn, o, &returns)
	case "unbounce":
		return c.lift(ctx, conn, o, &returns)
	}
	// The queue manager judges before anything is counted: what is no target of this has no number.
	if _, err := c.ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry, Dry: true}); err != nil {
		return err
	}
	messages, octets, err := c.meant(ctx, conn, o, now)
	if err != nil {
		return err
	}
	if !o.dry {
		if _, err := c.ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry}); err != nil {
			return err
		}
	}
	o.entry.Since = now
	switch {
	case o.json:
		more := ""
		if o.dry {
			more = `, "dry_run": true`
		}
		return c.print(object(&o.entry, "", more+fmt.Sprintf(`, "messages": %d, "octets": %d`, messages, octets)))
	case o.dry:
		c.say("dry run, nothing is changed: %s would be returned%s: %s, %d octets", o.target.Mail(), end(o.entry.Until), queueclient.Messages(messages), octets)
		return nil
	}
	c.say("%s is returned%s", o.target.Mail(), end(o.entry.Until))
	if messages > 0 {
		c.say("%s in the queue: those that are deferred are returned at their next attempt, or now with: posthaste queue flush %s", queueclient.Messages(messages), o.flushOptions())
	}
	return nil
}

// flushOptions select the mail that is returned.
func (o *order) flushOptions() string {
	var words []string
	for _, x := range o.conditions() {
		if t, err := selection.NewTarget(x[0], x[1]); err == nil {
			words = append(words, t.Option())
		}
	}
	return strings.Join(words, " ")
}

// returns is how the tool speaks of mail that is returned.
var returns = manner{
	kind: override.Return, none: "%s is not returned under that name: \"posthaste bounced\" lists what is",
	member: "ended", gone: "%s is no longer returned",
	line: func(name, since string, _ *proto.OverrideReply, _ int) string {
		return fmt.Sprintf("%s: returned by %s", name, since)
	},
	object: func(r *proto.OverrideReply, i int) string { return object(&r.Entries[i], "", "") },
}
