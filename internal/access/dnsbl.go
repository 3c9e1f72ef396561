// Lists in the DNS (RFC 5782), of clients to refuse or to let through, and the names
// that a reply to a listed client may hold. Package postscreen uses DNSList as well.

package access

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/resolver"
	"posthaste/internal/smtpwire"
)

// A DNSList is a list kept in the DNS, RFC 5782: domain, or
// domain=d.d.d.d, where each d is a number or [a;b..c], for the answers that
// count.
type DNSList struct {
	Spec   string          // as configured
	Domain string          // of the list, without a dot at its end
	Filter []AnswerPattern // four of them; nil: any answer counts
}

// AnswerPattern is the pattern for one of the four bytes of an answer.
type AnswerPattern [256]bool

// ParseDNSList reads domain or domain=filter. The error says what is wrong, and
// names the list.
func ParseDNSList(spec string) (*DNSList, error) {
	domain, filter, has := strings.Cut(spec, "=")
	l := &DNSList{Spec: spec, Domain: strings.TrimSuffix(domain, ".")}
	if l.Domain == "" {
		return nil, fmt.Errorf("%q: expected a domain, or domain=d.d.d.d", spec)
	}
	if !has {
		return l, nil
	}
	rest := filter
	for n := 0; n < 4; n++ {
		if n > 0 {
			var dot bool
			if rest, dot = strings.CutPrefix(rest, "."); !dot {
				return nil, fmt.Errorf("%q: the pattern must have four parts with dots between", spec)
			}
		}
		var p AnswerPattern
		var err error
		if rest, err = p.parse(rest); err != nil {
			return nil, fmt.Errorf("%q: %w", spec, err)
		}
		l.Filter = append(l.Filter, p)
	}
	if rest != "" {
		return nil, fmt.Errorf("%q: %q follows the pattern", spec, rest)
	}
	return l, nil
}

// parse reads the pattern of one byte at the start of s, and returns what follows
// it.
func (p *AnswerPattern) parse(s string) (rest string, err error) {
	if inner, bracket := strings.CutPrefix(s, "["); bracket {
		inner, rest, bracket = strings.Cut(inner, "]")
		if !bracket {
			return "", fmt.Errorf("no ] after [")
		}
		for _, part := range strings.Split(inner, ";") {
			// One number is a range of one.
			from, to, span := strings.Cut(part, "..")
			if !span {
				to = from
			}
			a, err1 := strconv.ParseUint(from, 10, 8)
			b, err2 := strconv.ParseUint(to, 10, 8)
			if err1 != nil || err2 != nil || a > b {
				return "", fmt.Errorf("%q: expected a number up to 255, or a..b", part)
			}
			for i := a; i <= b; i++ {
				p[i] = true
			}
		}
		return rest, nil
	}
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	v, err := strconv.ParseUint(s[:n], 10, 8)
	if err != nil {
		return "", fmt.Errorf("%q: expected a number up to 255", s)
	}
	p[v] = true
	return s[n:], nil
}

// Counts says whether an answer is one that counts. Lists answer with IPv4
// addresses only, whatever was asked.
func (l *DNSList) Counts(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	if l.Filter == nil {
		return true
	}
	for i, b := range a.As4() {
		if !l.Filter[i][b] {
			return false
		}
	}
	return true
}

// AddrQuery is the name under which an address is looked up in a list: its
// bytes or nibbles in reverse, RFC 5782 sections 2.1 and 2.4.
func AddrQuery(a netip.Addr, domain string) string {
	var b []byte
	if a.Is4() {
		v := a.As4()
		for i := 3; i >= 0; i-- {
			b = append(strconv.AppendUint(b, uint64(v[i]), 10), '.')
		}
		return string(b) + domain
	}
	const hex = "0123456789abcdef"
	v := a.As16()
	for i := 15; i >= 0; i-- {
		b = append(b, hex[v[i]&15], '.', hex[v[i]>>4], '.')
	}
	return string(b) + domain
}

