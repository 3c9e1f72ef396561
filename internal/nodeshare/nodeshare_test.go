package nodeshare

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What is divided adds up to the limit, nobody with less demand has more, but for a remainder, and everybody who wants
// something has it in some turn.
func TestDivide(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 30).Draw(t, "limit")
		var rows []Row
		wanting := 0
		for i := range rapid.IntRange(1, 6).Draw(t, "nodes") {
			rows = append(rows, Row{Node: fmt.Sprint("n", i), Key: "k", Demand: rapid.IntRange(0, 20).Draw(t, "demand")})
			if rows[i].Demand > 0 {
				wanting++
			}
		}
		turn := rapid.Int64Range(0, 1<<40).Draw(t, "turn")
		had := map[string]bool{}
		for i := range int64(max(wanting, 1)) {
			out := Divide(limit, rows, turn+i)
			sum := 0
			for _, r := range rows {
				n := out[r.Node]
				sum += n
				had[r.Node] = had[r.Node] || n > 0
				if r.Demand == 0 && n != 0 {
					t.Fatalf("%s wants nothing and has %d", r.Node, n)
				}
				for _, o := range rows {
					if r.Demand <= o.Demand && n > out[o.Node]+1 {
						t.Fatalf("%v: %v", rows, out)
					}
				}
			}
			if wanting > 0 && sum != limit {
				t.Fatalf("%v: %v, limit %d", rows, out, limit)
			}
		}
		for _, r := range rows {
			if r.Demand > 0 && !had[r.Node] {
				t.Fatalf("%s has nothing in any turn", r.Node)
			}
		}
	})
}

// A world is a table, and nodes that use it.
type world struct {
	t     *rapid.T
	now   time.Time // all clocks are the same here but for what nodes add
	lease map[string]time.Time
	alone map[string]bool
	rows  map[string]map[string]Row // by node and key
	nodes []*node
	limit map[string]int
}

// A node uses limits.
type node struct {
	name    string
	ahead   time.Duration // its clock
	h       Holder
	busy    map[string]int
	stale   map[string]int // of busy: begun before its lease ran out
	want    map[string]int
	request *Request // on its way to the table
	reply   *Reply   // on its way back
	began   time.Time
	dead    bool
}

func (n *node) now(w *world) time.Time { return w.now.Add(n.ahead) }

// exchange is what package pgspool does in a transaction.
func (w *world) exchange(q *Request) *Reply {
	var others []Node
	var rows []Row
	for name, until := range w.lease {
		if !w.now.Before(until) {
			delete(w.rows, name)
			delete(w.lease, name)
			continue
		}
		if name != q.Node {
			others = append(others, Node{Name: name, Alone: w.alone[name]})
			rows = slices.AppendSeq(rows, maps.Values(w.rows[name]))
		}
	}
	q.Turn = w.now.UnixMicro() / TurnTime.Microseconds()
	r := Exchange(q, others, rows)
	w.rows[q.Node] = map[string]Row{}
	for i, g := range r.Grants {
		w.rows[q.Node][g.Key] = Row{q.Node, g.Key, g.Share, q.Claims[i].Demand}
	}
	w.lease[q.Node], w.alone[q.Node] = w.now.Add(Lease), q.Alone || r.Alone
	return &r
}

// step does something at random.
func (w *world) step() {
	n := w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(w.t, "node")]
	key := rapid.SampledFrom([]string{"k", "l"}).Draw(w.t, "key")
	switch rapid.IntRange(0, 9).Draw(w.t, "what") {
	case 0, 1:
		w.pass(time.Duration(rapid.IntRange(1, 3000).Draw(w.t, "ms")) * time.Millisecond)
	case 2:
		n.want[key] = rapid.IntRange(0, 12).Draw(w.t, "want")
	case 3:
		if n.busy[key] > 0 {
			n.busy[key]--
			n.stale[key] = max(n.stale[key]-1, 0)
		}
	case 4:
		n.request, n.reply = nil, nil // whatever was on its way is lost
	case 5:
		if n.dead = rapid.IntRange(0, 5).Draw(w.t, "dies") == 0; n.dead {
			// Its process is gone: another one of the same name comes, and what it had under way is over.
			*n = node{name: n.name, ahead: n.ahead, busy: map[string]int{}, stale: map[string]int{}, want: map[string]int{}}
		}
	case 6, 7:
		w.talk(n)
	default:
		if n.want[key] > 0 && n.busy[key] < n.h.Allowed(n.now(w), key, w.limit[key]) {
			n.want[key]--
			n.busy[key]++
		}
	}
}

