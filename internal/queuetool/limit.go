package queuetool

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/override"
	"posthaste/internal/proto"
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
		return c.orders(ctx, conn, o, &limitations)
	case "unlimit":
		return c.lift(ctx, conn, o, &limitations)
	}
	reply, err := c.ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry, Dry: o.dry})
	if err != nil {
		return err
	}
	u := use(reply, 0)
	o.entry.Since = now
	switch {
	case o.json:
		return c.print(limitJSON(&o.entry, u, o.dry))
	case o.dry:
		c.say("dry run, nothing is changed: %s would be limited to %d at a time%s; %s", o.target.Name(), o.entry.Most, end(o.entry.Until), used(u))
	default:
		c.say("%s is limited to %d at a time%s; %s", o.target.Name(), o.entry.Most, end(o.entry.Until), used(u))
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

// limitations is how the tool speaks of limits.
var limitations = manner{
	kind: override.Limit, none: "%s has no limit under that name: \"posthaste limited\" lists the limits",
	member: "lifted", gone: "the limit of %s is lifted",
	line: func(name, since string, r *proto.OverrideReply, i int) string {
		e, raised := &r.Entries[i], ""
		if e.Raises {
			raised = ", whatever main.cf allows,"
		}
		return fmt.Sprintf("%s: limited to %d at a time%s by %s; %s", name, e.Most, raised, since, used(use(r, i)))
	},
	object: func(r *proto.OverrideReply, i int) string { return limitJSON(&r.Entries[i], use(r, i), false) },
}

// use is what entry i of a list is for at the moment.
func use(r *proto.OverrideReply, i int) *proto.OverrideUse {
	if i < len(r.Uses) {
		return &r.Uses[i]
	}
	return new(proto.OverrideUse)
}

// limitJSON is a limit as an object.
func limitJSON(e *proto.OverrideEntry, u *proto.OverrideUse, dry bool) string {
	more := fmt.Sprintf(`, "destinations": %d, "under_way": %d, "waiting": %d`, u.Destinations, u.Busy, u.Todo)
	if dry {
		more += `, "dry_run": true`
	}
	return object(e, fmt.Sprintf(`, "limit": %d, "raises": %t`, e.Most, e.Raises), more)
}
