// The restrictions on sender and recipient addresses: their form, whether their domain
// exists, whether they do themselves, and whether their mail is ours to take.

package access

import (
	"context"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

// The restrictions on the sender leave the null sender alone: it is that of
// notifications, which RFC 5321 section 4.5.5 has everybody take.

// rejectNonFQDNSender is reject_non_fqdn_sender.
func (r *run) rejectNonFQDNSender(context.Context) verdict {
	if !r.s.HasSender || r.s.Sender == "" {
		return dunno
	}
	return r.nonFQDN(r.s.Sender, classSender)
}

// rejectNonFQDNRcpt is reject_non_fqdn_recipient.
func (r *run) rejectNonFQDNRcpt(context.Context) verdict {
	if !r.s.HasRcpt {
		return dunno
	}
	return r.nonFQDN(r.s.Recipient, classRcpt)
}

// nonFQDN refuses an address whose domain is not complete: nobody could reply to
// it. "postmaster" without a domain is a complete recipient (RFC 5321 section
// 4.5.1).
func (r *run) nonFQDN(addr string, cl class) verdict {
	domain := domainOf(addr)
	if strings.HasPrefix(domain, "[") {
		if _, fine := table.ParseLiteral(domain); fine {
			return dunno
		}
	} else if r.e.qualified(domain) {
		return dunno
	}
	status := dsn.S(4, 5, 2)
	if strings.EqualFold(addr, "postmaster") && cl == classRcpt {
		return dunno
	}
	return r.refuseFor(addr, cl, r.e.cfg.Int("non_fqdn_reject_code"), status, "need fully-qualified address")
}

// rejectUnknownSenderDomain is reject_unknown_sender_domain.
func (r *run) rejectUnknownSenderDomain(ctx context.Context) verdict {
	if !r.s.HasSender || r.s.Sender == "" {
		return dunno
	}
	return r.unknownDomain(ctx, r.s.Sender, classSender)
}

// rejectUnknownRcptDomain is reject_unknown_recipient_domain.
func (r *run) rejectUnknownRcptDomain(ctx context.Context) verdict {
	if !r.s.HasRcpt {
		return dunno
	}
	return r.unknownDomain(ctx, r.s.Recipient, classRcpt)
}

// ourOwn are the classes of domain that are configured here: the DNS need not
// know them.
const ourOwn = proto.ResolveLocal | proto.ResolveAlias | proto.ResolveMailbox

// unknownDomain refuses an address to which no mail could be sent: its domain has
// neither an MX record nor an address, or says that it takes no mail (RFC 7505,
// which has the codes 550 5.7.27 and 556 5.1.10 for senders and recipients).
func (r *run) unknownDomain(ctx context.Context, addr string, cl class) verdict {
	a, v := r.resolvedOr(ctx, addr)
	if v == refused {
		return v
	}
	domain := domainOf(a.Recipient)
	if a.Flags&ourOwn != 0 || domain == "" || strings.HasPrefix(domain, "[") {
		return dunno
	}
	status, nullStatus, nullCode := dsn.S(4, 1, 8), dsn.S(5, 7, 27), 550
	if cl == classRcpt {
		status, nullStatus, nullCode = dsn.S(4, 1, 2), dsn.S(5, 1, 10), 556
	}
	found, err := r.mailDomainExists(ctx, domain)
	switch found {
	case exists:
		return dunno
	case nullMX:
		return r.refuseFor(addr, cl, nullCode, nullStatus, "Domain "+domain+" does not accept mail (nullMX)")
	case tryLater:
		r.e.log.Warning("%s: domain lookup: %v", r.s.NameAddr(), err)
		return r.deferIfPermit(r.e.tempfail.address, 450, status.WithClass(4), rejected(addr, cl, "Domain not found"))
	}
	return r.refuseFor(addr, cl, r.e.cfg.Int("unknown_address_reject_code"), status, "Domain not found")
}

// rejectUnlistedSender is reject_unlisted_sender: a sender in a local domain that
// does not exist.
func (r *run) rejectUnlistedSender(ctx context.Context) verdict {
	if !r.s.HasSender || r.s.Sender == "" || r.s.sndrChecked || r.s.NoUnknownRcptChecks {
		return dunno
	}
	r.s.sndrChecked = !r.warn // a warning is no check
	return r.unlisted(ctx, r.s.Sender, classSender)
}

// rejectUnlistedRcpt is reject_unlisted_recipient. It is asked once for a
// recipient, whether in a list or at the end of all.
func (r *run) rejectUnlistedRcpt(ctx context.Context) verdict {
	if !r.s.HasRcpt || r.s.rcptChecked || r.s.NoUnknownRcptChecks {
		return dunno
	}
	r.s.rcptChecked = !r.warn
	return r.unlisted(ctx, r.s.Recipient, classRcpt)
}

// unlisted refuses an unknown address in a domain that this host is responsible
// for. It looks at what cleanup and the delivery agents would look at: an address
// that is rewritten or an alias exists, whatever its own class says.
func (r *run) unlisted(ctx context.Context, addr string, cl class) verdict {
	if trace := table.TraceOf(ctx); trace != nil {
		trace(">>> CHECKING %s VALIDATION MAPS <<<", classText[cl])
	}
	if ours, v := r.rewritten(addr, cl); ours {
		return v
	}
	a, v := r.resolvedOr(ctx, addr)
	if v == refused {
		return v
	}
	domain := domainOf(a.Recipient)
	if domain == "" {
		return dunno
	}
	// An address that one of these has is rewritten by cleanup: whether the result
	// exists is found out when it is delivered.
	maps := []*table.Maps{r.e.canonical, r.e.virtualAlias, r.e.rcptCanonical}
	if cl == classSender {
		maps = append(maps, r.e.sndrCanonical)
	}
	for _, m := range maps {
		if found, v := r.listed(ctx, m, a.Recipient, addr); found || v == refused {
			return v
		}
	}
	switch {
	// A transport table can say error: or retry: with a status and a text of its
	// own.
	case a.Transport == "error":
		st, text, found := dsn.CutStatus(a.Nexthop)
		if !found {
			st, text = statusUserUnknown[cl], a.Nexthop
		}
		if text == "" {
			text = "User unknown"
		}
		code := 550
		if a.Flags&proto.ResolveAlias != 0 {
			code = r.e.cfg.Int("unknown_virtual_alias_reject_code")
		}
		return r.refuseFor(addr, cl, code, r.fixStatus(st, cl), text)
	case a.Transport == "retry":
		st, text, found := dsn.CutStatus(a.Nexthop)
		if !found {
			st, text = dsn.S(4, 0, 0), a.Nexthop
		}
		return r.refuseFor(addr, cl, 450, r.fixStatus(st, cl), text)
	}
	var m *table.Maps
	var code, what string
	switch {
	case a.Flags&proto.ResolveLocal != 0:
		if r.reserved(a.Recipient) {
			return dunno
		}
		m, code, what = r.e.localRcpt, "unknown_local_recipient_reject_code", "local recipient table"
	case a.Flags&proto.ResolveAlias != 0:
		return r.unknownUser(addr, cl, "unknown_virtual_alias_reject_code", "virtual alias table")
	case a.Flags&proto.ResolveMailbox != 0:
		m, code, what = r.e.virtualMailbox, "unknown_virtual_mailbox_reject_code", "virtual mailbox table"
	case a.Flags&proto.ResolveRelay != 0:
		m, code, what = r.e.relayRcpt, "unknown_relay_recipient_reject_code", "relay recipient table"
	}
	if m.Empty() {
		return dunno // nobody has said which addresses there are
	}
	if found, v := r.listed(ctx, m, a.Recipient, addr); found || v == refused {
		return v
	}
	return r.unknownUser(addr, cl, code, what)
}

// unknownUser words the refusal of an address that does not exist. Which table that
// was is told only with show_user_unknown_table_name.
func (r *run) unknownUser(addr string, cl class, code, what string) verdict {
	text := "User unknown"
	if r.e.showTable {
		text += " in " + what
	}
	return r.refuseFor(addr, cl, r.e.cfg.Int(code), statusUserUnknown[cl], text)
}

// listed looks for an address in one list of tables. A failure is pronounced. What a database says
// stays for the transaction, and for cleanup, which asks the same.
func (r *run) listed(ctx context.Context, m *table.Maps, recipient, typed string) (bool, verdict) {
	if m.Empty() {
		return false, dunno
	}
	r.s.Answers.Open(time.Now)
	defer r.s.Answers.Close()
	_, _, found, err := m.LookupAddress(ctx, &r.e.search, recipient, table.KeysDefault)
	if err != nil {
		r.e.log.Warning("%v", err)
		return false, r.lookupFailed(typed)
	}
	return found, dunno
}

// reserved says whether the local part is one that exists in every local domain.
// RFC 5321 section 4.5.1 demands postmaster; notifications use the others.
func (r *run) reserved(addr string) bool {
	local := addr[:len(addr)-len(domainOf(addr))-1]
	local, _ = r.e.search.SplitExtension(local)
	return strings.EqualFold(local, "postmaster") || strings.EqualFold(local, "mailer-daemon") ||
		strings.EqualFold(local, r.e.doubleBounce)
}

// authorized says whether mail to the recipient is ours to deliver or to relay. It
// is what the relay restrictions rest on: an address that it lets through by
// mistake makes an open relay. Routing within the address (user%elsewhere@here)
// would leave by way of us, and does not count as ours unless
// allow_untrusted_routing says so.
func (r *run) authorized(ctx context.Context) (bool, verdict) {
	if !r.s.HasRcpt {
		return false, dunno
	}
	if ours, v := r.rewritten(r.s.Recipient, classRcpt); ours {
		return v != refused, v
	}
	// Where mail for the recipient goes, after rewriting: that is what decides, not
	// how it is written.
	a, v := r.resolvedOr(ctx, r.s.Recipient)
	switch {
	case v == refused:
		return false, v
	case domainOf(a.Recipient) == "":
		return true, dunno
	case a.Flags&proto.ResolveRouted != 0 && !r.e.untrustedRouting:
		return false, dunno // user%elsewhere@here
	}
	if a.Flags&(ourOwn|proto.ResolveRelay) != 0 {
		return true, dunno
	}
	relay, err := r.e.relayDomains.Match(ctx, domainOf(a.Recipient))
	if err != nil {
		r.e.log.Warning("%v", err)
		return false, r.lookupFailed(r.s.Recipient)
	}
	return relay, dunno
}

// permitAuthDestination is permit_auth_destination.
func (r *run) permitAuthDestination(ctx context.Context) verdict {
	yes, v := r.authorized(ctx)
	if yes {
		return ok
	}
	return v
}

// rejectUnauthDestination is reject_unauth_destination.
func (r *run) rejectUnauthDestination(ctx context.Context) verdict {
	return r.unauthDestination(ctx, r.e.cfg.Int("relay_domains_reject_code"), dsn.S(5, 7, 1))
}

// deferUnauthDestination is defer_unauth_destination.
func (r *run) deferUnauthDestination(ctx context.Context) verdict {
	// What would be refused for good is refused for now: a mistake in the
	// configuration should not cost mail.
	return r.unauthDestination(ctx, r.e.cfg.Int("relay_domains_reject_code")-100, dsn.S(4, 7, 1))
}

// unauthDestination refuses a recipient that is not ours.
func (r *run) unauthDestination(ctx context.Context, code int, status dsn.Status) verdict {
	if !r.s.HasRcpt {
		return dunno
	}
	yes, v := r.authorized(ctx)
	if yes || v == refused {
		return v
	}
	return r.refuse(code, status, "<"+r.s.Recipient+">: Relay access denied")
}
