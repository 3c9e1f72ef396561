package service

import (
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// govern runs a governor over a load that says how many processors could be
// used at each moment, for as long as told. It returns each change.
func govern(t *testing.T, limit int, length time.Duration, load func(since time.Duration) float64) (changes []int) {
	synctest.Test(t, func(t *testing.T) {
		procs, used := 0, time.Duration(0)
		begun := time.Now()
		last := begun
		g := &governor{limit: limit, set: func(n int) {
			procs = n
			changes = append(changes, n)
		}}
		g.used = func() time.Duration {
			for last.Before(time.Now()) { // a millisecond at a time
				used += time.Duration(min(load(last.Sub(begun)), float64(procs)) * float64(time.Millisecond))
				last = last.Add(time.Millisecond)
			}
			return used
		}
		quit := make(chan struct{})
		ended := make(chan struct{})
		go func() { g.run(quit); close(ended) }()
		time.Sleep(length)
		close(quit)
		<-ended
	})
	return changes
}

func TestGovernor(t *testing.T) {
	t.Parallel()
	steady := func(n float64) func(time.Duration) float64 { return func(time.Duration) float64 { return n } }
	for _, c := range []struct {
		what   string
		limit  int
		length time.Duration
		load   func(time.Duration) float64
		want   []int
	}{
		{"nothing to do", 8, time.Minute, steady(0), []int{1}},
		{"half of one processor", 8, time.Minute, steady(0.5), []int{1}},
		{"one processor, whole", 8, time.Minute, steady(1), []int{1, 2}},
		{"more than there are", 8, time.Second, steady(100), []int{1, 2, 4, 8}},
		{"a limit that is no power of two", 6, time.Second, steady(100), []int{1, 2, 4, 6}},
		{"back to rest", 4, 5 * time.Minute, func(at time.Duration) float64 {
			if at < time.Second {
				return 4
			}
			return 0
		}, []int{1, 2, 4, 3, 2, 1}},
		{"pauses are no rest", 4, 10 * time.Second, func(at time.Duration) float64 {
			if at%time.Second < 500*time.Millisecond {
				return 4
			}
			return 0
		}, []int{1, 2, 4}},
	} {
		if got := govern(t, c.limit, c.length, c.load); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

// TestGovernorWakes: after a long rest work is noticed in time, and a resting
// process is left alone.
func TestGovernorWakes(t *testing.T) {
	t.Parallel()
	var looks []time.Duration
	changes := govern(t, 2, time.Hour+10*time.Second, func(at time.Duration) float64 {
		if at >= time.Hour {
			return 2
		}
		return 0
	})
	if !slices.Equal(changes, []int{1, 2}) {
		t.Errorf("changes %v", changes)
	}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		g := &governor{limit: 2, set: func(int) {}, used: func() time.Duration {
			looks = append(looks, time.Since(begun))
			return 0
		}}
		quit := make(chan struct{})
		ended := make(chan struct{})
		go func() { g.run(quit); close(ended) }()
		time.Sleep(time.Hour)
		close(quit)
		<-ended
	})
	if n, most := len(looks), int(time.Hour/governIdle)+10; n > most {
		t.Errorf("%d looks in an idle hour, at most %d expected", n, most)
	}
}

// TestSpread: only services that wait for disks have more processors than there
// are, unless the environment says how many.
func TestSpread(t *testing.T) {
	n := runtime.GOMAXPROCS(0)
	for _, tt := range []struct {
		spec Spec
		env  string
		want int
	}{{Spec{Syncs: true}, "", n + min(n, maxSpread)}, {Spec{}, "", 0}, {Spec{Frugal: true}, "", 0}, {Spec{Syncs: true}, "3", 0}} {
		t.Setenv("GOMAXPROCS", tt.env)
		got := 0
		if spread(tt.spec, func(procs int) { got = procs }); got != tt.want {
			t.Errorf("%+v, %q: %d, want %d", tt.spec, tt.env, got, tt.want)
		}
	}
}
