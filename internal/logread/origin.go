package logread

import "bytes"

// A Host is a client or a server, NAME[ADDRESS], as it stands in a line.
type Host struct{ Name, Addr []byte }

// HostOf takes apart what a peer stands as: NAME[ADDRESS]:PORT, where name and port may be missing. What has no
// address is a name alone.
func HostOf(p []byte) Host {
	name, rest, ok := bytes.Cut(p, []byte("["))
	if !ok {
		return Host{Name: p}
	}
	addr, _, _ := bytes.Cut(rest, []byte("]"))
	return Host{name, addr}
}

// FirstHost is the first host in a text that has an address; it may lack a name, as postscreen's do.
func FirstHost(text []byte) (h Host, ok bool) {
	for from := 0; ; {
		open := bytes.IndexByte(text[from:], '[')
		if open < 0 {
			return h, false
		}
		open += from
		begin, end := open, open+1
		for begin > from && bytes.IndexByte([]byte(" \t=,<>()"), text[begin-1]) < 0 {
			begin--
		}
		for end < len(text) && hexColon(text[end]) {
			end++
		}
		if end > open+1 && end < len(text) && text[end] == ']' {
			return Host{text[begin:open], text[open+1 : end]}, true
		}
		from = open + 1
	}
}

// A Client is whom a message comes from (maillog.SMTPDClient, maillog.InjectClient).
type Client struct {
	Host
	Method, User, Sender []byte // how the client has logged in, as whom (or the name of its token), and AUTH= of MAIL FROM
	Tenant               []byte // whose mail it is
	OrigID               []byte // queue ID before a filter; the client is the filter then
	Orig                 Host   // the client before the filter
}

// Client takes the text of a line apart that says whom a message comes from.
func (l *Line) Client() (c Client, ok bool) {
	p, ok := bytes.CutPrefix(l.Text, []byte("client="))
	if !ok {
		return c, false
	}
	host, rest, more := bytes.Cut(p, []byte(", "))
	c.Host = HostOf(host)
	for more {
		var attr []byte
		attr, rest, more = bytes.Cut(rest, []byte(", "))
		name, value, _ := bytes.Cut(attr, []byte("="))
		switch string(name) {
		case "sasl_method":
			c.Method = value
		case "sasl_username", "token":
			c.User = value
		case "tenant":
			c.Tenant = value
		case "sasl_sender":
			c.Sender = value
		case "orig_queue_id":
			c.OrigID, _ = queueID(value)
		case "orig_client":
			c.Orig = HostOf(value)
		}
	}
	return c, true
}

// A Pickup is a message that a user of this machine has submitted (maillog.PickupUID).
type Pickup struct {
	UID    []byte
	From   []byte
	OrigID []byte // queue ID before it was requeued
}

// Pickup takes the text of a line apart that says which user has submitted a message.
func (l *Line) Pickup() (u Pickup, ok bool) {
	p, ok := bytes.CutPrefix(l.Text, []byte("uid="))
	if !ok {
		return u, false
	}
	if u.UID, p, ok = bytes.Cut(p, []byte(" ")); !ok || !digits(u.UID) {
		return u, false
	}
	if u.From, p, ok = address(p, "from=<"); !ok {
		return u, false
	}
	if id, ok := bytes.CutPrefix(p, []byte(" orig_id=")); ok {
		u.OrigID, _ = queueID(id)
	}
	return u, true
}

// MessageID is the Message-ID: of a message, or its Resent-Message-ID: (maillog.MessageID), with its angle brackets.
func (l *Line) MessageID() (id []byte, resent, ok bool) {
	if id, ok = bytes.CutPrefix(l.Text, []byte("message-id=")); ok {
		return id, false, true
	}
	id, ok = bytes.CutPrefix(l.Text, []byte("resent-message-id="))
	return id, true, ok
}

// A Verdict is what a restriction, a check or a filter has decided (maillog.Reject, ContentCheck, ScreenReject,
// ProxyVerdict).
type Verdict struct {
	Action []byte // reject, reject_warning, hold, discard, milter-reject, ...
	Stage  []byte // RCPT, END-OF-MESSAGE; header, body: with the line that was found
	Client Host   // empty: local, or not said
	Text   []byte // what the client was told, or why
	// Empty where it is not said. HasFrom tells the null sender from none.
	From, To, Helo, User []byte
	HasFrom              bool
}

