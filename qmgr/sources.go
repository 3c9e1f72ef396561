// "posthaste sources": how the sources do that mail goes from. What the tables say of them comes
// from the answers of trivial-rewrite, what they have sent and where they rest from the
// scheduler.

package qmgr

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

// sourceRows bounds how many limits and how many destinations one answer has of each source.
// Strangers choose destinations.
const sourceRows = 50

// A sourceSpec is what was last heard of a source. Where tables have changed that may be a
// while ago, if no mail has come since that goes from its pools.
type sourceSpec struct {
	spec   string // for agents
	day    int    // of its warm-up; 0: it does not warm up
	warmup int64
	wait   bool
}

// describe answers what is asked of sources, or of providers. It runs in the loop.
func (s *Server) describe(r *ipc.Request) {
	if r.Kind == proto.KindStanding {
		s.describeStanding(r)
		return
	}
	s.describeSources(r)
}

// describeSources answers with all sources. It runs in the loop.
func (s *Server) describeSources(r *ipc.Request) {
	// All of it is in memory, and bounded: one turn of the loop is enough.
	found := s.terms.describe()
	get := func(name string) *proto.SourceInfo {
		if found[name] == nil {
			found[name] = &proto.SourceInfo{Name: name}
		}
		return found[name]
	}
	for _, rule := range s.rules.set.all() {
		if name := rule.target.Source(); name != "" && rule.target.Site() == "" && !rule.over(s.now) {
			get(name).Suspended = rule.text()
		}
	}
	// Two sources may have the same order of limits by chance; sorted, two answers are alike.
	s.sched.SourceLimits(func(l sched.SharedLimit) bool {
		// The rows are cut behind this, so that those that are shown are the largest of many.
		if x := get(l.Source); len(x.Limits) < 20*sourceRows {
			x.Limits = append(x.Limits, proto.SourceLimit{Level: l.Level.String(), Name: l.Name, Sent: l.Warmup, Warmup: l.Limits.Warmup.N,
				Waiting: l.Waiting, Text: limitText(&l)})
		}
		return true
	})
	// Only where it rests: how it fares elsewhere, explain says of each destination.
	s.sched.Dests(func(d sched.Dest) bool {
		if d.Source != "" && d.State == sched.DestDead {
			if x := get(d.Source); len(x.Dests) < sourceRows {
				x.Dests = append(x.Dests, proto.SourceDest{Transport: string(d.Transport), Dest: strings.TrimSuffix(d.Queue, sched.SourceQueue("", d.Source)),
					Until: d.Until, Reason: fmt.Sprintf("%s %s", d.Status, d.Text)})
			}
		}
		return true
	})
	var reply proto.SourcesReply
	for _, x := range found {
		slices.SortFunc(x.Limits, func(a, b proto.SourceLimit) int {
			return cmp.Or(cmp.Compare(b.Sent, a.Sent), cmp.Compare(b.Level, a.Level), cmp.Compare(a.Name, b.Name))
		})
		// What has been sent most to is what somebody looks for.
		x.Limits = x.Limits[:min(len(x.Limits), sourceRows)]
		slices.SortFunc(x.Dests, func(a, b proto.SourceDest) int {
			return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Dest, b.Dest))
		})
		reply.Sources = append(reply.Sources, *x)
	}
	slices.SortFunc(reply.Sources, func(a, b proto.SourceInfo) int { return cmp.Compare(a.Name, b.Name) })
	r.Reply(&reply)
}

// describe is what the tables have said of sources, by name, with the pools that they are in.
func (t *terms) describe() map[string]*proto.SourceInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	found := make(map[string]*proto.SourceInfo)
	for name, x := range t.specs {
		found[name] = &proto.SourceInfo{Name: name, Spec: x.spec, Day: x.day, Warmup: x.warmup, Wait: x.wait}
	}
	// A member that is not among the sources has not been told of yet, and cannot be there.
	for pool, members := range t.latest {
		list, _ := proto.DecodeMembers(members)
		for i := range list {
			if x := found[list[i].Source]; x != nil {
				x.Pools = append(x.Pools, proto.SourcePool{Name: pool, Weight: list[i].Weight})
			}
		}
	}
	// Maps have no order, and two answers to one question should be alike.
	for _, x := range found {
		slices.SortFunc(x.Pools, func(a, b proto.SourcePool) int { return cmp.Compare(a.Name, b.Name) })
	}
	return found
}
