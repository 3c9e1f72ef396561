package whatif

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"posthaste/internal/pace"
	"posthaste/qmgr/sched"
)

// uniform is so many messages for one destination that takes a second for each.
func uniform(count int) *Mail {
	now := time.Unix(1_800_000_000, 0)
	b := new(pace.Behaviour)
	for range 100 {
		b.Add(now, pace.Delivery{Took: time.Second, Busy: 20, Rcpts: 1})
	}
	d := Dest{Behaviour: b}
	d.Transport, d.Queue, d.Nexthop = "smtp", "a.test", "a.test"
	return &Mail{Now: now, Dests: []Dest{d}, Rows: []Row{{Count: count, Rcpts: 1, Created: now}}}
}

// A million messages are forecast by a part of them: at 20 at once, a second each.
func TestMillion(t *testing.T) {
	t.Parallel()
	m := uniform(1_000_000)
	f, err := Run(t.Context(), m, sched.DefaultConfig(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if want := 50_000.0; math.Abs(f.All.Last.Seconds()/want-1) > 0.05 || f.Stands < 10 || f.All.Messages != 1_000_000 || f.All.Left != 0 {
		t.Errorf("%+v, one stands for %.1f", f.All, f.Stands)
	}
}

// The same seed has the same forecast.
func TestDeterminism(t *testing.T) {
	t.Parallel()
	var got [2]*Forecast
	for i := range got {
		m := uniform(2000)
		m.Dests[0].Behaviour.First.Later = 30
		var err error
		if got[i], err = Run(t.Context(), m, sched.DefaultConfig(), 5); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(got[0], got[1]) {
		t.Errorf("%+v and %+v", got[0].All, got[1].All)
	}
}

// What cannot be forecast is refused, and who goes ends it.
func TestRefused(t *testing.T) {
	t.Parallel()
	m := uniform(0)
	if _, err := Run(t.Context(), m, sched.DefaultConfig(), 1); !errors.Is(err, ErrEmpty) {
		t.Errorf("an empty queue: %v", err)
	}
	m = uniform(10)
	m.Rows[0].Rcpts = maxRcpts
	if _, err := Run(t.Context(), m, sched.DefaultConfig(), 1); !errors.Is(err, ErrLarge) {
		t.Errorf("too many recipients: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, uniform(10), sched.DefaultConfig(), 1); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A destination that does not answer is left out of the time of those that do, and stays.
func TestDown(t *testing.T) {
	t.Parallel()
	m := uniform(100)
	d := m.Dests[0]
	d.Queue, d.Nexthop, d.Behaviour = "dead.test", "dead.test", new(pace.Behaviour)
	for range 5 {
		d.Behaviour.Add(m.Now, pace.Delivery{Took: 30 * time.Second, Busy: 1, Rcpts: 1, Away: true})
	}
	m.Dests = append(m.Dests, d)
	m.Rows = append(m.Rows, Row{Dest: 1, Count: 10, Rcpts: 1, Created: m.Now})
	f, err := Run(t.Context(), m, sched.DefaultConfig(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Down[1] || f.Down[0] || f.Dests[1].Last >= 0 || f.Dests[1].Left != 10 || f.Alive.Last < 0 || f.All.Last >= 0 {
		t.Errorf("%+v", f)
	}
}
