package simulate

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestThreads is docs/tuning.md's case for threads: more busy destinations than
// agents. With threads a small destination hardly waits, and little is lost by
// taking turns; first come first served, and without a quantum, it waits for all
// that came before, or for a busy destination to have no mail.
func TestThreads(t *testing.T) {
	t.Parallel()
	thread, unbound, preemptive := play(t, "fair-thread"), play(t, "fair-unbound"), play(t, "fair-preemptive")
	small := func(r *Report) float64 { return r.class("small").Wait(0.5).Seconds() }
	if 10*thread.Time > 12*preemptive.Time {
		t.Errorf("all is delivered after %v with threads, %v with preemption: turns cost too much", thread.Time, preemptive.Time)
	}
	if small(thread) > 1.5 || 20*small(thread) > small(unbound) || 20*small(thread) > small(preemptive) {
		t.Errorf("median wait at the small destination: %.2f s with threads, %.2f s without a quantum, %.2f s with preemption",
			small(thread), small(unbound), small(preemptive))
	}
	if 10*thread.Time > 12*unbound.Time {
		t.Errorf("the quantum costs too much: all is delivered after %v, without it after %v", thread.Time, unbound.Time)
	}
}

// TestStorm is docs/scheduler.md's case for setting slow deliveries aside: with half of 10,000
// destinations dead, mail for the others waits for a minute and not for more than an hour.
func TestStorm(t *testing.T) {
	t.Parallel()
	aside, postfix := play(t, "storm-slow"), play(t, "storm")
	good := func(r *Report) float64 { return r.class("good").Wait(0.5).Seconds() }
	if good(aside) > 60 || 50*good(aside) > good(postfix) {
		t.Errorf("median wait at destinations that answer: %.0f s, as Postfix does %.0f s", good(aside), good(postfix))
	}
	page, err := os.ReadFile("../../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	p99 := func(r *Report) string {
		return strconv.FormatFloat(math.Round(r.class("good").Wait(.99).Seconds()), 'f', 0, 64)
	}
	if text := fmt.Sprintf("the 99th percentile is %s s and %s s", p99(postfix), p99(aside)); !strings.Contains(string(page), text) {
		t.Errorf("docs/scheduler.md does not say that %s", text)
	}
}
