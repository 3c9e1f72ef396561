package simtest

import (
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	one   = flag.Int64("sim.seed", -1, "run this seed alone, and show its log")
	first = flag.Uint64("sim.first", 1, "begin with this seed")
	mask  = flag.Uint64("sim.mask", 0, "with -sim.seed: leave faults and letters out, by bits")
	many  = flag.Int("sim.n", 0, "run so many seeds; 0: 1000, or 30 with -short or the race detector")
	stop  = flag.Bool("sim.stop", false, "end with the first seed that fails, and do not shrink it")
	trace = flag.Bool("sim.trace", false, "with -sim.seed: show each step")
)

// calm has no other goroutine than those of a run disturb their order. Garbage is collected between runs, and within one
// that would otherwise take all memory of the machine.
func calm(t *testing.T) {
	procs, percent, limit := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1), debug.SetMemoryLimit(2<<30)
	t.Cleanup(func() { runtime.GOMAXPROCS(procs); debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) })
}

func room(t *testing.T) *World { return NewWorld(t, place(t)) }

// place is the directory of a world.
func place(t *testing.T) string {
	calm(t)
	dir := t.TempDir()
	if d, err := os.MkdirTemp("/dev/shm", "simtest"); err == nil { // nothing is written to a disk there
		dir = d
		t.Cleanup(func() { os.RemoveAll(d) })
	}
	if err := os.MkdirAll(filepath.Join(dir, "maildrop"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	return dir
}

// Services tell of events, and nothing that has left the queue is without them.
func TestEventSeeds(t *testing.T) {
	w := NewEventWorld(t, place(t))
	count := *many
	if count == 0 {
		if count = 200; testing.Short() || underRace {
			count = 10
		}
	}
	if *one >= 0 {
		p := NewPlan(uint64(*one), w).Masked(*mask)
		out := w.Run(t, p)
		t.Logf("%s\n%s", p, out.Log)
		for _, e := range out.Errors {
			t.Error(e)
		}
		return
	}
	var sum Counts
	failed := 0
	for n := *first; n < *first+uint64(count) && failed < 5; n++ {
		p := NewPlan(n, w)
		out := w.Run(t, p)
		sum.add(out.Doing)
		tidy(n)
		if len(out.Errors) > 0 {
			failed++
			t.Errorf("seed %d: %s\nto see it: go test ./internal/simtest -run TestEventSeeds -v -sim.seed=%d", n, strings.Join(out.Errors, "\n"), n)
		}
	}
	if count >= 100 && sum.Told == 0 {
		t.Error("no message was looked for")
	}
	t.Logf("%d seeds: %+v; first seed %d", count, sum, *first)
}

// Mail is delivered while its client waits, and nothing is lost by that.
func TestWaitSeeds(t *testing.T) { runSeeds(t, NewWaitWorld(t, place(t)), 300, "TestWaitSeeds") }

// Mail of tenants is delivered within their limits, and nothing is lost by that.
func TestTenantSeeds(t *testing.T) { runSeeds(t, NewTenantWorld(t, place(t)), 150, "TestTenantSeeds") }

func TestSeeds(t *testing.T) { runSeeds(t, room(t), 1000, "TestSeeds") }

// runSeeds runs seeds in a world: so many, unless flags say otherwise. name is the test's.
func runSeeds(t *testing.T, w *World, usual int, name string) {
	if *one >= 0 {
		p := NewPlan(uint64(*one), w).Masked(*mask)
		p.trace, p.Digest = *trace, true
		out := w.Run(t, p)
		t.Logf("%s\n%d steps, %x\n%s", p, out.Steps, out.Sum[:8], out.Log)
		for _, e := range out.Errors {
			t.Error(e)
		}
		return
	}
	count := *many
	if count == 0 {
		if count = usual; testing.Short() || underRace {
			count = 30
		}
	}
	var sum Counts
	begun := time.Now()
	steps, failed := 0, 0
	for n := *first; n < *first+uint64(count); n++ {
		p := NewPlan(n, w)
		out := w.Run(t, p)
		sum.add(out.Doing)
		tidy(n)
		steps += out.Steps
		if len(out.Errors) > 0 {
			failed++
			if *stop {
				t.Fatalf("seed %d: %s", n, strings.Join(out.Errors, "\n"))
			}
			mask := p.Shrink(func(q *Plan) bool { tidy(0); return len(w.Run(t, q).Errors) > 0 })
			t.Errorf("seed %d: %s\nto see it: go test ./internal/simtest -run %s -v -sim.seed=%d -sim.mask=%d", n, strings.Join(out.Errors, "\n"), name, n, mask)
		}
		if failed > 20 {
			break
		}
	}
	if count >= 100 && sum.Followed == 0 {
		t.Error("no cleanup has gone on from what it had read while its predecessor had the queue")
	}
	if count >= 100 && sum.Parked == 0 {
		t.Error("no mail was ever parked for a shared limit")
	}
	t.Logf("%d seeds in %v: %d steps, %+v; first seed %d", count, time.Since(begun).Round(time.Millisecond), steps, sum, *first)
}

// tidy collects garbage from time to time, between runs.
func tidy(n uint64) {
	if n%2 == 0 {
		runtime.GC()
	}
}
