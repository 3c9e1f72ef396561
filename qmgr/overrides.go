// Overrides: suspensions that operators order ("posthaste suspend") and that outlive a
// restart. The store on disk is the truth; the rules in force are made of it anew after
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
			s.post(func() { s.setRules(s.opt.Overrides.Entries(s.now)) }, sched.Event{})
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
	if q.Op == proto.OverrideList {
		s.ask(r, func() { r.Reply(s.listOverrides(store)) })
		return
	}
	// The disk is written to beside the loop.
	s.ask(r, func() { s.tasks.Go(func() { s.override(r, q, store) }) })
}

// override carries out a change of the store, in a task, since it writes and syncs. Then
// the loop puts it in force and answers.
func (s *Server) override(r *ipc.Request, q *proto.Override, store *override.Store) {
	var reply proto.OverrideReply
	now := time.Now()
	e := override.Entry{Kind: override.Kind(q.Entry.Of), Target: q.Entry.Target, By: q.Entry.By, Reason: q.Entry.Reason,
		Since: now.Truncate(time.Second), Until: q.Entry.Until}
	target, err := selection.ParseTarget(e.Target)
	switch {
	case err != nil:
	// One spelling for each target, or a resume would not find what was suspended.
	case target.String() != e.Target:
		err = fmt.Errorf("it must be written as %s", target)
	// A newer tool may know kinds that this process does not.
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
	// The store has it now. The log line is for the postmaster who wonders later why mail
	// waits; it names who did it.
	s.post(func() {
		switch {
		case q.Op == proto.OverridePut:
			s.opt.Log.Log(maillog.Suspended{Target: e.Target, Subject: target.Subject(), By: e.By, Reason: e.Reason, Until: e.Until})
		case reply.Found:
			s.opt.Log.Log(maillog.Resumed{Target: e.Target, Subject: target.Subject(), By: q.Entry.By})
		}
		s.setRules(store.Entries(s.now)) // another operator's order may have overtaken this one
		// The answer goes out behind what that leads to: nothing is begun any more that is not to be.
		s.queue = append(s.queue, input{learn: func() { r.Reply(&reply) }})
	}, sched.Event{})
}

// listOverrides says what is on record, and how many messages wait for each. The count
// has only messages that have been looked at since the suspension began.
func (s *Server) listOverrides(store *override.Store) *proto.OverrideReply {
	waiting := make(map[string]int)
	for _, r := range s.rules.set.all() {
		if !r.queueOnly {
			waiting[r.target.String()] = s.sched.Parked(r.id)
		}
	}
	reply := new(proto.OverrideReply)
	for _, e := range store.Entries(s.now) {
		n := 0
		if e.Kind == override.Suspension {
			n = waiting[e.Target]
		}
		reply.Entries = append(reply.Entries, proto.OverrideEntry{Of: string(e.Kind), Target: e.Target, By: e.By, Reason: e.Reason, Since: e.Since, Until: e.Until})
		reply.Waiting = append(reply.Waiting, n)
	}
	return reply
}
