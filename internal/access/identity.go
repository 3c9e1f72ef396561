// The restrictions on who somebody is: the user who has logged in, the certificate, the
// domain that speaks for the client (SPF), and whether an address can be reached.

package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/proto"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// Senders and those who are logged in: smtpd_sender_login_maps.

// loginCheck is one of these restrictions. Where nobody can log in it is
// ignored, as Postfix does: a mistake would refuse the mail of everybody
// whose address has an owner.
func loginCheck(name string, c check) check {
	return func(r *run, ctx context.Context) verdict {
		if !r.e.sasl {
			r.e.log.Warning("restriction `%s' ignored: no SASL support", name)
			return dunno
		}
		return c(r, ctx)
	}
}

// rejectLoginMismatch is reject_sender_login_mismatch.
func (r *run) rejectLoginMismatch(ctx context.Context) verdict {
	if r.s.SASL.Username != "" {
		return r.rejectAuthMismatch(ctx)
	}
	return r.rejectUnauthMismatch(ctx)
}

// owners is who may use the sender address, as smtpd_sender_login_maps has it.
// found is false for an address that nobody owns.
func (r *run) owners(ctx context.Context) (list string, found bool, v verdict) {
	// The table has addresses as they are after rewriting: user and user@mydomain
	// are one address.
	a, v := r.resolvedOr(ctx, r.s.Sender)
	if v == refused {
		return "", false, v
	}
	list, _, found, err := r.e.loginMaps.LookupAddress(ctx, &r.e.search, a.Recipient, table.KeysDefault)
	if err != nil {
		r.e.log.Warning("%v", err)
		return "", false, r.lookupFailed(r.s.Sender)
	}
	return list, found, dunno
}

// rejectAuthMismatch is reject_authenticated_sender_login_mismatch.
func (r *run) rejectAuthMismatch(ctx context.Context) verdict { return r.mismatch(ctx, false) }

// rejectKnownMismatch is reject_known_sender_login_mismatch, for addresses that
// somebody owns: nobody else may use them, logged in or not.
func (r *run) rejectKnownMismatch(ctx context.Context) verdict {
	if r.s.SASL.Username == "" {
		return r.rejectUnauthMismatch(ctx)
	}
	return r.mismatch(ctx, true)
}

// mismatch refuses an address that the user does not own. known leaves
// addresses alone that nobody owns.
func (r *run) mismatch(ctx context.Context, known bool) verdict {
	user := r.s.SASL.Username
	if user == "" || !r.s.HasSender || r.s.Sender == "" {
		return dunno
	}
	list, found, v := r.owners(ctx)
	if v == refused {
		return v
	}
	// Nobody owns the address. reject_known_sender_login_mismatch leaves it to
	// other restrictions.
	if !found && known {
		return dunno
	}
	for _, owner := range table.SplitList(list) {
		if strings.EqualFold(owner, user) {
			return dunno
		}
	}
	// Without an entry in the table nobody owns the address, and a user who has
	// logged in may not use it.
	return r.refuseFor(r.s.Sender, classSender, 553, dsn.S(5, 7, 1), "not owned by user "+user)
}

// rejectUnauthMismatch is reject_unauthenticated_sender_login_mismatch: an address
// that somebody owns is not for strangers.
func (r *run) rejectUnauthMismatch(ctx context.Context) verdict {
	if r.s.SASL.Username != "" || !r.s.HasSender || r.s.Sender == "" {
		return dunno
	}
	_, found, v := r.owners(ctx)
	if v == refused || !found {
		return v
	}
	return r.refuseFor(r.s.Sender, classSender, 553, dsn.S(5, 7, 1), "not logged in")
}

// Client certificates.

// ccertCheck is check_ccert_access: type:table, or the same in braces with
// search_order. Only fingerprints are looked up: nobody need vouch for a
// certificate, so that the names in it may be anybody's.
func ccertCheck(e *Evaluator, arg string) (check, error) {
	words, err := config.SplitList(arg) // an attribute may be in braces
	if err != nil {
		return nil, err
	}
	if len(words) == 0 {
		return nil, errors.New("expected type:table")
	}
	spec := words[0]
	order := []string{"cert_fingerprint", "pubkey_fingerprint"}
	for _, attr := range words[1:] {
		name, value, _ := strings.Cut(attr, "=")
		if name = strings.TrimSpace(name); !strings.EqualFold(name, "search_order") {
			return nil, fmt.Errorf("unknown attribute %q: expected search_order", name)
		}
		order = table.SplitList(value)
	}
	for _, o := range order {
		switch o {
		case "cert_fingerprint", "pubkey_fingerprint":
		default:
			return nil, fmt.Errorf("search_order: unknown element %q", o)
		}
	}
	return tableCheck(func(r *run, ctx context.Context, m *table.Maps) verdict {
		t := r.s.TLS
		if t == nil || t.Fingerprint == "" {
			return dunno
		}
		for _, o := range order {
			key := t.Fingerprint
			if o == "pubkey_fingerprint" {
				key = t.PubKeyPrint
			}
			value, found, err := m.Lookup(ctx, key, false)
			if v, _ := r.found(ctx, m, value, found, err, cmp.Or(t.Subject, key), classCert); v != dunno || r.s.Effects.Discard {
				return v
			}
		}
		return dunno
	})(e, spec)
}

