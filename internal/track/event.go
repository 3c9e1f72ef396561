package track

import (
	"bytes"

	"posthaste/internal/logread"
)

// A kind is what a line of the log says of a message, or of a client.
type kind uint8

const (
	note      kind = iota // anything else about a message
	arrival               // client=
	pickup                // uid=
	messageID             // message-id=
	active                // the queue manager has taken it up
	delivery              // what came of a recipient
	verdict               // what a restriction, a check or a filter decided
	notice                // a report about it was queued
	requeued
	expired
	removed // by the queue manager, or by an operator
	session // of a client, without a message
)

// How one message came of another.
type relation uint8

const (
	forward  relation = iota + 1 // an alias, a list or a .forward file sends it on
	bounce                       // a report about it
	requeue                      // postsuper -r
	filter                       // a content filter has brought it back, and said so (XFORWARD)
	queuedAs                     // the next hop said that it is queued under this ID
	again                        // a program has brought it back, under the same Message-ID
)

// relations are how a relation is told, from the new message to what it came of.
var relations = [...]string{"", "forwarded", "report", "requeued", "filtered", "passed on", "brought back"}

// An event is one line, taken apart. Its slices are parts of the line.
type event struct {
	kind kind
	line *logread.Line
	id   []byte // queue ID; empty: of no message

	from, to, origTo []byte
	hasFrom, hasTo   bool
	mid              []byte // Message-ID without its brackets
	client, orig     logread.Host
	helo, user       []byte
	relay            logread.Host
	delivery         logread.Delivery
	verdict          logread.Verdict
	active           logread.Active
	resent           bool // the Message-ID is that of Resent-Message-ID:

	// Another message that the line names, and what it has to do with this one. other is what came of this one,
	// unless otherIsOrigin.
	other         []byte
	how           relation
	otherIsOrigin bool
	near          bool // the relay is on this machine
}

// parse takes a line apart. It says whether the line is of use.
func (e *event) parse(l *logread.Line) bool {
	*e = event{line: l, id: l.ID}
	if len(l.ID) == 0 {
		return e.parseSession(l)
	}
	switch string(l.Program) {
	case "smtpd":
		if !e.parseClient(l) {
			e.parseVerdict(l)
		}
	case "pickup":
		e.parsePickup(l)
	case "inject":
		e.parseClient(l)
	case "cleanup":
		if id, resent, ok := l.MessageID(); ok {
			e.kind, e.mid, e.resent = messageID, bare(id), resent
		} else {
			e.parseVerdict(l)
		}
	case "qmgr":
		e.parseQueue(l)
	case "bounce", "defer", "trace":
		if id, ok := l.Notice(); ok {
			e.kind, e.other, e.how = notice, id, bounce
		}
	case "postsuper":
		e.parseOperator(l)
	default:
		e.parseDelivery(l)
	}
	return true
}

func (e *event) parseClient(l *logread.Line) bool {
	c, ok := l.Client()
	if !ok {
		return false
	}
	e.kind, e.client, e.orig, e.user = arrival, c.Host, c.Orig, c.User
	if len(c.OrigID) > 0 {
		e.other, e.how, e.otherIsOrigin = c.OrigID, filter, true
	}
	return true
}

func (e *event) parsePickup(l *logread.Line) {
	p, ok := l.Pickup()
	if !ok {
		return
	}
	e.kind, e.from, e.hasFrom = pickup, p.From, true
	if len(p.OrigID) > 0 {
		e.other, e.how, e.otherIsOrigin = p.OrigID, requeue, true
	}
}

func (e *event) parseVerdict(l *logread.Line) bool {
	v, ok := l.Verdict()
	if !ok {
		return false
	}
	e.kind, e.verdict = verdict, v
	e.client, e.from, e.hasFrom, e.to, e.hasTo, e.helo, e.user = v.Client, v.From, v.HasFrom, v.To, len(v.To) > 0, v.Helo, v.User
	return true
}

func (e *event) parseQueue(l *logread.Line) {
	if a, ok := l.Active(); ok {
		e.kind, e.active, e.from, e.hasFrom = active, a, a.From, true
	} else if string(l.Text) == "removed" {
		e.kind = removed
	} else if _, ok := l.Expired(); ok {
		e.kind = expired
	} else if id, ok := l.Requeued(); ok {
		if e.kind = requeued; id != nil {
			e.other, e.how = id, requeue
		}
	} else {
		e.parseDelivery(l)
	}
}

func (e *event) parseOperator(l *logread.Line) {
	switch string(l.Text) {
	case "removed":
		e.kind = removed
	case "requeued":
		e.kind = requeued
	case "expired":
		e.kind = expired
	}
}

func (e *event) parseDelivery(l *logread.Line) {
	d, ok := l.Delivery()
	if !ok {
		return
	}
	e.kind, e.delivery, e.to, e.hasTo, e.origTo = delivery, d, d.To, true, d.OrigTo
	if string(d.Relay) != "none" {
		e.relay = logread.HostOf(d.Relay)
	}
	smtp := string(l.Program) == "smtp" || string(l.Program) == "lmtp"
	e.near = nearby(e.relay)
	if string(d.Status) != "sent" {
		return
	}
	if id, ok := d.Forwarded(); ok && !smtp {
		e.other, e.how = id, forward
	} else if id, ok := lastQueuedAs(d.Reason); ok {
		e.other, e.how = id, queuedAs
	}
}

