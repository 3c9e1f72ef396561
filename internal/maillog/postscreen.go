package maillog

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The lines of postscreen's tests. Their texts are those of postscreen(8) in
// Postfix 3.7, which fail2ban, logwatch and postscreen's own statistics scripts
// search for: a client is always [ADDRESS]:PORT in them, and has no name.

// An Endpoint is one end of a connection, as postscreen's lines have it.
type Endpoint struct{ Addr, Port string }

func (e Endpoint) append(b []byte) []byte {
	b = append(append(append(b, '['), e.Addr...), "]:"...)
	return append(b, e.Port...)
}

// appendFields appends the endpoint as that of the client.
func (e Endpoint) appendFields(b []byte) []byte {
	return appendString(appendString(b, "client_address", e.Addr), "client_port", e.Port)
}

// ScreenConnect says that a client has connected, and is now to be tested.
type ScreenConnect struct{ Client, Server Endpoint }

// Append implements Event.
func (e ScreenConnect) Append(b []byte) []byte {
	b = e.Client.append(append(b, "CONNECT from "...))
	return e.Server.append(append(b, " to "...))
}

// AppendFields implements Fielder.
func (e ScreenConnect) AppendFields(b []byte) []byte {
	b = e.Client.appendFields(appendEvent(b, "screen connect"))
	return appendString(appendString(b, "server_address", e.Server.Addr), "server_port", e.Server.Port)
}

// ScreenResult is what postscreen has decided about a client.
type ScreenResult struct {
	// Result is PASS NEW, PASS OLD, ALLOWLISTED, DENYLISTED, ALLOWLIST VETO or
	// DISCONNECT. With respectful_logging = no the older words WHITELISTED,
	// BLACKLISTED and WHITELIST VETO stand for three of them.
	Result string
	Client Endpoint
}

// Append implements Event.
func (e ScreenResult) Append(b []byte) []byte {
	return e.Client.append(append(append(b, e.Result...), ' '))
}

// AppendFields implements Fielder.
func (e ScreenResult) AppendFields(b []byte) []byte {
	return e.Client.appendFields(appendString(appendEvent(b, "screen result"), "result", e.Result))
}

// ScreenTurnedAway says that there was no room for a client.
type ScreenTurnedAway struct {
	Client Endpoint
	Reason string // too many connections, all server ports busy, all screening ports busy
	// Untested: the client would have been tested next. Postfix words this line
	// otherwise than the two others.
	Untested bool
}

// Append implements Event.
func (e ScreenTurnedAway) Append(b []byte) []byte {
	if e.Untested {
		b = append(b, "reject: connect from "...)
	} else {
		b = append(b, "NOQUEUE: reject: CONNECT from "...)
	}
	return append(append(e.Client.append(b), ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e ScreenTurnedAway) AppendFields(b []byte) []byte {
	b = appendString(appendString(appendEvent(b, "screen reject"), "action", "reject"), "stage", "CONNECT")
	return appendString(e.Client.appendFields(b), "reason", e.Reason)
}

// ScreenReject says that a recipient was refused because its client has
// failed a test.
type ScreenReject struct {
	Client   Endpoint
	Reply    string // 550 5.5.1 Protocol error
	From, To string
	Proto    string
	Helo     string
}

// Append implements Event.
func (e ScreenReject) Append(b []byte) []byte {
	b = e.Client.append(append(b, "NOQUEUE: reject: RCPT from "...))
	return fmt.Appendf(b, ": %s; from=<%s>, to=<%s>, proto=%s, helo=<%s>", e.Reply, e.From, e.To, e.Proto, e.Helo)
}

// AppendFields implements Fielder.
func (e ScreenReject) AppendFields(b []byte) []byte {
	b = appendString(appendString(appendEvent(b, "screen reject"), "action", "reject"), "stage", "RCPT")
	b = appendString(e.Client.appendFields(b), "reply", e.Reply)
	b = appendAlways(appendAlways(b, "from", e.From), "to", e.To)
	return appendString(appendString(b, "proto", e.Proto), "helo", e.Helo)
}

// ScreenListed is one answer of a DNS list about a client.
type ScreenListed struct {
	Addr   string // of the client
	Domain string // the list
	Answer string // the address that it gave, such as 127.0.0.2
}

// Append implements Event.
func (e ScreenListed) Append(b []byte) []byte {
	b = append(append(b, "addr "...), e.Addr...)
	b = append(append(b, " listed by domain "...), e.Domain...)
	return append(append(b, " as "...), e.Answer...)
}

// AppendFields implements Fielder.
func (e ScreenListed) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "screen listed"), "client_address", e.Addr)
	return appendString(appendString(b, "domain", e.Domain), "value", e.Answer)
}

