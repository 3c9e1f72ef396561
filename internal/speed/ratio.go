package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A pair is one figure of both in a round.
type pair struct{ before, now float64 }

// A ratio is what now is in terms of before, with the interval that has it with 95 % confidence.
type ratio struct {
	before, now    float64 // medians
	mean, low, top float64 // of the ratio; the mean is the geometric one
}

// compare takes the pairs of a figure, at least two. Each pair is a measurement of the ratio, and what
// both of a pair have of the machine's speed is not in it. The interval is Student's, of the logarithms.
func compare(pairs []pair) ratio {
	n := float64(len(pairs))
	var before, now []float64
	mean, square := 0.0, 0.0
	for _, p := range pairs {
		mean += math.Log(p.now/p.before) / n
		before, now = append(before, p.before), append(now, p.now)
	}
	for _, p := range pairs {
		d := math.Log(p.now/p.before) - mean
		square += d * d
	}
	half := student(len(pairs)-1) * math.Sqrt(square/(n-1)/n)
	return ratio{before: median(before), now: median(now), mean: math.Exp(mean), low: math.Exp(mean - half), top: math.Exp(mean + half)}
}

// student is how many standard errors are on each side of a mean, for 95 % confidence, with so many
// degrees of freedom, at least one.
func student(free int) float64 {
	few := [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228}
	if free <= len(few) {
		return few[free-1]
	}
	f := float64(free)
	return 1.95996 + 2.37227/f + 2.82250/(f*f) + 2.55586/(f*f*f) // Cornish and Fisher's expansion
}

func median(list []float64) float64 {
	list = slices.Clone(list)
	slices.Sort(list)
	n := len(list)
	return (list[(n-1)/2] + list[n/2]) / 2
}

// A figure is one of those that are compared.
type figure struct {
	name string
	more bool // more of it is better
}

var (
	rate      = figure{"messages a second", true}
	processor = figure{"processor time, µs/message", false}
)

// verdict says whether a figure is worse by more than loss percent, whatever in the interval is true, and
// what a reader should know besides.
func (f figure) verdict(r ratio, loss float64) (lost bool, words string) {
	worst, best := r.top, r.low // of what should be less
	bound := 1 + loss/100
	if f.more {
		worst, best = 1/r.low, 1/r.top
	}
	switch {
	case best > bound:
		return true, "slower"
	case worst > bound:
		return false, "not known: more rounds, or a quieter machine"
	}
	return false, ""
}

// line is how a figure is printed.
func (f figure) line(workload string, r ratio, words string) string {
	return fmt.Sprintf("%-10s%-28s%10s%10s   %.3f   %.3f to %.3f   %s", workload, f.name, thousands(r.before), thousands(r.now), r.mean, r.low, r.top, words)
}

// thousands writes a number with commas, without a fraction.
func thousands(x float64) string {
	text := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
