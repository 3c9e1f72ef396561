// LIMITS (RFC 9422): how much a server takes in a session and in a transaction, and how
// the recipients of a message are divided among several of them.

package smtp

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"posthaste/internal/rfc5322"
)

// peerLimits are what a server says in LIMITS (RFC 9422) that it accepts. What it does not say
// is 0. A server may say something else after each EHLO: only what it said last holds.
type peerLimits struct {
	mails   int // MAILMAX: transactions in the session
	rcpts   int // RCPTMAX: recipients of a transaction
	domains int // RCPTDOMAINMAX: domains of recipients in the session
}

// parseLimits reads the arguments of LIMITS. A limit that is unknown or malformed does not count,
// and takes no other with it (RFC 9422 section 4); of one that comes twice the smaller does.
func parseLimits(args string) (l peerLimits) {
	for word := range strings.FieldsSeq(args) {
		name, value, _ := strings.Cut(word, "=")
		var to *int
		switch strings.ToUpper(name) {
		case "MAILMAX":
			to = &l.mails
		case "RCPTMAX":
			to = &l.rcpts
		case "RCPTDOMAINMAX":
			to = &l.domains
		default:
			continue
		}
		// With the larger of two values we would run into the smaller.
		if n := limitValue(value); n > 0 && (*to == 0 || n < *to) {
			*to = n
		}
	}
	return l
}

// limitValue reads a number of one to six digits, of which the first is not 0, as
// RFC 9422 section 4 has them; 0 is anything else.
func limitValue(text string) int {
	if len(text) == 0 || len(text) > 6 || text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return 0
	}
	n, _ := strconv.Atoi(text)
	return n
}

// exhausted says that the server takes no more transactions in this session. It
// must not be kept.
func (s *session) exhausted() bool { return s.limits.mails > 0 && s.mails >= s.limits.mails }

// transactAll sends the message to all recipients that are left, in as many transactions as the
// server wants and the session has: those who come too late for that are d.waiting, and nothing
// has been said to them. What it returns is what transact returns.
func (d *delivery) transactAll(ctx context.Context, s *session) *failure {
	d.boundRecipients(s)
	todo := d.waiting
	if d.waiting, d.more = nil, false; todo == nil {
		todo = d.left()
		if s.limits.domains == 0 && (s.limits.rcpts == 0 || len(todo) <= s.limits.rcpts) {
			return d.transact(ctx, s, todo)
		}
		todo = append([]int(nil), todo...) // left is asked for others while these wait
	}
	for len(todo) > 0 {
		// Recipients keep their order, so that the log of a large message can be
		// read.
		now, later := d.portion(s, todo)
		if len(now) == 0 { // the session has had the domains that it may have
			d.waiting = later
			return nil
		}
		d.more = len(later) > 0 && (s.limits.mails == 0 || s.mails+1 < s.limits.mails) && d.fits(s, later)
		if f := d.transact(ctx, s, now); f != nil || len(later) == 0 {
			return f
		}
		// The connection is gone: those who are left were never named to the
		// server, and another one may take them.
		if s.broke != nil {
			f := *s.broke
			f.text, _, _ = strings.Cut(f.text, mayRepeat) // nothing was sent for these
			d.fail(&f, later)
			return nil
		}
		if s.bad || s.exhausted() {
			d.waiting = later
			return nil
		}
		todo = later
	}
	return nil
}

// portion divides recipients into those whom the session's next transaction may have, whose
// domains count from now on, and those for a later one. Both are in the order of todo.
func (d *delivery) portion(s *session, todo []int) (now, later []int) {
	most := len(todo)
	if s.limits.rcpts > 0 {
		most = min(most, s.limits.rcpts)
	}
	if s.limits.domains == 0 {
		return todo[:most], todo[most:]
	}
	for k, i := range todo {
		if len(now) == most {
			return now, append(later, todo[k:]...)
		}
		if s.takes(d.wireDomain(i), true) {
			now = append(now, i)
		} else {
			later = append(later, i)
		}
	}
	return now, later
}

// fits says whether the session takes one of these recipients as well: if not, they
// need another one.
func (d *delivery) fits(s *session, rcpts []int) bool {
	return s.limits.domains == 0 || slices.ContainsFunc(rcpts, func(i int) bool { return s.takes(d.wireDomain(i), false) })
}

// takes says whether RCPT may name the domain in this session (RFC 9422). With
// name, RCPT is about to name it, and the domain counts from now on.
func (s *session) takes(domain string, name bool) bool {
	if slices.Contains(s.domains, domain) {
		return true
	}
	if len(s.domains) >= s.limits.domains {
		return false
	}
	if name {
		s.domains = append(s.domains, domain)
	}
	return true
}

// wireDomain is the domain of a recipient as RCPT is going to have it, in lower case. Where
// smtp_generic_maps cannot be asked it is the recipient's own; transact tells of that.
func (d *delivery) wireDomain(i int) string {
	addr, rules := d.env.Recipients[i].Address, d.a.rules
	if !rules.generic.Empty() {
		if to, err := rules.mapAddress(context.Background(), addr); err == nil {
			addr = to
		}
	}
	return strings.ToLower(rfc5322.Domain(addr))
}