// talk goes one step on with a node's exchange.
func (w *world) talk(n *node) {
	switch {
	case n.reply != nil:
		n.h.Take(n.began, n.reply)
		n.reply = nil
	case n.request != nil:
		n.reply, n.request = w.exchange(n.request), nil
	default:
		var uses []Use
		for _, key := range []string{"k", "l"} {
			if n.busy[key]+n.want[key] > 0 {
				uses = append(uses, Use{key, w.limit[key], n.busy[key], n.want[key]})
			}
		}
		n.began = n.now(w)
		n.request = n.h.Request(n.began, n.name, uses)
	}
}

// pass lets time pass, in which leases run out.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	for _, n := range w.nodes {
		if !n.now(w).Before(n.h.Good()) {
			maps.Copy(n.stale, n.busy)
		}
	}
}

// check fails the test when more is in use than a limit, but for what nodes began whose leases have run out since.
func (w *world) check() {
	for key, limit := range w.limit {
		sum := 0
		for _, n := range w.nodes {
			sum += n.busy[key] - n.stale[key]
		}
		if sum > limit {
			w.t.Fatalf("%d of %s are in use, %d may be", sum, key, limit)
		}
	}
}

// Whatever nodes want, in whatever order their exchanges are made, lost or answered late, whichever of them dies and comes
// back, no more is in use at any moment than the limit.
func TestSum(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range 300 {
			w.step()
			w.check()
		}
	})
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, now: time.Unix(1800000000, 0), lease: map[string]time.Time{}, alone: map[string]bool{}, rows: map[string]map[string]Row{},
		limit: map[string]int{"k": rapid.IntRange(1, 6).Draw(t, "limit"), "l": rapid.IntRange(1, 20).Draw(t, "limit")}}
	for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
		w.nodes = append(w.nodes, &node{name: fmt.Sprint("n", i), ahead: time.Duration(i) * time.Hour, busy: map[string]int{}, stale: map[string]int{}, want: map[string]int{}})
	}
	return w
}

// Nodes that go on to exchange, and whose work ends, all come to their work, also when there is less than one for each;
// and one that is alone has all of it at once.
func TestNoStarvation(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(0, 100).Draw(t, "before") {
			w.step()
			w.check()
		}
		served := map[string]bool{}
		for range 40 * len(w.nodes) {
			for _, n := range w.nodes {
				n.want["k"] = 30
				if n.busy["k"] > 0 {
					n.busy["k"]-- // each takes less than a second
					n.stale["k"] = max(n.stale["k"]-1, 0)
				}
				for range 3 {
					w.talk(n)
				}
				for n.busy["k"] < n.h.Allowed(n.now(w), "k", w.limit["k"]) {
					n.busy["k"]++
					served[n.name] = true
				}
				w.check()
			}
			w.pass(time.Second)
		}
		if len(served) != len(w.nodes) {
			t.Fatalf("of %d nodes only %v have got anything", len(w.nodes), served)
		}
		if n := w.nodes[0]; len(w.nodes) == 1 && (!n.h.alone || n.busy["k"] != w.limit["k"]) {
			t.Fatalf("a node that is alone has %d of %d", n.busy["k"], w.limit["k"])
		}
	})
}

