package logread

import (
	"bytes"
	"iter"
)

// A Delivery is what a delivery agent, or the queue manager, says of a recipient
// (maillog.Delivery).
type Delivery struct {
	To, OrigTo []byte // as they stand in the line; OrigTo is empty when it is the same
	Relay      []byte // mx.example.com[192.0.2.1]:25, local, none
	Delay      []byte // seconds, as they stand in the line; so are the four parts of Delays
	Delays     []byte
	TLS        []byte // empty: none, or not logged
	DSN        []byte // 2.0.0
	Status     []byte // sent, deferred, bounced, SOFTBOUNCE, deliverable, undeliverable
	Reason     []byte // what is in the parentheses
}

// Delivery takes the text of a line apart that says what came of a recipient.
func (l *Line) Delivery() (d Delivery, ok bool) {
	var p []byte
	if d.To, p, ok = address(l.Text, "to=<"); !ok {
		return d, false
	}
	if to, rest, ok := address(p, ", orig_to=<"); ok {
		d.OrigTo, p = to, rest
	}
	if !bytes.HasPrefix(p, []byte(", relay=")) {
		return d, false
	}
	attrs, p, ok := bytes.Cut(p[len(", "):], []byte(", status="))
	if !ok {
		return d, false
	}
	for more := true; more; {
		var attr []byte
		attr, attrs, more = bytes.Cut(attrs, []byte(", "))
		d.attribute(attr)
	}
	d.Status, p, _ = bytes.Cut(p, []byte(" ("))
	d.Reason = bytes.TrimSuffix(p, []byte(")"))
	return d, true
}

// attribute takes NAME=VALUE.
func (d *Delivery) attribute(attr []byte) {
	name, value, _ := bytes.Cut(attr, []byte("="))
	switch string(name) {
	case "relay":
		d.Relay = value
	case "delay":
		d.Delay = value
	case "delays":
		d.Delays = value
	case "tls":
		d.TLS = value
	case "dsn":
		d.DSN = value
	}
}

// address takes an address off text that stands between prefix and ">".
func address(text []byte, prefix string) (addr, rest []byte, ok bool) {
	if len(text) < len(prefix) || string(text[:len(prefix)]) != prefix {
		return nil, text, false
	}
	text = text[len(prefix):]
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && quoted:
			i++
		case c == '>' && !quoted:
			return text[:i], text[i+1:], true
		}
	}
	// A quote that does not end: internal form.
	addr, rest, ok = bytes.Cut(text, []byte(">"))
	return addr, rest, ok
}

// An Active is a message that the queue manager has taken up (maillog.QueueActive).
type Active struct {
	From  []byte // empty: the null sender
	Size  int64  // octets
	NRcpt int    // recipients
}

// Active takes the text of a line apart that says that the queue manager has taken a message up.
func (l *Line) Active() (a Active, ok bool) {
	from, p, ok := address(l.Text, "from=<")
	if !ok || !bytes.HasSuffix(p, []byte(" (queue active)")) {
		return a, false
	}
	size, count, ok := bytes.Cut(p, []byte(", nrcpt="))
	if !ok {
		return a, false
	}
	nrcpt, ok := number(count, 1<<30)
	if !ok {
		return a, false
	}
	a = Active{From: from, NRcpt: int(nrcpt)}
	if size, ok := bytes.CutPrefix(size, []byte(", size=")); ok {
		a.Size, _ = number(size, 1<<62)
	}
	return a, true
}

// number is the decimal number that p begins with; 0 if there is none. One above limit is an error.
func number(p []byte, limit int64) (n int64, ok bool) {
	for _, c := range p {
		if !isDigit(c) {
			break
		}
		if n > (limit-int64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// Elsewhere says whether a message is not in the node's part of a shared queue any more (maillog.Elsewhere).
func (l *Line) Elsewhere() bool {
	return string(l.Text) == "no longer in this node's part of the queue"
}

// Expired says whether a message is returned to its sender, and whether an operator has asked for that
// (maillog.Expired).
func (l *Line) Expired() (forced, ok bool) {
	_, p, ok := address(l.Text, "from=<")
	switch {
	case !ok:
		return false, false
	case string(p) == ", status=expired, returned to sender":
		return false, true
	case string(p) == ", status=force-expired, returned to sender":
		return true, true
	}
	return false, false
}

// Notice is the queue ID of a report about the message of the line (maillog.BounceNotice).
func (l *Line) Notice() (id []byte, ok bool) {
	i := bytes.Index(l.Text, []byte(" notification: "))
	if i < 0 {
		return nil, false
	}
	return queueID(l.Text[i+len(" notification: "):])
}

// Requeued says whether a message was queued again, and as what, where that is known.
func (l *Line) Requeued() (id []byte, ok bool) {
	if string(l.Text) == "requeued" {
		return nil, true
	}
	p, ok := bytes.CutPrefix(l.Text, []byte("requeued as "))
	if !ok {
		return nil, false
	}
	return queueID(p)
}

// Forwarded is the queue ID of the message that carries on what was delivered.
func (d *Delivery) Forwarded() (id []byte, ok bool) {
	p, ok := bytes.CutPrefix(d.Reason, []byte("forwarded as "))
	if !ok {
		return nil, false
	}
	return queueID(p)
}

// queueID is the queue ID that p is.
func queueID(p []byte) ([]byte, bool) {
	for _, c := range p {
		if !isDigit(c) && !isLetter(c) {
			return nil, false
		}
	}
	return p, len(p) >= 6
}

// Peers are the clients and servers in a text: each NAME[ADDRESS].
func Peers(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for from := 0; ; {
			open := bytes.IndexByte(text[from:], '[')
			if open < 0 {
				return
			}
			open += from
			begin, end := open, open+1
			for begin > from && bytes.IndexByte([]byte(" \t=,<>()"), text[begin-1]) < 0 {
				begin--
			}
			for end < len(text) && hexColon(text[end]) {
				end++
			}
			from = open + 1
			if begin < open && end > open+1 && end < len(text) && text[end] == ']' {
				if !yield(text[begin : end+1]) {
					return
				}
				from = end + 1
			}
		}
	}
}

// hexColon says whether c may stand in an IP address.
func hexColon(c byte) bool {
	return isDigit(c) || c == '.' || c == ':' || c|0x20 >= 'a' && c|0x20 <= 'f'
}

// Peer is the first of Peers; nil when there is none.
func Peer(text []byte) []byte {
	for p := range Peers(text) {
		return p
	}
	return nil
}
