package qmgr

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// What is not to be tried for now: suspensions, which operators order and the
// store of overrides keeps, and queue_only_destinations. Both are rules that
// recipients are compared with when they are loaded, and pauses to the scheduler.

// statusPaused is that of mail that waits by somebody's choice.
var statusPaused = dsn.S(4, 3, 2)

// A rule says for whom mail is not tried. It is not changed once it is made.
type rule struct {
	id        sched.PauseID
	dest      selection.Destination
	suspended override.Entry // of a suspension
	queueOnly bool
}

// rules belong to the loop. The list is replaced, never changed, and so may be
// read elsewhere by who has got it from the loop.
type rules struct {
	list []*rule
	last sched.PauseID
}

// find is the rule that is for mail by a transport to a next hop for an address.
func findRule(list []*rule, transport, nexthop, domain string, now time.Time) *rule {
	for _, r := range list {
		if !r.suspended.Over(now) && r.dest.Match(transport, nexthop, domain) {
			return r
		}
	}
	return nil
}

// pauseFor is the pause for a recipient; 0: there is none.
func (s *Server) pauseFor(r *sched.Rcpt, addr string) sched.PauseID {
	if r.Transport == sched.RetryTransport || r.Transport == sched.ErrorTransport {
		return 0
	}
	if rule := findRule(s.rules.list, string(r.Transport), string(r.Nexthop), rfc5322.Domain(addr), s.now); rule != nil {
		return rule.id
	}
	return 0
}

// setRules makes rules of the overrides and of queue_only_destinations, and
// tells the scheduler.
func (s *Server) setRules(entries []override.Entry) {
	old := s.rules.list
	s.rules.list = nil
	for _, e := range entries {
		if e.Kind != override.Suspension {
			continue
		}
		dest, err := selection.ParseDestination(e.Target)
		if err != nil {
			s.opt.Log.Warning("override: %v", err)
			continue
		}
		r := &rule{dest: dest, suspended: e}
		same := func(o *rule) bool {
			return o.suspended.Target == e.Target && o.suspended.Until.Equal(e.Until) && !o.queueOnly
		}
		if i := slices.IndexFunc(old, same); i >= 0 {
			r.id = old[i].id
		} else {
			s.rules.last++
			r.id = s.rules.last
		}
		s.rules.list = append(s.rules.list, r)
	}
	for _, d := range s.opt.Settings.queueOnly {
		r := &rule{dest: d, queueOnly: true}
		same := func(o *rule) bool { return o.queueOnly && o.dest == d }
		if i := slices.IndexFunc(old, same); i >= 0 {
			r.id = old[i].id
		} else {
			s.rules.last++
			r.id = s.rules.last
		}
		s.rules.list = append(s.rules.list, r)
	}
	if len(s.rules.list) == 0 && len(old) == 0 {
		return
	}
	var pauses []sched.Pause
	for _, r := range s.rules.list {
		pauses = append(pauses, sched.Pause{ID: r.id, Until: r.suspended.Until, Flush: r.queueOnly, Status: statusPaused, Reason: r.reason()})
	}
	s.then(sched.Event{Kind: sched.EventPauses, Pauses: pauses})
	s.pauseActive()
}

// pauseActive has what waits in the active queue and must not be tried parked.
func (s *Server) pauseActive() {
	for num, m := range s.messages {
		if m.active == nil {
			continue
		}
		var list []sched.Rcpt
		s.sched.Waiting(num, func(r sched.Rcpt) {
			if rc := m.active.rcpt(r.Index); rc != nil {
				if r.Pause = s.pauseFor(&r, rc.resolved); r.Pause != 0 {
					list = append(list, r)
				}
			}
		})
		if len(list) > 0 {
			s.then(sched.Event{Kind: sched.EventPause, ID: num, Rcpts: list})
		}
	}
}

