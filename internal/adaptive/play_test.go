package adaptive

import (
	"container/heap"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"posthaste/internal/rate"
	"posthaste/internal/simnet"
)

// A play is a course against a simulated host, with mail that never ends: what the scheduler does, without the rest of
// the scheduler. Each delivery opens a session of its own.
type play struct {
	b     Bounds
	c     *Course
	host  *simnet.Host
	meter rate.Meter
	was   rate.Rate
	now   int64 // µs
	busy  int
	ends  ends
	id    int
	took  int // accepted
	rests int // that were begun after something had been taken since the last one
	paid  int // taken when the last rest began
}

// An end is one of a delivery.
type end struct {
	at, began int64
	a         simnet.Answer
	greeting  bool
}

type ends []end

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, k int) bool { return e[i].at < e[k].at }
func (e ends) Swap(i, k int)      { e[i], e[k] = e[k], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(end)) }
func (e *ends) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

func newPlay(p simnet.Profile, seed uint64) *play {
	return &play{b: Bounds{Start: 5, Floor: 1, Ceiling: 20, Slowest: minute, Longest: 4000 * second}, c: new(Course), host: simnet.New(p, seed), now: second}
}

// until goes on until a time.
func (p *play) until(t int64) {
	for {
		at := int64(rate.Never)
		if p.busy < p.c.Window(&p.b) {
			at = max(p.now, p.c.Until())
			if r := p.c.Rate(); !r.IsZero() {
				at = max(at, p.meter.Next(r, at, 1))
			}
		}
		if len(p.ends) > 0 && p.ends[0].at <= at {
			if at = p.ends[0].at; at >= t {
				break
			}
			p.now = at
			p.ended(heap.Pop(&p.ends).(end))
			continue
		}
		if at >= t {
			break
		}
		p.now = at
		p.begin()
	}
	p.now = t
}

func (p *play) begin() {
	if r := p.c.Rate(); !r.IsZero() {
		p.meter.Spend(r, p.now, 1)
	}
	p.busy++
	p.id++
	now := time.UnixMicro(p.now)
	e := end{began: p.now, a: p.host.Connect(now, "c")}
	if e.a.OK() {
		took := e.a.Took
		id := fmt.Sprint(p.id)
		e.a = p.host.Hear(now.Add(took), "c", id, id) // a little early, which does not matter
		e.a.Took += took
		p.host.Leave(now, "c")
	} else {
		e.greeting = true
	}
	e.at = p.now + int64(e.a.Took/time.Microsecond)
	heap.Push(&p.ends, e)
}

func (p *play) ended(e end) {
	r := Report{Began: e.began, Busy: p.busy, Opened: true}
	if r.Text = e.a.Text; e.a.OK() {
		p.took++
	}
	r.Ask, r.After = Read(e.a.Code, e.a.Text, e.greeting)
	rested := p.c.Until()
	p.c.Ended(p.now, &p.b, &r)
	if p.c.Until() > rested {
		if p.took > p.paid {
			p.rests++
		}
		p.paid = p.took
	}
	p.busy--
	if to := p.c.Rate(); to != p.was {
		p.meter.Change(to, p.now)
		p.was = to
	}
	if at := p.c.Until(); at > p.now && !p.was.IsZero() {
		p.meter.Hold(p.was, at)
	}
}

// metered is a host that takes so many messages in a span, and nothing for a penalty time when there was one more.
func metered(n int, span, penalty time.Duration) simnet.Profile {
	p := simnet.Profiles()["comcast"]
	p.Messages, p.Span, p.Penalty = n, span, penalty
	return p
}

