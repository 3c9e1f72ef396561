// The restrictions without an argument that are about the client, its HELO name, and
// about this host as a backup for others.

package access

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
)

// permitInetInterfaces is permit_inet_interfaces: the client is this host.
func (r *run) permitInetInterfaces(context.Context) verdict {
	return r.permitIf(slices.Contains(r.e.local.Interfaces, r.s.Addr), nil)
}

// permitSASL is permit_sasl_authenticated. An anonymous login is no authentication.
func (r *run) permitSASL(context.Context) verdict {
	return r.permitIf(r.s.SASL.Username != "" && !strings.EqualFold(r.s.SASL.Method, "anonymous"), nil)
}

// permitAllClientCerts is permit_tls_all_clientcerts: any certificate of a CA that
// we trust will do.
func (r *run) permitAllClientCerts(context.Context) verdict {
	return r.permitIf(r.s.TLS != nil && r.s.TLS.Trusted, nil)
}

// permitClientCerts is permit_tls_clientcerts: relay_clientcerts has the
// certificate's fingerprint, or its key's. No CA need have signed it.
func (r *run) permitClientCerts(ctx context.Context) verdict {
	t := r.s.TLS
	if t == nil || t.Fingerprint == "" || r.e.relayCerts.Empty() {
		return dunno
	}
	for _, fingerprint := range []string{t.Fingerprint, t.PubKeyPrint} {
		_, found, err := r.e.relayCerts.Lookup(ctx, fingerprint, false)
		if found || err != nil {
			return r.permitIf(found, err)
		}
	}
	return dunno
}

// rejectPipelining is reject_unauth_pipelining. What the client has sent too early
// was seen before.
func (r *run) rejectPipelining(context.Context) verdict {
	if !r.s.Pipelined {
		return dunno
	}
	return r.refuseFor(r.name, r.cl, 503, dsn.S(5, 5, 0), "Improper use of SMTP command pipelining")
}

// rejectPlaintext is reject_plaintext_session.
func (r *run) rejectPlaintext(context.Context) verdict {
	if r.s.TLS != nil {
		return dunno
	}
	return r.refuse(r.e.cfg.Int("plaintext_reject_code"), dsn.S(4, 7, 1), "Session encryption is required")
}

// rejectMultiBounce is reject_multi_recipient_bounce, for the null sender, who has
// one recipient: a notification goes to the sender of one message (RFC 5321 section
// 6.1). At RCPT the recipient itself is one more than have been accepted.
func (r *run) rejectMultiBounce(context.Context) verdict {
	n := r.s.Accepted
	if r.cl == classRcpt {
		n++
	}
	if !r.s.HasSender || r.s.Sender != "" || n <= 1 {
		return dunno
	}
	return r.refuseFor(r.name, r.cl, r.e.cfg.Int("multi_recipient_bounce_reject_code"), dsn.S(5, 5, 3), "Multi-recipient bounce")
}

// rejectUnknownClient is reject_unknown_client_hostname: the address has no name
// that leads back to it. A lookup that failed makes the refusal temporary, whatever
// the parameter says.
func (r *run) rejectUnknownClient(context.Context) verdict {
	c := &r.s.Client
	if c.NameStatus == NameOK {
		return dunno
	}
	code := r.e.cfg.Int("unknown_client_reject_code")
	if c.NameStatus == NameTempFail {
		code = 450
	}
	return r.refuse(code, dsn.S(4, 7, 25), "Client host rejected: cannot find your hostname, ["+c.AddrText+"]")
}

// rejectUnknownReverse is reject_unknown_reverse_client_hostname: the address has
// no name at all.
func (r *run) rejectUnknownReverse(context.Context) verdict {
	c := &r.s.Client
	if c.ReverseStatus == NameOK {
		return dunno
	}
	code := r.e.cfg.Int("unknown_client_reject_code")
	if c.ReverseStatus == NameTempFail {
		code = 450
	}
	return r.refuse(code, dsn.S(4, 7, 1), "Client host rejected: cannot find your reverse hostname, ["+c.AddrText+"]")
}

// The restrictions on the HELO name say nothing when there was none:
// smtpd_helo_required is what demands one.

