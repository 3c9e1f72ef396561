// Package queuelist prints messages of the queue for the tools: as mailq does, and as
// postqueue -j does.
package queuelist

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"

	"posthaste/internal/jsontext"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

const listHeader = "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------\n"

// A Text prints messages as people know them from mailq. It may not be used
// concurrently. Errors are the writer's.
type Text struct {
	W        *bufio.Writer
	Messages int64
	Octets   int64
	// Own is the node whose messages are listed first, and without its name; empty: the queue is not shared.
	Own  string
	node string // under whose name messages stand; empty: that of Own
}

// Add prints one message. Of a queue that nodes share a line says which other node's the messages below it are. It begins as the lines do that
// programs which read mailq pass over, and is a paragraph of its own, as each message is.
func (t *Text) Add(it *proto.Item) {
	if t.Messages == 0 {
		io.WriteString(t.W, listHeader)
	} else {
		io.WriteString(t.W, "\n")
	}
	if name := nodeName(it); it.Node != t.Own && name != t.node {
		t.node = name
		fmt.Fprintf(t.W, "-- On %s:\n\n", Printable(name))
	}
	t.Messages++
	t.Octets += it.Size
	writeItem(t.W, it)
}

// End prints the totals.
func (t *Text) End() {
	switch t.Messages {
	case 0:
		io.WriteString(t.W, "Mail queue is empty\n")
	case 1:
		fmt.Fprintf(t.W, "\n-- %d Kbytes in 1 Request.\n", t.Octets/1024)
	default:
		fmt.Fprintf(t.W, "\n-- %d Kbytes in %d Requests.\n", t.Octets/1024, t.Messages)
	}
}

// nodeName says which node has a message, and whether that one is down; empty: the queue is not shared, or the message is in maildrop.
func nodeName(it *proto.Item) string {
	switch {
	case it.Node == "" && it.Down:
		return "no node"
	case it.Down:
		return fmt.Sprintf("node %s, which is down", it.Node)
	case it.Node != "":
		return "node " + it.Node
	}
	return ""
}

// reasonEnd is the column that a reason's text ends in when it is short enough.
const reasonEnd = 76

// writeItem prints one message: its line, and then its recipients, those with
// the same reason for waiting together below that reason, those without one
// last.
func writeItem(w io.Writer, it *proto.Item) {
	mark := ""
	switch it.Queue {
	case "active":
		mark = "*"
	case "hold":
		mark = "!"
	}
	if it.ForcedExpire {
		mark += "#"
	}
	fmt.Fprintf(w, "%-17s %8d %19.19s %s\n", string(it.ID)+mark, it.Size, it.Arrival.Format("Mon Jan _2 15:04:05"),
		external(it.Sender))
	rcpts := slices.Clone(it.Recipients)
	reasons := map[string]int{"": math.MaxInt} // in order of first appearance
	for i := range rcpts {
		if _, ok := reasons[rcpts[i].Why()]; !ok {
			reasons[rcpts[i].Why()] = len(reasons)
		}
	}
	slices.SortStableFunc(rcpts, func(a, b proto.ItemRcpt) int { return cmp.Compare(reasons[a.Why()], reasons[b.Why()]) })
	last := ""
	for i := range rcpts {
		why := rcpts[i].Why()
		if why != last && why != "" {
			fmt.Fprintf(w, "%*s(%s)\n", max(0, reasonEnd-len(why)), "", Printable(why))
		}
		last = why
		fmt.Fprintf(w, "%47s%s\n", "", external(rcpts[i].Address))
	}
}

// Printable keeps what a peer said from moving the reader's terminal about.
func Printable(s string) string { return string(maillog.AppendClean(nil, []byte(s))) }

func external(addr string) string { return Printable(sender(addr)) }

func sender(addr string) string {
	if addr == "" {
		return "MAILER-DAEMON"
	}
	return rfc5322.Quote(addr)
}

// JSON prints one message as one line: Postfix's fields with its names, order and
// spacing, and what we know besides behind them.
func JSON(w io.Writer, it *proto.Item) {
	fmt.Fprintf(w, `{"queue_name": %s, "queue_id": %s, "arrival_time": %d, "message_size": %d, "forced_expire": %t, "sender": %s, "recipients": [`,
		jsontext.Quote(it.Queue), jsontext.Quote(string(it.ID)), it.Arrival.Unix(), it.Size, it.ForcedExpire, jsontext.Quote(sender(it.Sender)))
	for i := range it.Recipients {
		if i > 0 {
			io.WriteString(w, ", ")
		}
		recipientJSON(w, &it.Recipients[i])
	}
	fmt.Fprintf(w, `], "attempts": %d`, it.Attempts)
	if !it.Next.IsZero() {
		fmt.Fprintf(w, `, "next_attempt": %d`, it.Next.Unix())
	}
	for _, f := range [...]struct{ name, value string }{{"client_name", it.Client}, {"client_address", it.ClientAddr}, {"sasl_username", it.SASLUser},
		{"tenant", it.Tenant}, {"campaign", it.Campaign}} {
		if f.value != "" {
			fmt.Fprintf(w, `, "%s": %s`, f.name, jsontext.Quote(f.value))
		}
	}
	if it.Node != "" {
		fmt.Fprintf(w, `, "node": %s`, jsontext.Quote(it.Node))
	}
	if it.Down {
		io.WriteString(w, `, "node_down": true`)
	}
	io.WriteString(w, "}\n")
}

func recipientJSON(w io.Writer, r *proto.ItemRcpt) {
	io.WriteString(w, "{")
	if r.Orig != "" && r.Orig != r.Address {
		fmt.Fprintf(w, `"orig_address": %s, `, jsontext.Quote(rfc5322.Quote(r.Orig)))
	}
	fmt.Fprintf(w, `"address": %s`, jsontext.Quote(rfc5322.Quote(r.Address)))
	if r.Reason != "" {
		fmt.Fprintf(w, `, "delay_reason": %s`, jsontext.Quote(r.Reason))
	}
	if !r.Status.IsZero() {
		fmt.Fprintf(w, `, "dsn": "%s"`, r.Status)
	}
	if r.Suspended != "" {
		fmt.Fprintf(w, `, "suspended": %s`, jsontext.Quote(r.Suspended))
	}
	if r.Limited != "" {
		fmt.Fprintf(w, `, "limited": %s`, jsontext.Quote(r.Limited))
	}
	if r.Diverted != "" {
		fmt.Fprintf(w, `, "diverted": %s`, jsontext.Quote(r.Diverted))
	}
	io.WriteString(w, "}")
}
