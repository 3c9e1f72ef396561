package nodesim

import (
	"flag"
	"strings"
	"syscall"
	"testing"
)

var same = flag.Int("sim.same", 60, "run so many seeds twice")

// disturbed says how often another program has had the processor that a run had. Go's scheduler lets another goroutine go
// on then.
func disturbed(t *testing.T) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return u.Nivcsw
}

// The same seed is the same run, octet for octet of all that goes over the network, of all statements, and of the log. Chance that
// is not the seed's (the order of a map, of timers at one instant, of several cases of a select) makes each run another. On a
// machine that is busy a run may be disturbed: then the seed has some attempts more.
func TestSame(t *testing.T) {
	if underRace {
		t.Skip("the detector has the scheduler choose at random")
	}
	calm(t)
	const attempts = 16
	more := 0
	for n := *first; n < *first+uint64(*same); n++ {
		p := NewPlan(n)
		p.Trace = true
		// Who differs has to be the same some times more.
		for i, need, quiet := 1, 1, 0; need > 0; i++ {
			before := disturbed(t)
			a, b := Run(t, p, true), Run(t, p, true)
			calm := disturbed(t) == before
			tidy(n)
			if a.Log == b.Log {
				need--
				continue
			}
			if more++; calm {
				need, quiet = 3, quiet+1
			}
			if quiet == 2 || i >= attempts {
				t.Errorf("seed %d is not the same twice:\n%s", n, difference(a.Log, b.Log))
				break
			}
		}
	}
	t.Logf("%d seeds twice, %d of them again", *same, more)
}

// difference shows where two logs begin to differ.
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	i := 0
	for i < len(x) && i < len(y) && x[i] == y[i] {
		i++
	}
	show := func(l []string, sign string) string { return sign + strings.Join(l[i:min(i+3, len(l))], "\n"+sign) }
	return strings.Join(x[max(0, i-3):i], "\n") + "\n" + show(x, "< ") + "\n" + show(y, "> ")
}