// rejectInvalidHelo is reject_invalid_helo_hostname.
func (r *run) rejectInvalidHelo(context.Context) verdict {
	name := r.s.Helo
	if name == "" {
		return dunno
	}
	if strings.HasPrefix(name, "[") {
		return r.invalidHeloAddr(name)
	}
	if _, err := netip.ParseAddr(name); err == nil { // a bare address, which is seen as such
		return dunno
	}
	ascii, fine := r.e.names.ToASCII(strings.TrimSuffix(name, "."))
	if !fine || !resolver.ValidHostname(ascii) {
		return r.refuseFor(name, classHelo, r.e.cfg.Int("invalid_hostname_reject_code"), dsn.S(5, 5, 2), "Invalid name")
	}
	return dunno
}

// invalidHeloAddr is for a name that begins as an address literal does, which
// all restrictions on the name judge alike.
func (r *run) invalidHeloAddr(name string) verdict {
	// RFC 5321 section 4.1.3: an address literal is a name that any host may give.
	if _, fine := table.ParseLiteral(name); fine {
		return dunno
	}
	return r.refuseFor(name, classHelo, r.e.cfg.Int("invalid_hostname_reject_code"), dsn.S(5, 5, 2), "invalid ip address")
}

// rejectNonFQDNHelo is reject_non_fqdn_helo_hostname.
func (r *run) rejectNonFQDNHelo(context.Context) verdict {
	name := r.s.Helo
	if name == "" {
		return dunno
	}
	switch {
	case strings.HasPrefix(name, "["):
		return r.invalidHeloAddr(name)
	case r.e.qualified(name):
		return dunno
	}
	return r.refuseFor(name, classHelo, r.e.cfg.Int("non_fqdn_reject_code"), dsn.S(5, 5, 2), "need fully-qualified hostname")
}

// qualified says whether a host name is in fully-qualified form: valid, with
// a dot in it, and not an address.
func (e *Evaluator) qualified(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil {
		return false
	}
	ascii, fine := e.names.ToASCII(name)
	return fine && resolver.ValidHostname(ascii) && strings.Contains(name, ".")
}

// rejectUnknownHelo is reject_unknown_helo_hostname.
func (r *run) rejectUnknownHelo(ctx context.Context) verdict {
	name := r.s.Helo
	if name == "" {
		return dunno
	}
	if strings.HasPrefix(name, "[") {
		return r.invalidHeloAddr(name)
	}
	status, err := r.hostExists(ctx, name)
	switch status {
	case exists:
		return dunno
	case tryLater:
		r.e.log.Warning("%s: HELO name lookup: %v", r.s.NameAddr(), err)
		return r.deferIfPermit(r.e.tempfail.helo, 450, dsn.S(4, 7, 1), rejected(name, classHelo, "Host not found"))
	}
	return r.refuseFor(name, classHelo, r.e.cfg.Int("unknown_hostname_reject_code"), dsn.S(4, 7, 1), "Host not found")
}

// existence is what the DNS says of a name.
type existence uint8

const (
	exists existence = iota
	missing
	nullMX   // it says itself that it takes no mail, RFC 7505
	tryLater // nobody knows now
)

// hostExists says whether name has an address or an MX record. The error is that of
// tryLater and missing.
func (r *run) hostExists(ctx context.Context, name string) (existence, error) {
	// An address is asked for first: most HELO names are of hosts, and have one.
	_, err := r.e.dns.Addrs(ctx, name, resolver.IPv4|resolver.IPv6)
	if err == nil {
		return exists, nil
	}
	if resolver.KindOf(err) == resolver.TempFail {
		return tryLater, err
	}
	if _, err = r.e.dns.MX(ctx, name); err == nil {
		return exists, nil
	}
	if resolver.KindOf(err) == resolver.TempFail {
		return tryLater, err
	}
	return missing, err
}

// mailDomainExists says whether mail could be sent to a domain (RFC 5321 section
// 5.1).
func (r *run) mailDomainExists(ctx context.Context, domain string) (existence, error) {
	mx, err := r.e.dns.MX(ctx, domain)
	if err == nil {
		if len(mx.Records) == 1 && mx.Records[0].Host == "" {
			return nullMX, nil // RFC 7505
		}
		return exists, nil
	}
	if resolver.KindOf(err) == resolver.TempFail {
		return tryLater, err
	}
	if _, err = r.e.dns.Addrs(ctx, domain, resolver.IPv4|resolver.IPv6); err == nil {
		return exists, nil
	}
	if resolver.KindOf(err) == resolver.TempFail {
		return tryLater, err
	}
	return missing, err
}

