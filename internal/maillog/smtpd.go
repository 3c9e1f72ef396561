package maillog

import "strconv"

// appendClient appends NAME[ADDR], the form of a client in every line.
func appendClient(b []byte, name, addr string) []byte {
	b = append(append(b, name...), '[')
	return append(append(b, addr...), ']')
}

// appendPeer appends NAME[ADDR]:PORT, with the port only where it is to be
// logged (smtpd_client_port_logging).
func appendPeer(b []byte, name, addr, port string) []byte {
	b = appendClient(b, name, addr)
	if port != "" {
		b = append(append(b, ':'), port...)
	}
	return b
}

func appendClientFields(b []byte, name, addr string) []byte {
	return appendString(appendString(b, "client_name", name), "client_address", addr)
}

// appendID appends the queue ID and ": "; NOQUEUE stands for no message.
func appendID(b []byte, id string) []byte {
	if id == "" {
		id = "NOQUEUE"
	}
	return append(append(b, id...), ": "...)
}

func appendEvent(b []byte, name string) []byte { return appendString(b, "event", name) }

// SMTPDConnect says that a client has connected.
type SMTPDConnect struct {
	Name, Addr string
	Port       string // when it is to be logged
}

// Append implements Event.
func (e SMTPDConnect) Append(b []byte) []byte {
	return appendPeer(append(b, "connect from "...), e.Name, e.Addr, e.Port)
}

// AppendFields implements Fielder.
func (e SMTPDConnect) AppendFields(b []byte) []byte {
	return appendClientFields(appendEvent(b, "connect"), e.Name, e.Addr)
}

// A CommandCount is how often a client used one SMTP command.
type CommandCount struct {
	Name      string // in lower case, "unknown" for what is no command
	OK, Total int
}

// SMTPDDisconnect says that a client's session has ended.
type SMTPDDisconnect struct {
	Name, Addr string
	Port       string // when it is to be logged
	// Counts has the commands in the order of Postfix's table: helo ehlo
	// xclient xforward starttls auth mail rcpt data bdat rset noop vrfy etrn
	// quit help unknown. Those that were not used are left out of the line.
	Counts []CommandCount
	Notes  string // bare_lf; empty for none
}

// Append implements Event.
func (e SMTPDDisconnect) Append(b []byte) []byte {
	b = appendPeer(append(b, "disconnect from "...), e.Name, e.Addr, e.Port)
	all := CommandCount{Name: "commands"}
	for _, c := range e.Counts {
		if c.Total > 0 {
			b = c.append(b, c.OK != c.Total)
			all.OK += c.OK
			all.Total += c.Total
		}
	}
	b = all.append(b, all.OK != all.Total || all.Total == 0)
	if e.Notes != "" {
		b = append(append(b, " notes="...), e.Notes...)
	}
	return b
}

func (c CommandCount) append(b []byte, total bool) []byte {
	b = append(append(append(b, ' '), c.Name...), '=')
	b = strconv.AppendInt(b, int64(c.OK), 10)
	if total {
		b = strconv.AppendInt(append(b, '/'), int64(c.Total), 10)
	}
	return b
}

// AppendFields implements Fielder.
func (e SMTPDDisconnect) AppendFields(b []byte) []byte {
	b = appendClientFields(appendEvent(b, "disconnect"), e.Name, e.Addr)
	ok, total := 0, 0
	for _, c := range e.Counts {
		ok, total = ok+c.OK, total+c.Total
	}
	b = appendNumber(b, "commands_ok", int64(ok))
	b = appendNumber(b, "commands", int64(total))
	return appendString(b, "notes", e.Notes)
}

// SMTPDClient says which client a message comes from.
type SMTPDClient struct {
	QueueID    string // empty with a proxy filter: NOQUEUE
	Name, Addr string
	Port       string // when it is to be logged

	SASLMethod, SASLUsername, SASLSender string
	// What XFORWARD told of the message before it came here.
	OrigQueueID        string
	OrigName, OrigAddr string
}

// Append implements Event.
func (e SMTPDClient) Append(b []byte) []byte {
	b = appendPeer(append(appendID(b, e.QueueID), "client="...), e.Name, e.Addr, e.Port)
	b = appendAttr(b, ", sasl_method=", e.SASLMethod)
	b = appendAttr(b, ", sasl_username=", e.SASLUsername)
	b = appendAttr(b, ", sasl_sender=", e.SASLSender)
	b = appendAttr(b, ", orig_queue_id=", e.OrigQueueID)
	if e.OrigAddr == "unknown" {
		return appendAttr(b, ", orig_client=", e.OrigName)
	}
	if e.OrigName != "" || e.OrigAddr != "" {
		b = appendClient(append(b, ", orig_client="...), e.OrigName, e.OrigAddr)
	}
	return b
}

