// Destinations as they are written in transport tables, relayhost and the like.

package smtp

import (
	"fmt"
	"iter"
	"strconv"
	"strings"

	"posthaste/internal/resolver"
)

// smtpPort is the port on which loops are looked for: mail that comes back to
// another port of this host is meant to, for a content filter.
const smtpPort = "25"

// smtpsPort is the port on which TLS begins at once, RFC 8314.
const smtpsPort = "465"

// nexthop is one destination of a delivery request. It does not change.
type nexthop struct {
	text string // as it was written, without inet: or unix:: the key of tables and of kept sessions
	host string // domain, host or address, without brackets; "" for a unix socket
	port string // in digits
	// service is the port as it was written, if it was: the name of an SRV lookup.
	service string
	noMX    bool   // in brackets, or LMTP: the host itself
	path    string // of a unix socket
}

// domain is the destination as the DNS and certificates have it: in ASCII. ok is
// false for what cannot be a domain, such as an address.
func (h *nexthop) domain(names resolver.Names) (ascii string, ok bool) { return names.ToASCII(h.host) }

// domainKeys are what tables may have a domain under: itself, then the domains
// above it with the dot before them; each, if it is international, in its other
// form too. The sender chooses the form, and is not to choose the policy by it.
func domainKeys(domain string, names resolver.Names) iter.Seq[string] {
	return func(yield func(string) bool) {
		other := names.OtherForm(domain)
		for key := domain; yield(key); {
			if other != "" && other != key && !yield(other) {
				return
			}
			i := strings.IndexByte(key[1:], '.')
			if i < 0 {
				return
			}
			key = key[1+i:]
			if j := strings.IndexByte(other[min(1, len(other)):], '.'); j >= 0 {
				other = other[1+j:]
			}
		}
	}
}

// portNames gives the number of a port or of a service: config.Config.Port.
type portNames func(string) (uint16, error)

// parseNexthops reads a list of destinations and appends them to hops. With
// lmtp a destination is unix:path, inet:host:port, or host:port.
func parseNexthops(hops []nexthop, list, defaultPort string, lmtp bool, ports portNames) ([]nexthop, error) {
	known := len(hops)
	for text := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		h := nexthop{text: text}
		rest := text
		if lmtp {
			h.noMX = true
			if path, ok := strings.CutPrefix(text, "unix:"); ok {
				if path == "" {
					return nil, badNexthop(text, "expected a path after unix:")
				}
				h.text, h.path = path, path
				hops = append(hops, h)
				continue
			}
			rest = strings.TrimPrefix(text, "inet:")
			h.text = rest
		}
		host, port, bracketed, err := splitHostPort(rest, defaultPort, ports)
		if err != nil {
			return nil, badNexthop(text, err.Error())
		}
		h.host, h.port, h.noMX = host, port, h.noMX || bracketed
		if i := strings.LastIndexByte(rest, ':'); i > strings.LastIndexByte(rest, ']') {
			h.service = rest[i+1:]
		}
		hops = append(hops, h)
	}
	if len(hops) == known {
		return nil, badNexthop(list, "it is empty")
	}
	return hops, nil
}

// badNexthop says what is wrong with a destination, and what one looks like.
func badNexthop(text, why string) error {
	return fmt.Errorf("next-hop destination %q: %s; expected domain, [host], [host]:port or [ipv6:address]", text, why)
}

// splitHostPort reads host, host:port, [host] or [host]:port. An IPv6 address is in
// brackets, with or without "ipv6:" before it. Brackets say that MX records do not
// count. The port is returned in digits.
func splitHostPort(s, defaultPort string, ports portNames) (host, port string, bracketed bool, err error) {
	port = defaultPort
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return "", "", false, fmt.Errorf("no ] after the host")
		}
		// An IPv6 address needs the brackets: otherwise its last colon would be
		// taken for that of the port.
		host, bracketed = s[1:end], true
		switch rest := s[end+1:]; {
		case rest == "":
		case rest[0] == ':':
			port = rest[1:]
		default:
			return "", "", false, fmt.Errorf("garbage after ]")
		}
		if len(host) > 5 && strings.EqualFold(host[:5], "ipv6:") {
			host = host[5:]
		}
	} else if i := strings.LastIndexByte(s, ':'); i >= 0 {
		host, port = s[:i], s[i+1:]
	} else {
		host = s
	}
	if host == "" {
		return "", "", false, fmt.Errorf("no host")
	}
	// A name of /etc/services is allowed, as in Postfix: smtp, submission.
	n, err := ports(port)
	if err == nil && n == 0 {
		err = fmt.Errorf("no such port or service: %q", port)
	}
	return host, decimal(port, n), bracketed, err
}

// decimal is n in digits: port itself, which stands for n, if it is in digits, so
// that nothing is allocated for it.
func decimal(port string, n uint16) string {
	var room [5]byte
	digits := strconv.AppendUint(room[:0], uint64(n), 10)
	if string(digits) == port {
		return port
	}
	return string(digits)
}
