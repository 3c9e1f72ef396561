// Package mail is the vocabulary that every part of the system speaks: queue
// identifiers, envelopes, recipients, the outcome of a delivery attempt, and
// the stored form of each. It does no I/O.
//
// # Addresses
//
// Addresses are kept in internal form, as Postfix keeps them: the local part
// without quotes, one "@", the domain as it came. The empty string is the
// null sender. Whoever prints an address or sends it over SMTP quotes it
// (package rfc5322); whoever reads one unquotes it.
//
// # Content
//
// Message content is kept as it goes over the wire, without dot-stuffing:
// every line, the last included, ends in CRLF, and no other CR or LF occurs.
// cleanup is where that is made true; everybody else may rely on it.
package mail

import (
	"strings"
	"time"

	"posthaste/internal/dsn"
)

// Transport is the name of a delivery service in master.cf: smtp, local, ...
type Transport string

// Nexthop is the destination given to a transport: a domain, [host]:port,
// or whatever else that transport understands.
type Nexthop string

// Host is the name of a next hop that is a host or a domain, in lower case, without brackets and port; itself says that it
// is its own mail host, as in brackets. Of a list, which smtp(8) tries in order, it is that of the first. It is empty where
// mail goes to no host.
func (n Nexthop) Host() (name string, itself bool) {
	hop := string(n)
	if i := strings.IndexAny(hop, ", \t"); i >= 0 {
		hop = hop[:i]
	}
	if strings.HasPrefix(hop, "unix:") {
		return "", false
	}
	hop = strings.ToLower(strings.TrimPrefix(hop, "inet:"))
	if strings.HasPrefix(hop, "[") {
		if name, rest, ok := strings.Cut(hop[1:], "]"); ok {
			if rest != "" && rest[0] != ':' {
				return "", false
			}
			return name, name != ""
		}
	}
	// The mail hosts of "domain:port" are those of the domain.
	name, _, _ = strings.Cut(hop, ":")
	return name, false
}

// Body says what the content's bytes are. It decides what a delivery agent
// must ask of the next system, and what it may leave undone.
type Body uint16

const (
	Body8Bit     Body = 1 << iota // some byte is over 127 (RFC 6152)
	BodyUTF8Hdr                   // some header has bytes over 127 (RFC 6532)
	BodyDots                      // some line starts with a dot: dot-stuffing has work to do
	BodyLong                      // some line is longer than 998 octets (RFC 5321 section 4.5.3.1.6)
	BodySMTPUTF8                  // the sender asked for SMTPUTF8 (RFC 6531)
	BodyUTF8Addr                  // an envelope address has bytes over 127
	BodyGauged                    // the first four are of every octet: without this BodyDots and BodyLong may be missing
)

// Trace is the set of special kinds of delivery: reports asked for by
// sendmail -bv and -v, and address probes. Zero is ordinary mail.
type Trace uint8

const (
	TraceProbe  Trace = 1 << iota // do not deliver: find out (address verification)
	TraceReport                   // do not deliver: report what would happen (sendmail -bv)
	TraceRecord                   // deliver, and report what happened (sendmail -v)
)

// DontDeliver says whether the message is there to find something out, not
// to arrive.
func (t Trace) DontDeliver() bool { return t&(TraceProbe|TraceReport) != 0 }

// Client is who handed us a message, for logs, Received: and policy. All of
// it may come from a hostile peer, and is length-bounded by who fills it in.
type Client struct {
	Name  string // verified host name, "unknown", or "localhost" for local submission
	Addr  string // IP address, without brackets or "IPv6:"; empty for local submission
	Port  string
	Helo  string
	Proto string // SMTP, ESMTP; empty for local submission
}

// SASL is what authentication established, empty when there was none.
type SASL struct {
	Method   string
	Username string
	Sender   string // AUTH= parameter of MAIL FROM
}

// A Recipient is one address that a message is to reach.
type Recipient struct {
	Address  string // where it goes now
	Original string // as it was before aliases and canonical mapping; empty when the same
	ORCPT    string // RFC 3461 section 4.2, type;address with the address decoded from xtext; may be empty
	Notify   dsn.Notify
}

