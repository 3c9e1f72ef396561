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

// ErrShared is why there is no forecast for destinations that have limits in common.
var ErrShared = errors.New("there are no forecasts where destinations have limits in common mail goes from pools of sources, or tables say what tenants may send (destination_limit_maps, destination_rollup, shaping_files, egress_source_maps, tenant_limit_maps)")

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
}

// Messages is how many there are in c.Rows.
func (c *Copy) Messages() (n int) {
	for i := range c.Rows {
		n += c.Rows[i].Count
	}
	return n
}

// Take asks the queue manager for a copy of the queue. [ErrShared], [ErrLarge] and [ErrUnknown] say that
// there is no forecast of this queue, and have the exit status 65; errors of the connection have 69.
func Take(ctx context.Context, conn *ipc.Conn, now time.Time) (*Copy, error) {
	c, err := take(ctx, conn, now)
	switch {
	case errors.Is(err, ErrShared), errors.Is(err, ErrLarge), errors.Is(err, ErrUnknown):
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
	if err := t.share(); err != nil {
		return nil, err
	}
	return &t.Copy, nil
}

// taking is a copy that is being taken.
type taking struct {
	Copy
	index   map[destKey]int
	unknown []proto.BacklogRow
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
		if d.Shared {
			return ErrShared
		}
		x := Dest{Most: d.Most, Raises: d.Raises}
		x.DestSnapshot = sched.DestSnapshot{Transport: k.transport, Queue: d.Queue, Nexthop: mail.Nexthop(d.Nexthop), State: sched.DestState(d.State), Until: d.Until, Window: d.Window,
			Success: float64(d.Feedback[0]) / 1e6, Failure: float64(d.Feedback[1]) / 1e6, FailCohorts: float64(d.Feedback[2]) / 1e6}
		if len(d.Behaviour) > 0 {
			x.Behaviour = new(pace.Behaviour)
			if err := x.Behaviour.Decode(d.Behaviour); err != nil {
				return err
			}
		}
		t.index[k] = len(t.Dests)
		t.Dests = append(t.Dests, x)
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
func (t *taking) share() error {
	hops := make(map[string]int)
	for i := range t.Dests {
		hops[strings.ToLower(string(t.Dests[i].Nexthop))] = i
	}
	rest := t.unknown[:0]
	for i := range t.unknown {
		row := &t.unknown[i]
		if at, ok := hops[row.Domain]; ok && row.Domain != "" {
			t.Rows = append(t.Rows, rowOf(at, row))
			continue
		}
		t.Unknown += row.Count
		rest = append(rest, *row)
	}
	weights, total := make([]int, len(t.Dests)), 0
	for i := range t.Rows {
		weights[t.Rows[i].Dest] += t.Rows[i].Count
		total += t.Rows[i].Count
	}
	if total == 0 && len(rest) > 0 {
		return ErrUnknown
	}
	return t.shareOut(rest, weights, total)
}

// shareOut gives rows to destinations by weight, all of their messages. total is the sum of the
// weights, more than 0 if there are rows.
func (t *taking) shareOut(rows []proto.BacklogRow, weights []int, total int) error {
	carry := make([]float64, len(weights)) // what each is owed; less than 0: it had more than its share
	for i := range rows {
		left, most := rows[i].Count, -1
		give := func(at, n int) {
			carry[at] -= float64(n)
			left -= n
			x := rows[i]
			x.Count = n
			t.Rows = append(t.Rows, rowOf(at, &x))
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