// Verdict takes the text of a line apart that says what was decided.
//
// What stands before the sender has been said by the client in part. The first place is taken from which all is
// as it is behind a text; an address at the beginning of the text is passed over before.
func (l *Line) Verdict() (v Verdict, ok bool) {
	action, p, ok := bytes.Cut(l.Text, []byte(": "))
	if !ok || !isAction(action) {
		return v, false
	}
	v.Action = action
	found := false
	for from := quotedAddress(p); !found; {
		at := bytes.IndexByte(p[from:], ';')
		if at < 0 {
			return v, false
		}
		from += at + 1
		found = v.session(p[from:])
		if found {
			p = p[:from-1]
		}
	}
	if content(p) { // the line that was found may have anything in it; the client stands last
		v.Stage = p
		if at := bytes.LastIndex(p, []byte(" from ")); at >= 0 {
			v.Stage, p = p[:at], p[at+len(" from "):]
		}
		if string(p) != "local" {
			v.Client = HostOf(p)
		}
		return v, true
	}
	end := bytes.IndexAny(p, " :")
	if end < 0 {
		return v, false
	}
	v.Stage, p = p[:end], p[end:]
	peer, ok := bytes.CutPrefix(p, []byte(" from "))
	if !ok { // a filter's word, without the client
		v.Text = bytes.TrimPrefix(p, []byte(": "))
		return v, true
	}
	if v.Client, p, ok = cutPeer(peer); ok {
		v.Text = p
	}
	return v, ok
}

// cutPeer takes NAME[ADDRESS]:PORT and what separates it from the text off p.
func cutPeer(p []byte) (h Host, text []byte, ok bool) {
	end := bytes.IndexByte(p, ']')
	if end < 0 {
		return h, nil, false
	}
	colon := bytes.Index(p[end:], []byte(": "))
	if colon < 0 {
		return h, nil, false
	}
	return HostOf(p[:end+colon]), p[end+colon+2:], true
}

// content says whether p begins with a part of a message.
func content(p []byte) bool {
	for _, part := range []string{"header ", "body ", "mime-header ", "nested-header "} {
		if bytes.HasPrefix(p, []byte(part)) {
			return true
		}
	}
	return false
}

// isAction says whether p is a word such as milter-reject.
func isAction(p []byte) bool {
	for _, c := range p {
		if (c < 'a' || c > 'z') && c != '-' && c != '_' {
			return false
		}
	}
	return len(p) > 0
}

// quotedAddress is where an address ends with which the text of a reply begins: RCPT from PEER: 550 5.1.1 <ADDRESS>.
// 0: there is none.
func quotedAddress(p []byte) int {
	colon := bytes.Index(p, []byte("]: "))
	if colon < 0 {
		return 0
	}
	at := colon + len("]: ")
	for at < len(p) && (isDigit(p[at]) || p[at] == '.' || p[at] == ' ') {
		at++
	}
	_, rest, ok := address(p[at:], "<")
	if !ok {
		return 0
	}
	return len(p) - len(rest)
}

// session takes apart what stands behind the text of a verdict. It says whether p is that as a whole.
func (v *Verdict) session(p []byte) bool {
	var w Verdict
	w.From, p, w.HasFrom = address(p, " from=<")
	p = bytes.TrimPrefix(p, []byte(","))
	w.To, p, _ = address(p, " to=<")
	p = bytes.TrimPrefix(p, []byte(","))
	proto, ok := bytes.CutPrefix(p, []byte(" proto="))
	if !ok && !w.HasFrom {
		return false
	}
	if ok {
		p = proto
		for len(p) > 0 && isLetter(p[0]) {
			p = p[1:]
		}
		p = bytes.TrimPrefix(p, []byte(","))
	}
	if helo, ok := bytes.CutPrefix(p, []byte(" helo=<")); ok {
		end := bytes.LastIndexByte(helo, '>')
		if end < 0 {
			return false
		}
		w.Helo, p = helo[:end], helo[end+1:]
	}
	if text, ok := bytes.CutPrefix(p, []byte(": ")); ok { // of a check of content
		w.Text, p = text, nil
	}
	for len(p) > 0 {
		attr, ok := bytes.CutPrefix(p, []byte(" sasl_"))
		if !ok {
			return false
		}
		attr, p = word(attr)
		if user, ok := bytes.CutPrefix(attr, []byte("username=")); ok {
			w.User = user
		}
	}
	v.From, v.HasFrom, v.To, v.Helo, v.User, v.Text = w.From, w.HasFrom, w.To, w.Helo, w.User, w.Text
	return true
}

// word is what stands before the first space, and the rest with the space.
func word(p []byte) (first, rest []byte) {
	if i := bytes.IndexByte(p, ' '); i >= 0 {
		return p[:i], p[i:]
	}
	return p, nil
}
