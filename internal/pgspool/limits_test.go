package pgspool

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/nodeshare"
	"posthaste/internal/storage"
)

// Nodes exchange their shares of limits in the database: who is alone has all of them, another gets nothing until the first
// has heard of it, then both have what is their due, and what is no more claimed is free.
func TestExchange(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a, b := d.store("a"), d.store("b")
	ask := func(s *Store, want string, alone bool, claims ...nodeshare.Claim) {
		t.Helper()
		r, err := s.exchange(&nodeshare.Request{Alone: alone, Claims: claims})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.Alone, r.Grants); got != want {
			t.Errorf("%s of %v: %s, want %s", s.node, claims, got, want)
		}
	}
	claim := func(hold, demand int) nodeshare.Claim {
		return nodeshare.Claim{Key: "smtp:x.test", Limit: 10, Hold: hold, Demand: demand}
	}
	ask(a, "true [{smtp:x.test 10 10 0}]", false, claim(0, 30))
	ask(b, "false [{smtp:x.test 0 0 0}]", false, claim(0, 30))
	ask(a, "false [{smtp:x.test 10 5 0}]", true, claim(10, 30))
	ask(b, "false [{smtp:x.test 0 0 0}]", false, claim(0, 30)) // a acted as if alone when it asked
	ask(a, "false [{smtp:x.test 7 5 0}]", false, claim(7, 30)) // two of its deliveries go on
	ask(b, "false [{smtp:x.test 3 3 0}]", false, claim(0, 30))
	ask(a, "false [{smtp:x.test 5 5 0}]", false, claim(5, 30))
	ask(b, "false [{smtp:x.test 5 5 0}]", false, claim(3, 30))
	ask(a, "false []", false)
	ask(b, "false [{smtp:x.test 10 10 0}]", false, claim(5, 30))
	// a is gone: its lease runs out, and its rows with it.
	ask(a, "false [{smtp:y.test 10 10 0}]", false, nodeshare.Claim{Key: "smtp:y.test", Limit: 10, Demand: 1})
	if _, err := d.conn().Exec(t.Context(), "UPDATE node_share SET until = clock_timestamp() WHERE node = 'a'"); err != nil {
		t.Fatal(err)
	}
	ask(b, "true [{smtp:x.test 10 10 0}]", false, claim(10, 30))
	var n int
	if err := d.conn().QueryRow(t.Context(), "SELECT count(*) FROM limit_share").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows are left, %v", n, err)
	}
}

// What a node has used of a day and does not claim, since it has more of it than there is room for, stays its own.
func TestExchangeLeftOut(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a, b := d.store("a"), d.store("b")
	var day int
	if err := d.conn().QueryRow(t.Context(), "SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)").Scan(&day); err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("%s%d x", nodeshare.DayPrefix, day)
	claim := []nodeshare.Claim{{Key: key, Limit: 10, Hold: 6, Demand: 6}}
	for _, c := range []struct {
		s    *Store
		q    nodeshare.Request
		want string
	}{
		{a, nodeshare.Request{Claims: append(claim, nodeshare.Claim{Key: "smtp:x.test", Limit: 5, Demand: 1})}, "[{KEY 6 6 0} {smtp:x.test 5 5 0}]"},
		{b, nodeshare.Request{}, "[]"},
		{a, nodeshare.Request{Alone: true, More: true}, "[]"}, // only what is of a day stays
		{a, nodeshare.Request{More: true}, "[]"},
		{b, nodeshare.Request{Claims: []nodeshare.Claim{{Key: key, Limit: 10, Demand: 9}, {Key: "smtp:x.test", Limit: 5, Demand: 5}}}, "[{KEY 4 4 0} {smtp:x.test 5 5 0}]"},
		{a, nodeshare.Request{}, "[]"},
		{b, nodeshare.Request{Claims: []nodeshare.Claim{{Key: key, Limit: 10, Hold: 4, Demand: 9}}}, "[{KEY 9 9 0}]"},
	} {
		r, err := c.s.exchange(&c.q)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(fmt.Sprint(r.Grants), key, "KEY"); got != c.want {
			t.Errorf("%s: %s, want %s", c.s.node, got, c.want)
		}
	}
}