// listedIn says whether name (of a list's domain) is listed. An error means that
// nobody knows.
func (r *run) listedIn(ctx context.Context, l *DNSList, name string) (bool, error) {
	a, err := r.e.dns.Addrs(ctx, name, resolver.IPv4)
	if err != nil {
		if resolver.KindOf(err) == resolver.TempFail {
			return false, err
		}
		return false, nil
	}
	for _, addr := range a.Records {
		if l.Counts(addr) {
			return true, nil
		}
	}
	return false, nil
}

// dnsCheck is a restriction that asks a list about something of the session:
// what gives the thing's name in the list, how texts call it, and its class.
// An empty query means that there is nothing to ask. One that permits does so
// for recipients whose mail is ours to deliver or to relay, and for no other.
func dnsCheck(permit bool, what func(r *run, domain string) (query, name string, cl class)) func(*Evaluator, string) (check, error) {
	return func(_ *Evaluator, spec string) (check, error) {
		l, err := ParseDNSList(spec)
		if err != nil {
			return nil, err
		}
		return func(r *run, ctx context.Context) verdict {
			query, name, cl := what(r, l.Domain)
			if query == "" {
				return dunno
			}
			if permit && r.s.Stage == "RCPT" && r.s.HasRcpt {
				// Whoever keeps the list may not say who relays.
				if yes, v := r.authorized(ctx); !yes {
					return v
				}
			}
			hit, err := r.listedIn(ctx, l, query)
			switch {
			case err != nil && permit:
				r.e.log.Warning("%s: RBL lookup error: %v", query, err)
				return r.deferIfReject(450, dsn.S(4, 7, 1), rejected(name, cl, "Service unavailable"))
			// A list that does not answer refuses nobody: mail must not wait for
			// somebody else's server. One that permits is missed only by mail that
			// is refused otherwise, which then waits.
			case err != nil:
				r.e.log.Warning("%s: RBL lookup error: %v", query, err)
				return dunno
			case !hit:
				return dunno
			case permit:
				return ok
			}
			return r.refuseListed(ctx, l, query, name, cl)
		}, nil
	}
}

// refuseListed words the refusal by rbl_reply_maps or default_rbl_reply. The list's
// own reason, a TXT record, is a stranger's text: it is cut, and filtered.
func (r *run) refuseListed(ctx context.Context, l *DNSList, query, name string, cl class) verdict {
	// Raw: its names are expanded here, with what is known of the session.
	template := r.e.cfg.Raw("default_rbl_reply")
	if !r.e.rblReplies.Empty() {
		// With the filter first, so that one list can have a reply for each of its
		// answers.
		value, found, err := r.e.rblReplies.Lookup(ctx, l.Spec, false)
		if err == nil && !found && l.Spec != l.Domain {
			value, found, err = r.e.rblReplies.Lookup(ctx, l.Domain, false)
		}
		if err != nil {
			return r.tableFailed(err, name, cl)
		}
		if found {
			template = value
		}
	}
	reason := ""
	if txt, err := r.e.dns.TXT(ctx, query); err == nil {
		reason = clip(txt.Records[0], 200)
	}
	value := func(n string) string {
		switch n {
		case "rbl_code":
			return strconv.Itoa(r.e.cfg.Int("maps_rbl_reject_code"))
		case "rbl_domain":
			return l.Domain
		case "rbl_reason":
			return filtered(reason, r.e.expansion)
		case "rbl_txt":
			return filtered(reason, r.e.expansion)
		case "rbl_what":
			return filtered(name, r.e.expansion)
		case "rbl_class":
			return classText[cl]
		}
		return r.e.Value(r.s, n)
	}
	text, err := config.ExpandNames(template, value)
	if err != nil {
		r.e.log.Warning("bad rbl reply template for domain %s: %v", l.Spec, err)
		text = defaultRBLReply(value)
	}
	reply, valid := smtpwire.ParseReply(text)
	if !valid || !refuses(reply.Code) {
		r.e.log.Warning("rbl response code configuration error: %s", text)
		return r.refuse(450, dsn.S(4, 7, 1), "Service unavailable")
	}
	if reply.Status.IsZero() {
		reply.Status = dsn.S(uint8(reply.Code/100), 7, 1)
	}
	return r.refuse(reply.Code, r.fixStatus(reply.Status, cl), cmp.Or(printable(reply.Text), "Service unavailable"))
}

