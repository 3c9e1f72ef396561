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

// The same seed is the same run. What two timers do that end at the same instant is in an order that
// Go chooses at random in a bubble of package synctest. So lines of the log
// that have the same time may change places, and then the disks are not compared.
func TestSame(t *testing.T) {
	w := room(t)
	for n := uint64(1); n <= 20; n++ {
		tidy(n)
		p := NewPlan(n, w)
		p.Digest = true
		a := w.Run(t, p)
		b := w.Run(t, p)
		if a.Log != b.Log && a.Steps == b.Steps && byTime(a.Log) == byTime(b.Log) {
			continue
		}
		if a.Sum != b.Sum || a.Steps != b.Steps {
			t.Errorf("seed %d: %d and %d steps, and\n%s", n, a.Steps, b.Steps, difference(a.Log, b.Log))
		}
	}
}

// byTime sorts the lines of a log that have the same time.
func byTime(log string) string {
	time := func(line string) string { t, _, _ := strings.Cut(line, `","`); return t }
	lines := strings.Split(log, "\n")
	for i := 0; i < len(lines); {
		j := i + 1
		for j < len(lines) && time(lines[j]) == time(lines[i]) {
			j++
		}
		slices.Sort(lines[i:j])
		i = j
	}
	return strings.Join(lines, "\n")
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
