package simtest

import (
	"errors"
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	hours   = flag.Int("day.hours", 0, "TestHostileDay lasts so many hours of virtual time, with a sample each, and is judged by them from 20 on; 0: a short form")
	dayRate = flag.Float64("day.rate", 1, "TestHostileDay has so many times the usual number of hostile clients")
	dayLog  = flag.Bool("day.log", false, "TestHostileDay shows the log, at its standard output")
	dayHeap = flag.String("day.heap", "", "TestHostileDay writes heap profiles into this directory, one for each sample")
	daySeed = flag.Uint64("day.seed", 1, "seed of TestHostileDay")
)

// usual has garbage collected as it is in a service; place has turned that off.
func usual(t *testing.T) string {
	dir := place(t)
	debug.SetGCPercent(100)
	runtime.GC()
	return dir
}

// shortDay is a day of two hours. What is remembered in it has its size after the first of them, about: there are few clients
// in its world, who come again and again, and nobody is patient.
func shortDay() dayOrder {
	o := dayOrder{length: 2 * time.Hour, warm: 40 * time.Minute, every: 5 * time.Minute, rate: 2, known: 1000, crowd: 100, patience: 15 * time.Minute, lifetime: 10 * time.Minute}
	if testing.Short() {
		o.length, o.warm, o.rate = 30*time.Minute, 0, .5
	}
	return o
}

// wholeDay is one of so many hours, with clients without end, and postscreen's memory of clients full at the beginning.
func wholeDay(hours int) dayOrder {
	return dayOrder{length: time.Duration(hours) * time.Hour, every: time.Hour, rate: 3, known: 200_000, patience: 2 * time.Hour, lifetime: 30 * time.Minute}
}

// A day of hostile clients, hosts and name servers leaves nothing behind, and honest mail gets through.
func TestHostileDay(t *testing.T) {
	if underRace {
		t.Skip("with the race detector it takes too long")
	}
	o := shortDay()
	if *hours > 0 {
		o = wholeDay(*hours)
	}
	o.heap = *dayHeap
	if o.rate *= *dayRate; *dayLog {
		o.log = os.Stdout
	}
	samples, wrong, d := runDay(t, usual(t), *daySeed, o)
	for _, text := range wrong {
		t.Error(text)
	}
	if !testing.Short() && (*hours == 0 || *hours >= 20) { // caches of names fill for hours
		for _, text := range unbounded(samples) {
			t.Error("it has grown: " + text)
		}
	}
	if d.taken.Load() == 0 || d.delivered.Load() == 0 || d.accept == 0 || d.deliver == 0 {
		t.Errorf("nothing happened: %d messages taken, %d delivered", d.taken.Load(), d.delivered.Load())
	}
	t.Logf("honest mail was taken within %v and delivered within %v", d.accept, d.deliver)
}

// What is kept of each session for ever is found.
func TestHostileDayFindsLeak(t *testing.T) {
	if underRace || testing.Short() {
		t.Skip("a run that is long enough takes too long")
	}
	o := shortDay()
	o.leak = 32 << 10
	samples, wrong, _ := runDay(t, usual(t), *daySeed, o)
	if grown := strings.Join(unbounded(samples), "\n"); !strings.Contains(grown, "live heap") {
		t.Errorf("it was not found; %q, %q", grown, wrong)
	}
}

// Each thing that grows is found by itself, and what is large from the beginning, or for an hour, is not.
func TestUnbounded(t *testing.T) {
	t.Parallel()
	grows := map[string]func(s *sample, to float64){
		"octets of live heap":   func(s *sample, to float64) { s.heap = 50e6 * to },
		"octets of disk":        func(s *sample, to float64) { s.disk = 50e6 * to; s.heap = s.disk },
		"goroutines":            func(s *sample, to float64) { s.goroutines = 500 * to },
		"connections":           func(s *sample, to float64) { s.conns = 500 * to },
		"descriptors":           func(s *sample, to float64) { s.files = 50 * to },
		"messages in the queue": func(s *sample, to float64) { s.queue = 500 * to },
		"destinations":          func(s *sample, to float64) { s.destinations = 500 * to },
	}
	for what, set := range grows {
		day := make([]sample, 24)
		for i := range day {
			set(&day[i], 1+float64(i)/23)
		}
		if got := unbounded(day); len(got) != 1 || !strings.HasPrefix(got[0], what) {
			t.Errorf("%s grow: %q", what, got)
		}
		for i := range day {
			set(&day[i], 1)
		}
		if set(&day[21], 9); len(unbounded(day)) > 0 {
			t.Errorf("%s are many once: %q", what, unbounded(day))
		}
	}
}

// Who writes to somebody who does not read waits, until there is room or the deadline has come.
func TestPipeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &site{seed: 1}
		near, far := s.connect(nil, "test", farDelay, -1, address("a"), address("b"))
		near.out.room = 1000
		begun := time.Now()
		near.SetWriteDeadline(begun.Add(time.Minute))
		n, err := near.Write(make([]byte, 1500))
		if n != 1000 || !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != time.Minute {
			t.Errorf("%d octets were written, and %v after %v", n, err, time.Since(begun))
		}
		near.SetWriteDeadline(time.Time{})
		time.AfterFunc(time.Minute, func() { _, _ = far.Read(make([]byte, 500)) })
		if n, err = near.Write(make([]byte, 500)); n != 500 || err != nil || time.Since(begun) != 2*time.Minute {
			t.Errorf("with room again %d octets were written, and %v after %v", n, err, time.Since(begun))
		}
		time.AfterFunc(time.Minute, func() { _ = far.Close() })
		if _, err = near.Write(make([]byte, 500)); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("to somebody who has gone: %v", err)
		}
	})
}
