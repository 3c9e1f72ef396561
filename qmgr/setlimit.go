// Limits that operators set of destinations' windows for now ("posthaste limit"), beside
// destination_concurrency_limit. The store of overrides keeps them; here they are given to
// the scheduler, which has windows keep to them, and put into words.

package qmgr

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// setLimits replaces the limits, and tells the scheduler. list is sorted: of the limits that
// name a destination, the narrowest counts.
func (s *Server) setLimits(list []*rule) {
	if len(list) == 0 && s.rules.limits == nil {
		return
	}
	slices.SortFunc(list, func(a, b *rule) int { return a.target.Compare(b.target) })
	// A ruleset finds the first of its rules that means the mail, and so the narrowest limit. It
	// is never changed: the function below may be called until there is another.
	s.rules.limits = newRuleset(list)
	s.tellLimits()
}

// tellLimits tells the scheduler of all limits that are not the configuration's: what operators have set, and what
// other nodes leave (nodes.go).
func (s *Server) tellLimits() {
	limits := s.operatorLimits()
	if s.nodes != nil {
		limits = s.nodes.within(s, limits)
	}
	s.then(sched.Event{Kind: sched.EventLimits, Limits: limits})
}

// operatorLimits is what operators have set; nil: nothing.
func (s *Server) operatorLimits() sched.SetLimits {
	set := s.rules.limits
	if set == nil {
		return nil
	}
	return func(transport mail.Transport, nexthop mail.Nexthop) (int, bool) {
		if r := limitOf(set, transport, nexthop); r != nil {
			return r.order.Most, r.order.Raises
		}
		return 0, false
	}
}

// limitOf is the limit of a destination; nil: it has none. The destinations of retry and error
// are reasons and have none. The set has limits whose time was not over when it was made: the
// answer does not change until there is another set.
func limitOf(set *ruleset, transport mail.Transport, nexthop mail.Nexthop) *rule {
	if set == nil || transport == sched.RetryTransport || transport == sched.ErrorTransport {
		return nil
	}
	return set.find(&selection.Mail{Transport: string(transport), Nexthop: string(nexthop)}, time.Time{})
}

// limitFor is the limit of the destination that a recipient's mail goes to, for listings: nil
// when there is none, or when that could only be told by asking the resolver. It may be called
// outside the loop.
func (s *Server) limitFor(set *ruleset, env *mail.Envelope, addr string) *rule {
	if set == nil {
		return nil
	}
	transport, nexthop, _, _ := s.routeKnown(env, addr)
	return limitOf(set, transport, nexthop)
}

// judgeLimit says what is wrong with a limit. One that would not change anything is refused:
// whoever orders it believes that it does.
func (s *Server) judgeLimit(target selection.Target, e *override.Entry) error {
	switch {
	case !target.IsDestination():
		return errors.New("a limit is of next hops: it must be a destination, a domain, .domain, [host]:port, transport:nexthop, transport: or *")
	case e.Most == 0:
		return errors.New("a limit of 0 would be a suspension: use \"posthaste suspend\"")
	case e.Most < 0 || e.Most > override.MaxMost:
		return fmt.Errorf("a limit is a number from 1 to %d", override.MaxMost)
	case e.Raises:
		return nil
	}
	if least, lowers := s.configured(target, e.Most); !lowers {
		return fmt.Errorf("main.cf allows %s no more than %d at a time (destination_concurrency_limit), so that a limit of %d would change nothing; with --raise it counts",
			target.Name(), least, e.Most)
	}
	return nil
}

// configured is the largest limit that main.cf has for the destinations that are meant, and
// says whether one of them would be lowered by n: those of the transport that is named, or
// those in memory, or else those of a transport without settings of its own.
func (s *Server) configured(target selection.Target, n int) (largest int, lowers bool) {
	// A destination without a limit in main.cf is lowered by any.
	look := func(transport mail.Transport) {
		limit := s.concurrencyLimit(transport)
		largest, lowers = max(largest, limit), lowers || limit == 0 || n < limit
	}
	if t := target.Transport(); t != "" {
		look(mail.Transport(t))
		return largest, lowers
	}
	look("") // what is not in memory now may come
	s.sched.Dests(func(d sched.Dest) bool {
		if s.means(target, &d) {
			look(d.Transport)
		}
		return true
	})
	return largest, lowers
}

// concurrencyLimit is what main.cf has for the destinations of a transport, of one without
// settings of its own if it has no name.
func (s *Server) concurrencyLimit(transport mail.Transport) int {
	c := &s.opt.Settings.Sched
	if transport == "" || c.Transport == nil {
		return c.DefaultTransports.ConcurrencyLimit
	}
	return c.Transport(transport, c.DefaultTransports).ConcurrencyLimit
}

// means says whether a limit of the target would be for a destination in memory.
func (s *Server) means(target selection.Target, d *sched.Dest) bool {
	return d.Transport != sched.RetryTransport && d.Transport != sched.ErrorTransport &&
		target.Match(&selection.Mail{Transport: string(d.Transport), Nexthop: string(d.Nexthop)})
}

// limitUse is what a limit of the target would be for now.
func (s *Server) limitUse(target selection.Target) (u proto.OverrideUse) {
	s.sched.Dests(func(d sched.Dest) bool {
		if s.means(target, &d) {
			addUse(&u, &d)
		}
		return true
	})
	return u
}

// limitUses is what each limit in force is for now: the destinations for which it is the one
// that counts.
func (s *Server) limitUses() map[string]proto.OverrideUse {
	uses := make(map[string]proto.OverrideUse)
	if s.rules.limits == nil {
		return uses
	}
	s.sched.Dests(func(d sched.Dest) bool {
		if r := limitOf(s.rules.limits, d.Transport, d.Nexthop); r != nil {
			u := uses[r.target.String()]
			addUse(&u, &d)
			uses[r.target.String()] = u
		}
		return true
	})
	return uses
}

// addUse counts a destination.
func addUse(u *proto.OverrideUse, d *sched.Dest) {
	u.Destinations++
	u.Busy += d.Busy
	u.Todo += d.Todo
}

// limitReason is what mailq says of mail that has no other reason to wait. Operators wrote a
// part of it, so it is cleaned of control characters.
func (r *rule) limitReason() string {
	text := fmt.Sprintf("%s is limited to %d at a time", r.target.Subject(), r.order.Most)
	if r.order.Reason != "" {
		text += ": " + r.order.Reason
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}

// limitText is a limit in words, for explain, with the way to end it.
func (r *rule) limitText() string {
	e := &r.order
	text := fmt.Sprintf("%s is limited to %d at a time", r.target.Subject(), e.Most)
	if e.Raises {
		text += ", whatever main.cf allows,"
	}
	text += fmt.Sprintf(" by %s since %s", e.By, e.Since.Local().Format(time.DateTime))
	// Whoever reads this may be the one who has to end it.
	if e.Until.IsZero() {
		text += ", until \"posthaste unlimit " + r.target.Option() + "\""
	} else {
		text += " until " + e.Until.Local().Format(time.DateTime)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}
