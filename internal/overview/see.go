package overview

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
)

// A Manager is the queue manager of a node.
type Manager struct {
	Node string // "": the queue is not shared
	history.Manager
}

// Seen is the queue as it is now.
type Seen struct {
	Sample *history.Sample // of all nodes together; without totals where there are several
	Now    *Now            // without rates
	Of     []Sampled       // each node's own, in the order of the managers
}

// A Sampled is a node's sample.
type Sampled struct {
	Node   string
	Sample *history.Sample
}

// See counts the queue, and asks what keeps the mail of the domains waiting that hurt most, and what holds for the tenants
// with most mail.
func See(ctx context.Context, conn history.Manager, now time.Time) (*history.Sample, *Now, error) {
	seen, err := SeeAll(ctx, []Manager{{"", conn}}, now)
	if err != nil {
		return nil, nil, err
	}
	return seen.Sample, seen.Now, nil
}

// SeeAll is See for a queue that nodes share: each counts what it has, all at the same time. The first manager has to answer;
// another one that does not is named in Now.Missing, and what it has is not counted.
func SeeAll(ctx context.Context, managers []Manager, now time.Time) (*Seen, error) {
	looks := make([]lookedAt, len(managers))
	eachLook(looks, func(i int, l *lookedAt) { l.sample, l.err = history.Take(ctx, managers[i], now) })
	if looks[0].err != nil {
		return nil, looks[0].err
	}
	samples := func() (list []*history.Sample) {
		for i := range looks {
			if looks[i].err == nil {
				list = append(list, looks[i].sample)
			}
		}
		return list
	}
	n := Glance(history.Merge(samples()))
	eachLook(looks, func(i int, l *lookedAt) { l.ask(ctx, managers[i], n) })
	if looks[0].err != nil {
		return nil, looks[0].err
	}
	n.Orders = NoOrders()
	n.Providers, n.ProvidersFault = providers(looks, managers, now)
	seen := &Seen{Sample: history.Merge(samples()), Now: n} // without those that have failed since
	for i := range looks {
		l, name := &looks[i], managers[i].Node
		if l.err != nil {
			n.Missing = append(n.Missing, name)
			continue
		}
		n.Orders.add(&l.orders)
		seen.Of = append(seen.Of, Sampled{name, l.sample})
		if name != "" {
			n.Nodes = append(n.Nodes, name)
		}
		for j := range n.Hurts {
			n.Hurts[j].told(&l.replies[j], name, i == 0)
		}
		for j := range n.Tenants {
			n.Tenants[j].told(&l.tenants[j], name, i == 0)
		}
	}
	left := Glance(seen.Sample)
	for j := range n.Hurts {
		n.Hurts[j].explained(looks, j, now)
	}
	n.leave(left)
	for j := range n.Hurts {
		n.Hurts[j].Reason = reason(&n.Hurts[j], n.Suspensions)
	}
	return seen, nil
}

// leave takes out what nodes have that have failed since they were counted: left is without them.
func (n *Now) leave(left *Now) {
	n.Queues = left.Queues
	n.Hurts = remaining(n.Hurts, left.Hurts, func(h, l *Hurt) bool { return h.Domain == l.Domain }, func(h, l *Hurt) { h.Waiting = l.Waiting })
	n.Tenants = remaining(n.Tenants, left.Tenants, func(t, l *Tenant) bool { return t.Name == l.Name },
		func(t, l *Tenant) { t.Waiting, t.Oldest = l.Waiting, l.Oldest })
}

// remaining is list, in its memory, without what left does not have. Each gets from left what is counted.
func remaining[T any](list, left []T, same func(a, b *T) bool, count func(to, from *T)) []T {
	kept := list[:0]
	for i := range list {
		if j := slices.IndexFunc(left, func(l T) bool { return same(&list[i], &l) }); j >= 0 {
			count(&list[i], &left[j])
			kept = append(kept, list[i])
		}
	}
	return kept
}

// A lookedAt is what one node has answered.
type lookedAt struct {
	err     error
	sample  *history.Sample
	orders  Orders
	replies []proto.ExplainReply // of each hurt
	tenants []proto.ExplainReply // of each tenant that is named
	taken   proto.StandingReply  // how providers take mail
}

// eachLook calls f for each that has not failed, all at the same time.
func eachLook(looks []lookedAt, f func(i int, l *lookedAt)) {
	var asking sync.WaitGroup
	defer asking.Wait()
	for i := range looks {
		if l := &looks[i]; l.err == nil {
			asking.Go(func() { f(i, l) })
		}
	}
}

