package simtest

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	hours   = flag.Int("day.hours", 0, "TestHostileDay lasts so many hours of virtual time, with a sample each; 0: a short form")
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
	if underRace || testing.Short() {
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
	if !underRace {
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
