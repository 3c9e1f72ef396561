// Rewritten senders (SRS, package srs): of mail that was for an address here and goes on to
// another site, from where SPF of the sender's domain does not expect it. It is decided here,
// because a message may have recipients of both kinds, and only when a recipient has been
// resolved it is known whether it leaves this system.
//
// The envelope in the queue keeps the sender as it was. So reports that this system makes go to
// the sender directly, tools select by the sender, and local recipients see it. An order for an
// agent has the rewritten one. It is made for each order: mail that has waited for days does not
// carry an address that has aged as much.

package qmgr

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/srs"
	"posthaste/internal/srs/srsconf"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
)

// rewriting is whose mail has its sender rewritten. It is not changed, and may be used by any
// goroutine.
type rewriting struct {
	// How: the domain, the secrets and the form of addresses.
	*srs.Rewriter
	// srs_classes: mail that was for an address here, mail of sendmail(1), and all other
	// mail.
	forwarded, local, relayed bool
	// srs_exclude_domains, senders besides those of our own domains. It may have
	// tables.
	exclude *table.List
}

// loadRewriting reads the parameters; nil when senders are not rewritten.
func loadRewriting(cfg *config.Config) (*rewriting, error) {
	r, err := srsconf.Load(cfg)
	if r == nil || err != nil {
		return nil, err
	}
	rw := &rewriting{Rewriter: r}
	for _, word := range cfg.List("srs_classes") {
		switch strings.ToLower(word) {
		case "forwarded":
			rw.forwarded = true
		case "local":
			rw.local = true
		case "relayed":
			rw.relayed = true
		default:
			return nil, fmt.Errorf("srs_classes: %s: expected forwarded, local or relayed", word)
		}
	}
	rw.exclude, err = table.NewList("srs_exclude_domains", cfg.List("srs_exclude_domains"), table.ListOptions{
		Kind: table.Domains, Parent: slices.Contains(cfg.List("parent_domain_matches_subdomains"), "srs_exclude_domains")})
	if err != nil {
		return nil, fmt.Errorf("srs_exclude_domains: %w", err)
	}
	return rw, nil
}

// concerns says whether a recipient is of one of the classes; whose the sender is comes
// after that.
func (rw *rewriting) concerns(env *mail.Envelope, to *mail.Recipient) bool {
	// A notification has no sender, and must not get one (RFC 5321 section 4.5.5).
	if env.Sender == "" {
		return false
	}
	// An original without a domain was completed, and not led elsewhere.
	_, _, at := rfc5322.Split(to.Original)
	switch {
	// Case is no change: canonical maps may have made addresses uniform.
	case at && !strings.EqualFold(to.Original, to.Address):
		return rw.forwarded
	// It came by pickup, from a program on this machine.
	case env.Client.Addr == "":
		return rw.local
	}
	return rw.relayed
}

// senderFor is the rewritten sender of an order for these recipients. A domain of srs_forward_domains gives its name to what
// was led on from it, unless the order is also for others: there is one sender.
func (rw *rewriting) senderFor(sender string, to []mail.Recipient, now time.Time) string {
	own := ""
	for i := range to {
		d := rfc5322.Domain(to[i].Orig())
		if i > 0 && !strings.EqualFold(d, own) {
			own = ""
			break
		}
		own = d
	}
	made, _ := rw.ForwardAs(own, sender, now)
	return made
}

// A senderKind is what is known of a message's sender. It is found out once for a batch of
// recipients, as the sender is the same for all.
type senderKind uint8

const (
	senderUnknown senderKind = iota
	senderOurs               // of one of our domains, or not to be rewritten
	senderForeign
)

// mark notes for a recipient outside whether its sender is to be rewritten. It returns false
// when the resolver would have to be asked, and l must not wait. When it cannot be found out, the
// recipient is deferred: sent under the wrong sender, the message could be refused for
// good.
func (s *Server) mark(l *loading, r *loadedRcpt) bool {
	rw := s.opt.Settings.rewriting
	if rw == nil || !rw.concerns(&l.env, &r.rcpt.Recipient) {
		return true
	}
	if l.sender == senderUnknown {
		ans, known := s.opt.Resolver.Known(l.env.Sender)
		// The list may have tables, which are not to be waited for either.
		if !l.asks && (!known || !rw.exclude.Empty()) {
			return false
		}
		kind, err := s.senderKind(l, rw, ans, known)
		if err != nil {
			if s.ctx.Err() == nil && !l.unresolved {
				l.unresolved = true
				s.opt.Log.Warning("%s: whether the sender is to be rewritten is not known: %v", l.id, err)
			}
			r.Transport, r.Nexthop = sched.RetryTransport, "4.3.0 address resolver failure"
			return true
		}
		l.sender = kind
	}
	r.rcpt.rewrite = l.sender == senderForeign
	return true
}

// senderKind finds out whose the sender of l is. ans is the resolver's answer, if it is
// known.
func (s *Server) senderKind(l *loading, rw *rewriting, ans proto.ResolveReply, known bool) (senderKind, error) {
	var err error
	if !known {
		if ans, err = s.askResolver(l, l.env.Sender); err != nil {
			return senderUnknown, err
		}
	}
	if ans.Flags&proto.ResolveFail != 0 {
		return senderUnknown, fmt.Errorf("trivial-rewrite cannot resolve %s", s.opt.Log.Address(l.env.Sender))
	}
	// The class is that of the address as a recipient. One that no mail can be sent to is left
	// alone.
	if ans.Flags&proto.ResolveDefault == 0 || ans.Flags&proto.ResolveError != 0 {
		return senderOurs, nil
	}
	excluded, err := rw.exclude.Match(s.ctx, rfc5322.Domain(l.env.Sender))
	switch {
	case err != nil:
		return senderUnknown, err
	case excluded:
		return senderOurs, nil
	}
	return senderForeign, nil
}