// reason is what is recorded and logged of the mail that waits.
func (r *rule) reason() string {
	if r.queueOnly {
		return "destination is queue-only: waiting for ETRN"
	}
	text := "delivery to " + r.dest.String() + " is suspended"
	if r.suspended.Reason != "" {
		text += ": " + r.suspended.Reason
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}

// text is the rule in words, for explain.
func (r *rule) text() string {
	if r.queueOnly {
		return fmt.Sprintf("%s is queue-only (queue_only_destinations): ETRN, postqueue -s or a flush starts it", r.dest)
	}
	e := &r.suspended
	text := fmt.Sprintf("%s is suspended by %s since %s", r.dest, e.By, e.Since.Local().Format(time.DateTime))
	if e.Until.IsZero() {
		text += ", until \"posthaste queue resume " + r.dest.String() + "\""
	} else {
		text += " until " + e.Until.Local().Format(time.DateTime)
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return string(maillog.AppendClean(nil, []byte(text)))
}

// rule finds a rule by its number; nil when it is no longer in force.
func (s *Server) ruleOf(id sched.PauseID) *rule {
	if i := slices.IndexFunc(s.rules.list, func(r *rule) bool { return r.id == id }); i >= 0 {
		return s.rules.list[i]
	}
	return nil
}

// ownDelay is how often a queue manager tries to become the owner of the
// overrides while its predecessor still is.
const ownDelay = 100 * time.Millisecond

// recall puts the overrides in force that are on record. It runs once, before the loop.
func (s *Server) recall() {
	var entries []override.Entry
	if st := s.opt.Overrides; st != nil {
		entries = st.Entries(time.Now())
		if !st.Owner() {
			s.tasks.Go(s.succeed)
		}
	}
	s.post(func() { s.setRules(entries) }, sched.Event{})
}

// succeed waits until the former queue manager has left the overrides to this one.
func (s *Server) succeed() {
	t := time.NewTicker(ownDelay)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-s.ctx.Done():
			return
		}
		became, err := s.opt.Overrides.Own()
		if err != nil {
			s.opt.Log.Error("overrides: %v", err)
		}
		if became {
			entries := s.opt.Overrides.Entries(time.Now())
			s.post(func() { s.setRules(entries) }, sched.Event{})
			return
		}
	}
}

// fromOperator answers an Override.
func (s *Server) fromOperator(r *ipc.Request) {
	q := new(proto.Override)
	if err := r.Decode(q); err != nil {
		r.Fail("%v", err)
		return
	}
	store := s.opt.Overrides
	if store == nil {
		r.Reply(&proto.OverrideReply{Refused: "the overrides cannot be kept: the log says why"})
		return
	}
	if q.Op == proto.OverrideList {
		s.ask(r, func() { r.Reply(s.listOverrides(store)) })
		return
	}
	// The disk is written to beside the loop.
	s.ask(r, func() { s.tasks.Go(func() { s.override(r, q, store) }) })
}

func (s *Server) override(r *ipc.Request, q *proto.Override, store *override.Store) {
	var reply proto.OverrideReply
	now := time.Now()
	e := override.Entry{Kind: override.Kind(q.Entry.Of), Target: q.Entry.Target, By: q.Entry.By, Reason: q.Entry.Reason,
		Since: now.Truncate(time.Second), Until: q.Entry.Until}
	dest, err := selection.ParseDestination(e.Target)
	switch {
	case err != nil:
	case dest.String() != e.Target:
		err = fmt.Errorf("the destination must be written as %s", dest)
	case e.Kind != override.Suspension:
		err = fmt.Errorf("there is no kind of override %q", e.Kind)
	case q.Op == proto.OverridePut:
		if e.Over(now) {
			err = errors.New("its end lies in the past")
		} else {
			err = store.Put(e, now)
		}
	case q.Op == proto.OverrideRemove:
		reply.Found, err = store.Remove(e.Kind, e.Target, now)
	default:
		err = fmt.Errorf("unknown operation %d", q.Op)
	}
	if err != nil {
		reply.Refused = err.Error()
		r.Reply(&reply)
		return
	}
	entries := store.Entries(now)
	s.post(func() {
		switch {
		case q.Op == proto.OverridePut:
			s.opt.Log.Log(maillog.Suspended{Destination: e.Target, By: e.By, Reason: e.Reason, Until: e.Until})
		case reply.Found:
			s.opt.Log.Log(maillog.Resumed{Destination: e.Target, By: e.By})
		}
		s.setRules(entries)
		r.Reply(&reply)
	}, sched.Event{})
}

// listOverrides says what is in force, and how much waits for it.
func (s *Server) listOverrides(store *override.Store) *proto.OverrideReply {
	waiting := make(map[sched.PauseID]int)
	s.sched.Sites(func(i sched.SiteInfo) bool {
		if i.Pause != 0 {
			waiting[i.Pause] += i.Waiting
		}
		return true
	})
	reply := new(proto.OverrideReply)
	for _, e := range store.Entries(s.now) {
		n := 0
		for _, r := range s.rules.list {
			if !r.queueOnly && r.suspended.Target == e.Target && e.Kind == override.Suspension {
				n = waiting[r.id]
			}
		}
		reply.Entries = append(reply.Entries, proto.OverrideEntry{Of: string(e.Kind), Target: e.Target, By: e.By, Reason: e.Reason, Since: e.Since, Until: e.Until})
		reply.Waiting = append(reply.Waiting, n)
	}
	return reply
}
