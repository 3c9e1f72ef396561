// XFORWARD: telling a content filter whose message it gets. See XFORWARD_README of
// Postfix.

package smtp

import (
	"slices"
	"strings"

	"posthaste/internal/dsn"
)

// xforwardFirst and xforwardSecond are the attributes of the two XFORWARD commands
// by which a content filter learns whom we had the message from. There are two
// since a command has at most 512 octets (RFC 5321 section 4.5.3.1.4), and a name
// alone may have 255.
var (
	xforwardFirst  = []string{"NAME", "ADDR", "PORT"}
	xforwardSecond = []string{"PROTO", "HELO", "IDENT", "SOURCE"}
)

// unavailable is the value of an attribute that is not known.
const unavailable = "[UNAVAILABLE]"

// xforwards says whether the server gets the attributes of a list: it must ask for
// one that is known.
func (t *transaction) xforwards(attrs []string) bool {
	if !t.d.set.xforward || t.s.offers&offersXForward == 0 {
		return false
	}
	return slices.ContainsFunc(attrs, func(a string) bool {
		return slices.Contains(t.s.xforward, a) && t.xforwardValue(a) != unavailable
	})
}

// appendXforward appends an XFORWARD command with those of attrs that the server
// asks for.
func (t *transaction) appendXforward(attrs []string) {
	b := append(t.s.out, "XFORWARD"...)
	for _, a := range attrs {
		if !slices.Contains(t.s.xforward, a) {
			continue
		}
		b = append(append(append(b, ' '), a...), '=')
		b = append(b, t.xforwardValue(a)...)
	}
	t.s.out = append(b, "\r\n"...)
}

// xforwardValue is an attribute's value, encoded as XFORWARD wants it. Those of the message as it came
// here, not of this connection, so that a filter can log and judge the client that sent it.
func (t *transaction) xforwardValue(attr string) string {
	env := t.d.env
	value := ""
	switch attr {
	case "NAME":
		value = env.Client.Name
	case "ADDR":
		if value = env.Client.Addr; strings.Contains(value, ":") {
			value = "IPV6:" + value
		}
	case "PORT":
		value = env.Client.Port
	case "PROTO":
		value = env.Client.Proto
	case "HELO":
		value = env.Client.Helo
	case "IDENT":
		value = string(env.ID)
		if env.LogIdent != "" {
			value = env.LogIdent
		}
	case "SOURCE":
		value = "REMOTE"
		if env.RewriteContext == "local" {
			value = "LOCAL"
		}
	}
	if value == "" || value == "unknown" {
		return unavailable
	}
	return dsn.Xtext(value)
}
