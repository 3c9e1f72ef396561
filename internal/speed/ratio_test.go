package main

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// drawn are pairs whose ratio is around centre, with noise that both of a pair share and noise that they do not.
func drawn(n int, centre, shared, own float64, seed uint64) (list []pair) {
	chance := rand.New(rand.NewPCG(seed, 1))
	for range n {
		speed := 1000 * math.Exp(shared*chance.NormFloat64())
		list = append(list, pair{speed, speed * centre * math.Exp(own*chance.NormFloat64())})
	}
	return list
}

// A machine whose speed drifts by a third does not hide a loss of a twentieth, nor makes one up.
func TestCompare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		centre float64
		lost   bool
	}{{1, false}, {0.99, false}, {0.93, true}, {1.1, false}} {
		inside := 0
		for seed := range uint64(100) {
			r := compare(drawn(20, c.centre, 0.3, 0.02, seed))
			if r.low <= c.centre && c.centre <= r.top {
				inside++
			}
			if lost, _ := rate.verdict(r, 3); lost != c.lost {
				t.Errorf("%.2f, seed %d: %+v: lost %v", c.centre, seed, r, lost)
			}
			if lost, _ := processor.verdict(compare(drawn(20, 1/c.centre, 0.3, 0.02, seed)), 3); lost != c.lost {
				t.Errorf("processor time, %.2f, seed %d: lost %v", c.centre, seed, lost)
			}
		}
		if inside < 88 { // 95 are to be expected; fewer than 88 come in one case of 500
			t.Errorf("%.2f: in %d of 100 intervals", c.centre, inside)
		}
	}
}

// What is too noisy to tell is said to be.
func TestUnknown(t *testing.T) {
	t.Parallel()
	if lost, words := rate.verdict(compare(drawn(4, 1, 0, 0.2, 3)), 3); lost || !strings.Contains(words, "more rounds") {
		t.Errorf("%v, %q", lost, words)
	}
	// Two pairs that are both worse are no proof.
	if lost, words := rate.verdict(compare([]pair{{100, 90}, {100, 80}}), 3); lost || !strings.Contains(words, "more rounds") {
		t.Errorf("%v, %q", lost, words)
	}
	if lost, words := rate.verdict(compare([]pair{{100, 100}, {90, 90}}), 3); lost || words != "" {
		t.Errorf("%v, %q", lost, words)
	}
}

// Student's factors, from tables.
func TestStudent(t *testing.T) {
	t.Parallel()
	for free, want := range map[int]float64{1: 12.706, 5: 2.571, 10: 2.228, 11: 2.201, 15: 2.131, 20: 2.086, 30: 2.042, 100: 1.984} {
		if got := student(free); math.Abs(got-want) > 0.001 {
			t.Errorf("%d degrees of freedom: %.4f, want %.3f", free, got, want)
		}
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	got := rate.line("relay", compare([]pair{{1000, 1100}, {12000, 13200}, {9000, 9900}}), "")
	want := "relay     messages a second                9,000     9,900   1.100   1.100 to 1.100   "
	if got != want {
		t.Errorf("%q, want\n%q", got, want)
	}
	if median([]float64{3, 1, 2, 10}) != 2.5 {
		t.Error("the median of four")
	}
}

func TestChosen(t *testing.T) {
	t.Parallel()
	if list, err := chosen(""); err != nil || len(list) != len(workloads) {
		t.Errorf("%v, %v", list, err)
	}
	if list, err := chosen("small, relay"); err != nil || len(list) != 2 || list[0].name != "small" || list[1].name != "relay" {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := chosen("relay,fast"); err == nil || !strings.Contains(err.Error(), `"fast"`) {
		t.Errorf("%v", err)
	}
}
