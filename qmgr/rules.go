package qmgr

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// What is not to be tried for now: suspensions, which operators order and the
// store of overrides keeps, and queue_only_destinations. Both are rules that
// recipients are compared with when they are loaded, and pauses to the scheduler.

// statusPaused is that of mail that waits by somebody's choice.
var statusPaused = dsn.S(4, 3, 2)

// A rule says which mail is not tried, or of a set of limits (setlimit.go) which
// destinations have one. It is never changed once it is made, so it may be
// read anywhere.
type rule struct {
	// The number by which the scheduler knows it.
	id     sched.PauseID
	target selection.Target
	// Who ordered it, why and until when, and of a limit the number; zero for a queue-only
	// destination.
	order override.Entry
	// Of a diversion: where mail goes instead.
	to hop
	// From queue_only_destinations: a flush overrides it, and it never ends by itself.
	queueOnly bool
}

// over says whether the rule has ended by itself.
func (r *rule) over(now time.Time) bool { return r.order.Over(now) }

// A ruleset is all rules, in the order in which they count: suspensions come first. It is
// never changed once it is made, and may be read outside the loop. nil is the empty set.
type ruleset struct {
	// Most suspensions name one domain, next hop or sender: they are found by that key. A
	// ruleset with thousands of them costs a recipient only a few lookups.
	list  []*rule
	byKey map[string][]int // positions in list of those that have a key
	rest  []int            // and of those that have none
}

// newRuleset makes a ruleset of list; nil when that is empty.
func newRuleset(list []*rule) *ruleset {
	if len(list) == 0 {
		return nil
	}
	rs := &ruleset{list: list, byKey: make(map[string][]int)}
	for i, r := range list {
		if key := r.target.Key(); key != "" {
			rs.byKey[key] = append(rs.byKey[key], i)
		} else {
			rs.rest = append(rs.rest, i)
		}
	}
	return rs
}

// find is the first rule that applies to the mail; nil: there is none. Rules that have
// ended are passed over: endRules removes them a little later.
func (rs *ruleset) find(m *selection.Mail, now time.Time) *rule {
	if rs == nil {
		return nil
	}
	first := len(rs.list)
	look := func(among []int) {
		for _, i := range among {
			if i >= first {
				return
			}
			if r := rs.list[i]; !r.over(now) && r.target.Match(m) {
				first = i
			}
		}
	}
	// Those without a key (patterns, for example) must be tried one by one. Positions
	// decide, so that the outcome is that of a walk over the list.
	look(rs.rest)
	for key := range m.Keys {
		look(rs.byKey[key])
	}
	if first == len(rs.list) {
		return nil
	}
	return rs.list[first]
}

// all are the rules in order.
func (rs *ruleset) all() []*rule {
	if rs == nil {
		return nil
	}
	return rs.list
}

// rules are the rules in force and what is needed to replace them. They belong to the
// loop.
type rules struct {
	set *ruleset // nil: there are none
	// Limits that operators have set of destinations' windows; nil: there are none.
	limits *ruleset
	// Diversions that operators have ordered; nil: there are none. They are read by whoever finds
	// out where mail goes, in any goroutine.
	diversions atomic.Pointer[ruleset]
	// By which mail is returned to its senders, as diversions are; nil: there are none (returns.go).
	returns atomic.Pointer[ruleset]
	// The pauses that the scheduler has been told of last.
	pauses []sched.Pause
	// The last number given; numbers are never used again.
	last sched.PauseID
	// How often the rules have changed: what was found out under others does not hold. Any goroutine may read it.
	changes atomic.Uint64
	moved   string    // a site that mail has left: mail that is parked for it is looked at anew
	endAt   time.Time // when the first suspension, limit or diversion ends by itself; zero: none does
}

// pauseFor is the pause that applies to a recipient; 0: there is none. Mail that is
// deferred or returned by the queue manager itself is not delivered anywhere, and so is
// never paused.
func (s *Server) pauseFor(r *sched.Rcpt, env *mail.Envelope, addr string) sched.PauseID {
	if s.rules.set == nil || r.Transport == sched.RetryTransport || r.Transport == sched.ErrorTransport {
		return 0
	}
	m := mailOf(env, r.Transport, r.Nexthop, addr)
	m.Site = placeOf(r)
	if rule := s.rules.set.find(&m, s.now); rule != nil {
		return rule.id
	}
	return 0
}

