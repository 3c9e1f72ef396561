package nodeshare

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A spender is a node that spends of a limit of a day. What it has spent it remembers when it comes back, unless it was killed: then it knows
// of some of that only.
type spender struct {
	name         string
	h            Holder
	spent, known int
	down         bool
}

// What all nodes spend of a limit of a day is never more than it, also when nodes vanish, come back, are alone, or do not hear what
// they were granted; and who is left can spend all but what others had got in advance.
func TestDay(t *testing.T) {
	t.Parallel()
	const key = DayPrefix + "1 x"
	rapid.Check(t, func(t *rapid.T) {
		limit, now := rapid.IntRange(1, 60).Draw(t, "limit"), time.Unix(1e9, 0)
		rows, lease, alone := map[string]Row{}, map[string]time.Time{}, map[string]bool{}
		nodes := []*spender{{name: "a"}, {name: "b"}, {name: "c"}}
		exchange := func(n *spender, want int, lost bool) {
			q := n.h.Request(now, n.name, []Use{{Key: key, Limit: limit, Busy: n.known, Want: want}})
			var others []Node
			var list []Row
			for name, until := range lease {
				if name != n.name && now.Before(until) {
					others = append(others, Node{Name: name, Alone: alone[name]})
				}
			}
			for name, row := range rows { // those of nodes that are gone, too
				if name != n.name || q.Fresh {
					list = append(list, row)
				}
			}
			r := Exchange(q, others, list)
			rows[n.name] = Row{n.name, key, r.Grants[0].Share, q.Claims[0].Demand}
			lease[n.name], alone[n.name] = now.Add(Lease), q.Alone || r.Alone
			if !lost {
				n.h.Take(now, &r)
			}
		}
		check := func() {
			sum := 0
			for _, n := range nodes {
				sum += n.spent
			}
			if sum > limit {
				t.Fatalf("%d are spent of %d", sum, limit)
			}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			n := nodes[rapid.IntRange(0, 2).Draw(t, "node")]
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0:
				now = now.Add(time.Duration(rapid.IntRange(1, 4000).Draw(t, "ms")) * time.Millisecond)
			case 1:
				n.down, n.h = !n.down && rapid.Bool().Draw(t, "dies"), Holder{Fresh: n.h.Fresh}
				if rapid.Bool().Draw(t, "killed") {
					n.h.Fresh, n.known = true, rapid.IntRange(0, n.known).Draw(t, "known")
				}
			case 2, 3:
				if !n.down {
					exchange(n, rapid.IntRange(0, max(limit/20, 1)).Draw(t, "want"), rapid.IntRange(0, 4).Draw(t, "lost") == 0)
				}
			default:
				if !n.down && n.known < n.h.Allowed(now, key, limit) {
					n.spent++
					n.known++
					check()
				}
			}
		}
		// In the end the others are gone for good.
		last, others := nodes[0], 0
		for _, n := range nodes[1:] {
			others += rows[n.name].Share
		}
		// It knows what it has spent, or takes all that it had got for spent.
		fresh := last.h.Fresh || rapid.Bool().Draw(t, "fresh")
		lost := 0
		now, last.h = now.Add(2*Lease), Holder{Fresh: fresh}
		if fresh {
			lost = max(rows[last.name].Share-last.spent, 0)
			last.known = 0
		} else {
			last.known = last.spent
		}
		for range 2*limit + 10 {
			exchange(last, max(limit/20, 1), false)
			for last.known < last.h.Allowed(now, key, limit) {
				last.spent++
				last.known++
				check()
			}
		}
		if last.spent+others+lost < limit {
			t.Fatalf("the last one has spent %d of %d, and others had got %d", last.spent, limit, others)
		}
	})
}

// Only limits of a day are kept from a node that is alone.
func TestDayAlone(t *testing.T) {
	t.Parallel()
	var h Holder
	now := time.Unix(1e9, 0)
	q := h.Request(now, "a", []Use{{Key: "k", Limit: 100, Want: 50}, {Key: DayPrefix + "1 k", Limit: 100, Want: 5}})
	r := Exchange(q, nil, []Row{{"gone", DayPrefix + "1 k", 97, 97}})
	h.Take(now, &r)
	if got := fmt.Sprint(h.Allowed(now, "k", 100), h.Allowed(now, DayPrefix+"1 k", 100)); got != "100 3" {
		t.Errorf("allowed: %s", got)
	}
}
