package nodesim

import (
	"flag"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	one   = flag.Int64("sim.seed", -1, "run this seed alone, and show its log")
	first = flag.Uint64("sim.first", 1, "begin with this seed")
	mask  = flag.Uint64("sim.mask", 0, "with -sim.seed: leave faults out, by bits")
	many  = flag.Int("sim.n", 0, "run so many seeds; 0: 500, or 30 with -short or the race detector")
	plant = flag.String("sim.plant", "", "with -sim.seed: plant a fault")
	limit = flag.Duration("sim.time", 0, "end after so long, also before all seeds have been run; 0: do not")
	trace = flag.Bool("sim.trace", false, "with -sim.seed: show what goes over the network, and each statement")
)

// calm has no other goroutine than those of a run disturb their order.
func calm(t *testing.T) {
	procs, percent := runtime.GOMAXPROCS(1), debug.SetGCPercent(-1)
	t.Cleanup(func() { runtime.GOMAXPROCS(procs); debug.SetGCPercent(percent) })
}

// tidy collects garbage from time to time, between runs.
func tidy(n uint64) {
	if n%8 == 0 {
		runtime.GC()
	}
}

// Whatever happens to nodes, their database and the way between them, no promise is broken.
func TestSeeds(t *testing.T) {
	calm(t)
	if *one >= 0 {
		p := NewPlan(uint64(*one)).Masked(*mask)
		p.Planted, p.Trace = *plant, *trace
		out := Run(t, p, true)
		t.Logf("%s\n%s%+v", p, out.Log, out.Doing)
		for _, e := range out.Errors {
			t.Error(e)
		}
		return
	}
	count := *many
	if count == 0 {
		if count = 500; testing.Short() || underRace {
			count = 30
		}
	}
	var sum Counts
	begun, failed, done := time.Now(), 0, uint64(0)
	for n := *first; done < uint64(count) && failed < 10 && (*limit == 0 || time.Since(begun) < *limit); n++ {
		p := NewPlan(n)
		out := Run(t, p, false)
		sum.add(&out.Doing)
		tidy(n)
		if done++; done%1000 == 0 {
			t.Logf("%d seeds in %v: %+v", done, time.Since(begun).Round(time.Second), sum)
		}
		if len(out.Errors) > 0 {
			failed++
			t.Errorf("%s\n%s\nto see it: go test ./internal/nodesim -run TestSeeds -v -sim.seed=%d", p, strings.Join(out.Errors, "\n"), n)
		}
	}
	t.Logf("%d seeds in %v: %+v; first seed %d", done, time.Since(begun).Round(time.Millisecond), sum, *first)
}

// Each fault that is planted in the engine breaks a promise in some seed. It is begun near the first that does.
func TestPlanted(t *testing.T) {
	if underRace {
		t.Skip("what the detector adds here is time")
	}
	calm(t)
	for _, f := range []struct {
		fault string
		first uint64
	}{{"epoch", 5}, {"lease", 20}, {"sync", 86}, {"margin", 140}, {"doubtful", 3}, {"shares", 1181}, {"twice", 1}, {"late", 590}} {
		found := false
		for n := f.first; n <= f.first+400 && !found; n++ {
			p := NewPlan(n)
			p.Planted = f.fault
			out := Run(t, p, false)
			if found = len(out.Errors) > 0; found {
				t.Logf("%s: seed %d: %s", f.fault, n, out.Errors[0])
			}
			tidy(n)
		}
		if !found {
			t.Errorf("%s: no seed has found it", f.fault)
		}
	}
}