// lastQueuedAs is the queue ID in a reply: 250 2.0.0 Ok: queued as 4jWzqL72J2zDQqwN7. The last one counts: a filter may
// quote what it was told.
func lastQueuedAs(reply []byte) (id []byte, ok bool) {
	const words = "queued as "
	i := bytes.LastIndex(reply, []byte(words))
	if i < 0 {
		return nil, false
	}
	p := reply[i+len(words):]
	n, figures := 0, false
	for n < len(p) && (p[n] >= '0' && p[n] <= '9' || p[n]|0x20 >= 'a' && p[n]|0x20 <= 'z') {
		figures = figures || p[n] <= '9'
		n++
	}
	return p[:n], n >= 6 && n <= 64 && figures
}

// nearby says whether a host is this machine: its loopback address, or a socket.
func nearby(h logread.Host) bool {
	return bytes.HasPrefix(h.Addr, []byte("127.")) || string(h.Addr) == "::1" || bytes.HasPrefix(h.Addr, []byte("/"))
}

// quietScreen are the beginnings of postscreen's lines that say nothing that a session's other lines do not.
var quietScreen = []string{"CONNECT ", "PASS ", "DISCONNECT ", "ALLOWLISTED ", "WHITELISTED "}

// parseSession takes a line of a client that is of no message: a refusal before there is a queue ID, or how a session
// without a message has ended.
func (e *event) parseSession(l *logread.Line) bool {
	text := l.Text
	screen := string(l.Program) == "postscreen"
	if !screen && string(l.Program) != "smtpd" || bytes.HasPrefix(text, []byte("connect from ")) || bytes.HasPrefix(text, []byte("statistics: ")) {
		return false
	}
	if e.parseVerdict(l) {
		if id, ok := lastQueuedAs(e.verdict.Text); ok && string(e.verdict.Action) == "proxy-accept" {
			e.id = id
		}
		return true
	}
	if screen {
		for _, p := range quietScreen {
			if bytes.HasPrefix(text, []byte(p)) {
				return false
			}
		}
	}
	if c, ok := l.Client(); ok {
		e.client, e.user = c.Host, c.User
	} else if host, ok := logread.FirstHost(text); ok {
		e.client = host
	} else if !bytes.HasPrefix(text, []byte("addr ")) {
		return false
	} else if addr, _, ok := bytes.Cut(text[len("addr "):], []byte(" ")); ok {
		e.client.Addr = addr
	}
	if bytes.HasPrefix(text, []byte("disconnect from ")) && accepted(text) || bytes.Contains(text, []byte(" TLS connection established ")) {
		return false
	}
	if e.kind = session; bytes.HasPrefix(text, []byte("reject: ")) {
		e.kind, e.verdict = verdict, logread.Verdict{Action: text[:len("reject")], Client: e.client, Text: text[len("reject: "):]}
	}
	return true
}

// accepted says whether a message was accepted in a session, of which text is the last line.
func accepted(text []byte) bool {
	for _, command := range []string{" data=", " bdat="} {
		if i := bytes.Index(text, []byte(command)); i >= 0 && i+len(command) < len(text) && text[i+len(command)] != '0' {
			return true
		}
	}
	return false
}

// bare takes the angle brackets off a Message-ID.
func bare(id []byte) []byte {
	if n := len(id); n >= 2 && id[0] == '<' && id[n-1] == '>' {
		return id[1 : n-1]
	}
	return id
}

// A class is what a key is of. The index keeps keys by their class.
type class byte

const (
	keyID         class = 'i' // queue ID, of the message or of another that the line names
	keyMessageID  class = 'm'
	keyFrom       class = 'f' // sender
	keyTo         class = 't' // recipient, before and after aliases
	keyFromDomain class = 'd'
	keyToDomain   class = 'D'
	keyClient     class = 'c' // name, address, HELO
	keyRelay      class = 'r' // name or address of the next hop
	keyUser       class = 'u' // as whom the client has logged in
)

// keys calls f for everything that a line can be found by exactly. Letters are as they stand in the line.
func (e *event) keys(f func(class, []byte)) {
	some := func(c class, key []byte) {
		if len(key) > 0 {
			f(c, key)
		}
	}
	some(keyID, e.id)
	some(keyID, e.other)
	some(keyMessageID, e.mid)
	if e.hasFrom {
		f(keyFrom, e.from)
		some(keyFromDomain, domainOf(e.from))
	}
	if e.hasTo {
		some(keyTo, e.to)
		some(keyToDomain, domainOf(e.to))
	}
	if len(e.origTo) > 0 {
		f(keyTo, e.origTo)
		some(keyToDomain, domainOf(e.origTo))
	}
	for _, h := range [...]logread.Host{e.client, e.orig} {
		some(keyClient, h.Name)
		some(keyClient, h.Addr)
	}
	some(keyClient, e.helo)
	some(keyRelay, e.relay.Name)
	some(keyRelay, e.relay.Addr)
	some(keyUser, e.user)
}

// domainOf is what stands behind the last @ of an address.
func domainOf(addr []byte) []byte { return addr[bytes.LastIndexByte(addr, '@')+1:] }

// fingerprint is 64 bits of a key, in which upper and lower case are the same unless it is a queue ID.
func fingerprint(c class, key []byte) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	h := (uint64(offset) ^ uint64(c)) * prime
	for _, b := range key {
		if b >= 'A' && b <= 'Z' && c != keyID {
			b |= 0x20
		}
		h = (h ^ uint64(b)) * prime
	}
	// The last bits of FNV reach the first ones badly: mix them.
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
