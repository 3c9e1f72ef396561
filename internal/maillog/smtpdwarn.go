package maillog

import (
	"fmt"
	"strconv"
)

// What the SMTP server has to say of clients that do something wrong, and of
// what it could not do for them. Unless its comment says otherwise an event of
// this file is logged with LogWarning. A Peer is NAME[ADDR], with :PORT where
// smtpd_client_port_logging wants it.

// NameMismatch says that the name that a client's address points at does not
// point back: the client is "unknown" from then on.
type NameMismatch struct {
	Name, Addr string
	Reason     string // of a lookup that failed; empty: the name has other addresses
}

// Append implements Event.
func (e NameMismatch) Append(b []byte) []byte {
	b = append(append(b, "hostname "...), e.Name...)
	b = append(append(b, " does not resolve to address "...), e.Addr...)
	return appendAttr(b, ": ", e.Reason)
}

// AppendFields implements Fielder.
func (e NameMismatch) AppendFields(b []byte) []byte {
	return appendString(appendClientFields(appendEvent(b, "name mismatch"), e.Name, e.Addr), "reason", e.Reason)
}

// IllegalAddress says that a client gave an address that is none.
type IllegalAddress struct {
	Peer    string
	Command string // MAIL, RCPT, VRFY
	Address string // as it was given; cut at 100 octets
}

// Append implements Event.
func (e IllegalAddress) Append(b []byte) []byte {
	return fmt.Appendf(b, "Illegal address syntax from %s in %s command: %.100s", e.Peer, e.Command, e.Address)
}

// AppendFields implements Fielder.
func (e IllegalAddress) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "illegal address"), "peer", e.Peer)
	return appendString(appendString(b, "stage", e.Command), "line", cut(e.Address))
}

// NonSMTPCommand says that a client speaks another protocol, and was sent away
// (smtpd_forbidden_commands).
type NonSMTPCommand struct {
	Peer string
	Line string // cut at 100 octets
}

// Append implements Event.
func (e NonSMTPCommand) Append(b []byte) []byte {
	return fmt.Appendf(b, "non-SMTP command from %s: %.100s", e.Peer, e.Line)
}

// AppendFields implements Fielder.
func (e NonSMTPCommand) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "non-SMTP command"), "peer", e.Peer), "line", cut(e.Line))
}

// cut is as much of a client's line as events have in text and fields.
func cut(s string) string { return fmt.Sprintf("%.100s", s) }

// NoSpace says that mail is refused because a file system is nearly full.
type NoSpace struct {
	Where string // mail queue, spool_content_directory
	Free  int64  // octets
}

// Append implements Event.
func (e NoSpace) Append(b []byte) []byte {
	b = append(append(b, "not enough free space in "...), e.Where...)
	b = strconv.AppendInt(append(b, ": "...), e.Free, 10)
	return append(b, " bytes < 1.5*message size limit"...)
}

// AppendFields implements Fielder.
func (e NoSpace) AppendFields(b []byte) []byte {
	return appendNumber(appendString(appendEvent(b, "no space"), "path", e.Where), "bytes", e.Free)
}

// MessageTooLarge says that the content of a message went over
// message_size_limit.
type MessageTooLarge struct{ QueueID string } // empty: NOQUEUE

// Append implements Event.
func (e MessageTooLarge) Append(b []byte) []byte {
	return append(appendID(b, e.QueueID), "queue file size limit exceeded"...)
}

// AppendFields implements Fielder.
func (e MessageTooLarge) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "message too large"), "queue_id", e.QueueID)
}

// NotQueued says why a message that the client has sent as a whole is not in
// the queue.
type NotQueued struct {
	QueueID string // empty: NOQUEUE
	Reason  string
}

// Append implements Event.
func (e NotQueued) Append(b []byte) []byte { return append(appendID(b, e.QueueID), e.Reason...) }

// AppendFields implements Fielder.
func (e NotQueued) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "not queued"), "queue_id", e.QueueID), "reason", e.Reason)
}

// A BDATProblem is what a client did wrong with BDAT (RFC 3030).
type BDATProblem uint8

// The problems with BDAT.
const (
	BDATMalformed BDATProblem = iota // the command cannot be read
	BDATNull                         // a chunk of no octets that is not the last
	BDATTooLarge                     // the message goes over message_size_limit
	BDATCutOff                       // too much of what is not wanted: the session ends
)