// defaultRBLReply is for those whose own template cannot be read.
func defaultRBLReply(value func(string) string) string {
	return value("rbl_code") + " Service unavailable; " + value("rbl_class") + " [" + value("rbl_what") + "] blocked using " + value("rbl_domain")
}

// clip cuts s after n octets.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// Value is what a name in a reply template stands for, with what
// smtpd_expansion_filter does not let through replaced. An unknown name is empty.
func (e *Evaluator) Value(s *Session, name string) string {
	v := ""
	switch name {
	case "client":
		v = s.NameAddr()
	case "client_address":
		v = s.AddrText
	case "client_name":
		v = s.Name
	case "reverse_client_name":
		v = s.ReverseName
	case "client_port":
		v = s.Port
	case "helo_name":
		v = s.Helo
	case "sender":
		if v = s.Sender; s.HasSender && v == "" {
			v = "<>"
		}
	case "sender_name":
		v = localOf(s.Sender)
	case "sender_domain":
		v = domainOf(s.Sender)
	case "recipient":
		v = s.Recipient
	case "recipient_name":
		v = localOf(s.Recipient)
	case "recipient_domain":
		v = domainOf(s.Recipient)
	case "server_name":
		v = e.cfg.String("myhostname")
	case "server_address":
		v = s.ServerAddr
	case "server_port":
		v = s.ServerPort
	case "mail_name":
		v = e.cfg.String("mail_name")
	}
	return filtered(v, e.expansion)
}

// localOf is the local part of an address.
func localOf(addr string) string {
	if i := strings.LastIndexByte(addr, '@'); i >= 0 {
		return addr[:i]
	}
	return addr
}

// What the DNS list restrictions ask about: the name to look up, what texts call
// it, and its class. An empty name is "nothing to ask".

func askClientAddr(r *run, domain string) (string, string, class) {
	if !r.s.Addr.IsValid() {
		return "", "", classClient
	}
	return AddrQuery(r.s.Addr, domain), r.s.AddrText, classClient
}

// askName is the query for a domain in a list of domains. A name that is no host
// name is not asked for: it could hold anything.
func (e *Evaluator) askName(name, domain string, cl class) (string, string, class) {
	if name == "" || name == "unknown" || strings.HasPrefix(name, "[") {
		return "", "", cl
	}
	// The DNS has international names in ASCII only.
	if ascii, valid := e.names.ToASCII(strings.TrimSuffix(name, ".")); valid && resolver.ValidHostname(ascii) {
		return ascii + "." + domain, name, cl
	}
	return "", "", cl
}

func askClientName(r *run, domain string) (string, string, class) {
	return r.e.askName(r.s.Name, domain, classClient)
}

func askReverseName(r *run, domain string) (string, string, class) {
	return r.e.askName(r.s.ReverseName, domain, classReverse)
}

func askHelo(r *run, domain string) (string, string, class) {
	return r.e.askName(r.s.Helo, domain, classHelo)
}

func askSender(r *run, domain string) (string, string, class) {
	q, _, cl := r.e.askName(domainOf(r.s.Sender), domain, classSender)
	return q, r.s.Sender, cl
}

func askRcpt(r *run, domain string) (string, string, class) {
	if !r.s.HasRcpt {
		return "", "", classRcpt
	}
	q, _, cl := r.e.askName(domainOf(r.s.Recipient), domain, classRcpt)
	return q, r.s.Recipient, cl
}
