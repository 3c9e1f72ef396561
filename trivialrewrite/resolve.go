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
	// What is limited, and the pool that mail goes from with its members as
	// proto.AppendMembers writes them, if that was asked for.
	share         sharing
	pool, members string
}

// Transports whose next hop is a text for the sender, not a host: the error(8) and retry(8)
// agents take it as the reason why the mail fails, for good or until the next attempt.
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
		// user@192.0.2.1 is not what RFC 5321 section 4.1.3 calls an address literal. Postfix takes
		// it for user@[192.0.2.1] with resolve_numeric_domain, and otherwise for malformed, since
		// a DNS lookup of such a name is a waste and may be answered by a wildcard.
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
		// canonicalize has asked for the bare digits; the literal may be an address of ours.
		if local, err = r.local.IsDestination(ctx, domain); err != nil {
			return Result{}, err
		}
	}
	// A first operator that is not the last "@" leaves more of a route in the local part. Whether that may
	// be relayed is for smtpd to decide (allow_untrusted_routing): a host behind ours may well carry out the route.
	if i := strings.IndexAny(res.Recipient, "@!%"); res.Recipient[i+1:] != domain {
		res.Flags |= proto.ResolveRouted
	}
	if local {
		err = r.resolveLocal(ctx, routes, domain, &res)
	} else {
		err = r.resolveOther(ctx, routes, sender, domain, &res)
	}
	// What is left in an alias domain is an unknown user: cleanup has expanded the known ones
	// before this. A transport table must not turn that into a delivery.
	if err == nil && res.Flags&proto.ResolveAlias == 0 {
		err = r.lookupTransport(ctx, routes.transports, domain, &res)
	}
	if err == nil {
		err = r.lookupRelocated(ctx, &res)
	}
	if err != nil {
		return Result{}, err
	}
	// A recipient like "-oQ/tmp" would reach commands that pipe(8) and local(8) run as an option.
	if !r.minUser && res.Recipient[0] == '-' {
		res.Flags |= proto.ResolveError
	}
	return res, nil
}

// canonicalize takes the local domains off addr, and what routing their local
// parts hold, until a domain that is not local or a plain local part is left.
// The result has a domain.
//
// Each turn takes off a domain or an operator, and adds at most a domain, so that it ends, but for settings
// under which Rewrite and unwrap undo each other: the bound on turns is for those. It is an error
// then, and not a malformed address, because mail must wait until the settings are right.
func (r *Rewriter) canonicalize(ctx context.Context, addr string) (rcpt string, local bool, err error) {
	saved := "" // the last local domain taken off, with its "@"
	for range len(addr) + 100 {
		at := strings.LastIndexByte(addr, '@')
		// One dot at the end is the root of the DNS, and says nothing. Two, or one that is
		// all there is of a domain, are left for validDomain to refuse.
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
			// Local, or "user@" with nothing behind it, which is the same as no domain. The
			// latest one is kept as it was spelt: virtual alias tables may have it as a key.
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
			// The null sender <> as a recipient: a bounce of a bounce, which has to go to
			// somebody (empty_address_recipient, MAILER-DAEMON).
			addr = r.emptyRecipient
		case saved == "":
			// Not even myorigin was added, as with append_at_myorigin = no. Another turn decides
			// whether myhostname is local, which it need not be.
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
	// In host!user%relay it is the bang path that wins when both are recognized, as rewriting
	// does it: host!user%relay@here goes to host, not to relay. Behind quotes rewriting
	// has not looked, and the percent sign, which is the newer convention, comes first.
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
	// The local part is looked at too: agents and tables that are told of SMTPUTF8 take it to
	// be UTF-8 (RFC 6531 section 3.3), and an address that is not cannot be sent anywhere.
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
		// Of a label beyond ASCII the limit of RFC 1035 is on its encoded form (RFC 5891), which is the
		// resolver's to check. A long run of ASCII in it is too long in either form.
		if label > 63 && c < 128 {
			return false
		}
	}
	return !numeric
}

// resolveLocal routes mail for a domain of mydestination or an address of this
// host. The next hop is the domain, which local(8) does without and which
// other transports, and a mailbox_transport behind them, may want.
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

// resolveOther finds the class of a domain that is not local. Where a domain is in several lists, the
// order here decides, which is Postfix's: mydestination, virtual_alias_domains,
// virtual_mailbox_domains, relay_domains. A warning tells of it, since the lists that come later
// have no effect. All lists are asked in any case: one that cannot be read must
// defer mail even where another matches, or the order would depend on failures.
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
		// An address of an alias domain that virtual_alias_maps had nothing for. Not
		// undeliverable by mistake: such a domain has no mailboxes of its own.
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
	// Both remaining classes leave this host, and relayhost applies to both:
	// relay_domains alone say for whom mail is taken, not where it goes.
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

// relayhost is the next hop of mail that goes off this host: the sender's relay, or that of
// all mail, or the recipient's domain itself. transport_maps may still change it.
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

// senderTransport is the transport of mail to the default class: the sender's, or default_transport.
// Mail to relay_domains has relay_transport whoever sends it, as with Postfix.
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
	// An empty key matches nothing in a table, and some types refuse it. The parameters
	// have a stand-in for the null sender, "<>" by default.
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
	// Unlike in transport_maps, where an empty transport means to leave the present one, there is
	// nothing here that it could leave.
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
	// RFC 3463 section 3.2: 5.1.6 is "destination mailbox has moved, no forwarding address". Postfix
	// puts it there by itself unless relocated_prefix_enable says that the tables have a status of their own.
	res.Transport = transportError
	if r.relocatedPrefix {
		res.Nexthop = mail.Nexthop("5.1.6 User has moved to " + value)
		return nil
	}
	if status, text, ok := dsn.CutStatus(value); ok && text != "" {
		res.Nexthop = mail.Nexthop(status.String() + " " + text)
		return nil
	}
	// The mail still fails: the table has the user, so that nobody is to get it here.
	r.warn(fmt.Sprintf("relocated_maps result must contain RFC 3463 status and text: %.100q", value))
	res.Nexthop = "5.2.0 Mailbox is unavailable"
	return nil
}