// What a node had got of a limit of a day counts against the others when it is gone, also if it was alone, until the day is over.
func TestExchangeOfDay(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a, b := d.store("a"), d.store("b")
	var day int
	if err := d.conn().QueryRow(t.Context(), "SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)").Scan(&day); err != nil {
		t.Fatal(err)
	}
	ask := func(s *Store, want string, day, hold, demand int) {
		t.Helper()
		r, err := s.exchange(&nodeshare.Request{Claims: []nodeshare.Claim{{Key: fmt.Sprintf("%s%d x", nodeshare.DayPrefix, day), Limit: 10, Hold: hold, Demand: demand}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.Alone, " ", r.Grants[0].Share); got != want {
			t.Errorf("%s: %s, want %s", s.node, got, want)
		}
	}
	ask(a, "true 6", day, 5, 6)
	ask(a, "true 3", day-3, 2, 3)
	ask(a, "true 6", day, 5, 6)
	if _, err := d.conn().Exec(t.Context(), "UPDATE node_share SET until = clock_timestamp() WHERE node = 'a'"); err != nil {
		t.Fatal(err)
	}
	ask(b, "true 4", day, 0, 9)
	ask(b, "true 9", day-3, 0, 9) // a's row went with its claim, and so does b's other one now
	ask(a, "false 9", day, 5, 9)
	a.wall = func() time.Time { return time.Now().Add(-24 * time.Hour) } // its clock has been set back
	ask(a, "false 6", day-1, 5, 6)
	ask(b, "false 1", day, 0, 9) // what it has spent of this day counts nevertheless
	a.wall = nil
	ask(a, "false 5", day, 5, 9)
	if _, err := d.conn().Exec(t.Context(), "INSERT INTO limit_share VALUES ('gone', 'day 1 x', 5, 5)"); err != nil {
		t.Fatal(err)
	}
	ask(a, "false 5", day, 5, 9)
	var n int
	if err := d.conn().QueryRow(t.Context(), "SELECT count(*) FROM limit_share WHERE node = 'gone'").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows are left of a day that is over, %v", n, err)
	}
}

// A process that does not know what its predecessor has used of a day is told what that had got, and leaves it as it is until it is asked for:
// nobody else gets it.
func TestExchangeFresh(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a, b := d.store("a"), d.store("b")
	var day int
	if err := d.conn().QueryRow(t.Context(), "SELECT floor(extract(epoch FROM clock_timestamp()) / 86400)").Scan(&day); err != nil {
		t.Fatal(err)
	}
	x, y := fmt.Sprintf("%s%d x", nodeshare.DayPrefix, day), fmt.Sprintf("%s%d y", nodeshare.DayPrefix, day)
	for i, c := range []struct {
		s    *Store
		q    nodeshare.Request
		want string
	}{
		{a, nodeshare.Request{Claims: []nodeshare.Claim{{Key: x, Limit: 10, Demand: 4}, {Key: y, Limit: 10, Demand: 3}}}, "4 0, 3 0"},
		{a, nodeshare.Request{Fresh: true}, ""}, // killed, and there again
		{b, nodeshare.Request{Claims: []nodeshare.Claim{{Key: x, Limit: 10, Demand: 9}, {Key: y, Limit: 10, Demand: 9}}}, "6 0, 7 0"},
		{a, nodeshare.Request{Fresh: true, Claims: []nodeshare.Claim{{Key: x, Limit: 10, Demand: 1}}}, "4 4"},
		{a, nodeshare.Request{Fresh: true, Claims: []nodeshare.Claim{{Key: x, Limit: 10, Hold: 4, Demand: 5}, {Key: y, Limit: 10, Demand: 1}}}, "4 4, 3 3"},
		{a, nodeshare.Request{Claims: []nodeshare.Claim{{Key: x, Limit: 10, Hold: 2, Demand: 2}}}, "2 0"}, // it has ended in order, and knows
	} {
		r, err := c.s.exchange(&c.q)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, g := range r.Grants {
			got = append(got, fmt.Sprint(g.Share, " ", g.Former))
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%d: %q, want %q", i, got, c.want)
		}
	}
}

// A node whose program does not say that it shares all limits is found out, also when it has done so before; so is one that has a part of the queue
// and exchanges nothing. The log says it once.
func TestOldNode(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a, b := d.store("a"), d.store("b")
	const key = "concurrency of provider p from "
	conn := d.conn()
	do := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(want int, old ...string) {
		t.Helper()
		q := &nodeshare.Request{Claims: []nodeshare.Claim{{Key: key, Limit: 12, Demand: 12}}}
		r, err := a.exchange(q)
		if err != nil || r.Grants[0].Target != want || !slices.Equal(q.Old, old) {
			t.Errorf("%+v, %q, %v; want %d, %q", r, q.Old, err, want, old)
		}
	}
	ask(12)
	if _, err := b.exchange(new(nodeshare.Request)); err != nil {
		t.Fatal(err)
	}
	ask(12)
	do("UPDATE node_version SET until = clock_timestamp() WHERE node = 'b'") // its program is the former one again
	ask(6, "b")
	do("DELETE FROM node_share WHERE node = 'b'")
	ask(12)
	do("INSERT INTO node VALUES ('c', 'c', clock_timestamp()); UPDATE shard SET node = 'c'; UPDATE lease SET until = 'infinity'")
	ask(6, "c")

	var said []string
	e := &engine{opt: storage.Options{Warn: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}}
	for range 10 * oldTimes {
		e.sayOld([]string{"c"})
	}
	e.sayOld(nil) // a moment
	for range 10 * oldTimes {
		e.sayOld([]string{"c"})
	}
	if len(said) != 1 || !strings.Contains(said[0], "node c is of a version") {
		t.Errorf("%q", said)
	}
}
