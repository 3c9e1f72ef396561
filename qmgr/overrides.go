// Overrides: what operators order for now ("posthaste suspend", "limit", "divert", "bounce") and what
// outlives a restart. The store on disk is the truth; the rules in force are made of it anew after
// each change.

package qmgr

import (
	"errors"
	"fmt"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

// ownDelay is how often a queue manager tries to become the owner of the store while its
// predecessor still is. At a reload both run, and only one may write.
const ownDelay = 100 * time.Millisecond

// recall puts the overrides in force that are on record. It runs once, before the loop,
// so that nothing that is suspended is tried first.
func (s *Server) recall() {
	var entries []override.Entry
	if st := s.opt.Overrides; st != nil {
		if st.Owner() {
			s.liftActs()
			s.auto.owner = true
		}
		entries = st.Entries(time.Now())
		if !st.Owner() {
			s.tasks.Go(s.succeed)
		}
	}
	s.post(func() { s.setRules(entries) }, sched.Event{})
}

// succeed waits until the former queue manager has left the store, and then reads it
// again: the predecessor may have changed it until its end.
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
			s.liftActs()
			s.post(func() {
				s.setRules(s.opt.Overrides.Entries(s.now))
				s.takeActs()
			}, sched.Event{})
			return
		}
	}
}

// fromOperator answers a request to list, add or remove overrides.
func (s *Server) fromOperator(r *ipc.Request) {
	q := new(proto.Override)
	if err := r.Decode(q); err != nil {
		r.Fail("%v", err)
		return
	}
	store := s.opt.Overrides
	// Accepting a suspension that a restart forgets would be worse than to refuse it.
	if store == nil {
		r.Reply(&proto.OverrideReply{Refused: "the overrides cannot be kept: the log says why"})
		return
	}
	ask := s.ask
	// A node that stands by is told of no queue. An order of another node holds for what comes later.
	if s.nodes != nil {
		ask = func(_ *ipc.Request, answer func()) { s.post(answer, sched.Event{}) }
	}
	if q.Op == proto.OverrideList {
		ask(r, func() { r.Reply(s.listOverrides(store)) })
		return
	}
	// Whether a limit changes anything depends on the destinations that there are: the loop
	// judges.
	ask(r, func() {
		e := override.Entry{Kind: override.Kind(q.Entry.Of), Target: q.Entry.Target, By: q.Entry.By, Reason: q.Entry.Reason,
			Since: s.now.Truncate(time.Second), Until: q.Entry.Until, Most: q.Entry.Most, Raises: q.Entry.Raises, Nexthop: q.Entry.Nexthop}
		reply := new(proto.OverrideReply)
		target, err := s.judge(q.Op, &e, reply)
		if err != nil {
			reply.Refused = err.Error()
		}
		if err != nil || q.Dry {
			r.Reply(reply)
			return
		}
		// The disk is written to beside the loop.
		s.tasks.Go(func() { s.override(r, q.Op, e, target, store, reply) })
	})
}

// mayOrder says whether operators may do this with overrides of a kind. What only rules of automation make they take back.
func mayOrder(kind override.Kind, op proto.OverrideOp) bool {
	switch kind {
	case override.Suspension, override.Limit, override.Diversion, override.Return:
		return true
	case override.Setting, override.Waiver:
		return op != proto.OverridePut
	}
	return false
}

// judge says whether an order can be carried out, and adds to the reply what it is for now.
func (s *Server) judge(op proto.OverrideOp, e *override.Entry, reply *proto.OverrideReply) (selection.Target, error) {
	target, err := selection.ParseTarget(e.Target)
	switch {
	case err != nil:
	// One spelling for each target, or a resume would not find what was suspended.
	case target.String() != e.Target:
		err = fmt.Errorf("it must be written as %s", target)
	// A newer tool may know kinds that this process does not.
	case !mayOrder(e.Kind, op):
		err = fmt.Errorf("there is no kind of override %q", e.Kind)
	case op == proto.OverridePut && e.Over(s.now):
		err = errors.New("its end lies in the past")
	case op == proto.OverridePut && e.Kind == override.Diversion:
		// It depends on nothing but its own text: the other transport need not be known yet.
		err = judgeDiversion(target, e)
	case op == proto.OverridePut && e.Kind == override.Return:
		err = judgeReturn(target, e)
	// What is told of it is as of now, before it holds.
	case op == proto.OverridePut && e.Kind == override.Limit:
		reply.Uses = []proto.OverrideUse{s.limitUse(target)}
		err = s.judgeLimit(target, e)
	case op != proto.OverridePut && op != proto.OverrideRemove:
		err = fmt.Errorf("unknown operation %d", op)
	}
	return target, err
}