// BDATRefused says that a chunk was not taken.
type BDATRefused struct {
	QueueID string // empty: NOQUEUE
	Problem BDATProblem
	Peer    string
	Line    string // of a malformed command; cut at 100 octets
}

// Append implements Event.
func (e BDATRefused) Append(b []byte) []byte {
	b = appendID(b, e.QueueID)
	switch e.Problem {
	case BDATMalformed:
		return fmt.Appendf(b, "malformed BDAT command syntax from %s: %.100s", e.Peer, e.Line)
	case BDATNull:
		return append(append(b, "null BDAT request from "...), e.Peer...)
	case BDATTooLarge:
		return append(append(append(b, "BDAT request from "...), e.Peer...), " exceeds message size limit"...)
	}
	return append(append(b, "too much BDAT content -- disabling further input from "...), e.Peer...)
}

// AppendFields implements Fielder.
func (e BDATRefused) AppendFields(b []byte) []byte {
	reason := [...]string{BDATMalformed: "malformed", BDATNull: "null", BDATTooLarge: "too large", BDATCutOff: "cut off"}[e.Problem]
	b = appendString(appendString(appendEvent(b, "BDAT refused"), "queue_id", e.QueueID), "reason", reason)
	return appendString(appendString(b, "peer", e.Peer), "line", cut(e.Line))
}

// SASLAborted says that a client broke off an authentication ("*", RFC 4954
// section 4).
type SASLAborted struct{ Peer, Method string }

// Append implements Event.
func (e SASLAborted) Append(b []byte) []byte {
	b = append(append(append(b, e.Peer...), ": SASL "...), e.Method...)
	return append(b, " authentication aborted"...)
}

// AppendFields implements Fielder.
func (e SASLAborted) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "sasl aborted"), "peer", e.Peer), "sasl_method", e.Method)
}

// KeywordsDiscarded says which extensions a client is not told of
// (smtpd_discard_ehlo_keywords), or which of a server's are not believed
// (smtp_discard_ehlo_keywords). It is logged with Log.
type KeywordsDiscarded struct{ Keywords string } // with blanks between them

// Append implements Event.
func (e KeywordsDiscarded) Append(b []byte) []byte {
	return append(append(b, "discarding EHLO keywords: "...), e.Keywords...)
}

// AppendFields implements Fielder.
func (e KeywordsDiscarded) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "keywords discarded"), "keywords", e.Keywords)
}

// DNSRecordIgnored says that smtpd_dns_reply_filter or smtp_dns_reply_filter
// took a record out of a DNS reply. It is logged with Log.
type DNSRecordIgnored struct{ Record string } // as zone files have it

// Append implements Event.
func (e DNSRecordIgnored) Append(b []byte) []byte {
	return append(append(b, "ignoring DNS RR: "...), e.Record...)
}

// AppendFields implements Fielder.
func (e DNSRecordIgnored) AppendFields(b []byte) []byte {
	return appendString(appendEvent(b, "dns record ignored"), "record", e.Record)
}

// TLSAcceptFailed says that a handshake with a client did not come to its
// end. It is logged with Log.
type TLSAcceptFailed struct{ Peer, Reason string }

// Append implements Event.
func (e TLSAcceptFailed) Append(b []byte) []byte {
	return append(append(append(append(b, "SSL_accept error from "...), e.Peer...), ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e TLSAcceptFailed) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "tls failed"), "peer", e.Peer), "reason", e.Reason)
}

// CertificateNotTrusted says why no CA vouches for a client's certificate. It
// is logged with Log.
type CertificateNotTrusted struct{ Peer, Reason string }

// Append implements Event.
func (e CertificateNotTrusted) Append(b []byte) []byte {
	b = append(append(b, "certificate verification failed for "...), e.Peer...)
	return append(append(b, ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e CertificateNotTrusted) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "certificate not trusted"), "peer", e.Peer), "reason", e.Reason)
}

// TLSAborted says that a client is sent away because it has not shown the
// certificate that it must have (smtpd_tls_req_ccert). It is logged with Log.
type TLSAborted struct{ Peer, Reason string }

// Append implements Event.
func (e TLSAborted) Append(b []byte) []byte {
	b = append(append(appendID(b, ""), "abort: TLS from "...), e.Peer...)
	return append(append(b, ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e TLSAborted) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "tls aborted"), "peer", e.Peer), "reason", e.Reason)
}

// ProxyHeaderFailed says that a proxy's header (smtpd_upstream_proxy_protocol)
// did not come, or cannot be read.
type ProxyHeaderFailed struct{ Addr, Reason string }

