package sched

import (
	"testing"
	"time"
)

// betweenTwo is a world where a message waits outside the active queue for the limit of a.example with one recipient, and
// has been deferred by b.example with the other: message 3, behind two for a.example, of which one is under way.
func betweenTwo(t *testing.T) (w *world, next time.Time) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.SharedActiveLimit = 1
	w = newWorld(t, cfg)
	w.tries = true
	w.terms["a.example"] = &Terms{Shares: [levels]Share{OwnLimit: {Name: "a.example", Limits: Limits{Concurrency: 1}}}}
	w.arrive(1, 0, rcpt("smtp", "a.example"))
	w.arrive(2, 0, rcpt("smtp", "a.example"))
	w.tick(time.Minute)
	w.arrive(3, 0, rcpt("smtp", "a.example"), rcpt("smtp", "b.example"))
	w.done(w.order[len(w.order)-1], deferred, false)
	l := w.mail[3]
	if l.queue != QueueDeferred || l.attempts != 1 || l.next.Before(w.now.Add(cfg.MinimalBackoff)) || len(w.order) != 1 {
		t.Fatalf("in queue %v, tried %d times, next in %v; %d under way", l.queue, l.attempts, l.next.Sub(w.now), len(w.order))
	}
	return w, l.next
}

// under are the recipients of a message that are being delivered to.
func (w *world) under(id MsgID) (n int) { return len(w.mail[id].inflight) }

// TestTriedWaits: what has been deferred by its destination is not tried before its time because another recipient of the
// message has waited for a limit, which has room now; and that is no attempt. It is tried when its time has come.
func TestTriedWaits(t *testing.T) {
	t.Parallel()
	w, next := betweenTwo(t)
	w.tick(time.Minute)
	w.done(w.order[0], sent, false) // 2 is begun, and 3 comes back
	if w.under(3) > 0 {
		t.Fatalf("deferred for %v, and tried after a minute", next.Sub(w.now)+time.Minute)
	}
	w.done(w.order[0], sent, false)
	if w.under(3) != 1 || !w.mail[3].inflight[0] {
		t.Fatalf("what has waited for the limit is not tried when there is room: %v", w.mail[3].inflight)
	}
	w.done(w.order[0], sent, false)
	if l := w.mail[3]; l.queue != QueueDeferred || l.attempts != 1 || !l.next.Equal(next) {
		t.Errorf("in queue %v, tried %d times, due %v later than before", l.queue, l.attempts, l.next.Sub(next))
	}
	w.tick(next.Sub(w.now))
	if w.under(3) != 1 {
		t.Fatal("its time has come, and it is not tried")
	}
	w.done(w.order[0], sent, false)
	if w.mail[3].gone != EffectFinish {
		t.Error("it does not end")
	}
}

// TestTriedWaitsOn: where the recipient that has waited is deferred in its turn, the other one is tried no sooner than its
// time, and not much later.
func TestTriedWaitsOn(t *testing.T) {
	t.Parallel()
	w, next := betweenTwo(t)
	for range 2 {
		w.done(w.order[0], sent, false)
	}
	w.tick(2 * time.Minute)
	w.done(w.order[0], deferred, false)
	if l := w.mail[3]; l.attempts != 2 || l.next.Before(next) || l.next.After(w.now.Add(w.s.cfg.MinimalBackoff+w.s.cfg.QueueRunDelay)) && l.next.After(next) {
		t.Errorf("tried %d times, due in %v; it was to be due in %v", l.attempts, l.next.Sub(w.now), next.Sub(w.now))
	}
}

// TestTriedFlushed: a flush tries all of it.
func TestTriedFlushed(t *testing.T) {
	t.Parallel()
	w, _ := betweenTwo(t)
	w.step(Event{Kind: EventFlush, Scope: ScopeMessage, ID: 3})
	if !w.mail[3].inflight[1] {
		t.Error("what has been deferred is not tried by a flush")
	}
}

// TestTriedPaused: the end of a pause is for what has waited for it.
func TestTriedPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, DefaultConfig())
	w.tries = true
	w.pauses[1] = testPause{Pause: Pause{ID: 1, Status: StatusBeyond, Reason: "paused"}, queue: "a.example"}
	w.setPauses()
	w.arrive(1, 0, rcpt("smtp", "a.example"), rcpt("smtp", "b.example"))
	w.done(w.order[0], deferred, false)
	next := w.mail[1].next
	clear(w.pauses)
	w.setPauses()
	if l := w.mail[1]; !l.inflight[0] || l.inflight[1] {
		t.Fatalf("under way: %v", l.inflight)
	}
	w.done(w.order[0], sent, false)
	if l := w.mail[1]; !l.next.Equal(next) || l.attempts != 1 {
		t.Errorf("tried %d times, due %v later than before", l.attempts, l.next.Sub(next))
	}
}

// TestTriedParkedAlone: whose time has come during a pause, and who has waited for its end, is tried then, although the record
// still says what the destination answered before.
func TestTriedParkedAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, DefaultConfig())
	w.tries, w.stale = true, true
	w.arrive(1, 0, rcpt("smtp", "a.example"))
	w.done(w.order[0], deferred, false)
	w.pauses[1] = testPause{Pause: Pause{ID: 1, Status: StatusBeyond, Reason: "paused"}, queue: "a.example"}
	w.setPauses()
	w.tick(w.mail[1].next.Sub(w.now))
	if l := w.mail[1]; l.queue != QueueDeferred || l.attempts != 1 || w.under(1) > 0 {
		t.Fatalf("in queue %v, tried %d times", l.queue, l.attempts)
	}
	clear(w.pauses)
	w.setPauses()
	if w.under(1) != 1 {
		t.Errorf("it goes on waiting, until %v", w.mail[1].next)
	}
}
