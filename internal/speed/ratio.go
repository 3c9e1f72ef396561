package main

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// resamples are how often compare draws, for an interval that differs in the fourth digit.
const resamples = 10000

// compare takes the pairs of a figure, at least one. Each pair is a measurement of the ratio; the interval is
// what the means of samples drawn from them have between them (the bootstrap), which needs
// no belief in the bell curve. The draws are the same each time.
func compare(pairs []pair) ratio {
	logs := make([]float64, len(pairs))
	var before, now []float64
	for i, p := range pairs {
		logs[i] = math.Log(p.now / p.before)
		before, now = append(before, p.before), append(now, p.now)
	}
	chance := rand.New(rand.NewPCG(1, 2))
	means := make([]float64, resamples)
	for i := range means {
		for range logs {
			means[i] += logs[chance.IntN(len(logs))]
		}
		means[i] /= float64(len(logs))
	}
	slices.Sort(means)
	sum := 0.0
	for _, l := range logs {
		sum += l
	}
	return ratio{before: median(before), now: median(now), mean: math.Exp(sum / float64(len(logs))),
		low: math.Exp(means[resamples*25/1000]), top: math.Exp(means[resamples*975/1000-1])}
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
