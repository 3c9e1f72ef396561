package mailbox

import (
	"io"
	"strings"
	"time"

	"posthaste/internal/rfc5322"
)

// A Head is what is put before a message when it is delivered. Addresses are
// in internal form; they are quoted, and cannot break out of their lines.
type Head struct {
	From      time.Time // when set, a "From " line with this date
	Null      string    // what stands there for the null sender: MAILER-DAEMON
	Sender    string
	Return    bool   // a Return-Path: line
	Original  string // X-Original-To:, when not empty
	Delivered string // Delivered-To:, when not empty
}

// Append appends the lines, each ended by eol.
func (h *Head) Append(b []byte, eol string) []byte {
	sender := External(h.Sender)
	if !h.From.IsZero() {
		b = append(b, "From "...)
		if sender == "" {
			b = append(b, h.Null...)
		}
		b = append(append(b, sender...), "  "...)
		b = h.From.AppendFormat(b, time.ANSIC)
		b = append(b, eol...)
	}
	if h.Return {
		b = append(append(append(append(b, "Return-Path: <"...), sender...), '>'), eol...)
	}
	if h.Original != "" {
		b = append(append(append(b, "X-Original-To: "...), External(h.Original)...), eol...)
	}
	if h.Delivered != "" {
		b = append(append(append(b, "Delivered-To: "...), External(h.Delivered)...), eol...)
	}
	return b
}

// External is an address as it is written in a header, on one line whatever a
// stranger has put into a quoted local part.
func External(addr string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, rfc5322.Quote(addr))
}

// maxHeader bounds how much of a message's header is looked at for
// Delivered-To: lines. cleanup's header_size_limit is well below it.
const maxHeader = 1 << 20

// Visited are the addresses in a message's Delivered-To: lines, in lower case
// and internal form: a message must not be delivered to them again. The error
// is that of reading the message.
func Visited(c Content) (map[string]bool, error) {
	head := c.Bytes()
	if head == nil {
		var err error
		if head, err = io.ReadAll(io.LimitReader(c.Reader(), maxHeader)); err != nil {
			return nil, err
		}
	}
	set := map[string]bool{}
	for {
		f, rest, ok := rfc5322.NextField(head)
		if !ok {
			return set, nil
		}
		if rfc5322.EqualName(f.Name(), "Delivered-To") {
			set[strings.ToLower(rfc5322.Unquote(string(f.Value())))] = true
		}
		head = rest
	}
}