// mailOf is one recipient of a message as rules look at it.
func mailOf(env *mail.Envelope, transport mail.Transport, nexthop mail.Nexthop, addr string) selection.Mail {
	return selection.Mail{Sender: env.Sender, Transport: string(transport), Nexthop: string(nexthop), Domain: rfc5322.Domain(addr),
		Tenant: env.Tenant, Campaign: env.Campaign}
}

// ruleFor is the rule that applies to a recipient, for listings: nil when there is none,
// or when that could only be told by asking the resolver. It may be called outside the
// loop.
func (s *Server) ruleFor(rs *ruleset, env *mail.Envelope, addr string, now time.Time) *rule {
	if rs == nil {
		return nil
	}
	transport, nexthop, addr, _ := s.routeKnown(env, addr)
	if transport == sched.RetryTransport || transport == sched.ErrorTransport {
		return nil
	}
	m := mailOf(env, transport, nexthop, addr)
	m.Site = s.terms.unitOf(string(nexthop))
	return rs.find(&m, now)
}

// A ruleName identifies a rule over changes of the set. A rule with the same name keeps
// its number, so that mail that is parked for it stays parked.
type ruleName struct {
	target    string
	until     int64
	queueOnly bool
}

// name is r's ruleName.
func (r *rule) name() ruleName {
	return ruleName{r.target.String(), r.order.Until.UnixMicro(), r.queueOnly}
}

// setRules replaces the rules by those of the overrides and of queue_only_destinations,
// and tells the scheduler. Mail in the active queue is compared with them at once.
func (s *Server) setRules(entries []override.Entry) {
	// Behind all that follows: whoever reads the new count has seen all of the new rules.
	defer s.rules.changes.Add(1)
	old := make(map[ruleName]sched.PauseID)
	for _, r := range s.rules.set.all() {
		old[r.name()] = r.id
	}
	s.rules.endAt = time.Time{}
	list := s.rulesOf(entries, override.Suspension)
	s.setLimits(s.rulesOf(entries, override.Limit))
	s.setSettings(s.rulesOf(entries, override.Setting))
	// Where mail goes decides which of the rules is for it.
	diversions := s.rulesOf(entries, override.Diversion)
	// Behind the pauses: what goes another way is compared with these anew.
	defer s.setDiversions(diversions)
	returns := s.rulesOf(entries, override.Return)
	defer s.setReturns(returns)
	for _, t := range s.opt.Settings.queueOnly {
		list = append(list, &rule{target: t, queueOnly: true})
	}
	if len(list) == 0 && len(old) == 0 {
		return
	}
	pauses := make([]sched.Pause, len(list))
	for i, r := range list {
		// A new rule, or one with another end.
		if r.id = old[r.name()]; r.id == 0 || s.rules.moved != "" && r.target.Site() == s.rules.moved {
			s.rules.last++
			r.id = s.rules.last
		}
		pauses[i] = sched.Pause{ID: r.id, Until: r.order.Until, Flush: r.queueOnly, Status: statusPaused, Reason: r.reason(), Source: r.target.Source(), Place: r.target.Site()}
	}
	s.rules.set, s.rules.pauses = newRuleset(list), pauses
	s.then(sched.Event{Kind: sched.EventPauses, Pauses: pauses})
	s.pauseActive()
}

// sites are those that are suspended, for all mail or for a source.
func (rs *rules) sites() map[string]bool {
	var found map[string]bool
	for _, r := range rs.set.all() {
		if site := r.target.Site(); site != "" {
			if found == nil {
				found = make(map[string]bool)
			}
			found[site] = true
		}
	}
	return found
}

// renumber has mail that is parked for the suspension of a site compared with the rules anew.
func (s *Server) renumber(site string) {
	if s.opt.Overrides == nil {
		return
	}
	// A rule with another number is another one to the scheduler: what waits for the one of before is made due.
	// What still belongs there is parked again, without an attempt.
	s.rules.moved = site
	s.setRules(s.opt.Overrides.Entries(s.now))
	s.rules.moved = ""
}

