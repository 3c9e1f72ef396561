package config

import "iter"

// Nearest returns the candidate that a misspelt word most likely stands for, or
// "" if none is close: one slip of the hand (a letter left out, added, changed,
// or exchanged with its neighbour) for each five letters, three at most.
func Nearest(word string, candidates iter.Seq[string]) string {
	best, limit := "", min(3, 1+len(word)/5)
	for c := range candidates {
		if len(c) > len(word)+limit || len(word) > len(c)+limit {
			continue
		}
		if d := slips(word, c, limit); d < limit || d == limit && best == "" {
			best, limit = c, d
		}
	}
	return best
}

// slips is the number of slips between two words (the optimal string alignment
// distance), or more than limit if it is more than that.
func slips(a, b string, limit int) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least > limit {
			return limit + 1
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// NearestParameter returns the parameter that a misspelt name most likely
// stands for, or "".
func NearestParameter(name string) string {
	return Nearest(name, func(yield func(string) bool) {
		for i := range declared().params {
			if !yield(declared().params[i].Name) {
				return
			}
		}
	})
}
