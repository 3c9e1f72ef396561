package qmgr

import (
	"io"
	"strings"
	"testing"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/statedir"
	"posthaste/qmgr/sched"
)

// killed is the directory of state as a kill leaves it at this moment.
func killed(t *testing.T, dir *statedir.Dir) *statedir.Dir {
	t.Helper()
	f, err := dir.Open(spentName)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	copied, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { copied.Close() })
	if err := copied.ReplaceDurably(spentName, text); err != nil {
		t.Fatal(err)
	}
	return copied
}

// Queue managers that are killed, one after the other, never send more in a day than may go, and what each of them cannot account for
// is a twentieth of the limit.
func TestSpentKilled(t *testing.T) {
	t.Parallel()
	dir, err := statedir.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	const limit, kills = 60, 4
	sent := 0
	for life := range kills + 1 {
		st := newStage(t, limitsOn)
		st.state = dir
		st.share(func(r *proto.ResolveReply) { r.OwnLimits = "messages=60/d" }, "a.test")
		smtp := st.agent("smtp", proto.Inventory{})
		st.run()
		st.waitAttached(1)
		for range map[bool]int{true: limit, false: 7}[life == kills] {
			st.arrive("s@from.test", "x@a.test")
		}
		if life < kills {
			for range 7 {
				o := smtp.next()
				sent++
				o.answer("ok")
			}
			dir = killed(t, dir)
			st.retire() // what it writes now nobody reads
			continue
		}
		// The last one sends all that is left: as much as the former ones cannot have spent.
		for sent < limit-kills*limit/dayPart {
			o := smtp.next()
			sent++
			o.answer("ok")
		}
		full := false // the limit is reached; what was ordered before may still come
		for quiet := false; !full || !quiet; {
			quiet = false
			select {
			case o := <-smtp.orders:
				sent++
				o.answer("ok")
			case <-time.After(200 * time.Millisecond):
				quiet = full
				full = full || strings.Contains(st.explainDest("a.test"), "60 of 60 messages today")
			}
		}
	}
	if sent > limit {
		t.Errorf("%d were sent of %d", sent, limit)
	}
}

// What was given out of a day, by whoever gives it, is not spent on the next one.
func TestPortionsAtMidnight(t *testing.T) {
	t.Parallel()
	before := time.Unix(1800000000, 0).Truncate(24 * time.Hour).Add(-time.Second)
	s := &Server{ahead: &ahead{day: dayOf(before), told: map[dayBound]int64{{}: 5}}, now: before}
	s.newDay()
	if len(s.queue) != 0 || s.ahead.told == nil {
		t.Errorf("it is not midnight: %+v", s.queue)
	}
	s.now = before.Add(time.Second)
	s.newDay()
	if len(s.queue) != 1 || s.queue[0].event.Kind != sched.EventPortions || s.ahead.told != nil || s.ahead.day != dayOf(s.now) {
		t.Errorf("%+v, %+v", s.queue, s.ahead)
	}
	n := newNodes(true)
	n.day, n.told, n.unsure = dayOf(before), map[string]int{"day 1 x": 5}, true
	s = &Server{nodes: n, now: s.now}
	s.newDay()
	if n.told["day 1 x"] != 0 || n.unsure || n.day != dayOf(s.now) {
		t.Errorf("%+v", n)
	}
}