// rulesOf makes rules of the overrides of a kind, and notes when the first of them ends.
func (s *Server) rulesOf(entries []override.Entry, kind override.Kind) (list []*rule) {
	for _, e := range entries {
		if e.Kind != kind {
			continue
		}
		target, err := selection.ParseTarget(e.Target)
		if err != nil {
			// It cannot be kept without knowing what it is about; the operator must
			// order it again.
			s.opt.Log.Warning("a %s is not understood, and does not hold: %v", kind, err)
			continue
		}
		list = append(list, &rule{target: target, order: e})
		if !e.Until.IsZero() && (s.rules.endAt.IsZero() || e.Until.Before(s.rules.endAt)) {
			s.rules.endAt = e.Until
		}
	}
	return list
}

// endRules drops the suspensions, limits and diversions whose time is over, and logs that. The scheduler
// releases the mail that waited for them by itself.
func (s *Server) endRules() {
	for _, r := range s.rules.set.all() {
		if r.over(s.now) {
			s.opt.Log.Log(maillog.Resumed{Target: r.target.String(), Subject: r.target.Subject()})
		}
	}
	for _, r := range s.rules.limits.all() {
		if r.over(s.now) {
			s.opt.Log.Log(maillog.Unlimited{Target: r.target.String(), Subject: r.target.Subject()})
		}
	}
	if set := s.auto.settings.Load(); set != nil {
		for _, r := range set.list {
			if r.over(s.now) {
				s.opt.Log.Log(maillog.Unset{Target: r.target.String(), Subject: r.target.Name(), Name: r.order.Name})
			}
		}
	}
	for _, r := range s.rules.returns.Load().all() {
		if r.over(s.now) {
			s.opt.Log.Log(maillog.ReturningOver{Target: r.target.String(), Subject: r.target.Mail()})
		}
	}
	for _, r := range s.rules.diversions.Load().all() {
		if r.over(s.now) {
			s.opt.Log.Log(maillog.Undiverted{Target: r.target.String(), Subject: r.target.Subject()})
		}
	}
	s.setRules(s.opt.Overrides.Entries(s.now))
	s.forgetActs()
}

// pauseActive has the scheduler park what waits in the active queue and must not be tried
// from now on. What an agent has is let be.
func (s *Server) pauseActive() {
	if s.rules.set == nil {
		return
	}
	for num, m := range s.messages {
		if m.active == nil {
			continue
		}
		var list []sched.Rcpt
		s.sched.Waiting(num, func(r sched.Rcpt) {
			if rc := m.active.rcpt(r.Index); rc != nil {
				if r.Pause = s.pauseFor(&r, &m.active.env, rc.resolved); r.Pause != 0 {
					list = append(list, r)
				}
			}
		})
		if len(list) > 0 {
			s.then(sched.Event{Kind: sched.EventPause, ID: num, Rcpts: list})
		}
	}
}

// reason is what is logged and recorded of the mail that waits. An operator wrote part of
// it, so it is cleaned of control characters.
func (r *rule) reason() string {
	if r.queueOnly {
		return "destination is queue-only: waiting for ETRN"
	}
	text := r.target.Subject() + " is suspended"
	if r.order.Reason != "" {
		text += ": " + r.order.Reason
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}

// text is the rule in words, for explain, with the way to end it.
func (r *rule) text() string {
	if r.queueOnly {
		return fmt.Sprintf("%s is queue-only (queue_only_destinations): ETRN, postqueue -s or a flush starts it", r.target)
	}
	e := &r.order
	text := fmt.Sprintf("%s is suspended by %s since %s", r.target.Name(), e.By, e.Since.Local().Format(time.DateTime))
	if e.Until.IsZero() {
		text += ", until \"posthaste resume " + r.target.Option() + "\""
	} else {
		text += " until " + e.Until.Local().Format(time.DateTime)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}

// ruleOf finds a rule by its number; nil when it is not in force any more.
func (s *Server) ruleOf(id sched.PauseID) *rule {
	list := s.rules.set.all()
	if i := slices.IndexFunc(list, func(r *rule) bool { return r.id == id && !r.over(s.now) }); i >= 0 {
		return list[i]
	}
	return nil
}
