package domain

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"posthaste/internal/resolver"
)

// both are the families that a mail host may have addresses of.
const both = resolver.IPv4 | resolver.IPv6

// addresses checks that the host's name and its addresses lead to each other. Large providers
// refuse mail from an address without that (RFC 1912 section 2.1).
func (c *checker) addresses(ctx context.Context, r *report) {
	if len(c.site.Addrs) == 0 {
		r.say(Unknown, "this machine has private addresses only",
			"name those that the world sees with -A, or in proxy_interfaces; the checks of addresses are left out")
		return
	}
	if !strings.Contains(c.site.Host, ".") {
		r.say(Error, "myhostname is "+c.site.Host+", which is not a fully qualified name", "set myhostname to a name that the DNS has")
		return
	}
	a, err := c.DNS.Addrs(ctx, c.site.Host, both)
	switch {
	case resolver.NotFound(err):
		r.say(Error, c.site.Host+" has no address in the DNS", "servers refuse a client whose name leads nowhere", c.addressRecords(c.site.Addrs)...)
	case err != nil:
		r.unanswered(err)
	default:
		c.compare(r, a.Records)
	}
	for _, addr := range c.site.Addrs {
		c.reverse(ctx, r, addr)
	}
}

// compare sets the addresses that the DNS has for the host beside its own.
func (c *checker) compare(r *report, published []netip.Addr) {
	var missing []netip.Addr
	for _, addr := range c.site.Addrs {
		if !slices.Contains(published, addr) {
			missing = append(missing, addr)
		}
	}
	var strange []string
	for _, addr := range published {
		if !c.site.has(addr) {
			strange = append(strange, addr.String())
		}
	}
	if len(missing) > 0 {
		r.say(Warning, fmt.Sprintf("%s does not lead to %s", c.site.Host, join(missing)),
			"mail that leaves from there comes from a host whose name does not confirm it", c.addressRecords(missing)...)
	}
	if len(strange) > 0 {
		r.say(Warning, fmt.Sprintf("%s leads to %s, which is not this machine's", c.site.Host, strings.Join(strange, ", ")),
			"remove the record, or name the address with -A or in proxy_interfaces if it is one that is translated")
	}
	if len(missing)+len(strange) == 0 {
		r.good("%s leads to %s", c.site.Host, join(c.site.Addrs))
	}
}

// addressRecords are the A and AAAA records of the host.
func (c *checker) addressRecords(addrs []netip.Addr) (list []Record) {
	for _, addr := range addrs {
		kind := "A"
		if addr.Is6() {
			kind = "AAAA"
		}
		list = append(list, Record{c.site.Host, kind, addr.String(), "the address of the mail host"})
	}
	return list
}

// reverse checks the name of an address.
func (c *checker) reverse(ctx context.Context, r *report, addr netip.Addr) {
	a, err := c.DNS.PTR(ctx, addr)
	wanted := Record{arpa(addr), "PTR", c.site.Host + ".", "the name of the address; whoever gave you the address publishes it"}
	why := "many servers refuse or suspect mail from an address whose name does not lead back to it"
	switch {
	case resolver.NotFound(err):
		r.say(Error, fmt.Sprintf("%s has no name in the DNS", addr), why, wanted)
	case err != nil:
		r.unanswered(err)
	case !slices.ContainsFunc(a.Records, func(name string) bool { return strings.EqualFold(name, c.site.Host) }):
		r.say(Error, fmt.Sprintf("%s has the name %s, not %s", addr, strings.Join(a.Records, ", "), c.site.Host), why, wanted)
	case len(a.Records) > 1:
		r.say(Note, fmt.Sprintf("%s has %d names: %s", addr, len(a.Records), strings.Join(a.Records, ", ")), "one is enough, and some servers look at the first only")
	default:
		r.good("%s has the name %s", addr, c.site.Host)
	}
}

// arpa is the name under which the names of an address are looked up (RFC 1035 section 3.5,
// RFC 3596 section 2.5), without the dot at the end.
func arpa(addr netip.Addr) string {
	var labels []string
	if addr.Is4() {
		b := addr.As4()
		return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", b[3], b[2], b[1], b[0])
	}
	b := addr.As16()
	for i := len(b) - 1; i >= 0; i-- {
		labels = append(labels, fmt.Sprintf("%x.%x", b[i]&15, b[i]>>4))
	}
	return strings.Join(labels, ".") + ".ip6.arpa"
}

// join writes addresses one after the other.
func join(addrs []netip.Addr) string {
	text := make([]string, len(addrs))
	for i, a := range addrs {
		text[i] = a.String()
	}
	return strings.Join(text, ", ")
}

// outward checks that mail can leave: many providers of machines do not open port 25.
func (c *checker) outward(ctx context.Context, r *report) {
	if c.site.Relayhost != "" {
		r.good("mail leaves by the relayhost %s", c.site.Relayhost)
		return
	}
	if c.probe == "" {
		return
	}
	a, err := c.DNS.MX(ctx, c.probe)
	if err != nil {
		r.unanswered(err)
		return
	}
	var errs []error
	for _, mx := range a.Records {
		ctx, cancel := context.WithTimeout(ctx, connectTime)
		conn, err := c.Dial(ctx, "tcp", net.JoinHostPort(mx.Host, "25"))
		cancel()
		if err == nil {
			conn.Close()
			r.good("port 25 of %s can be reached", mx.Host)
			return
		}
		if errs = append(errs, err); len(errs) == 3 {
			break
		}
	}
	r.say(Error, fmt.Sprintf("port 25 of the mail servers of %s cannot be reached: %v", c.probe, errors.Join(errs...)),
		"ask the provider of this machine to open port 25 outward, or set relayhost to a server that takes your mail")
}