// appendAttr appends the key and the value, unless the value is empty.
func appendAttr(b []byte, key, value string) []byte {
	if value == "" {
		return b
	}
	return append(append(b, key...), value...)
}

// AppendFields implements Fielder.
func (e SMTPDClient) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "client"), "queue_id", e.QueueID)
	b = appendClientFields(b, e.Name, e.Addr)
	b = appendString(b, "sasl_method", e.SASLMethod)
	b = appendString(b, "sasl_username", e.SASLUsername)
	b = appendString(b, "sasl_sender", e.SASLSender)
	b = appendString(b, "orig_queue_id", e.OrigQueueID)
	b = appendString(b, "orig_client_name", e.OrigName)
	return appendString(b, "orig_client_address", e.OrigAddr)
}

// Reject is the line of a restriction that said no, or that did one of the
// other things a restriction can do (Action).
type Reject struct {
	QueueID string // empty before there is one: NOQUEUE
	// Action is reject, reject_warning, warn, info, hold, discard, filter,
	// redirect, bcc, hangup, permit, milter-reject, proxy-reject, ...
	Action string
	// Stage is the SMTP command under way: CONNECT HELO EHLO STARTTLS AUTH
	// MAIL RCPT DATA BDAT END-OF-MESSAGE VRFY ETRN.
	Stage      string
	Name, Addr string // of the client
	Port       string // when it is to be logged
	Text       string // 550 5.1.1 <nobody@vmb.test>: Recipient address rejected: ...

	From, To       string
	HasFrom, HasTo bool // whether MAIL, RCPT have been given; From may be the null sender
	Proto          string
	Helo           string
	// Of a client that has authenticated.
	SASLMethod, SASLUsername, SASLSender string
}

// Append implements Event.
func (e Reject) Append(b []byte) []byte {
	b = appendID(b, e.QueueID)
	b = append(append(b, e.Action...), ": "...)
	b = append(append(b, e.Stage...), " from "...)
	b = append(appendPeer(b, e.Name, e.Addr, e.Port), ": "...)
	b = append(append(b, e.Text...), ';')
	return e.appendSession(b)
}

// appendSession appends what is known of the transaction.
func (e Reject) appendSession(b []byte) []byte {
	if e.HasFrom {
		b = append(append(append(b, " from=<"...), e.From...), '>')
	}
	if e.HasTo {
		b = append(append(append(b, " to=<"...), e.To...), '>')
	}
	b = appendAttr(b, " proto=", e.Proto)
	if e.Helo != "" {
		b = append(append(append(b, " helo=<"...), e.Helo...), '>')
	}
	b = appendAttr(b, " sasl_method=", e.SASLMethod)
	b = appendAttr(b, " sasl_username=", e.SASLUsername)
	return appendAttr(b, " sasl_sender=", e.SASLSender)
}

// AppendFields implements Fielder.
func (e Reject) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "restriction"), "queue_id", e.QueueID)
	b = appendString(b, "action", e.Action)
	b = appendString(b, "stage", e.Stage)
	b = appendClientFields(b, e.Name, e.Addr)
	b = appendString(b, "reply", e.Text)
	if e.HasFrom {
		b = appendAlways(b, "from", e.From)
	}
	if e.HasTo {
		b = appendAlways(b, "to", e.To)
	}
	b = appendString(b, "proto", e.Proto)
	b = appendString(b, "helo", e.Helo)
	b = appendString(b, "sasl_method", e.SASLMethod)
	b = appendString(b, "sasl_username", e.SASLUsername)
	return appendString(b, "sasl_sender", e.SASLSender)
}

// LostConnection says that a session ended otherwise than by QUIT.
type LostConnection struct {
	What       string // empty: "lost connection"; "timeout", "too many errors"
	After      string // the last command: CONNECT, DATA, UNKNOWN, ...
	Content    bool   // it happened while content arrived:
	Bytes      int64  // this much of it had come
	Name, Addr string
	Port       string // when it is to be logged
}

// Append implements Event.
func (e LostConnection) Append(b []byte) []byte {
	b = append(append(b, e.what()...), " after "...)
	b = append(b, e.After...)
	if e.Content {
		b = append(strconv.AppendInt(append(b, " ("...), e.Bytes, 10), " bytes)"...)
	}
	return appendPeer(append(b, " from "...), e.Name, e.Addr, e.Port)
}

func (e LostConnection) what() string {
	if e.What == "" {
		return "lost connection"
	}
	return e.What
}

// AppendFields implements Fielder.
func (e LostConnection) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "lost connection"), "reason", e.what())
	b = appendString(b, "after", e.After)
	if e.Content {
		b = appendNumber(b, "bytes", e.Bytes)
	}
	return appendClientFields(b, e.Name, e.Addr)
}

