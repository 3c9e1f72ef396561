package trivialrewrite

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/table"
)

// A Result is where mail for one address goes.
type Result struct {
	Transport mail.Transport
	Nexthop   mail.Nexthop       // for transports error and retry: the status code and the reason
	Recipient string             // the address in standard form; always has a domain
	Flags     proto.ResolveFlags // one of the classes, and properties; never ResolveFail
}

const (
	transportError = "error"
	transportRetry = "retry"
)

// Resolve finds where mail for addr, in internal form, goes. sender is the
// envelope sender, for the tables that depend on it. verify asks for an address
// probe, which has its own parameters. An error is a table that could not be
// read: the question must be asked again later. A malformed address is no error
// but the flag proto.ResolveError.
func (r *Rewriter) Resolve(ctx context.Context, sender, addr string, verify bool) (Result, error) {
	routes := &r.plain
	if verify {
		routes = &r.verify
	}
	rcpt, local, err := r.canonicalize(ctx, addr)
	if err != nil {
		return Result{}, err
	}
	res := Result{Recipient: rcpt}
	domain := rfc5322.Domain(rcpt)
	if !r.validDomain(rcpt, domain) {
		a, err := netip.ParseAddr(domain)
		if !r.numericDomain || err != nil {
			res.Flags = proto.ResolveError | proto.ResolveDefault
			return res, nil
		}
		if a.Is6() {
			domain = "IPv6:" + domain
		}
		domain = "[" + domain + "]"
		res.Recipient = rcpt[:strings.LastIndexByte(rcpt, '@')+1] + domain
		if local, err = r.local.IsDestination(ctx, domain); err != nil {
			return Result{}, err
		}
	}
	if i := strings.IndexAny(res.Recipient, "@!%"); res.Recipient[i+1:] != domain {
		res.Flags |= proto.ResolveRouted
	}
	if local {
		err = r.resolveLocal(ctx, routes, domain, &res)
	} else {
		err = r.resolveOther(ctx, routes, sender, domain, &res)
	}
	if err == nil && res.Flags&proto.ResolveAlias == 0 {
		err = r.lookupTransport(ctx, routes.transports, domain, &res)
	}
	if err == nil {
		err = r.lookupRelocated(ctx, &res)
	}
	if err != nil {
		return Result{}, err
	}
	if !r.minUser && res.Recipient[0] == '-' {
		res.Flags |= proto.ResolveError
	}
	return res, nil
}

// canonicalize takes the local domains off addr, and what routing their local
// parts hold, until a domain that is not local or a plain local part is left.
// The result has a domain.
func (r *Rewriter) canonicalize(ctx context.Context, addr string) (rcpt string, local bool, err error) {
	saved := "" // the last local domain taken off, with its "@"
	for range len(addr) + 100 {
		at := strings.LastIndexByte(addr, '@')
		if n := len(addr); at >= 0 && n > 1 && addr[n-1] == '.' && addr[n-2] != '.' && addr[n-2] != '@' {
			addr = addr[:n-1]
		}
		if r.nullDomain && strings.HasSuffix(addr, "@") {
			addr, at = addr[:len(addr)-1], -1 // what is left is a local part
		}
		if at >= 0 {
			if domain := addr[at+1:]; domain != "" {
				here, err := r.local.IsDestination(ctx, domain)
				if err != nil {
					return "", false, err
				}
				if !here {
					return addr, false, nil
				}
			}
			saved, addr = addr[at:], addr[:at]
		}
		if next, ok := r.unwrap(addr); ok {
			if addr = next; addr != "@" { // which is not the null address here, but no address
				addr = r.Rewrite(contextLocal, addr)
			}
			continue
		}
		switch {
		case addr == "":
			addr = r.emptyRecipient
		case saved == "":
			addr += "@" + r.hostname
		default:
			return addr + saved, true, nil
		}
	}
	return "", false, fmt.Errorf("resolve %q: giving up: every form of it leads to another one", addr)
}

// unwrap looks for routing in a local part. A local part that needs quotes is
// only looked into with resolve_dequoted_address: not to do so would let it
// carry mail past the relay control to a host that does.
func (r *Rewriter) unwrap(local string) (addr string, ok bool) {
	quoted := rfc5322.NeedsQuotes(local)
	if quoted && !r.dequote {
		return "", false
	}
	if strings.IndexByte(local, '@') >= 0 {
		return local, true
	}
	bang, percent := strings.IndexByte(local, '!'), strings.LastIndexByte(local, '%')
	bangOK, percentOK := bang >= 0 && r.form.SwapBangPath, percent >= 0 && r.form.PercentHack
	switch {
	case percentOK && (quoted || !bangOK):
		return local[:percent] + "@" + local[percent+1:], true
	case bangOK:
		return local[bang+1:] + "@" + local[:bang], true
	}
	return "", false
}

// validDomain says whether domain could be one: a host name, or an address
// literal in brackets.
func (r *Rewriter) validDomain(rcpt, domain string) bool {
	if strings.HasPrefix(domain, "[") {
		_, ok := table.ParseLiteral(domain)
		return ok
	}
	if r.utf8 && !utf8.ValidString(rcpt) {
		return false
	}
	return validHostname(domain, r.utf8)
}

