package selection

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Destination says for whom mail is, as operators say it: in
// queue_only_destinations, for a suspension, and to explain.
//
//	example.com         recipients in this domain, and mail whose next hop this is
//	.example.com        the same for its subdomains, not for itself
//	[mx.example.com]:25 mail whose next hop this is, written as in the log and in transport tables
//	smtp:example.com    the same, by one transport only
//	smtp:               all mail of a transport
//	*                   all mail
//
// Letter case does not count. What stands before the first colon is a transport,
// and so it is with a dot in its name if what follows is no port: smtp.out:, smtp.out:hub and
// smtp.out:example.com are by the transport smtp.out, mx.example.com:25 and
// mx.example.com:submission are next hops.
type Destination struct {
	text      string
	transport string // empty: any
	name      string // in lower case; empty: any; with a leading dot: subdomains
}

// maxDestination bounds the octets of a destination's name.
const maxDestination = 1024

// ParseDestination reads one. Errors are for the operator.
func ParseDestination(text string) (Destination, error) {
	d := Destination{text: strings.ToLower(text), name: strings.ToLower(text)}
	switch {
	case text == "":
		return d, fmt.Errorf("a destination must not be empty")
	case len(text) > maxDestination:
		return d, fmt.Errorf("a destination has at most %d octets", maxDestination)
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r == 0x7f }):
		return d, fmt.Errorf("destination %q has blanks or control characters", text)
	case text == "*":
		d.name = ""
		return d, nil
	}
	if before, after, ok := strings.Cut(text, ":"); ok && isTransport(before, after) {
		d.transport, d.name = before, strings.ToLower(after)
		d.text = before + ":" + d.name
	}
	if strings.Count(d.name, "[") != strings.Count(d.name, "]") || d.name == "." || strings.Contains(d.name, "@") ||
		strings.Contains(d.name, "/") && d.transport == "" {
		return d, fmt.Errorf("%q is not a destination: give a domain, .domain, [host]:port, transport:nexthop or *", text)
	}
	return d, nil
}

// isTransport says whether what stands before the first colon names a transport, for what follows it.
func isTransport(before, after string) bool {
	if before == "" || before[0] == '.' || strings.ContainsAny(before, "[]/") {
		return false
	}
	return !strings.Contains(before, ".") || after == "" || !isPort(after)
}

// isPort says whether a next hop may end in this after its colon: a number, or the name of a service that takes mail.
func isPort(text string) bool {
	if slices.Contains([]string{"smtp", "smtps", "ssmtp", "submission", "submissions", "lmtp"}, strings.ToLower(text)) {
		return true
	}
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

// String is what it was made of, in its only form: lower case but for the transport.
func (d Destination) String() string { return d.text }

// Match says whether mail by a transport to a next hop for a recipient in a
// domain is meant. What is not known is empty.
func (d Destination) Match(transport, nexthop, domain string) bool {
	if d.transport != "" && d.transport != transport {
		return false
	}
	return d.name == "" || d.matchName(nexthop) || d.matchName(domain)
}

func (d Destination) matchName(name string) bool {
	if d.name[0] != '.' {
		return strings.EqualFold(name, d.name)
	}
	n := len(name) - len(d.name)
	return n > 0 && strings.EqualFold(name[n:], d.name)
}