// rejectSPF refuses a client that the sender's domain says may not send its
// mail (RFC 7208 section 8.4). What DNS does not tell now is put off.
func (r *run) rejectSPF(ctx context.Context) verdict {
	if !r.s.HasSender || !r.s.Addr.IsValid() {
		return dunno
	}
	reply := r.e.spf.RejectSPF(ctx, r.s.Addr, r.s.Helo, r.s.Sender)
	switch {
	case reply == nil:
		return dunno
	case reply.Code/100 == 4:
		return r.deferIfPermit("", reply.Code, reply.Status, rejected(r.s.Sender, classSender, reply.Text))
	}
	return r.refuseFor(r.s.Sender, classSender, reply.Code, reply.Status, reply.Text)
}

// Address probes.

// rejectUnverifiedSender is reject_unverified_sender.
func (r *run) rejectUnverifiedSender(ctx context.Context) verdict {
	if !r.s.HasSender || r.s.Sender == "" {
		return dunno
	}
	return r.unverified(ctx, r.s.Sender, classSender)
}

// rejectUnverifiedRcpt is reject_unverified_recipient.
func (r *run) rejectUnverifiedRcpt(ctx context.Context) verdict {
	if !r.s.HasRcpt {
		return dunno
	}
	return r.unverified(ctx, r.s.Recipient, classRcpt)
}

// unverified asks the verify service, and waits a little for the outcome of a probe
// that is under way: address_verify_poll_count times, address_verify_poll_delay
// apart. A client that comes back later finds the outcome in the service's cache.
func (r *run) unverified(ctx context.Context, addr string, cl class) verdict {
	if r.e.verify == nil {
		r.e.log.Warning("address verification is required, but master.cf has no verify service")
		return r.misconfigured()
	}
	prefix, status, action, reason := "unverified_recipient", dsn.S(4, 1, 1), r.e.tempfail.rcpt, r.e.rcptReason
	if cl == classSender {
		prefix, status, action, reason = "unverified_sender", dsn.S(4, 1, 7), r.e.tempfail.sender, r.e.senderReason
	}
	a, v := r.resolvedOr(ctx, addr)
	if v == refused {
		return v
	}
	// The text is what the log has if the probe takes longer than we wait.
	found, text := proto.ProbeTodo, "Address verification in progress"
	for try := 0; try < max(1, r.e.pollCount); try++ {
		if try > 0 && !wait(ctx, r.e.pollDelay) {
			break
		}
		var err error
		if found, text, err = r.e.verify.Probe(ctx, a.Recipient); err != nil {
			r.e.log.Warning("address verification: %v", err)
			return r.deferIfPermit(action, 450, status, rejected(addr, cl, "address verification problem"))
		}
		if trace := table.TraceOf(ctx); trace != nil {
			trace.Sent("request", "query", "address", a.Recipient)
			trace.Received("status", "0", "recipient_status", strconv.Itoa(int(found)), "reason", text)
		}
		if found != proto.ProbeTodo {
			break
		}
	}
	code := 0
	switch found {
	case proto.ProbeOK:
		return dunno
	case proto.ProbeBounce:
		code = r.e.cfg.Int(prefix + "_reject_code")
	default:
		code = r.e.cfg.Int(prefix + "_defer_code")
	}
	text = smtpwire.Printable(cmp.Or(reason, text))
	switch code / 100 {
	case 2:
		return dunno // to be known, not to be refused
	case 4:
		return r.deferIfPermit(action, code, status, rejected(addr, cl, "unverified address: "+clip(text, 250)))
	}
	return r.refuseFor(addr, cl, code, status, "undeliverable address: "+text)
}

// wait waits for d, and says whether it has: false when ctx has ended before.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
