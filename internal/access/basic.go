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

func (r *run) permitInetInterfaces(context.Context) verdict {
	return r.permitIf(slices.Contains(r.e.ownAddrs, r.s.Addr), nil)
}

func (r *run) permitSASL(context.Context) verdict {
	return r.permitIf(r.s.SASL.Username != "" && !strings.EqualFold(r.s.SASL.Method, "anonymous"), nil)
}

func (r *run) permitAllClientCerts(context.Context) verdict {
	return r.permitIf(r.s.TLS != nil && r.s.TLS.Trusted, nil)
}

func (r *run) permitClientCerts(ctx context.Context) verdict {
	t := r.s.TLS
	if t == nil || t.Fingerprint == "" || r.e.relayCerts.Empty() {
		return dunno
	}
	for _, print := range []string{t.Fingerprint, t.PubKeyPrint} {
		_, found, err := r.e.relayCerts.Lookup(ctx, print, false)
		if found || err != nil {
			return r.permitIf(found, err)
		}
	}
	return dunno
}

func (r *run) rejectPipelining(context.Context) verdict {
	if !r.s.Pipelined {
		return dunno
	}
	return r.refuseFor(r.name, r.cl, 503, dsn.S(5, 5, 0), "Improper use of SMTP command pipelining")
}

func (r *run) rejectPlaintext(context.Context) verdict {
	if r.s.TLS != nil {
		return dunno
	}
	return r.refuse(r.e.cfg.Int("plaintext_reject_code"), dsn.S(4, 7, 1), "Session encryption is required")
}

// rejectMultiBounce is for the null sender, who has one recipient: RFC 5321
// section 6.1.
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

// The restrictions on the HELO name say nothing when there was none.

func (r *run) rejectInvalidHelo(context.Context) verdict {
	name := r.s.Helo
	if name == "" {
		return dunno
	}
	code := r.e.cfg.Int("invalid_hostname_reject_code")
	if strings.HasPrefix(name, "[") {
		if _, fine := table.ParseLiteral(name); !fine {
			return r.refuseFor(name, classHelo, code, dsn.S(5, 5, 2), "invalid ip address")
		}
		return dunno
	}
	if _, err := netip.ParseAddr(name); err == nil { // a bare address, which is seen as such
		return dunno
	}
	ascii, fine := resolver.ToASCII(strings.TrimSuffix(name, "."))
	if !fine || !resolver.ValidHostname(ascii) {
		return r.refuseFor(name, classHelo, code, dsn.S(5, 5, 2), "Invalid name")
	}
	return dunno
}

func (r *run) rejectNonFQDNHelo(context.Context) verdict {
	name := r.s.Helo
	if name == "" {
		return dunno
	}
	if strings.HasPrefix(name, "[") {
		if _, fine := table.ParseLiteral(name); fine {
			return dunno
		}
	} else if qualified(name) {
		return dunno
	}
	return r.refuseFor(name, classHelo, r.e.cfg.Int("non_fqdn_reject_code"), dsn.S(5, 5, 2), "need fully-qualified hostname")
}

// qualified says whether a host name is in fully-qualified form: valid, with
// a dot in it, and not an address.
func qualified(name string) bool {
	name = strings.TrimSuffix(name, ".")
	if _, err := netip.ParseAddr(name); err == nil {
		return false
	}
	ascii, fine := resolver.ToASCII(name)
	return fine && resolver.ValidHostname(ascii) && strings.Contains(name, ".")
}

func (r *run) rejectUnknownHelo(ctx context.Context) verdict {
	name := r.s.Helo
	if name == "" || strings.HasPrefix(name, "[") {
		return dunno
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

type existence uint8

const (
	exists existence = iota
	missing
	nullMX
	tryLater
)

// hostExists says whether name has an address or an MX record.
func (r *run) hostExists(ctx context.Context, name string) (existence, error) {
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

// mailDomainExists says whether mail could be sent to a domain.
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

// permitMXBackup lets through mail to domains for which this host is a mail
// exchanger, but not the first.
func (r *run) permitMXBackup(ctx context.Context) verdict {
	if !r.s.HasRcpt {
		return dunno
	}
	a, v := r.resolvedOr(ctx, r.s.Recipient)
	if v == refused {
		return v
	}
	domain := domainOf(a.Recipient)
	switch {
	case domain == "":
		return ok
	case a.Flags&proto.ResolveRouted != 0:
		return dunno
	case a.Flags&(ourOwn|proto.ResolveRelay) != 0:
		return ok
	case strings.HasPrefix(domain, "["):
		return dunno
	}
	mx, err := r.e.dns.MX(ctx, domain)
	if err != nil {
		if resolver.KindOf(err) == resolver.TempFail {
			return r.deferIfReject(450, dsn.S(4, 4, 4), rejected(r.s.Recipient, classRcpt, "Unable to look up mail exchanger information: Host not found, try again"))
		}
		return dunno
	}
	return r.mxBackup(ctx, mx.Records)
}

func (r *run) mxBackup(ctx context.Context, list []resolver.MX) verdict {
	best := list[0].Pref
	for _, mx := range list {
		best = min(best, mx.Pref)
	}
	mine := false
	for _, mx := range list {
		addrs, err := r.e.dns.Addrs(ctx, mx.Host, resolver.IPv4|resolver.IPv6)
		if err != nil {
			if resolver.KindOf(err) == resolver.TempFail {
				return r.deferIfReject(450, dsn.S(4, 4, 4), rejected(r.s.Recipient, classRcpt, "Unable to look up mail exchanger host "+mx.Host+": Host not found, try again"))
			}
			if mx.Pref == best {
				return dunno
			}
			continue
		}
		for _, a := range addrs.Records {
			if slices.Contains(r.e.ownAddrs, a) {
				mine = mine || mx.Pref != best
			}
			if mx.Pref != best || r.e.permitMXNetworks.Empty() {
				continue
			}
			if in, err := r.e.permitMXNetworks.MatchClient(ctx, mx.Host, a.String()); err != nil || !in {
				return r.permitIf(false, err)
			}
		}
	}
	return r.permitIf(mine, nil)
}
