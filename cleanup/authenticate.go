// Checks of mail from strangers by SPF, DKIM and DMARC: whose mail is checked, and what
// is done with the findings. The protocols themselves are in package mailauth.

package cleanup

import (
	"context"
	"io"
	"net/netip"
	"strings"

	"posthaste/internal/config"
	"posthaste/internal/dmarcsend"
	"posthaste/internal/mailauth"
	"posthaste/internal/maillog"
	"posthaste/internal/milter"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
)

// An authenticator checks mail from strangers, before filters see it, so that they see
// what was found. Strangers are SMTP clients that are not authenticated and not in
// mail_authentication_exempt_networks. Findings that claim to be ours are also removed
// from the mail of authenticated clients, since whoever reads Authentication-Results
// fields trusts those with our name (RFC 8601 section 5).
//
// It is made at the start and not changed; its methods may be called concurrently.
type authenticator struct {
	checker *mailauth.Checker
	exempt  *table.List
	// dmarc_reject: what a domain's policy says is to be rejected is rejected
	reject bool
	// reports counts the findings for aggregate reports; nil: nobody is told.
	reports *dmarcsend.Log
}

// newAuthenticator reads what is to be checked; nil when nothing is. An error means that
// the exempt networks cannot be used: mail must not be checked, or spared, by mistake.
func newAuthenticator(cfg *config.Config, dns resolver.Resolver, o table.Options) (*authenticator, error) {
	if cfg.String("mail_authentication") != "check" {
		return nil, nil
	}
	exempt, err := table.NewList(cfg.Source("mail_authentication_exempt_networks"), cfg.List("mail_authentication_exempt_networks"),
		table.ListOptions{Kind: table.Clients, Table: o})
	if err != nil {
		return nil, err
	}
	checker := mailauth.New(dns, resolver.NamesOf(cfg), cfg.String("authserv_id"))
	var sealers []string
	for _, domain := range cfg.List("arc_trusted_sealers") {
		sealers = append(sealers, strings.ToLower(domain))
	}
	checker.Trust(sealers)
	return &authenticator{checker: checker, exempt: exempt, reject: cfg.Bool("dmarc_reject")}, nil
}

// standing is what is to be done with mail from a client.
type standing uint8

const (
	trusted  standing = iota // nothing: it comes from here, or from an exempt network
	known                    // an authenticated user's is not checked, but must not speak in our name
	stranger                 // to be checked
)

// standing says how far the client is trusted. The error is that of a table.
func (a *authenticator) standing(ctx context.Context, m *Message) (standing, error) {
	c := &m.env.Client
	// It did not come over the network.
	if c.Addr == "" {
		return trusted, nil
	}
	exempt, err := a.exempt.MatchClient(ctx, c.Name, c.Addr)
	switch {
	case err != nil || exempt:
		return trusted, err
	case m.env.SASL.Username != "":
		return known, nil
	}
	return stranger, nil
}

// authenticate checks a message that nothing else is wrong with, and puts the findings on
// top of it. What was requeued is passed over: it was checked when it came, and its
// client is gone.
func (in *incoming) authenticate(res *Result) {
	a := in.s.opt.Authenticator
	if a == nil || in.q.Flags&proto.SubmitRequeued != 0 || res.Discard || res.Refused != nil || res.Stop || len(res.Envelope.Recipients) == 0 {
		return
	}
	ctx := in.ctx
	who, err := a.standing(ctx, &in.msg)
	if err != nil {
		// The client is told to try later (judge): the table decides whether the mail may
		// be refused.
		in.msg.tableFailed("mail_authentication_exempt_networks", err)
		in.logLines(in.msg.log[len(in.msg.log)-1:])
		in.msg.setVerdict(res)
		return
	}
	if who == trusted {
		return
	}
	c, err := in.content()
	if err != nil {
		in.fault = err
		return
	}
	if who == known {
		in.unclaim(c, a.checker, nil)
		res.Envelope = in.msg.env
		return
	}
	// SPF goes by the IPv4 address of a client that has connected over IPv6's form of it.
	addr, _ := netip.ParseAddr(in.msg.env.Client.Addr)
	addr = addr.Unmap()
	r := a.checker.Check(ctx, &mailauth.Message{Client: addr, Helo: in.msg.env.Client.Helo, Sender: in.q.Envelope.Sender,
		Header: headerBytes(c.Fields), BodySize: c.BodySize, Body: func() io.Reader { return io.NewSectionReader(c.Body, 0, c.BodySize) }})
	// A reply to the client, not a bounce: the sender's address is what could not be
	// confirmed.
	no := r.Rejected()
	a.count(in, addr, c, r, no != nil && a.reject)
	if no != nil && a.reject {
		in.logRefusal("reject", "END-OF-MESSAGE", no.Status.String()+" "+no.Text)
		res.Refused = &refusal{Code: no.Code, Status: no.Status, Text: no.Text}
		return
	}
	in.unclaim(c, a.checker, []milter.Field{{Name: "Authentication-Results", Raw: a.checker.Field(r)}})
	res.Envelope = in.msg.env
}

// unclaim stores the message without the fields that claim to be findings of ours, and
// with the fields of top above it. When that changes nothing, nothing is stored anew.
func (in *incoming) unclaim(c *milter.Content, by *mailauth.Checker, top []milter.Field) {
	kept := top
	for _, f := range c.Fields {
		if !by.Claims(f.Raw) {
			kept = append(kept, f)
		}
	}
	if len(kept) == len(c.Fields) && len(top) == 0 {
		return
	}
	c.Fields = kept
	in.replace(c)
}

// headerBytes puts header fields together.
func headerBytes(fields []milter.Field) []byte {
	n := 0
	for i := range fields {
		n += len(fields[i].Raw)
	}
	b := make([]byte, 0, n)
	for i := range fields {
		b = append(b, fields[i].Raw...)
	}
	return b
}

// logRefusal logs a decision on the message as a whole, in the form that smtpd's lines
// have.
func (in *incoming) logRefusal(action, stage, text string) {
	c := &in.msg.env.Client
	in.s.opt.Log.Log(maillog.Reject{QueueID: in.msg.id, Action: action, Stage: stage, Name: c.Name, Addr: c.Addr, Text: text,
		From: in.s.opt.Log.Address(in.msg.env.Sender), HasFrom: true, To: in.s.opt.Log.Address(in.msg.lastRcpt), HasTo: in.msg.anyRcpt,
		Proto: c.Proto, Helo: c.Helo})
}
