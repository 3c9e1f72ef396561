package domain

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"posthaste/internal/resolver"
)

// DefaultBlocklists are asked where nothing else is said. Both list hosts that send spam, and
// are asked by many receivers.
var DefaultBlocklists = []string{"zen.spamhaus.org", "bl.spamcop.net"}

// Answers that are no listing: a list that says 127.255.255.x refuses to answer this resolver.
var refusal = netip.MustParsePrefix("127.255.255.0/24")

// blocklists asks DNS block lists for the host's addresses (RFC 5782).
func (c *checker) blocklists(ctx context.Context, r *report) {
	for _, list := range c.blocklist {
		if why := c.unusable(ctx, list); why != "" {
			r.say(Unknown, fmt.Sprintf("%s: %s", list, why), "ask a name server of your own: large public ones are refused by many lists")
			continue
		}
		for _, addr := range c.site.Addrs {
			c.listed(ctx, r, list, addr)
		}
	}
}

// unusable says why a list does not answer as it should: it must list 127.0.0.2 and must not
// list 127.0.0.1 (RFC 5782 section 5).
func (c *checker) unusable(ctx context.Context, list string) string {
	a, err := c.DNS.Addrs(ctx, "2.0.0.127."+list, resolver.IPv4)
	switch {
	case err != nil && !resolver.NotFound(err):
		return err.Error()
	case err != nil:
		return "it does not list its test entry 127.0.0.2"
	}
	for _, addr := range a.Records {
		if refusal.Contains(addr) {
			return "it refuses the name server that we ask"
		}
	}
	switch _, err = c.DNS.Addrs(ctx, "1.0.0.127."+list, resolver.IPv4); {
	case err == nil:
		return "it lists 127.0.0.1, and so everything"
	case !resolver.NotFound(err):
		return err.Error()
	}
	return ""
}

// listed asks one list for one address.
func (c *checker) listed(ctx context.Context, r *report, list string, addr netip.Addr) {
	name := strings.TrimSuffix(strings.TrimSuffix(arpa(addr), ".in-addr.arpa"), ".ip6.arpa") + "." + list
	a, err := c.DNS.Addrs(ctx, name, resolver.IPv4)
	switch {
	case resolver.NotFound(err):
		r.good("%s does not list %s", list, addr)
		return
	case err != nil:
		r.unanswered(err)
		return
	}
	why := ""
	if txt, err := c.DNS.TXT(ctx, name); err == nil {
		why = strings.Join(txt.Records, " ")
	}
	r.say(Error, fmt.Sprintf("%s lists %s (%s)", list, addr, join(a.Records)),
		strings.TrimSpace("receivers that ask this list refuse your mail. "+printable(why)))
}

// printable is a text of a stranger's, on one line of bounded length.
func printable(text string) string {
	const longest = 200
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r > '~' {
			return '?'
		}
		return r
	}, text)
	if len(text) > longest {
		text = text[:longest] + "..."
	}
	return text
}
