package simulate

import "testing"

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
