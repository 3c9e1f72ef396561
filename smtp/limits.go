package smtp

import (
	"context"
	"strconv"
	"strings"
)

// peerLimits are what a server says in LIMITS (RFC 9422) that it accepts. What it does not say
// is 0. A server may say something else after each EHLO: only what it said last holds.
type peerLimits struct {
	mails int // MAILMAX: transactions in the session
	rcpts int // RCPTMAX: recipients of a transaction
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
		default:
			continue // RCPTDOMAINMAX too: a server that has one says so to each recipient
		}
		if n := limitValue(value); n > 0 && (*to == 0 || n < *to) {
			*to = n
		}
	}
	return l
}

// limitValue reads a number of one to six digits, of which the first is not 0; 0 is anything else.
func limitValue(text string) int {
	if len(text) == 0 || len(text) > 6 || text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return 0
	}
	n, _ := strconv.Atoi(text)
	return n
}

// exhausted says that the server takes no more transactions in this session.
func (s *session) exhausted() bool { return s.limits.mails > 0 && s.mails >= s.limits.mails }

// transactAll sends the message to all recipients that are left, in as many transactions as the
// server wants and the session has: those who come too late for that are d.waiting, and nothing
// has been said to them. What it returns is what transact returns.
func (d *delivery) transactAll(ctx context.Context, s *session) *failure {
	todo := d.waiting
	if d.waiting, d.more = nil, false; todo == nil {
		if todo = d.left(); s.limits.rcpts == 0 || len(todo) <= s.limits.rcpts {
			return d.transact(ctx, s, todo)
		}
		todo = append([]int(nil), todo...) // left is asked for others while these wait
	}
	for len(todo) > 0 {
		n := len(todo)
		if s.limits.rcpts > 0 {
			n = min(n, s.limits.rcpts)
		}
		now, later := todo[:n], todo[n:]
		d.more = len(later) > 0 && (s.limits.mails == 0 || s.mails+1 < s.limits.mails)
		if f := d.transact(ctx, s, now); f != nil || len(later) == 0 {
			return f
		}
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
