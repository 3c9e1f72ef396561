package whatif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/pace"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

// maxRows bounds the rows of a copy, and so its memory.
const maxRows = 500_000

// ErrUnknown is why there is no forecast for mail of which nothing is known: there is no destination
// to share it out among.
var ErrUnknown = errors.New("it is not known yet where any of the mail in the queue goes: the queue manager learns that when it tries the messages, so ask again then")

// A Copy is Mail with what is not in it.
type Copy struct {
	Mail
	Hold, Suspended int // messages
	// Unknown are messages of which it is not known where they go. They are shared out among the
	// destinations that are known.
	Unknown int
	// LeftOut says in sentences what holds for the mail and is not in forecasts of it.
	LeftOut []string
}

// Messages is how many there are in c.Rows.
func (c *Copy) Messages() (n int) {
	for i := range c.Rows {
		n += c.Rows[i].Count
	}
	return n
}

// Take asks the queue manager for a copy of the queue. [ErrLarge] and [ErrUnknown] say that
// there is no forecast of this queue, and have the exit status 65; errors of the connection have 69.
func Take(ctx context.Context, conn *ipc.Conn, now time.Time) (*Copy, error) {
	c, err := take(ctx, conn, now)
	switch {
	case errors.Is(err, ErrLarge), errors.Is(err, ErrUnknown):
		return nil, cli.Errorf(cli.ExitData, "%w", err)
	case err != nil:
		return nil, cli.Errorf(cli.ExitUnavailable, "%w", err)
	}
	return c, nil
}

func take(ctx context.Context, conn *ipc.Conn, now time.Time) (*Copy, error) {
	t := taking{Copy: Copy{Mail: Mail{Now: now}}, index: make(map[destKey]int)}
	for cursor := 0; ; {
		var reply proto.BacklogReply
		if err := conn.Call(ctx, &proto.Backlog{Cursor: cursor}, &reply); err != nil {
			return nil, fmt.Errorf("ask the queue manager: %w", err)
		}
		if err := t.part(&reply); err != nil {
			return nil, err
		}
		if cursor = reply.Next; cursor == 0 {
			break
		}
	}
	if err := t.share(ctx); err != nil {
		return nil, err
	}
	t.leaveOut()
	return &t.Copy, nil
}

// taking is a copy that is being taken.
type taking struct {
	Copy
	index   map[destKey]int
	unknown []proto.BacklogRow
	untold  []string // tenants
	places  []string // tenants that have limits at single places that are not told
	spent   map[sched.LimitName]bool
	emptied []bool // destinations whose mail was shared out among others
	moves   []move
	counts  []int // messages of each destination in Rows
}

// part takes in a part of the queue.
func (t *taking) part(reply *proto.BacklogReply) error {
	t.Hold, t.Suspended = t.Hold+reply.Hold, t.Suspended+reply.Suspended
	for i := range reply.Dests {
		d := &reply.Dests[i]
		k := destKey{mail.Transport(d.Transport), d.Queue}
		if _, ok := t.index[k]; ok {
			continue
		}
		x := Dest{Most: d.Most, Raises: d.Raises, untold: d.Untold, learnt: d.Learnt}
		x.DestSnapshot = sched.DestSnapshot{Transport: k.transport, Queue: d.Queue, Nexthop: mail.Nexthop(d.Nexthop), State: sched.DestState(d.State), Until: d.Until, Window: d.Window,
			Success: float64(d.Feedback[0]) / 1e6, Failure: float64(d.Feedback[1]) / 1e6, FailCohorts: float64(d.Feedback[2]) / 1e6}
		t.setTerms(&x, d)
		if len(d.Behaviour) > 0 {
			x.Behaviour = new(pace.Behaviour)
			if err := x.Behaviour.Decode(d.Behaviour); err != nil {
				return err
			}
		}
		if len(t.Dests) == maxDests { // sharing mail out among so many would take minutes, for a forecast that is refused then
			return errDests
		}
		t.index[k] = len(t.Dests)
		t.Dests = append(t.Dests, x)
	}
	for i := range reply.Members {
		mb := &reply.Members[i]
		// Destinations are told before, or with, their members.
		if at, ok := t.index[destKey{mail.Transport(mb.Transport), mb.Queue}]; ok && t.Dests[at].Source != "" {
			t.Dests[at].Weight, t.Dests[at].Wait = max(mb.Weight, 1), mb.Wait
		}
	}
	for i := range reply.Tenants {
		t.setTenant(&reply.Tenants[i])
	}
	for i := range reply.Quotas {
		t.setQuota(&reply.Quotas[i])
	}
	for _, row := range reply.Rows {
		if row.Count < 1 || len(t.Rows)+len(t.unknown) >= maxRows {
			return ErrLarge
		}
		if i, ok := t.index[destKey{mail.Transport(row.Transport), row.Queue}]; ok {
			t.Rows = append(t.Rows, rowOf(i, &row))
		} else {
			t.unknown = append(t.unknown, row)
		}
	}
	return nil
}

