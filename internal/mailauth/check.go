package mailauth

import (
	"bytes"
	"context"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/resolver"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
)

// timeLimit bounds the check of one message.
const timeLimit = 20 * time.Second

// Result is a result of RFC 8601 section 2.7: pass, fail, softfail, neutral,
// none, temperror, permerror.
type Result string

const (
	None      Result = "none"
	Pass      Result = "pass"
	Fail      Result = "fail"
	SoftFail  Result = "softfail"
	Neutral   Result = "neutral"
	TempError Result = "temperror"
	PermError Result = "permerror"
)

// A Checker checks messages. Its methods may be called concurrently.
type Checker struct {
	dns   resolver.Resolver
	names resolver.Names // the rule that dns converts names by
	id    string         // authserv-id
	// details says that findings are to have what reports need.
	details bool
	sealers []string // whose ARC sets override a failure of DMARC
}

// New makes a Checker whose findings go by the name authservID. Names is the rule that dns
// converts names by.
func New(dns resolver.Resolver, names resolver.Names, authservID string) *Checker {
	return &Checker{dns: dns, names: names, id: authservID}
}

// Detailed has findings contain what aggregate reports need, which takes more questions to the
// DNS. It is called before the Checker is used.
func (c *Checker) Detailed() { c.details = true }

// A Message is what is to be checked.
type Message struct {
	Client netip.Addr
	Helo   string
	Sender string // internal form, empty for the null sender
	Header []byte // all fields, CRLF lines, without the empty line
	Body   func() io.Reader

	BodySize int64 // about, in octets
}

// SPF is what came of asking whether the client may use the sender's domain.
type SPF struct {
	Result   Result
	Domain   string // that was asked about
	MailFrom string // the sender, or empty if it was about HELO
	Helo     string
}

// DKIM is one signature.
type DKIM struct {
	Result           Result
	Domain, Selector string
	Algorithm, B     string // of b= the beginning: which signature it was
	Reason           string
}

// DMARC is what the author's domain wants of mail like this.
type DMARC struct {
	Result Result
	From   string // the author's domain; of several the one that decided; empty without any
	Policy string // that applies: none, quarantine, reject; empty without a record
	// Published and Aligned are for reports: Published is nil unless the Checker gives details,
	// and the record that decided asks for aggregate reports.
	Published *Record
	Aligned   Aligned
}

// Aligned says what passed in the name of the author's domain.
type Aligned struct{ SPF, DKIM bool }

// A Record is a DMARC record as reports repeat it.
type Record struct {
	Domain     string `json:"domain"` // where it was found
	Policy     string `json:"p"`
	Subdomains string `json:"sp,omitempty"`
	Missing    string `json:"np,omitempty"`
	DKIM       string `json:"adkim,omitempty"` // r or s
	SPF        string `json:"aspf,omitempty"`
	Testing    bool   `json:"t,omitempty"`
}

// Results are all findings on a message.
type Results struct {
	SPF   SPF
	DKIM  []DKIM
	DMARC DMARC
	ARC   ARC
}

// Check checks a message.
func (c *Checker) Check(ctx context.Context, m *Message) *Results {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	r := &Results{SPF: c.SPF(ctx, m.Client, m.Helo, m.Sender)}
	r.DKIM = c.dkim(ctx, m)
	authors := c.authorDomains(m.Header)
	r.DMARC = c.dmarcOf(ctx, authors, r)
	// A forwarder says of one author that it has passed, and another of the same message may be forged.
	if r.DMARC.Result == Fail && len(c.sealers) > 0 && len(authors) == 1 {
		r.ARC = c.chain(ctx, m, r.DMARC.From)
	}
	return r
}

// maxAuthors bounds whose policies are asked for. Mail that is from more
// domains than that has no author that could be known.
const maxAuthors = 8

// authorDomains are the domains of the From: addresses, each once, in the form
// in which DNS knows them. There is one of them in decent mail; but whoever forges
// one may add another, in the same field or in one more.
func (c *Checker) authorDomains(header []byte) (domains []string) {
	for rest := header; ; {
		f, r, ok := rfc5322.NextField(rest)
		if !ok {
			return domains
		}
		rest = r
		if !rfc5322.EqualName(f.Name(), "From") {
			continue
		}
		body := string(f.Body())
		for _, a := range rfc5322.AppendAddresses(nil, body, 0) { // all: the last may be the one that is shown
			d := strings.ToLower(strings.TrimSuffix(rfc5322.Domain(a.Addr), "."))
			if d == "" || slices.Contains(domains, d) {
				continue
			}
			if ascii, ok := c.names.ToASCII(d); ok {
				d = ascii
			}
			if !slices.Contains(domains, d) {
				domains = append(domains, d)
			}
			if len(domains) > maxAuthors {
				return domains
			}
		}
	}
}

