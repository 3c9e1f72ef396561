package queuetool

import (
	"bufio"
	"context"
	"fmt"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/jsontext"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
)

// A manner is how the tool speaks of one kind of what operators order for now.
type manner struct {
	kind   override.Kind
	none   string // a format: of this target there is none
	member string // of the JSON object that says that one is gone
	gone   string // a format: the one of this target is gone
	// line and object describe entry i of a list: for a person, without the reason; since says by whom, since
	// when and until when.
	line   func(name, since string, r *proto.OverrideReply, i int) string
	object func(r *proto.OverrideReply, i int) string
}

// lift takes an order back.
func (c *command) lift(ctx context.Context, conn *ipc.Conn, o *order, m *manner) error {
	reply, err := c.ask(ctx, conn, &proto.Override{Op: proto.OverrideRemove, Entry: o.entry})
	if err != nil {
		return err
	}
	if !reply.Found {
		return cli.Errorf(cli.ExitNoInput, m.none, queuelist.Printable(o.target.Name()))
	}
	if o.json {
		return c.print(fmt.Sprintf(`{"target": %s, "%s": true, "by": %s}`, jsontext.Quote(o.target.String()), m.member, jsontext.Quote(o.entry.By)))
	}
	c.say(m.gone, o.target.Name())
	return nil
}

// orders lists the orders of one kind.
func (c *command) orders(ctx context.Context, conn *ipc.Conn, o *order, m *manner) error {
	reply, err := c.ask(ctx, conn, &proto.Override{Op: proto.OverrideList})
	if err != nil {
		return err
	}
	out := &cli.ErrWriter{W: c.Stdout}
	w := bufio.NewWriter(out)
	for i := range reply.Entries {
		e := &reply.Entries[i]
		if e.Of != string(m.kind) {
			continue
		}
		if o.json {
			fmt.Fprintln(w, m.object(reply, i))
			continue
		}
		name := e.Target
		if t, err := selection.ParseTarget(e.Target); err == nil {
			name = t.Name()
		}
		text := m.line(name, fmt.Sprintf("%s since %s%s", e.By, e.Since.Local().Format(time.DateTime), end(e.Until)), reply, i)
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

// object is an order as a JSON object. own are the members that its kind has before by, and more those after
// the reason, each behind a comma.
func object(e *proto.OverrideEntry, own, more string) string {
	text := fmt.Sprintf(`{"target": %s%s, "by": %s, "since": %d`, jsontext.Quote(e.Target), own, jsontext.Quote(e.By), e.Since.Unix())
	if !e.Until.IsZero() {
		text += fmt.Sprintf(`, "until": %d`, e.Until.Unix())
	}
	return text + `, "reason": ` + jsontext.Quote(e.Reason) + more + "}"
}
