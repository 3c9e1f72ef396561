package queuetool

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/jsontext"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queueclient"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
)

const divertUsage = "posthaste divert TARGET NEXTHOP [--reason TEXT] [--until TIME | --for TIME] [-n] [-j] | posthaste undivert TARGET [-j] | posthaste diverted [-j]; " +
	"a TARGET is one of DESTINATION --domain=DOMAIN --nexthop=NEXTHOP --transport=NAME, and NEXTHOP is a domain, [host]:port, transport:nexthop or transport:"

// parseNexthop reads where mail is to be diverted to, in its only form.
func parseNexthop(text string) (string, error) {
	t, err := selection.NewTarget("destination", text)
	if err == nil && (text == "*" || strings.HasPrefix(t.Nexthop(), ".")) {
		err = fmt.Errorf("%q is not a next hop: give a domain, [host]:port, transport:nexthop or transport:", text)
	}
	return t.String(), err
}

// diversions carries out divert, undivert and diverted.
func (c *command) diversions(ctx context.Context, conn *ipc.Conn, o *order, now time.Time) error {
	switch o.verb {
	case "diverted":
		return c.diverted(ctx, conn, o)
	case "undivert":
		return c.undivert(ctx, conn, o)
	}
	messages, octets, err := meant(ctx, conn, o, now)
	if err != nil {
		return err
	}
	if _, err := ask(ctx, conn, &proto.Override{Op: proto.OverridePut, Entry: o.entry, Dry: o.dry}); err != nil {
		return err
	}
	o.entry.Since = now
	switch {
	case o.json:
		text := strings.TrimSuffix(diversionJSON(&o.entry), "}")
		if o.dry {
			text += `, "dry_run": true`
		}
		return c.print(fmt.Sprintf(`%s, "messages": %d, "octets": %d}`, text, messages, octets))
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

func (c *command) undivert(ctx context.Context, conn *ipc.Conn, o *order) error {
	reply, err := ask(ctx, conn, &proto.Override{Op: proto.OverrideRemove, Entry: o.entry})
	if err != nil {
		return err
	}
	if !reply.Found {
		return cli.Errorf(cli.ExitNoInput, "%s is not diverted under that name: \"posthaste diverted\" lists the diversions", queuelist.Printable(o.target.Name()))
	}
	if o.json {
		return c.print(fmt.Sprintf(`{"target": %s, "ended": true, "by": %s}`, jsontext.Quote(o.target.String()), jsontext.Quote(o.entry.By)))
	}
	c.say("%s is no longer diverted", o.target.Name())
	return nil
}

// diverted lists the diversions.
func (c *command) diverted(ctx context.Context, conn *ipc.Conn, o *order) error {
	reply, err := ask(ctx, conn, &proto.Override{Op: proto.OverrideList})
	if err != nil {
		return err
	}
	out := &cli.ErrWriter{W: c.Stdout}
	w := bufio.NewWriter(out)
	for i := range reply.Entries {
		e := &reply.Entries[i]
		if e.Of != string(override.Diversion) {
			continue
		}
		if o.json {
			fmt.Fprintln(w, diversionJSON(e))
			continue
		}
		name := e.Target
		if t, err := selection.ParseTarget(e.Target); err == nil {
			name = t.Name()
		}
		text := fmt.Sprintf("%s: diverted to %s by %s since %s%s", name, e.Nexthop, e.By, e.Since.Local().Format(time.DateTime), end(e.Until))
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

// diversionJSON is a diversion as an object.
func diversionJSON(e *proto.OverrideEntry) string {
	text := fmt.Sprintf(`{"target": %s, "nexthop": %s, "by": %s, "since": %d`, jsontext.Quote(e.Target), jsontext.Quote(e.Nexthop), jsontext.Quote(e.By), e.Since.Unix())
	if !e.Until.IsZero() {
		text += fmt.Sprintf(`, "until": %d`, e.Until.Unix())
	}
	return text + `, "reason": ` + jsontext.Quote(e.Reason) + "}"
}