// override carries out a change of the store, in a task, since it writes and syncs. Then
// the loop puts it in force and answers.
func (s *Server) override(r *ipc.Request, op proto.OverrideOp, e override.Entry, target selection.Target, store *override.Store, reply *proto.OverrideReply) {
	var err error
	switch {
	// An operator's order takes the place of what a rule did about the same target.
	case op == proto.OverridePut:
		err = store.Put(e, e.Since)
	case e.Kind == override.Waiver:
		reply.Found, err = store.Remove(e.Kind, e.Target, e.Since)
	default:
		// What a rule did is not done again in the time that it had.
		reply.Found, err = store.Waive(e.Kind, e.Target, e.By, e.Since)
	}
	if err != nil {
		reply.Refused = err.Error()
		r.Reply(reply)
		return
	}
	// The store has it now. The log line is for the postmaster who wonders later why mail
	// waits; it names who did it.
	s.post(func() {
		if op == proto.OverridePut || reply.Found {
			s.opt.Log.Log(overrideEvent(op, &e, target))
		}
		s.setRules(store.Entries(s.now)) // another operator's order may have overtaken this one
		// The answer goes out behind what that leads to: nothing is begun any more that is not to be.
		s.queue = append(s.queue, input{learn: func() { r.Reply(reply) }})
	}, sched.Event{})
}

// overrideEvent is the line of the log about an order that was carried out: who, when, and why, for
// whoever wonders later.
func overrideEvent(op proto.OverrideOp, e *override.Entry, target selection.Target) maillog.Event {
	put, subject := op == proto.OverridePut, target.Subject()
	switch {
	case e.Kind == override.Waiver:
		return maillog.Allowed{Target: e.Target, Subject: target.Name(), By: e.By}
	case e.Kind == override.Setting && put:
		return maillog.Set{Target: e.Target, Subject: target.Name(), Name: e.Name, Value: e.Value, By: e.By, Reason: e.Reason, Until: e.Until}
	case e.Kind == override.Setting:
		return maillog.Unset{Target: e.Target, Subject: target.Name(), Name: e.Name, By: e.By}
	case e.Kind == override.Return && put:
		return maillog.Returning{Target: e.Target, Subject: target.Mail(), By: e.By, Reason: e.Reason, Until: e.Until}
	case e.Kind == override.Return:
		return maillog.ReturningOver{Target: e.Target, Subject: target.Mail(), By: e.By}
	case e.Kind == override.Limit && put:
		return maillog.Limited{Target: e.Target, Subject: subject, Most: e.Most, Raises: e.Raises, By: e.By, Reason: e.Reason, Until: e.Until}
	case e.Kind == override.Limit:
		return maillog.Unlimited{Target: e.Target, Subject: subject, By: e.By}
	case e.Kind == override.Diversion && put:
		return maillog.Diverted{Target: e.Target, Subject: subject, Nexthop: e.Nexthop, By: e.By, Reason: e.Reason, Until: e.Until}
	case e.Kind == override.Diversion:
		return maillog.Undiverted{Target: e.Target, Subject: subject, By: e.By}
	case put:
		return maillog.Suspended{Target: e.Target, Subject: subject, By: e.By, Reason: e.Reason, Until: e.Until}
	}
	return maillog.Resumed{Target: e.Target, Subject: subject, By: e.By}
}

// listOverrides says what is on record, how many messages wait for each suspension, and what
// each limit is for. The count has only messages that have been looked at since the
// suspension began.
func (s *Server) listOverrides(store *override.Store) *proto.OverrideReply {
	waiting := make(map[string]int)
	for _, r := range s.rules.set.all() {
		if !r.queueOnly {
			waiting[r.target.String()] = s.sched.Parked(r.id)
		}
	}
	uses := s.limitUses()
	reply := new(proto.OverrideReply)
	for _, e := range store.Entries(s.now) {
		n, use := 0, proto.OverrideUse{}
		switch e.Kind {
		case override.Suspension:
			n = waiting[e.Target]
		case override.Limit:
			use = uses[e.Target]
		}
		reply.Entries = append(reply.Entries, proto.OverrideEntry{Of: string(e.Kind), Target: e.Target, By: e.By, Reason: e.Reason, Since: e.Since,
			Until: e.Until, Most: e.Most, Raises: e.Raises, Nexthop: e.Nexthop, Name: e.Name, Value: e.Value})
		reply.Waiting, reply.Uses = append(reply.Waiting, n), append(reply.Uses, use)
	}
	return reply
}