// Pipelining says that a client sent more than it was allowed to at once.
type Pipelining struct {
	After      string // the command that had to be answered first
	Name, Addr string
	Port       string // when it is to be logged
	Data       string // what came too early, printed with C escapes and cut at 100 bytes
}

// Append implements Event.
func (e Pipelining) Append(b []byte) []byte {
	b = append(append(b, "improper command pipelining after "...), e.After...)
	b = append(appendPeer(append(b, " from "...), e.Name, e.Addr, e.Port), ": "...)
	return appendEscaped(b, e.Data, 100)
}

// AppendFields implements Fielder.
func (e Pipelining) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "pipelining"), "after", e.After)
	return appendClientFields(b, e.Name, e.Addr)
}

// appendEscaped appends s with C escapes for what is not printable ASCII.
func appendEscaped(b []byte, s string, limit int) []byte {
	if len(s) > limit {
		s = s[:limit]
	}
	const names = "abtnvfr" // of 7 to 13
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 7 && c <= 13:
			b = append(b, '\\', names[c-7])
		case c == '\\':
			b = append(b, '\\', '\\')
		case c < ' ' || c >= 0x7f:
			b = append(b, '\\', '0'+c>>6, '0'+c>>3&7, '0'+c&7)
		default:
			b = append(b, c)
		}
	}
	return b
}

// SASLFailed says that a client could not authenticate. It is logged with
// LogWarning.
type SASLFailed struct {
	Name, Addr string
	Port       string // when it is to be logged
	Method     string
	Reason     string
	Username   string // as far as it is known
}

// Append implements Event.
func (e SASLFailed) Append(b []byte) []byte {
	b = append(appendPeer(b, e.Name, e.Addr, e.Port), ": SASL "...)
	b = append(append(b, e.Method...), " authentication failed: "...)
	b = append(b, e.Reason...)
	return appendAttr(b, ", sasl_username=", e.Username)
}

// AppendFields implements Fielder.
func (e SASLFailed) AppendFields(b []byte) []byte {
	b = appendClientFields(appendEvent(b, "sasl failed"), e.Name, e.Addr)
	b = appendString(b, "sasl_method", e.Method)
	b = appendString(b, "reason", e.Reason)
	return appendString(b, "sasl_username", e.Username)
}

// LimitExceeded says that a client went over one of the anvil limits. It is
// logged with LogWarning.
type LimitExceeded struct {
	What       string // Connection concurrency, Connection rate, Message delivery request rate, ...
	Count      int
	Name, Addr string
	Port       string // when it is to be logged
	Service    string
}

// Append implements Event.
func (e LimitExceeded) Append(b []byte) []byte {
	b = append(append(b, e.What...), " limit exceeded: "...)
	b = append(strconv.AppendInt(b, int64(e.Count), 10), " from "...)
	b = append(appendPeer(b, e.Name, e.Addr, e.Port), " for service "...)
	return append(b, e.Service...)
}

// AppendFields implements Fielder.
func (e LimitExceeded) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "limit exceeded"), "limit", e.What)
	b = appendNumber(b, "count", int64(e.Count))
	return appendString(appendClientFields(b, e.Name, e.Addr), "service", e.Service)
}

// ClientStatistics is one of the maxima that anvil reports.
type ClientStatistics struct {
	What  string // connection rate, connection count, message rate, recipient rate, newtls rate, auth rate
	Value string // 3/60s, 2
	For   string // smtp:192.0.2.1
	At    string // Nov 20 17:56:01
}

// Append implements Event.
func (e ClientStatistics) Append(b []byte) []byte {
	b = append(append(b, "statistics: max "...), e.What...)
	b = append(append(append(b, ' '), e.Value...), " for ("...)
	b = append(append(b, e.For...), ") at "...)
	return append(b, e.At...)
}

// AppendFields implements Fielder.
func (e ClientStatistics) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "client statistics"), "limit", e.What)
	return appendString(appendString(b, "value", e.Value), "client", e.For)
}

// Dialogue is one line of an SMTP or LMTP dialogue, without its end: of a session with a peer of
// debug_peer_list, or of a service that has -v in master.cf. What is secret in it has been left
// out by the caller.
type Dialogue struct {
	Sent bool   // to the peer; else it came from there
	Peer string // mx.test[192.0.2.1]:25
	Line []byte
}

// Append implements Event.
func (e Dialogue) Append(b []byte) []byte {
	arrow := "< "
	if e.Sent {
		arrow = "> "
	}
	return append(append(append(append(b, arrow...), e.Peer...), ": "...), e.Line...)
}

// AppendFields implements Fielder.
func (e Dialogue) AppendFields(b []byte) []byte {
	direction := "received"
	if e.Sent {
		direction = "sent"
	}
	b = appendString(appendEvent(b, "dialogue"), "direction", direction)
	return appendString(appendString(b, "peer", e.Peer), "line", string(e.Line))
}