// A node whose lease was over meanwhile comes back with what it has under way: nothing is begun in its place, by either,
// before it has ended, and then one of them.
func TestComesBack(t *testing.T) {
	t.Parallel()
	claim := func(node string, hold int) *Request {
		return &Request{Node: node, Claims: []Claim{{Key: "k", Limit: 1, Hold: hold, Demand: 1}}}
	}
	for _, test := range []struct {
		name          string
		alone         bool // the other one believes so
		share, hold   int  // the other's, and what comes back
		target, gives int
	}{
		{"the other is alone", true, 0, 1, 0, 1},
		{"the other has a share", false, 1, 1, 0, 1},
		{"the other has a share, and it has ended", false, 1, 0, 0, 0},
		{"the other has none", false, 0, 1, 1, 1},
	} {
		for turn := range int64(2) {
			q := claim("a", test.hold)
			q.Turn = turn
			got := Exchange(q, []Node{{Name: "b", Alone: test.alone}}, []Row{{"b", "k", test.share, 0}}).Grants[0]
			if want := (Grant{Key: "k", Share: test.gives, Target: test.target}); got != want {
				t.Errorf("%s: %+v, want %+v", test.name, got, want)
			}
		}
	}
}

// What a node does not claim in an exchange it has no share of from when that begins: the exchange may be made although its
// reply is lost. What it claims it has until its lease is over, whatever becomes of the exchange.
func TestGivenBack(t *testing.T) {
	t.Parallel()
	var h Holder
	now := time.Unix(1800000000, 0)
	h.Take(now, &Reply{Grants: []Grant{{Key: "k", Share: 5, Target: 5}, {Key: "l", Share: 3, Target: 3}}})
	q := h.Request(now, "a", []Use{{Key: "l", Limit: 10, Busy: 1}})
	if k, l := h.Allowed(now, "k", 10), h.Allowed(now, "l", 10); k != 0 || l != 3 {
		t.Errorf("of k %d, of l %d", k, l)
	}
	if len(q.Claims) != 1 || q.Claims[0] != (Claim{Key: "l", Limit: 10, Hold: 3, Demand: 1}) || q.Alone {
		t.Errorf("%+v", q)
	}
	if now = now.Add(Lease - Margin); h.Allowed(now, "l", 10) != 0 || h.Request(now, "a", nil).Alone {
		t.Error("its lease is over")
	}
}

// A limit that is raised while an exchange is under way does not give more than the exchange has claimed.
func TestRaisedMeanwhile(t *testing.T) {
	t.Parallel()
	now := time.Unix(1800000000, 0)
	var h Holder
	h.Take(now, &Reply{Grants: []Grant{{Key: "a", Share: 20, Target: 20}}})
	q := h.Request(now, "n", []Use{{Key: "a", Limit: 5, Busy: 3}})
	if got := h.Allowed(now, "a", 20); q.Claims[0].Hold != 5 || got != 5 {
		t.Errorf("%d are claimed, and %d may be used", q.Claims[0].Hold, got)
	}
}

// Beside a node of an old version, which uses all of a limit that it does not share, the others leave it an equal part. What it shares it
// shares as before.
func TestOldNode(t *testing.T) {
	t.Parallel()
	common, day, own := "concurrency of provider p from ", DayPrefix+"1 recipients of provider p from ", "smtp:x.test"
	for _, test := range []struct {
		limit  int
		nodes  []Node
		share  int // of what is common
		shared int // of a destination's
	}{
		{12, nil, 12, 12},
		{12, []Node{{Name: "b"}}, 12, 12},
		{12, []Node{{Name: "b", Old: true}}, 6, 12},
		{12, []Node{{Name: "b", Old: true}, {Name: "c"}}, 8, 12},
		{12, []Node{{Name: "b", Old: true}, {Name: "c", Old: true}}, 4, 12},
		{1, []Node{{Name: "b", Old: true}}, 1, 1},
	} {
		q := &Request{Node: "a"}
		for _, key := range []string{common, day, own} {
			q.Claims = append(q.Claims, Claim{Key: key, Limit: test.limit, Demand: test.limit})
		}
		r := Exchange(q, test.nodes, nil)
		if r.Grants[0].Share != test.share || r.Grants[1].Share != test.share || r.Grants[2].Share != test.shared {
			t.Errorf("%+v: %+v", test, r.Grants)
		}
	}
}