// validHostname is RFC 1123 section 2.1 with underscores; with utf8 the labels
// may hold any character beyond ASCII (RFC 6531 section 3.2). A name of digits
// alone is a malformed address, not a name.
func validHostname(name string, utf8 bool) bool {
	if name == "" || len(name) > 255 {
		return false
	}
	numeric := true
	label := 0
	for i := 0; i < len(name); i++ {
		c := name[i]
		switch {
		case c >= '0' && c <= '9':
			label++
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', utf8 && c > 127:
			label++
			numeric = false
		case c == '-':
			if label == 0 || i+1 == len(name) || name[i+1] == '.' {
				return false
			}
			label++
			numeric = false
		case c == '.':
			if label == 0 || i+1 == len(name) {
				return false
			}
			label = 0
		default:
			return false
		}
		if label > 63 && c < 128 {
			return false
		}
	}
	return !numeric
}

func (r *Rewriter) resolveLocal(ctx context.Context, routes *routes, domain string, res *Result) error {
	if r.helpful { // only the warning wants to know
		if err := r.warnLocal(ctx, domain); err != nil {
			return err
		}
	}
	res.Flags |= proto.ResolveLocal
	return setTransport(res, "local_transport", routes.local, domain)
}

// warnLocal warns of a local domain that is listed in another address class, too.
func (r *Rewriter) warnLocal(ctx context.Context, domain string) error {
	for _, l := range []struct {
		list *table.List
		name string
	}{{r.aliasDomains, "virtual_alias_domains"}, {r.mailboxDomains, "virtual_mailbox_domains"}} {
		if found, err := l.list.Match(ctx, domain); err != nil {
			return err
		} else if found {
			r.warnTwice(domain, "mydestination", l.name)
		}
	}
	return nil
}

// resolveOther finds the class of a domain that is not local.
func (r *Rewriter) resolveOther(ctx context.Context, routes *routes, sender, domain string, res *Result) error {
	alias, err := r.aliasDomains.Match(ctx, domain)
	if err != nil {
		return err
	}
	mailbox, err := r.mailboxDomains.Match(ctx, domain)
	if err != nil {
		return err
	}
	relay, err := r.relayDomains.Match(ctx, domain)
	if err != nil {
		return err
	}
	switch {
	case alias:
		if mailbox {
			r.warnTwice(domain, "virtual_alias_domains", "virtual_mailbox_domains")
		}
		if relay {
			r.warnTwice(domain, "virtual_alias_domains", "relay_domains")
		}
		res.Flags |= proto.ResolveAlias
		res.Transport = transportError
		res.Nexthop = r.unknownAlias
		return nil
	case mailbox:
		if relay {
			r.warnTwice(domain, "virtual_mailbox_domains", "relay_domains")
		}
		res.Flags |= proto.ResolveMailbox
		return setTransport(res, "virtual_transport", routes.virtual, domain)
	}
	nexthop, err := r.relayhost(ctx, routes, sender, domain)
	if err != nil {
		return err
	}
	if relay {
		res.Flags |= proto.ResolveRelay
		return setTransport(res, "relay_transport", routes.relay, nexthop)
	}
	res.Flags |= proto.ResolveDefault
	value, err := r.senderTransport(ctx, routes, sender)
	if err != nil {
		return err
	}
	return setTransport(res, "default_transport", value, nexthop)
}

// relayhost is the next hop of mail that goes off this host.
func (r *Rewriter) relayhost(ctx context.Context, routes *routes, sender, domain string) (string, error) {
	value, found, err := r.lookupSender(ctx, routes.senderRelayhost, sender, r.emptyRelayhostKey)
	if err != nil {
		return "", err
	}
	switch {
	case found:
		return value, nil
	case routes.relayhost != "":
		return routes.relayhost, nil
	}
	return domain, nil
}

func (r *Rewriter) senderTransport(ctx context.Context, routes *routes, sender string) (string, error) {
	value, found, err := r.lookupSender(ctx, routes.senderTransport, sender, r.emptyTransportKey)
	if err != nil || found {
		return value, err
	}
	return routes.other, nil
}

// lookupSender looks the sender up; the answer DUNNO means not found.
func (r *Rewriter) lookupSender(ctx context.Context, m *table.Maps, sender, emptyKey string) (string, bool, error) {
	if m.Empty() {
		return "", false, nil
	}
	if sender == "" {
		sender = emptyKey
	}
	value, _, found, err := m.LookupAddress(ctx, r.search, sender, table.KeysDefault)
	if err != nil || !found || strings.EqualFold(value, "DUNNO") {
		return "", false, err
	}
	return value, true, nil
}

// setTransport sets transport and next hop from a parameter's value,
// "transport" or "transport:nexthop"; the second overrides nexthop.
func setTransport(res *Result, parameter, value, nexthop string) error {
	transport, hop, _ := strings.Cut(value, ":")
	if transport == "" {
		return fmt.Errorf("%s: a transport must be named; found %q", parameter, value)
	}
	if hop != "" {
		nexthop = hop
	}
	res.Transport, res.Nexthop = mail.Transport(transport), mail.Nexthop(nexthop)
	return nil
}

// lookupRelocated makes mail for users who have moved fail with their new
// address.
func (r *Rewriter) lookupRelocated(ctx context.Context, res *Result) error {
	value, _, found, err := r.relocated.LookupAddress(ctx, r.search, res.Recipient, table.KeysDefault)
	if err != nil || !found {
		return err
	}
	res.Transport = transportError
	if r.relocatedPrefix {
		res.Nexthop = mail.Nexthop("5.1.6 User has moved to " + value)
		return nil
	}
	if status, text, ok := dsn.CutStatus(value); ok && text != "" {
		res.Nexthop = mail.Nexthop(status.String() + " " + text)
		return nil
	}
	r.warn(fmt.Sprintf("relocated_maps result must contain RFC 3463 status and text: %.100q", value))
	res.Nexthop = "5.2.0 Mailbox is unavailable"
	return nil
}
