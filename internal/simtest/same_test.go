//go:build !race

package simtest

import (
	"fmt"
	"strings"
	"testing"
)

// The race detector has Go's scheduler choose at random, and a run of several times the length. What
// is said in this file holds without it.
const underRace = false

// The same seed is the same run.
func TestSame(t *testing.T) {
	w := room(t)
	for n := uint64(1); n <= 20; n++ {
		tidy(n)
		p := NewPlan(n, w)
		p.Digest = true
		a := w.Run(t, p)
		b := w.Run(t, p)
		if a.Sum != b.Sum || a.Steps != b.Steps {
			t.Errorf("seed %d: %d and %d steps, and\n%s", n, a.Steps, b.Steps, difference(a.Log, b.Log))
		}
	}
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
