package qmgr

import (
	"testing"
	"time"

	"posthaste/internal/nodeshare"
	"posthaste/internal/rate"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

// What a node has got of a day in advance and has not used is lost when it is killed: once, and not again with each reload that follows.
// A queue manager that is killed after such a reload does not take its predecessor's word for its own.
func TestUnsureReloads(t *testing.T) {
	t.Parallel()
	dir, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const limit, known, part = 100, 30, 100 / dayPart
	now := time.Unix(1800000000, 0)
	key := portionKey(sched.LimitName{Name: "a.test"}, sched.BoundMessages, rate.Rate{N: limit, Per: rate.Day}, dayOf(now))
	// The file is as a kill has left it: older than the last delivery.
	before := []sched.Spent{{Name: "a.test", Messages: rate.Meter{Date: dayOf(now), Count: known}}}
	if err := dir.ReplaceDurably(spentName, encodeSpent(before, false, nil)); err != nil {
		t.Fatal(err)
	}
	row := nodeshare.Row{Node: "a", Key: key, Share: known + part}
	life := func(orderly bool) (allowed int) {
		s := &Server{nodes: newNodes(true), sched: sched.New(sched.DefaultConfig()), now: now}
		s.opt.State, s.opt.Settings.limits = dir, true
		s.restoreSpent(now)
		if list := s.sched.Spent(); len(list) != 1 || list[0].Messages.Count != known {
			t.Fatalf("%+v", list)
		}
		for range 3 {
			q := s.nodes.holder.Request(now, "a", []nodeshare.Use{{Key: key, Limit: limit, Busy: known, Want: part}})
			var rows []nodeshare.Row
			if q.Fresh {
				rows = append(rows, row)
			}
			r := nodeshare.Exchange(q, nil, rows)
			row.Share = r.Grants[0].Share
			s.nodes.holder.Take(now, &r)
		}
		if orderly {
			s.leaveSpent()
		}
		return s.nodes.holder.Allowed(now, key, limit)
	}
	for n := range 30 {
		if got := life(true); got != known+part || row.Share != known+2*part {
			t.Fatalf("reload %d: %d are allowed, and the row has %d", n, got, row.Share)
		}
	}
	life(false)
	if life(true); row.Share != known+3*part {
		t.Errorf("after another kill the row has %d: what the killed one may have used does not count", row.Share)
	}
}
