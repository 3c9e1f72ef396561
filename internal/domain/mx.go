package domain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"posthaste/internal/resolver"
)

// mxRecord is the record that leads the domain's mail here.
func (c *checker) mxRecord() Record {
	return Record{c.domain, "MX", "10 " + c.site.Host + ".", "mail for the domain comes here"}
}

// mx checks that the domain's mail comes here, and that main.cf takes it.
func (c *checker) mx(ctx context.Context, r *report) {
	a, err := c.DNS.MX(ctx, c.domain)
	switch {
	case resolver.NotFound(err) && c.class == Foreign:
		r.say(Note, c.domain+" has no MX record, and main.cf does not take its mail",
			"the domain only sends; bounces and replies need an MX record that leads to a server which takes them")
		return
	case resolver.NotFound(err):
		r.say(Error, c.domain+" has no MX record", "senders then try the domain's own addresses, and many do not accept mail from it", c.mxRecord())
		return
	case err != nil:
		r.unanswered(err)
		return
	}
	if len(a.Records) == 1 && a.Records[0].Host == "" {
		level := Error
		if c.class == Foreign {
			level = Note
		}
		r.say(level, c.domain+" has a null MX: it takes no mail (RFC 7505)", "servers refuse mail from such a domain as well", c.mxRecord())
		return
	}
	var here, elsewhere []string
	for _, mx := range a.Records {
		switch ours, known := c.mxHost(ctx, r, mx.Host); {
		case ours:
			here = append(here, mx.Host)
		case known:
			elsewhere = append(elsewhere, mx.Host)
		}
	}
	c.sayClass(r, here, elsewhere)
	c.answers(ctx, r)
}

// answers checks that the MX hosts which lead here answer at each of their addresses, IPv4 and IPv6:
// a sender takes any of them, and many take an IPv6 address first.
func (c *checker) answers(ctx context.Context, r *report) {
	l := c.seen(ctx)
	for _, host := range l.hosts {
		level, why := Warning, "senders that try this address first lose time, and some give up: have smtpd listen there (inet_interfaces, inet_protocols), open the port, or remove the address from the DNS"
		if l.chains[host] == nil { // nor does it answer elsewhere
			level, why = Error, "mail does not come in: is the mail system running (posthaste status), and does smtpd listen there (inet_interfaces, inet_protocols)?"
		}
		for _, s := range l.silent[host] {
			level, why := level, why
			switch {
			case errors.Is(s.err, syscall.ENETUNREACH):
				level, why = Unknown, "this machine has no way to such an address; ask from another one"
			case c.site.has(s.addr) && (c.Here == nil || !c.Here(s.addr)):
				level, why = Unknown, "a machine behind an address translator often cannot reach itself; ask from another one"
			}
			r.say(level, fmt.Sprintf("%s at %s: %s", host, s.addr, printable(s.err.Error())), why)
		}
	}
}

// mxHost checks one MX host. ours says whether it leads here, known whether that could be found out.
func (c *checker) mxHost(ctx context.Context, r *report, host string) (ours, known bool) {
	if alias, err := c.DNS.CNAME(ctx, host); err == nil {
		r.say(Warning, fmt.Sprintf("the MX host %s is an alias of %s", host, strings.Join(alias.Records, ", ")),
			"an MX record must name a host that has addresses itself (RFC 2181 section 10.3)")
	}
	a, err := c.DNS.Addrs(ctx, host, both)
	switch {
	case resolver.NotFound(err), resolver.KindOf(err) == resolver.Invalid:
		r.say(Error, fmt.Sprintf("the MX host %s has no address", host), "remove it from the MX records, or publish its address")
		return false, true
	case err != nil:
		r.unanswered(err)
		return false, false
	}
	return slices.ContainsFunc(a.Records, c.site.has), true
}

// sayClass sets the MX records beside what main.cf does with the domain's mail.
func (c *checker) sayClass(r *report, here, elsewhere []string) {
	switch {
	case len(c.site.Addrs) == 0:
		r.say(Unknown, "the MX hosts are "+strings.Join(append(here, elsewhere...), ", "), "whether they lead here is not known without this host's public address: see -A")
	case len(here) > 0 && c.class == Foreign:
		r.say(Error, fmt.Sprintf("mail for %s comes here (%s), and main.cf does not take it", c.domain, strings.Join(here, ", ")),
			"it is refused with \"Relay access denied\": add the domain to mydestination, virtual_mailbox_domains, virtual_alias_domains or relay_domains")
	case len(here) > 0:
		r.good("mail comes here by %s, and %s takes it", strings.Join(here, ", "), c.class)
	case c.class == Foreign:
		r.good("mail for %s goes to %s, not here", c.domain, strings.Join(elsewhere, ", "))
	default:
		r.say(Error, fmt.Sprintf("main.cf takes mail for %s (%s), but its MX hosts lead elsewhere: %s", c.domain, c.class, strings.Join(elsewhere, ", ")),
			"mail from the world does not come here, and mail from here does not go there", c.mxRecord())
	}
}
