package queuetool

import (
	"context"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/jsontext"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
)

const divertUsage = "posthaste divert TARGET NEXTHOP [--reason TEXT] [--until TIME | --for TIME] [-n] [-j] | posthaste undivert TARGET [-j] | posthaste diverted [-j]; " +
	"a TARGET is one of DESTINATION --domain=DOMAIN --nexthop=NEXTHOP --transport=NAME, and NEXTHOP is a domain, [host]:port, transport:nexthop or transport:"

// parseNexthop reads where mail is to be diverted to, in its only form.
func parseNexthop(text string) (string, error) {
	t, err := selection.ParseNexthop(text)
	return t.String(), err
}

// diversions carries out divert, undivert and diverted.
func (c *command) diversions(ctx context.Context, conn *ipc.Conn, o *order, now time.Time) error {
	switch o.verb {
	case "diverted":
		return c.orders(ctx, conn, o, &detours)
	case "undivert":
		return c.lift(ctx, conn, o, &detours)
	}
	messages, octets, err := c.meant(ctx, conn, o, now)
	if err != nil {
		return err
	}
	if _, err := c.ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry, Dry: o.dry}); err != nil {
		return err
	}
	o.entry.Since = now
	switch {
	case o.json:
		more := ""
		if o.dry {
			more = `, "dry_run": true`
		}
		return c.print(diversionJSON(&o.entry, more+fmt.Sprintf(`, "messages": %d, "octets": %d`, messages, octets)))
	case o.dry:
		c.say("dry run, nothing is changed: %s would be diverted to %s%s: %s, %d octets", o.target.Name(), o.entry.Nexthop, end(o.entry.Until), queueclient.Messages(messages), octets)
		return nil
	}
	c.say("%s is diverted to %s%s", o.target.Name(), o.entry.Nexthop, end(o.entry.Until))
	if messages > 0 {
		c.say("%s in the queue: those that are deferred go at their next attempt, or now with: posthaste queue flush %s", queueclient.Messages(messages), flushOption(o))
	}
	return nil
}

// flushOption selects the mail that is diverted, which has the new next hop by now.
func flushOption(o *order) string {
	by, value := o.target.Condition()
	if t, err := selection.NewTarget("destination", o.entry.Nexthop); (by == "nexthop" || o.target.Transport() != "" || strings.HasPrefix(value, "[")) && err == nil && t.Nexthop() != "" {
		if t, err = selection.NewTarget("nexthop", t.Nexthop()); err == nil {
			return t.Option()
		}
	}
	if by == "destination" {
		if t, err := selection.NewTarget("domain", value); err == nil && value != "*" {
			return t.Option()
		}
		return "ALL"
	}
	return o.target.Option()
}

// detours is how the tool speaks of diversions.
var detours = manner{
	kind: override.Diversion, none: "%s is not diverted under that name: \"posthaste diverted\" lists the diversions",
	member: "ended", gone: "%s is no longer diverted",
	line: func(name, since string, r *proto.OverrideReply, i int) string {
		return fmt.Sprintf("%s: diverted to %s by %s", name, r.Entries[i].Nexthop, since)
	},
	object: func(r *proto.OverrideReply, i int) string { return diversionJSON(&r.Entries[i], "") },
}

// diversionJSON is a diversion as an object.
func diversionJSON(e *proto.OverrideEntry, more string) string {
	return object(e, `, "nexthop": `+jsontext.Quote(e.Nexthop), more)
}
