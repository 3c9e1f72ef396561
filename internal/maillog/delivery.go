package maillog

import (
	"strconv"
	"time"

	"posthaste/internal/dsn"
)

// Delivery is what one attempt came to for one recipient.
type Delivery struct {
	ID      string // queue ID
	To      string
	OrigTo  string // before rewriting and aliases; left out when empty or the same
	Relay   string // h[a]:25, local, virtual; empty: none
	ConnUse int    // how often the session has been used; shown from 2 on
	// Delay is the age of the message. Delays are its parts: before the queue
	// manager, in the queue manager, connection set-up, transmission.
	Delay      time.Duration
	Delays     [4]time.Duration
	Resolution Resolution // delay_logging_resolution_limit
	TLS        string     // smtp_log_tls_feature_status; may be empty
	Source     string     // the egress source that it was sent from; empty: there is none
	DSN        dsn.Status
	Status     string // sent, deferred, bounced, SOFTBOUNCE, deliverable, undeliverable
	Text       string
	// For the JSON form only: whose mail it is, by all that it is asked for by.
	From             string // empty: the null sender
	MessageID        string // with its angle brackets; may be empty
	EnvID            string // ENVID of MAIL FROM, decoded; may be empty
	Tenant, Campaign string // whose mail it is; may be empty
	// Class is what kind of failure it is, by the rules of bounce_class_files; empty: it is none, or there are no rules.
	Class string
	// For events only (package event).
	Nexthop string
	Size    int64  // of the message
	Attempt int    // 1 is the first; 0: not known
	Session string // protocol and cipher of the session with the relay; empty: without TLS
	// For metrics and events only: who is behind the destination; empty: nobody knows.
	Provider string
}

// Append implements Event.
func (e Delivery) Append(b []byte) []byte {
	b = append(appendID(b, e.ID), "to=<"...)
	b = append(append(b, e.To...), '>')
	if e.OrigTo != "" && !equalFold(e.OrigTo, e.To) {
		b = append(append(append(b, ", orig_to=<"...), e.OrigTo...), '>')
	}
	b = append(append(b, ", relay="...), e.relay()...)
	if e.ConnUse > 1 {
		b = strconv.AppendInt(append(b, ", conn_use="...), int64(e.ConnUse), 10)
	}
	b = appendDelay(append(b, ", delay="...), e.Delay, e.Resolution)
	b = append(b, ", delays="...)
	for i, d := range e.Delays {
		if i > 0 {
			b = append(b, '/')
		}
		b = appendDelay(b, d, e.Resolution)
	}
	b = appendAttr(appendAttr(b, ", tls=", e.TLS), ", source=", e.Source)
	b = e.DSN.Append(append(b, ", dsn="...))
	b = append(append(b, ", status="...), e.Status...)
	return append(append(append(b, " ("...), e.Text...), ')')
}

func (e Delivery) relay() string {
	if e.Relay == "" {
		return "none"
	}
	return e.Relay
}

// equalFold is strings.EqualFold for ASCII.
func equalFold(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := 0; i < len(a); i++ {
		if c, d := a[i], b[i]; c != d && (c|0x20 != d|0x20 || c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return true
}

// AppendFields implements Fielder.
func (e Delivery) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "delivery"), "queue_id", e.ID)
	b = appendAlways(appendAlways(b, "from", e.From), "to", e.To)
	if e.OrigTo != "" && !equalFold(e.OrigTo, e.To) {
		b = appendString(b, "orig_to", e.OrigTo)
	}
	b = appendString(b, "relay", e.relay())
	if e.ConnUse > 1 {
		b = appendNumber(b, "conn_use", int64(e.ConnUse))
	}
	b = appendDelay(append(b, `,"delay":`...), e.Delay, ResolutionLimit(6))
	b = append(b, `,"delays":[`...)
	for i, d := range e.Delays {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendDelay(b, d, ResolutionLimit(6))
	}
	b = append(b, ']')
	b = appendString(appendString(b, "tls", e.TLS), "source", e.Source)
	b = append(e.DSN.Append(append(b, `,"dsn":"`...)), '"')
	b = appendString(b, "status", e.Status)
	b = appendString(appendString(b, "reason", e.Text), "class", e.Class)
	b = appendString(appendString(b, "message_id", e.MessageID), "envid", e.EnvID)
	return appendString(appendString(b, "tenant", e.Tenant), "campaign", e.Campaign)
}

// ConnectFailed says that a delivery agent could not reach a server.
type ConnectFailed struct {
	Host, Addr, Port string // Port empty for a unix-domain socket
	Reason           string // Connection refused
}

// Append implements Event.
func (e ConnectFailed) Append(b []byte) []byte {
	b = appendClient(append(b, "connect to "...), e.Host, e.Addr)
	b = appendAttr(b, ":", e.Port)
	return append(append(b, ": "...), e.Reason...)
}

// AppendFields implements Fielder.
func (e ConnectFailed) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "connect failed"), "relay_host", e.Host)
	b = appendString(b, "relay_address", e.Addr)
	b = appendString(b, "relay_port", e.Port)
	return appendString(b, "reason", e.Reason)
}

// TLSEstablished says that a session is encrypted, and how.
type TLSEstablished struct {
	Trust  string // Anonymous, Untrusted, Trusted, Verified
	Server bool   // we are the server: "from NAME[ADDR]"; else "to HOST[ADDR]:PORT"
	Peer   string // NAME[ADDR] or HOST[ADDR]:PORT
	SNI    string // the name that a client asked for and got a certificate of its own for
	Proto  string // TLSv1.3
	Cipher string
	Bits   int
	// Only with TLS 1.3 (or known otherwise); empty parts are left out.
	KeyExchange, Signature, Digest string // X25519, "RSA-PSS (2048 bits)", SHA256
}

// Append implements Event.
func (e TLSEstablished) Append(b []byte) []byte {
	b = append(append(b, e.Trust...), " TLS connection established "...)
	if e.Server {
		b = append(b, "from "...)
	} else {
		b = append(b, "to "...)
	}
	b = appendAttr(append(b, e.Peer...), " to ", e.SNI)
	b = append(append(b, ": "...), e.Proto...)
	b = append(append(append(b, " with cipher "...), e.Cipher...), " ("...)
	b = append(strconv.AppendInt(b, int64(e.Bits), 10), '/')
	b = append(strconv.AppendInt(b, int64(e.Bits), 10), " bits)"...)
	b = appendAttr(b, " key-exchange ", e.KeyExchange)
	b = appendAttr(b, " server-signature ", e.Signature)
	return appendAttr(b, " server-digest ", e.Digest)
}

// AppendFields implements Fielder.
func (e TLSEstablished) AppendFields(b []byte) []byte {
	b = appendString(appendEvent(b, "tls"), "trust", e.Trust)
	b = appendString(b, "peer", e.Peer)
	if e.SNI != "" {
		b = appendString(b, "sni", e.SNI)
	}
	b = appendString(b, "protocol", e.Proto)
	return appendNumber(appendString(b, "cipher", e.Cipher), "bits", int64(e.Bits))
}