// Rejected is the refusal of a message that fails DMARC where its author's
// domain wants such mail refused and that no trusted forwarder vouches for, or that has authors
// without end; nil for any other.
func (r *Results) Rejected() *smtpwire.Reply {
	if r.DMARC.Result == PermError {
		return smtpwire.R(550, dsn.S(5, 7, 26), "Error: From: has authors in more domains than DMARC can be checked for")
	}
	if r.DMARC.Result != Fail || r.DMARC.Policy != "reject" || r.ARC.Vouched {
		return nil
	}
	return smtpwire.R(550, dsn.S(5, 7, 26), "Error: "+smtpwire.Printable(r.DMARC.From)+" does not authorize this message: DMARC policy is reject")
}

// RejectSPF is the refusal of a client that the sender's domain says may not use
// it; nil for any other. It is for the restriction reject_spf_fail. When DNS
// does not answer the client is asked to try later.
func (c *Checker) RejectSPF(ctx context.Context, client netip.Addr, helo, sender string) *smtpwire.Reply {
	ctx, cancel := context.WithTimeout(ctx, timeLimit)
	defer cancel()
	r := c.SPF(ctx, client, helo, sender)
	switch r.Result {
	case Fail:
		return smtpwire.R(550, dsn.S(5, 7, 23), "SPF: "+smtpwire.Printable(r.Domain)+" does not permit "+client.String()+" to send its mail")
	case TempError:
		return smtpwire.R(451, dsn.S(4, 7, 24), "SPF: the policy of "+smtpwire.Printable(r.Domain)+" cannot be had now")
	}
	return nil
}

// Field is the Authentication-Results: field, RFC 8601 section 2.2.
func (c *Checker) Field(r *Results) []byte {
	b := append([]byte("Authentication-Results: "), value(c.id)...)
	part := func(s string) { b = append(append(b, ";\r\n\t"...), s...) }
	prop := func(name, v string) string {
		if v == "" {
			return ""
		}
		return " " + name + "=" + value(v)
	}
	part("spf=" + string(r.SPF.Result) + prop("smtp.mailfrom", r.SPF.MailFrom) + prop("smtp.helo", r.SPF.Helo))
	for _, d := range r.DKIM {
		part("dkim=" + string(d.Result) + prop("reason", d.Reason) + prop("header.d", d.Domain) + prop("header.s", d.Selector) +
			prop("header.a", d.Algorithm) + prop("header.b", d.B))
	}
	if len(r.DKIM) == 0 {
		part("dkim=none")
	}
	policy := ""
	if r.DMARC.Policy != "" {
		policy = " (p=" + r.DMARC.Policy + ")"
	}
	part("dmarc=" + string(r.DMARC.Result) + policy + prop("header.from", r.DMARC.From))
	if a := &r.ARC; a.Result != "" {
		part("arc=" + string(a.Result) + prop("reason", a.Reason) + prop("header.d", a.Sealer))
	}
	return append(b, "\r\n"...)
}

// value quotes what is no plain value, and bounds it: everything comes from
// strangers.
func value(s string) string {
	if len(s) > 320 {
		s = s[:320]
	}
	plain := s != ""
	for i := 0; i < len(s) && plain; i++ {
		c := s[i]
		plain = c > ' ' && c < 127 && strings.IndexByte("()<>,;:\\\"/[]?=", c) < 0
	}
	if plain {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 127:
			b.WriteByte('?')
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Claims says whether a field is an Authentication-Results: field that speaks in
// our name. Of what strangers send such fields are lies (RFC 8601 section 5).
func (c *Checker) Claims(raw []byte) bool {
	f, ok := rfc5322.ParseField(raw)
	if !ok || !rfc5322.EqualName(f.Name(), "Authentication-Results") {
		return false
	}
	id := authservID(f.Body())
	return strings.EqualFold(id, c.id)
}

// authservID is the first word of a field's body, comments left out. A
// word with a comment in the middle is read as others would, without it.
func authservID(body []byte) string {
	body = bytes.ReplaceAll(body, []byte("\r\n"), nil)
	var b strings.Builder
	depth, quoted := 0, false
	for i := 0; i < len(body); i++ {
		c := body[i]
		switch {
		case c == '\\' && (quoted || depth > 0) && i+1 < len(body):
			if i++; quoted {
				b.WriteByte(body[i])
			}
		case quoted && c == '"':
			return b.String()
		case quoted:
			b.WriteByte(c)
		case c == '(':
			depth++
		case c == ')' && depth > 0:
			depth--
		case depth > 0:
		case c == '"' && b.Len() == 0:
			quoted = true
		case c == ' ' || c == '\t' || c == ';':
			if b.Len() > 0 {
				return b.String()
			}
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