func rowOf(dest int, row *proto.BacklogRow) Row {
	return Row{Dest: dest, Tenant: row.Tenant, Count: row.Count, Rcpts: max(row.Rcpts, 1), Created: row.Created, Deferred: row.Deferred, Due: row.Due, Waits: row.Waits}
}

// share gives messages of which it is not known where they go to destinations: to that with their
// recipients' domain as its next hop, else to all, as many to each as it has its share of the others.
// What waits for a destination whose mail goes from sources, and has none yet, is shared out among these.
//
// Strangers choose domains, and mailboxes may be destinations each: it is work for each row and destination of a domain, and
// ends early with the context's error.
func (t *taking) share(ctx context.Context) error {
	t.counts = make([]int, len(t.Dests))
	for i := range t.Rows {
		t.counts[t.Rows[i].Dest] += t.Rows[i].Count
	}
	if err := t.shareSources(ctx); err != nil {
		return err
	}
	hops := make(map[string][]int)
	for i := range t.Dests {
		if d := &t.Dests[i]; !t.emptied[i] {
			hop := strings.ToLower(string(d.Nexthop))
			hops[hop] = append(hops[hop], i)
		}
	}
	var rest []proto.BacklogRow
	var domains []string // in the order of their first rows
	known := make(map[string][]proto.BacklogRow)
	for _, row := range t.unknown {
		if row.Domain == "" || len(hops[row.Domain]) == 0 {
			t.Unknown += row.Count
			rest = append(rest, row)
			continue
		}
		if known[row.Domain] == nil {
			domains = append(domains, row.Domain)
		}
		known[row.Domain] = append(known[row.Domain], row)
	}
	for _, name := range domains {
		if err := t.shareAmong(ctx, known[name], hops[name]); err != nil {
			return err
		}
	}
	var all []int
	for at, n := range t.counts {
		if n > 0 {
			all = append(all, at)
		}
	}
	if len(all) == 0 && len(rest) > 0 {
		return ErrUnknown
	}
	return t.shareAmong(ctx, rest, all)
}

// shareAmong shares rows out among some destinations, as many messages to each as it has its share of those that these have.
func (t *taking) shareAmong(ctx context.Context, rows []proto.BacklogRow, at []int) error {
	if len(at) == 1 {
		for i := range rows {
			t.give(at[0], rows[i])
		}
		return nil
	}
	weights, total := make([]int, len(at)), 0
	for i, dest := range at {
		weights[i] = t.counts[dest]
		total += weights[i]
	}
	if total < len(at) { // so few say nothing
		for i := range weights {
			weights[i] = 1
		}
		total = len(at)
	}
	return t.shareOut(ctx, rows, at, weights, total)
}

// give gives a row to a destination.
func (t *taking) give(dest int, row proto.BacklogRow) {
	t.Rows = append(t.Rows, rowOf(dest, &row))
	t.counts[dest] += row.Count
}