// ask asks a node for its orders, what keeps the mail waiting, and what holds for tenants. A name that is no destination has
// nothing.
func (l *lookedAt) ask(ctx context.Context, m Manager, n *Now) {
	if l.orders, l.err = Overrides(ctx, m); l.err != nil {
		return
	}
	l.replies, l.tenants = make([]proto.ExplainReply, len(n.Hurts)), make([]proto.ExplainReply, len(n.Tenants))
	explain := func(what string, reply *proto.ExplainReply) {
		if l.err != nil {
			return
		}
		if err := m.Call(ctx, &proto.Explain{Destination: what}, reply); err != nil {
			l.err = fmt.Errorf("ask the queue manager: %w", err)
		}
	}
	for i := range n.Hurts {
		if _, err := selection.ParseDestination(n.Hurts[i].Domain); err == nil {
			explain(n.Hurts[i].Domain, &l.replies[i])
		}
	}
	for i := range n.Tenants {
		explain("tenant="+n.Tenants[i].Name, &l.tenants[i])
	}
	if l.err == nil {
		l.askStanding(ctx, m)
	}
}

// said adds sentences of a node to why, as far as there is room, without what each begins with. Those of others than the first
// node have its name.
func said(why, lines []string, most int, prefix, node string, first bool) []string {
	for _, line := range lines[:min(len(lines), most-len(why))] {
		line = strings.TrimPrefix(strings.TrimSpace(line), prefix)
		if !first {
			line = "node " + node + ": " + line
		}
		why = append(why, line)
	}
	return why
}

// told takes in what a node has said of a tenant.
func (t *Tenant) told(reply *proto.ExplainReply, node string, first bool) {
	t.Why = said(t.Why, reply.Lines, 1+whyLines, "tenant "+t.Name+": ", node, first)
}

// told takes in what a node has said of a domain. The first sentence is about the whole.
func (h *Hurt) told(reply *proto.ExplainReply, node string, first bool) {
	h.Why = said(h.Why, reply.Lines[min(1, len(reply.Lines)):], whyLines, "", node, first)
	for _, d := range Destinations(reply) {
		d.Node = node
		h.Destinations = append(h.Destinations, d)
	}
}

// explained says how old the oldest mail is, of all nodes.
func (h *Hurt) explained(looks []lookedAt, i int, now time.Time) {
	var oldest time.Time
	for k := range looks {
		if l := &looks[k]; l.err == nil && !l.replies[i].Oldest.IsZero() && (oldest.IsZero() || l.replies[i].Oldest.Before(oldest)) {
			oldest = l.replies[i].Oldest
		}
	}
	if !oldest.IsZero() && now.Sub(oldest) > 0 {
		h.Oldest = Span(now.Sub(oldest))
	}
}

// Keep takes over what was known of a domain before, for a count that came without.
func (h *Hurt) Keep(before *Hurt, suspensions []Suspension) {
	h.Why, h.Destinations = before.Why, before.Destinations
	h.Reason = reason(h, suspensions)
}

// add takes in another node's. The orders are the same on all nodes, and what they are for is counted together.
func (o *Orders) add(other *Orders) {
	for _, s := range other.Suspensions {
		if i := slices.IndexFunc(o.Suspensions, func(have Suspension) bool { return have.Target == s.Target }); i >= 0 {
			o.Suspensions[i].Waiting += s.Waiting
		} else {
			o.Suspensions = append(o.Suspensions, s)
		}
	}
	for _, l := range other.Limits {
		if i := slices.IndexFunc(o.Limits, func(have Limit) bool { return have.Target == l.Target }); i >= 0 {
			have := &o.Limits[i]
			have.Destinations, have.Busy, have.Todo = max(have.Destinations, l.Destinations), have.Busy+l.Busy, have.Todo+l.Todo
		} else {
			o.Limits = append(o.Limits, l)
		}
	}
	for _, d := range other.Diversions {
		if !slices.ContainsFunc(o.Diversions, func(have Diversion) bool { return have.Target == d.Target }) {
			o.Diversions = append(o.Diversions, d)
		}
	}
	for _, r := range other.Returns {
		if !slices.ContainsFunc(o.Returns, func(have Return) bool { return have.Target == r.Target }) {
			o.Returns = append(o.Returns, r)
		}
	}
}
