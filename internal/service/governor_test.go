package service

import (
	"crypto/sha256"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A fakeAlarm rings when used says so. Only work of the process lets time of it pass, so that looking a millisecond at a
// time is good enough.
type fakeAlarm struct {
	used  func() time.Duration
	quit  chan struct{}
	sets  int
	rung  chan os.Signal
	tasks sync.WaitGroup
}

func (a *fakeAlarm) set() {
	a.sets++
	until := a.used() + governWake
	a.tasks.Go(func() {
		for a.used() < until {
			select {
			case <-a.quit:
				return
			case <-time.After(time.Millisecond):
			}
		}
		a.rung <- syscall.SIGVTALRM
	})
}

func (a *fakeAlarm) rings() <-chan os.Signal { return a.rung }
func (a *fakeAlarm) stop()                   { a.tasks.Wait() }

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
		g.alarm = &fakeAlarm{used: g.used, quit: quit, rung: make(chan os.Signal, 1)}
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
	changes := govern(t, 2, time.Minute+10*time.Second, func(at time.Duration) float64 {
		if at >= time.Minute {
			return 2
		}
		return 0
	})
	if !slices.Equal(changes, []int{1, 2}) {
		t.Errorf("changes %v", changes)
	}
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		g := &governor{limit: 2, set: func(int) {}, used: func() time.Duration { looks++; return 0 }}
		quit := make(chan struct{})
		alarm := &fakeAlarm{used: func() time.Duration { return 0 }, quit: quit, rung: make(chan os.Signal, 1)}
		g.alarm = alarm
		ended := make(chan struct{})
		go func() { g.run(quit); close(ended) }()
		time.Sleep(time.Minute)
		close(quit)
		<-ended
		if looks > 10 || alarm.sets != 1 {
			t.Errorf("an idle process looks %d times in a minute, and sets its alarm %d times", looks, alarm.sets)
		}
	})
}

// TestUserTimeAlarm: the kernel's alarm rings when this process has worked, and can be set again.
func TestUserTimeAlarm(t *testing.T) {
	a := newUserTimeAlarm()
	defer a.stop()
	for range 3 {
		a.set()
		for rung := false; !rung; {
			select {
			case <-a.rings():
				rung = true
			default: // it works
			}
		}
	}
	a.set()
	a.stop()
	for range 100 {
		hash := sha256.Sum256(make([]byte, 1<<20))
		_ = hash
	}
	select {
	case <-a.rings():
		t.Error("it rings after its end")
	default:
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