// Orig is the original address, which is Address when nothing mapped it.
func (r *Recipient) Orig() string {
	if r.Original != "" {
		return r.Original
	}
	return r.Address
}

// RequireTLSField is the header field by which REQUIRETLS comes through a
// content filter that does not know it: Require-TLS-ESMTP: yes.
const RequireTLSField = "Require-TLS-ESMTP"

// MaxMessageID is what is kept of a Message-ID, in octets: a line's length (RFC 5322 section 2.1.1).
const MaxMessageID = 998

// An Envelope is all that is known of a message besides its content, its
// recipients' fates and its place in the queue. It never changes once the
// message is queued.
type Envelope struct {
	ID      QueueID
	Arrival time.Time // when the transaction began: delays are counted from here
	Sender  string
	Size    int64 // octets of content, each line end counted as two, as Postfix's logs and limits do
	Body    Body

	EnvID string // RFC 3461 section 4.4, decoded
	// MessageID is the Message-ID: field's value with its angle brackets, for the log;
	// empty when there is none that is well formed. At most MaxMessageID octets.
	MessageID string
	Ret       dsn.Ret // RFC 3461 section 4.3

	Client  Client
	SASL    SASL
	Reverse string // the client's unverified reverse name

	Trace          Trace
	RewriteContext string // "local" or "remote"
	LogIdent       string // queue ID given by XFORWARD IDENT
	Filter         string // content filter as transport:nexthop
	Redirect       string // REDIRECT action's address: the only recipient that counts
	VERP           string // two delimiter characters; empty: no VERP
	Pool           string // POOL action's egress pool: what the message is sent from; empty: as main.cf says
	RequireTLS     bool   // RFC 8689
	TLSOptional    bool   // TLS-Required: no, RFC 8689 section 5
	// Forwarded: local made the message, for the members of an alias or a .forward file. Its recipients'
	// Original is what it was forwarded from, and must not be expanded once more.
	Forwarded bool
	// Tenant is for whom the message is sent, and Campaign of which mailing of that tenant it is: each is
	// empty or a GroupName, and there is no campaign without a tenant.
	Tenant, Campaign string
	// List is the suppression list that the message is under (suppress_list_maps), or TENANT/ and that
	// list, which may be none, where it is under its tenant's (suppress_tenants); empty: none. Such a
	// message has one recipient to a delivery.
	List string
	// SendAt is when the message is to be tried first, and what its lifetime counts from; zero: at once.
	SendAt time.Time

	Recipients []Recipient
}

// MaxGroupName is the length of the name of a tenant or a campaign, in octets.
const MaxGroupName = 64

// GroupName says whether s may be the name of a tenant or a campaign: letters, digits and . _ - of ASCII, up
// to MaxGroupName of them. Letter case counts.
func GroupName(s string) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return s != "" && len(s) <= MaxGroupName
}

// Created is when the queue entry was made: expiry is counted from here.
func (e *Envelope) Created() time.Time {
	if t, _, err := e.ID.Parse(); err == nil {
		return t
	}
	return e.Arrival
}

// An Outcome is what one delivery attempt came to for one recipient.
type Outcome struct {
	Rcpt     int // index into Envelope.Recipients
	Action   dsn.Action
	Status   dsn.Status
	Reason   string // for the log and the notice's text: host h[a] said: 550 ... (in reply to RCPT TO command)
	Relay    string // as logged: none, local, h[a]:25
	MTA      string // remote MTA's host name, for Remote-MTA; empty when none spoke
	DiagType string // smtp, x-unix, sasl; empty: this system's own words
	DiagText string // the remote reply or the command's output
	// Passed says that the next system has taken over the duty to tell the
	// sender of success (RFC 3461 section 5.2.2).
	Passed bool
	// Owner is told of a failure in the sender's place: the recipient is a
	// list of this system's, whose owner answers for it. Empty: the sender is.
	Owner string
	When  time.Time
	// Parts are what is to be said of the destinations that the recipient was
	// expanded to: of each of them, and not of the recipient. Those that
	// have got the message are here only when a report was asked for. Empty: it
	// was not expanded, or all is well.
	Parts []Part
}
