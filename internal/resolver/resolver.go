// Package resolver is the system's view of the DNS: a stub resolver made for
// mail. It asks the name servers of /etc/resolv.conf for names exactly as they
// are written (no search list, no ndots: a mail domain is complete or it is
// wrong), tells the kinds of failure apart that decide whether mail is
// returned or tried again, and keeps answers for as long as their TTL says.
//
// One Client serves a whole process. Lookups of the same name that happen at
// the same time are one query; answers, positive and negative, are kept in a
// bounded cache.
//
// The name "localhost" and everything under it is the loopback address without
// a question to anybody (RFC 6761 section 6.3), so that local delivery works
// with no DNS at all.
//
// A reply that does not fit a datagram is fetched over TCP; so is one that comes
// cut off or damaged. After a reply that did not come at all the next question
// asks for no more than 512 octets over UDP, since some networks lose what is
// larger.
//
// # Security
//
// Each query goes out from a fresh socket with a random port and a random
// identifier; a reply counts only if it comes from the address that was asked
// and repeats identifier and question. Other datagrams are skipped until the
// time is up. What is in a reply is checked again: names must be host names,
// records must belong to the name that was asked or to what its aliases lead
// to. The Secure flag is what a validating name server says in its AD bit, and
// it is believed only over loopback or if resolv.conf says "options trust-ad".
//
// # Standards
//
// RFC 1034, RFC 1035, RFC 2308 (negative answers), RFC 5966 (TCP), RFC 6891
// (EDNS, 1232 octets), RFC 7505 (null MX), RFC 6698 (TLSA), RFC 2782 (SRV).
//
// # Diagnostics
//
// An *Error prints in the words that mail logs have for it.
package resolver

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// A Family is a set of address families.
type Family uint8

const (
	IPv4 Family = 1 << iota
	IPv6
)

// An Answer is the records of one type that a name has, in the order in which
// they came. It may be shared with other callers and must not be changed.
type Answer[T any] struct {
	Records []T
	Name    string        // the name that has the records: what was asked, or where its aliases lead
	TTL     time.Duration // how long the answer may still be kept
	Secure  bool          // a trusted validating name server vouches for all of it
}

// MX is one mail exchanger. Host has no trailing dot; it is empty for the
// null MX of RFC 7505, and may be an address where a zone has one by mistake.
type MX struct {
	Pref uint16
	Host string
}

// SRV is one service location, RFC 2782. Target is "" where the service is
// said not to exist.
type SRV struct {
	Priority, Weight, Port uint16
	Target                 string
}

// TLSA is one certificate association, RFC 6698.
type TLSA struct {
	Usage, Selector, Matching uint8
	Data                      []byte
}

// CAA is one statement on who may issue certificates, RFC 8659.
type CAA struct {
	Critical   bool   // an issuer that does not know Tag must not issue
	Tag, Value string // issue "ca.example; validationmethods=dns-01"
}

// A Resolver looks names up. Names are absolute; a trailing dot is allowed.
// Internationalized names are looked up in their ASCII form (RFC 5891).
//
// Every method may be called by many goroutines at once. Every error is an
// *Error or the context's. An answer without error has at least one record.
// Context ends only the caller's wait: a query that others wait for goes on.
type Resolver interface {
	MX(ctx context.Context, domain string) (Answer[MX], error)
	// Addrs gives the addresses of a host, IPv4 before IPv6. It succeeds when
	// one of the families has any; otherwise a temporary error counts more
	// than a permanent one.
	Addrs(ctx context.Context, host string, f Family) (Answer[netip.Addr], error)
	PTR(ctx context.Context, addr netip.Addr) (Answer[string], error)
	// TXT joins the strings of each record.
	TXT(ctx context.Context, name string) (Answer[string], error)
	TLSA(ctx context.Context, name string) (Answer[TLSA], error)
	SRV(ctx context.Context, name string) (Answer[SRV], error)
	NS(ctx context.Context, name string) (Answer[string], error)
	// CNAME gives what name is an alias of, by itself: Secure is about the
	// alias, whatever it leads to.
	CNAME(ctx context.Context, name string) (Answer[string], error)
	// Native asks as the system's other programs do: /etc/hosts and whatever
	// else nsswitch.conf and resolv.conf say, the search list included.
	Native(ctx context.Context, host string, f Family) (Answer[netip.Addr], error)
}

// Kind is why a lookup gave nothing.
type Kind uint8

const (
	TempFail   Kind = iota + 1 // no server answered, or it would or could not (SERVFAIL, REFUSED, NOTIMP): try again
	NXDomain                   // the name does not exist
	NoData                     // the name exists and has no record of this type
	NoRecovery                 // the servers make nothing of the question (FORMERR): trying again will not help
	Invalid                    // the name, or what a zone has for it, is no host name
	Filtered                   // there are records, and Options.Filter lets none pass
)

// An Error says why a lookup gave nothing.
type Error struct {
	Kind   Kind
	Name   string
	Type   string // MX, A, ...
	Secure bool   // the absence is vouched for (see Answer.Secure)
	Err    error  // what the network said, for TempFail; may be nil
}

// Error is worded as Postfix words it, since people look for it in logs.
func (e *Error) Error() string {
	switch e.Kind {
	case Invalid:
		return "Name service error for " + e.Name + ": invalid host or domain name"
	case Filtered:
		return "Error looking up name=" + e.Name + " type=" + e.Type + ": DNS reply filter drops all results"
	default:
		return "Host or domain name not found. Name service error for name=" + e.Name + " type=" + e.Type + ": " + e.Kind.String()
	}
}

// Unwrap gives the network's error.
func (e *Error) Unwrap() error { return e.Err }

// String is the short text of the kind, in the words of herror(3).
func (k Kind) String() string {
	switch k {
	case NXDomain:
		return "Host not found"
	case NoData:
		return "Host found but no data record of requested type"
	case NoRecovery:
		return "Non-recoverable error"
	case Invalid:
		return "Invalid host or domain name"
	case Filtered:
		return "DNS reply filter drops all results"
	}
	return "Host not found, try again"
}

// KindOf gives the kind of a lookup error; anything that is not an *Error,
// an ended context included, is a TempFail. It is 0 for nil.
func KindOf(err error) Kind {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return TempFail
}

// NotFound says whether err means that there is no such record: NXDomain or NoData.
func NotFound(err error) bool {
	k := KindOf(err)
	return k == NXDomain || k == NoData
}