// baseQueue is the name of a destination's queue without that of its source.
func baseQueue(d *Dest) string {
	if d.Source == "" {
		return d.Queue
	}
	return strings.TrimSuffix(d.Queue, sched.SourceQueue("", d.Source))
}

// shareSources shares the rows of destinations out that are known without a source, where others are known with one.
func (t *taking) shareSources(ctx context.Context) error {
	from := make(map[destKey][]int)
	for i := range t.Dests {
		if d := &t.Dests[i]; d.Source != "" {
			k := destKey{d.Transport, baseQueue(d)}
			from[k] = append(from[k], i)
		}
	}
	t.emptied = make([]bool, len(t.Dests))
	for k, at := range from {
		if i, ok := t.index[k]; ok {
			t.emptied[i], t.Dests[i].untold = true, false
			t.moves = append(t.moves, move{i, at})
		}
	}
	slices.SortFunc(t.moves, func(a, b move) int { return cmp.Compare(a.from, b.from) })
	rows := make(map[int][]proto.BacklogRow)
	t.Rows = slices.DeleteFunc(t.Rows, func(r Row) bool {
		if t.emptied[r.Dest] {
			rows[r.Dest] = append(rows[r.Dest], proto.BacklogRow{Tenant: r.Tenant, Count: r.Count, Rcpts: r.Rcpts, Created: r.Created, Deferred: r.Deferred, Due: r.Due, Waits: r.Waits})
			t.counts[r.Dest] = 0
		}
		return t.emptied[r.Dest]
	})
	for _, m := range t.moves {
		if err := t.shareAmong(ctx, rows[m.from], m.to); err != nil {
			return err
		}
	}
	return nil
}

// A move is that the mail of one destination is shared out among others.
type move struct {
	from int
	to   []int
}

// shareOut gives rows to some destinations by weight, all of their messages. total is the sum of the
// weights, more than 0 if there are rows.
func (t *taking) shareOut(ctx context.Context, rows []proto.BacklogRow, dests, weights []int, total int) error {
	carry := make([]float64, len(weights)) // what each is owed; less than 0: it had more than its share
	for i := range rows {
		// A row may be for as many destinations as there are.
		if err := ctx.Err(); err != nil {
			return err
		}
		left, most := rows[i].Count, -1
		give := func(at, n int) {
			carry[at] -= float64(n)
			left -= n
			x := rows[i]
			x.Count = n
			t.give(dests[at], x)
		}
		for at, w := range weights {
			if w == 0 {
				continue
			}
			carry[at] += float64(rows[i].Count) * float64(w) / float64(total)
			if n := min(int(carry[at]), left); n > 0 {
				give(at, n)
			}
			if most < 0 || carry[at] > carry[most] {
				most = at
			}
		}
		if left > 0 { // parts of messages: whoever is owed most has them
			give(most, left)
		}
		if len(t.Rows) > 2*maxRows {
			return ErrLarge
		}
	}
	return nil
}

// transports are those that mail of the copy goes by, by name.
func (c *Copy) transports() []string {
	set := make(map[string]bool)
	for i := range c.Dests {
		set[string(c.Dests[i].Transport)] = true
	}
	return slices.Sorted(maps.Keys(set))
}

// byMail are the numbers of destinations, those with most messages first.
func (c *Copy) byMail() []int {
	n, list := make([]int, len(c.Dests)), make([]int, len(c.Dests))
	for i := range c.Rows {
		n[c.Rows[i].Dest] += c.Rows[i].Count
	}
	for i := range list {
		list[i] = i
	}
	list = slices.DeleteFunc(list, func(i int) bool { return n[i] == 0 })
	slices.SortFunc(list, func(a, b int) int {
		return cmp.Or(cmp.Compare(n[b], n[a]), cmp.Compare(c.Dests[a].Transport, c.Dests[b].Transport), cmp.Compare(c.Dests[a].Queue, c.Dests[b].Queue))
	})
	return list
}