// permitMXBackup is permit_mx_backup: it lets through mail to domains for which
// this host is a mail exchanger, but not the first. Anybody can name this host in a
// domain of theirs, which is why permit_mx_backup_networks should be set.
func (r *run) permitMXBackup(ctx context.Context) verdict {
	if !r.s.HasRcpt {
		return dunno
	}
	// For local domains and relay_domains this is permit_auth_destination.
	a, v := r.resolvedOr(ctx, r.s.Recipient)
	if v == refused {
		return v
	}
	domain := domainOf(a.Recipient)
	switch {
	case domain == "":
		return ok
	case a.Flags&proto.ResolveRouted != 0 && !r.e.untrustedRouting:
		return dunno
	case a.Flags&(ourOwn|proto.ResolveRelay) != 0:
		return ok
	case strings.HasPrefix(domain, "["):
		return dunno
	}
	mx, err := r.e.dns.MX(ctx, domain)
	if err != nil {
		if resolver.KindOf(err) == resolver.TempFail {
			return r.exchangerUnknown("Unable to look up mail exchanger information: Host not found, try again")
		}
		return dunno
	}
	// RFC 7505: a domain that takes no mail has no backup either. Looking up its empty
	// host would fail, and make a refusal of such mail a temporary one.
	if len(mx.Records) == 1 && mx.Records[0].Host == "" {
		return dunno
	}
	return r.mxBackup(ctx, mx.Records)
}

// mxBackup says OK if this host is a mail exchanger that is not among the
// best, and these are where permit_mx_backup_networks wants them.
func (r *run) mxBackup(ctx context.Context, list []resolver.MX) verdict {
	best := list[0].Pref
	for _, mx := range list {
		best = min(best, mx.Pref)
	}
	var first, others []string
	for _, mx := range list {
		if mx.Pref == best {
			first = append(first, mx.Host)
		} else {
			others = append(others, mx.Host)
		}
	}
	// Among the best this host is no backup; elsewhere it is none for this domain.
	if r.isMe(ctx, first) || !r.isMe(ctx, others) {
		return dunno
	}
	// permit_mx_backup_networks: all primaries must be in these networks, or
	// anybody could have us relay to a host of theirs.
	for _, host := range first {
		if r.e.permitMXNetworks.Empty() {
			break
		}
		addrs, err := r.e.dns.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
		if err != nil {
			return r.exchangerUnknown("Unable to look up host " + host + " as mail exchanger: " + whyNoHost(err))
		}
		for _, a := range addrs.Records {
			if in, err := r.e.permitMXNetworks.MatchClient(ctx, host, a.String()); err != nil || !in {
				return r.permitIf(false, err)
			}
		}
	}
	return ok
}

// isMe says whether one of hosts is this one, by its name or, if no name tells, by
// an address.
func (r *run) isMe(ctx context.Context, hosts []string) bool {
	for _, host := range hosts {
		local, err := r.e.local.IsDestination(ctx, host)
		if err != nil {
			r.e.log.Warning("%v", err) // perhaps its address tells
		}
		if local {
			return true
		}
	}
	for _, host := range hosts {
		addrs, err := r.e.dns.Addrs(ctx, host, resolver.IPv4|resolver.IPv6)
		if err != nil {
			r.exchangerUnknown("Unable to look up mail exchanger host " + host + ": " + whyNoHost(err))
		}
		for _, a := range addrs.Records {
			if slices.Contains(r.e.local.Addresses, a) {
				return true
			}
		}
	}
	return false
}

// exchangerUnknown makes a permanent refusal a temporary one: the mail might be
// permitted if all could be looked up.
func (r *run) exchangerUnknown(text string) verdict {
	return r.deferIfReject(450, dsn.S(4, 4, 4), rejected(r.s.Recipient, classRcpt, text))
}

// whyNoHost words a lookup that failed as the system's resolver does, which Postfix
// asks here.
func whyNoHost(err error) string {
	if resolver.KindOf(err) == resolver.TempFail {
		return "Temporary failure in name resolution"
	}
	return "Name or service not known"
}
