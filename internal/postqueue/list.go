package postqueue

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
)

const listHeader = "----Queue ID----- --Size-- ---Arrival Time---- --Sender/Recipient------\n"

// list prints the queue as people know it.
func (c *command) list(each walk) error {
	w := bufio.NewWriter(c.out)
	defer w.Flush() // its error is out's
	var messages, octets int64
	err := each(func(it *proto.Item) bool {
		if messages == 0 {
			io.WriteString(w, listHeader)
		} else {
			io.WriteString(w, "\n")
		}
		messages++
		octets += it.Size
		writeItem(w, it)
		return c.out.Err == nil
	})
	switch {
	case err != nil:
		return err
	case messages == 0:
		io.WriteString(w, "Mail queue is empty\n")
	case messages == 1:
		fmt.Fprintf(w, "\n-- %d Kbytes in 1 Request.\n", octets/1024)
	default:
		fmt.Fprintf(w, "\n-- %d Kbytes in %d Requests.\n", octets/1024, messages)
	}
	return nil
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
	for _, r := range rcpts {
		if _, ok := reasons[r.Reason]; !ok {
			reasons[r.Reason] = len(reasons)
		}
	}
	slices.SortStableFunc(rcpts, func(a, b proto.ItemRcpt) int { return cmp.Compare(reasons[a.Reason], reasons[b.Reason]) })
	last := ""
	for _, r := range rcpts {
		if r.Reason != last && r.Reason != "" {
			fmt.Fprintf(w, "%*s(%s)\n", max(0, reasonEnd-len(r.Reason)), "", printable(r.Reason))
		}
		last = r.Reason
		fmt.Fprintf(w, "%47s%s\n", "", external(r.Address))
	}
}

// printable keeps what a peer said from moving the reader's terminal about.
func printable(s string) string { return string(maillog.AppendClean(nil, []byte(s))) }

func external(addr string) string { return printable(sender(addr)) }

func sender(addr string) string {
	if addr == "" {
		return "MAILER-DAEMON"
	}
	return rfc5322.Quote(addr)
}

// json prints one object a line, with the names and the spacing of Postfix's.
func (c *command) json(each walk) error {
	w := bufio.NewWriter(c.out)
	defer w.Flush()
	return each(func(it *proto.Item) bool {
		fmt.Fprintf(w, `{"queue_name": %s, "queue_id": %s, "arrival_time": %d, "message_size": %d, "forced_expire": %t, "sender": %s, "recipients": [`,
			quoteJSON(it.Queue), quoteJSON(string(it.ID)), it.Arrival.Unix(), it.Size, it.ForcedExpire,
			quoteJSON(sender(it.Sender)))
		for i, r := range it.Recipients {
			if i > 0 {
				io.WriteString(w, ", ")
			}
			io.WriteString(w, "{")
			if r.Orig != "" && r.Orig != r.Address {
				fmt.Fprintf(w, `"orig_address": %s, `, quoteJSON(rfc5322.Quote(r.Orig)))
			}
			fmt.Fprintf(w, `"address": %s`, quoteJSON(rfc5322.Quote(r.Address)))
			if r.Reason != "" {
				fmt.Fprintf(w, `, "delay_reason": %s`, quoteJSON(r.Reason))
			}
			io.WriteString(w, "}")
		}
		io.WriteString(w, "]}\n")
		return c.out.Err == nil
	})
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