// Of what a host takes that counts over some time, and has some penalty, most is sent after the first hour or so, although
// nothing is known of either; and the penalty is met a few times, and then ever more seldom.
func TestMetered(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	brief := func(d time.Duration) string { // not 1h0m0s
		return strings.NewReplacer("h0m0s", " h", "m0s", " min").Replace(d.String())
	}
	var table strings.Builder
	for _, c := range []struct {
		n             int
		span, penalty time.Duration
		first, then   float64 // shares of what the host takes, at least: in two hours, and in the next six
		rests         int     // in these six, at most
	}{
		{5, time.Second, 10 * time.Second, .7, .75, 8},
		{20, 10 * time.Second, 0, .8, .85, 4},
		{20, 10 * time.Second, time.Minute, .7, .9, 6},
		{20, 10 * time.Second, 5 * time.Minute, .25, .85, 6},
		{120, time.Minute, 0, .8, .88, 4},
		{120, time.Minute, time.Minute, .85, .88, 4},
		{60, time.Minute, 5 * time.Minute, .8, .88, 4},
		{60, time.Minute, 30 * time.Minute, .5, .75, 6},
		{60, time.Minute, hour, .3, .8, 3},
		{600, time.Minute, 5 * time.Minute, .8, .88, 5},
		{300, 10 * time.Minute, 0, .8, .85, 8},
		{300, 10 * time.Minute, 10 * time.Minute, .7, .8, 5},
		{1000, hour, 5 * time.Minute, .95, .75, 8},
		{1000, hour, hour, .95, .6, 8},
	} {
		name := fmt.Sprintf("%d in %v, penalty %v", c.n, c.span, c.penalty)
		p := newPlay(metered(c.n, c.span, c.penalty), 1)
		share := func(hours int) float64 {
			was := p.took
			p.until(p.now + int64(hours)*60*minute)
			return float64(p.took-was) / float64(c.n) * float64(c.span) / float64(time.Duration(hours)*hour)
		}
		first := share(2)
		rests := p.rests
		then := share(6)
		fmt.Fprintf(&table, "| %d in %s | %s | %.2f | %.2f |\n", c.n, brief(c.span), brief(c.penalty), first, then)
		if rests = p.rests - rests; first < c.first || then < c.then || rests > c.rests {
			t.Errorf("%s: %.2f of it in two hours, %.2f then, with %d rests", name, first, then, rests)
		}
	}
	page, err := os.ReadFile("../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), table.String()) {
		t.Errorf("docs/scheduler.md has not this table:\n%s", table.String())
	}
}

// Whatever number it is that a host takes in a minute, and whatever penalty of up to ten minutes it has, after the first
// hour it gets three quarters of that at least, and has no more than four reasons for a penalty in the next three.
func TestByTheMinute(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(20, 200).Draw(t, "messages")
		p := newPlay(metered(n, time.Minute, time.Duration(rapid.IntRange(0, 600).Draw(t, "penalty"))*time.Second), rapid.Uint64().Draw(t, "seed"))
		p.until(60 * minute)
		took, rests := p.took, p.rests
		p.until(4 * 60 * minute)
		if got := float64(p.took-took) / float64(n*3*60); got < .75 || p.rests-rests > 4 {
			t.Fatalf("it gets %.2f of what it takes, with %d rests", got, p.rests-rests)
		}
	})
}

// A host that says "in a second" whenever it is asked is asked ever more seldom.
func TestSaysSoon(t *testing.T) {
	t.Parallel()
	p := newPlay(simnet.Profile{}, 1)
	asked, now := 0, second
	for now < 60*minute {
		p.c.Ended(now, &p.b, &Report{Ask: Slower, After: time.Second, Began: now, Busy: 1})
		asked++
		now = max(now, p.c.Until())
	}
	if asked > 20 {
		t.Errorf("it is asked %d times in an hour", asked)
	}
}

// Of a rate that is not used nothing is learnt: it becomes no faster by time alone.
func TestUnused(t *testing.T) {
	t.Parallel()
	p := newPlay(metered(60, time.Minute, 0), 1)
	p.until(10 * minute)
	var was Memory
	for i := range 60 { // one in ten minutes
		p.now += 10 * minute
		p.c.Ended(p.now, &p.b, &Report{Began: p.now - 1, Busy: 1})
		if i == 0 { // a try for which the time before was enough may have been due
			was = p.c.m
		}
	}
	if was.Interval == 0 {
		t.Fatal("there is no rate")
	}
	if p.c.m.Interval != was.Interval {
		t.Errorf("the interval is %g, and was %g", p.c.m.Interval, was.Interval)
	}
}