// Append implements Event.
func (e ProxyHeaderFailed) Append(b []byte) []byte {
	return append(append(append(append(b, "haproxy read from "...), e.Addr...), ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e ProxyHeaderFailed) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "proxy header failed"), "client_address", e.Addr), "reason", e.Reason)
}

// FlushRefused says why ETRN for a domain could not be carried out.
type FlushRefused struct{ Domain, Reason string }

// Append implements Event.
func (e FlushRefused) Append(b []byte) []byte {
	return append(append(append(append(b, "ETRN "...), e.Domain...), ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e FlushRefused) AppendFields(b []byte) []byte {
	return appendString(appendString(appendEvent(b, "flush refused"), "domain", e.Domain), "reason", e.Reason)
}

// ProxyVerdict is what a content filter before the queue
// (smtpd_proxy_filter) made of a message. It is logged with Log.
type ProxyVerdict struct {
	Accepted bool
	Stage    string // END-OF-MESSAGE
	Reply    string // of the filter
	From, To string // To is the first recipient;
	HasTo    bool   // false: there is none
	Proto    string
	Helo     string
}

func (e ProxyVerdict) action() string {
	if e.Accepted {
		return "proxy-accept"
	}
	return "proxy-reject"
}

// Append implements Event.
func (e ProxyVerdict) Append(b []byte) []byte {
	b = fmt.Appendf(b, "%s: %s: %s; from=<%s>", e.action(), e.Stage, e.Reply, e.From)
	if e.HasTo {
		b = append(append(append(b, " to=<"...), e.To...), '>')
	}
	return fmt.Appendf(b, " proto=%s helo=<%s>", e.Proto, e.Helo)
}

// AppendFields implements Fielder.
func (e ProxyVerdict) AppendFields(b []byte) []byte {
	b = appendString(appendString(appendEvent(b, "proxy verdict"), "action", e.action()), "stage", e.Stage)
	b = appendAlways(appendString(b, "reply", e.Reply), "from", e.From)
	if e.HasTo {
		b = appendAlways(b, "to", e.To)
	}
	return appendString(appendString(b, "proto", e.Proto), "helo", e.Helo)
}

// A ProxyProblem is what went wrong with a content filter before the queue.
type ProxyProblem uint8

// The problems with a content filter.
const (
	ProxyConnect  ProxyProblem = iota // it cannot be reached
	ProxyRejected                     // it refused a command
	ProxyGarbage                      // its reply is none
	ProxyUnasked                      // it spoke before it was asked
	ProxyLost                         // the connection broke
	ProxyTimeout                      // it did not answer in time
)

// ProxyFailed says that a content filter before the queue
// (smtpd_proxy_filter) could not be asked, or refused a command.
type ProxyFailed struct {
	Filter  string // as smtpd_proxy_filter has it
	Problem ProxyProblem
	Command string // ProxyRejected: the command that it refused
	// Text is the reason of ProxyConnect and ProxyUnasked, the reply of
	// ProxyRejected, and the line of ProxyGarbage, cut at 100 octets.
	Text string
}

// Append implements Event.
func (e ProxyFailed) Append(b []byte) []byte {
	switch e.Problem {
	case ProxyConnect:
		return append(append(append(append(b, "connect to proxy filter "...), e.Filter...), ": "...), e.Text...)
	case ProxyRejected:
		return fmt.Appendf(b, "proxy %s rejected \"%s\": \"%s\"", e.Filter, e.Command, e.Text)
	case ProxyGarbage:
		return fmt.Appendf(b, "received garbage from proxy %s: %.100s", e.Filter, e.Text)
	case ProxyUnasked:
		return append(append(append(append(b, "proxy "...), e.Filter...), ": "...), e.Text...)
	case ProxyLost:
		return append(append(b, "lost connection with proxy "...), e.Filter...)
	}
	return append(append(b, "timeout talking to proxy "...), e.Filter...)
}

// AppendFields implements Fielder.
func (e ProxyFailed) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "proxy failed"), "peer", e.Filter)
	switch e.Problem {
	case ProxyRejected:
		return appendString(appendString(b, "in_reply_to", e.Command), "reply", e.Text)
	case ProxyGarbage:
		return appendString(b, "line", cut(e.Text))
	case ProxyLost:
		return appendString(b, "reason", "lost connection")
	case ProxyTimeout:
		return appendString(b, "reason", "timeout")
	}
	return appendString(b, "reason", e.Text)
}
