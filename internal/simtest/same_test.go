//go:build !race

package simtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The race detector has Go's scheduler choose at random, and a run of several times the length. What
// is said in this file holds without it.
const underRace = false

// The same seed is the same run, octet for octet of log and disk, whatever the machine. What goroutines
// of one process do at one instant is in an order of Go's, which changes when a system call takes
// long: package os is behind the mailboxes. So the same run need not be the very next one. Chance that is
// not of the seed (the true time, the order of a map) would make each run another.
func TestSame(t *testing.T) {
	const attempts = 6
	w := room(t)
	more := 0
	for n := uint64(1); n <= 20; n++ {
		p := NewPlan(n, w)
		p.Digest = true
		var runs []Outcome
		for !repeated(runs) && len(runs) < attempts {
			tidy(n)
			runs = append(runs, w.Run(t, p))
		}
		if !repeated(runs) {
			a, b := runs[0], runs[1]
			t.Errorf("seed %d: no two of %d runs are equal; %d and %d steps, and\n%s", n, attempts, a.Steps, b.Steps, difference(a.Log, b.Log))
		}
		more += len(runs) - 2
	}
	t.Logf("%d runs more than two of each seed", more)
}

// repeated says whether the last run is one that was there before.
func repeated(runs []Outcome) bool {
	if len(runs) < 2 {
		return false
	}
	last := runs[len(runs)-1]
	return slices.ContainsFunc(runs[:len(runs)-1], func(o Outcome) bool { return o.Sum == last.Sum && o.Steps == last.Steps })
}

// difference shows the first line that differs.
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d:\n%s\n%s", i, x[i], y[i])
		}
	}
	return fmt.Sprintf("logs of %d and %d lines", len(x), len(y))
}