// ScreenRank says that the DNS lists together weigh as much as
// postscreen_dnsbl_threshold, or more.
type ScreenRank struct {
	Rank   int
	Client Endpoint
}

// Append implements Event.
func (e ScreenRank) Append(b []byte) []byte {
	b = strconv.AppendInt(append(b, "DNSBL rank "...), int64(e.Rank), 10)
	return e.Client.append(append(b, " for "...))
}

// AppendFields implements Fielder.
func (e ScreenRank) AppendFields(b []byte) []byte {
	return appendNumber(e.Client.appendFields(appendEvent(b, "screen rank")), "rank", int64(e.Rank))
}

// ScreenPregreet says that a client spoke before it was greeted.
type ScreenPregreet struct {
	Client Endpoint
	After  time.Duration // since it connected
	Data   string        // what it said; printed with C escapes, and cut at 100 octets
}

// Append implements Event.
func (e ScreenPregreet) Append(b []byte) []byte {
	b = fmt.Appendf(b, "PREGREET %d after %.2g from ", len(e.Data), e.After.Seconds())
	return appendASCII(append(e.Client.append(b), ": "...), e.Data)
}

// AppendFields implements Fielder.
func (e ScreenPregreet) AppendFields(b []byte) []byte {
	b = e.Client.appendFields(appendString(appendEvent(b, "screen violation"), "test", "PREGREET"))
	return appendNumber(appendNumber(b, "bytes", int64(len(e.Data))), "elapsed_ms", e.After.Milliseconds())
}

// ScreenHangup says that a client went away while it was made to wait for the
// greeting.
type ScreenHangup struct {
	Client Endpoint
	After  time.Duration // since it connected
}

// Append implements Event.
func (e ScreenHangup) Append(b []byte) []byte {
	b = fmt.Appendf(b, "HANGUP after %.2g from ", e.After.Seconds())
	return append(e.Client.append(b), " in tests before SMTP handshake"...)
}

// AppendFields implements Fielder.
func (e ScreenHangup) AppendFields(b []byte) []byte {
	return appendNumber(e.Client.appendFields(appendEvent(b, "screen hangup")), "elapsed_ms", e.After.Milliseconds())
}

// ScreenViolation says that a client failed a test after the greeting, or went
// over a limit that holds while it is tested.
type ScreenViolation struct {
	// Test is BARE NEWLINE, COMMAND PIPELINING, NON-SMTP COMMAND, COMMAND COUNT
	// LIMIT, COMMAND TIME LIMIT or COMMAND LENGTH LIMIT.
	Test   string
	Client Endpoint
	After  string // the SMTP command before, or under way: CONNECT, EHLO, ...
	// Data is what the client sent, printed with C escapes and cut at 100 octets;
	// HasData is false where the line does not show it.
	Data    string
	HasData bool
}

// Append implements Event.
func (e ScreenViolation) Append(b []byte) []byte {
	b = e.Client.append(append(append(b, e.Test...), " from "...))
	b = append(append(b, " after "...), e.After...)
	if e.HasData {
		b = appendASCII(append(b, ": "...), e.Data)
	}
	return b
}

// AppendFields implements Fielder.
func (e ScreenViolation) AppendFields(b []byte) []byte {
	b = e.Client.appendFields(appendString(appendEvent(b, "screen violation"), "test", e.Test))
	return appendString(b, "after", e.After)
}

// appendASCII appends what a client sent, cut at 100 octets, with the escapes
// of a Go string for all that is not printable ASCII. A quotation mark stays
// as it is: nothing here stands between any.
func appendASCII(b []byte, s string) []byte {
	text := strconv.QuoteToASCII(s[:min(len(s), 100)])
	return append(b, strings.ReplaceAll(text[1:len(text)-1], `\"`, `"`)...)
}
