package postqueue

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

const listHeader = "-Queue ID-       --Size-- ---Arrival Time---- -Sender/Recipient------\n"

// list prints the queue as people know it.
func (c *command) list(ctx context.Context, conn *ipc.Conn) int {
	w := bufio.NewWriter(c.stdout)
	defer w.Flush()
	var messages, octets int64
	err := c.each(ctx, conn, func(it *proto.Item) {
		if messages == 0 {
			io.WriteString(w, listHeader)
		} else {
			io.WriteString(w, "\n")
		}
		messages++
		octets += it.Size
		writeItem(w, it)
	})
	switch {
	case err != nil:
		return c.fatal(exitUnavailable, "%v", err)
	case messages == 0:
		io.WriteString(w, "Mail queue is empty\n")
	case messages == 1:
		fmt.Fprintf(w, "\n-- %d Kbytes in 1 Request.\n", octets/1024)
	default:
		fmt.Fprintf(w, "\n-- %d Kbytes in %d Requests.\n", octets/1024, messages)
	}
	return 0
}

// writeItem prints one message: its line, and then its recipients, those with
// the same reason for waiting together below that reason.
func writeItem(w io.Writer, it *proto.Item) {
	mark := " "
	switch {
	case it.ForcedExpire:
		mark = "#"
	case it.Queue == "active":
		mark = "*"
	case it.Queue == "hold":
		mark = "!"
	}
	fmt.Fprintf(w, "%-17s %8d %19.19s %s\n", string(it.ID)+mark, it.Size, it.Arrival.Format("Mon Jan _2 15:04:05"),
		external(it.Sender))
	rcpts := slices.Clone(it.Recipients)
	reasons := make(map[string]int) // in order of first appearance
	for _, r := range rcpts {
		if _, ok := reasons[r.Reason]; !ok {
			reasons[r.Reason] = len(reasons)
		}
	}
	slices.SortStableFunc(rcpts, func(a, b proto.ItemRcpt) int {
		if (a.Reason == "") != (b.Reason == "") {
			if a.Reason != "" {
				return -1
			}
			return 1
		}
		return reasons[a.Reason] - reasons[b.Reason]
	})
	last := ""
	for _, r := range rcpts {
		if r.Reason != last {
			fmt.Fprintf(w, "%77s\n", "("+r.Reason+")")
			last = r.Reason
		}
		fmt.Fprintf(w, "%41s%s\n", "", external(r.Address))
	}
}

func external(addr string) string {
	if addr == "" {
		return "MAILER-DAEMON"
	}
	return rfc5322.Quote(addr)
}

// json prints one object a line, with the names and the spacing of Postfix's.
func (c *command) json(ctx context.Context, conn *ipc.Conn) int {
	w := bufio.NewWriter(c.stdout)
	defer w.Flush()
	err := c.each(ctx, conn, func(it *proto.Item) {
		fmt.Fprintf(w, `{"queue_name": %s, "queue_id": %s, "arrival_time": %d, "message_size": %d, "forced_expire": %t, "sender": %s, "recipients": [`,
			quoteJSON(it.Queue), quoteJSON(string(it.ID)), it.Arrival.Unix(), it.Size, it.ForcedExpire,
			quoteJSON(external(it.Sender)))
		for i, r := range it.Recipients {
			if i > 0 {
				io.WriteString(w, ", ")
			}
			io.WriteString(w, "{")
			if r.Orig != "" && r.Orig != r.Address {
				fmt.Fprintf(w, `"orig_address": %s, `, quoteJSON(external(r.Orig)))
			}
			fmt.Fprintf(w, `"address": %s`, quoteJSON(external(r.Address)))
			if r.Reason != "" {
				fmt.Fprintf(w, `, "delay_reason": %s`, quoteJSON(r.Reason))
			}
			io.WriteString(w, "}")
		}
		io.WriteString(w, "]}\n")
	})
	if err != nil {
		return c.fatal(exitUnavailable, "%v", err)
	}
	return 0
}

// quoteJSON is a JSON string; bytes that are not UTF-8 become U+FFFD.
func quoteJSON(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < 0x20 || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
