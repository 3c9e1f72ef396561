package sched

import (
	"slices"
	"testing"
	"time"

	"posthaste/internal/mail"
)

// transportWorld is a world whose transports all have the same settings.
func transportWorld(t *testing.T, set func(*Config, *TransportConfig)) *world {
	cfg := DefaultConfig()
	cfg.QueueRunDelay = 0
	c := cfg.DefaultTransports
	set(&cfg, &c)
	cfg.Transport = func(mail.Transport, TransportConfig) TransportConfig { return c }
	return newWorld(t, cfg)
}

// many is n recipients at one destination of transport smtp.
func many(n int, dest string) []Rcpt { return slices.Repeat([]Rcpt{rcpt("smtp", dest)}, n) }

// jobOf is the job of a message within transport smtp.
func (w *world) jobOf(id MsgID) *job {
	m := w.s.activeMessage(id)
	if m == nil {
		return nil
	}
	for _, j := range m.jobs {
		if j.tport.name == "smtp" {
			return j
		}
	}
	return nil
}

// stack makes jobs 1, 2 and 3, of which each has preempted the one before it.
func stack(t *testing.T) *world {
	w := transportWorld(t, func(_ *Config, c *TransportConfig) {
		c.ProcessLimit, c.BatchLimit, c.SlotCost, c.SlotLoan, c.SlotDiscount, c.MinimumSlots = 1, 1, 2, 50, 0, 0
	})
	w.arrive(1, 0, many(60, "a.example")...)
	w.arrive(2, 0, many(12, "a.example")...)
	w.done(w.order[0], sent, false)
	w.arrive(3, 0, many(3, "a.example")...)
	for range 2 {
		w.done(w.order[0], sent, false)
	}
	one, two, three := w.jobOf(1), w.jobOf(2), w.jobOf(3)
	if two == nil || three == nil || two.parent != one || three.parent != two || one.level != 0 || two.level != 1 || three.level != 2 {
		t.Fatal("3 is not on top of 2 on top of 1")
	}
	return w
}

// TestAdoption: when a job in the middle of a stack ends, those that have
// preempted it have preempted the one below.
func TestAdoption(t *testing.T) {
	t.Parallel()
	w := stack(t)
	one, three := w.jobOf(1), w.jobOf(3)
	w.s.popJob(w.jobOf(2))
	if three.parent != one || one.firstChild != three || three.level != 2 || len(w.s.transportIndex["smtp"].orphans) != 0 {
		t.Errorf("3 was not adopted by 1: parent %p, want %p, level %d, %d orphans", three.parent, one, three.level, len(w.s.transportIndex["smtp"].orphans))
	}
}

// TestOrphans: when the job at the bottom of a stack ends, the next one stands
// where it stood, without a parent; and when that ends, so does the one above.
func TestOrphans(t *testing.T) {
	t.Parallel()
	w := stack(t)
	two, three := w.jobOf(2), w.jobOf(3)
	orphans := func() []*job { return w.s.transportIndex["smtp"].orphans }
	w.s.retireJob(w.jobOf(1))
	if two.parent != nil || two.level != 1 || !slices.Equal(orphans(), []*job{two}) || three.parent != two {
		t.Errorf("2 is at level %d, its parent %p; %d orphans", two.level, two.parent, len(orphans()))
	}
	w.s.popJob(two)
	if three.parent != nil || three.level != 2 || !slices.Equal(orphans(), []*job{three}) {
		t.Errorf("3 is at level %d, its parent %p; %d orphans", three.level, three.parent, len(orphans()))
	}
}

// poolWorld has room for few recipients of a message unless a transport's pool
// gives more; what is read is what the test answers. Recipients are read again
// when there is room for so many.
func poolWorld(t *testing.T, refill int) *world {
	w := transportWorld(t, func(cfg *Config, c *TransportConfig) {
		cfg.ActiveLimit, cfg.RecipientLimit, cfg.RecipientMinimum = 5, 5, 2
		c.RecipientLimit, c.ExtraRecipientLimit, c.BatchLimit, c.SlotCost = 40, 0, 1, 0
		c.ProcessLimit, c.RefillLimit = 1, refill
	})
	w.manual = true
	return w
}

// answerLoad answers the first load that waits, with at most n recipients.
func (w *world) answerLoad(n int) Effect {
	w.t.Helper()
	if len(w.loads) == 0 {
		w.t.Fatalf("nothing is to be read")
	}
	e := w.loads[0]
	w.loads = w.loads[1:]
	w.batch = n
	w.step(w.load(e))
	return e
}

// TestPoolPassedOn: the oldest job of a transport that is not fully read has the
// spare recipient slots of its transport; when it is, the next one has them.
func TestPoolPassedOn(t *testing.T) {
	t.Parallel()
	w := poolWorld(t, 1)
	w.arrive(1, 0, many(20, "a.example")...)
	w.arrive(2, 0, many(60, "a.example")...)
	w.answerLoad(1) // of 1
	w.answerLoad(2) // of 2
	one, two := w.jobOf(1), w.jobOf(2)
	if one.rcptLimit != 40 || two.rcptLimit != 0 {
		t.Fatalf("the limits are %d and %d, want the pool of 40 with message 1", one.rcptLimit, two.rcptLimit)
	}
	for two.rcptLimit == 0 && len(w.loads) > 0 {
		w.answerLoad(100)
	}
	if one.rcptLimit+two.rcptLimit != 40 || two.rcptLimit != 20 || w.jobOf(1).msg.unread != 0 {
		t.Errorf("message 1 is read; the limits are %d and %d, want 20 each", one.rcptLimit, two.rcptLimit)
	}
	if len(w.loads) != 1 || w.loads[0].ID != 2 || w.loads[0].Max != 20 {
		t.Errorf("what is to be read next is %+v, want 20 recipients of message 2", w.loads)
	}
	w.answerLoad(100)
	for w.s.activeMessage(1) != nil {
		w.done(w.order[0], sent, false)
	}
	if two.rcptLimit != 40 {
		t.Errorf("message 1 is gone; message 2 has %d slots, want all 40", two.rcptLimit)
	}
}

// TestPoolTakenBack: an older job that comes to a transport later than a younger
// one has what the younger one does not need.
func TestPoolTakenBack(t *testing.T) {
	t.Parallel()
	w := poolWorld(t, 100)
	w.arrive(1, 0, append([]Rcpt{rcpt("relay", "r.example")}, many(60, "a.example")...)...)
	w.arrive(2, 0, many(60, "b.example")...)
	w.answerLoad(1) // of 1: the recipient at relay
	w.answerLoad(2) // of 2, so that one waits
	two := w.jobOf(2)
	if w.jobOf(1) != nil || two.rcptLimit != 40 {
		t.Fatalf("message 2 has %d slots of smtp's pool, want all 40", two.rcptLimit)
	}
	for id, e := range w.busy {
		if e.Transport == "relay" {
			w.done(id, sent, false)
			break
		}
	}
	w.answerLoad(2)
	one := w.jobOf(1)
	if one == nil || one.rcptLimit != 38 || two.rcptLimit != 2 {
		t.Errorf("the limits are %d for the older message and %d for the younger one, which has two recipients in memory; want 38 and 2",
			one.rcptLimit, two.rcptLimit)
	}
}

// TestWindowWithinLimit: a dead destination that answers has no wider window than
// a limit that was lowered meanwhile, and one whose rate delay is over begins
// with one delivery, whatever the limit is by then.
func TestWindowWithinLimit(t *testing.T) {
	t.Parallel()
	limit, rate := 0, time.Duration(0)
	cfg := DefaultConfig()
	cfg.QueueRunDelay = 0
	cfg.Transport = func(_ mail.Transport, c TransportConfig) TransportConfig {
		c.InitialConcurrency, c.ConcurrencyLimit, c.BatchLimit, c.DestinationRateDelay = 8, limit, 1, rate
		return c
	}
	window := func(w *world) (n int) {
		w.s.Dests(func(d Dest) bool {
			if d.Transport == "smtp" {
				n = d.Window
			}
			return true
		})
		return n
	}
	w := newWorld(t, cfg)
	w.arrive(1, 0, many(16, "a.example")...)
	for range 5 {
		w.done(w.order[0], unreachable, false)
	}
	if window(w) != 0 {
		t.Fatalf("the window is %d, want a dead destination", window(w))
	}
	limit = 2
	w.step(Event{Kind: EventReconfigured, Config: &cfg})
	w.done(w.order[0], sent, false)
	if window(w) != 2 {
		t.Errorf("three deliveries under way, limit 2: the window is %d", window(w))
	}

	limit, rate = 20, time.Second
	w = newWorld(t, cfg)
	w.arrive(1, 0, many(5, "a.example")...)
	w.done(w.order[0], sent, false)
	rate = 0
	w.step(Event{Kind: EventReconfigured, Config: &cfg})
	w.tick(2 * time.Second)
	if window(w) != 1 || len(w.order) != 1 {
		t.Errorf("after the rate delay the window is %d with %d under way, want 1", window(w), len(w.order))
	}
}

// TestApartOnTheWayToRetry: recipients that must not be in one request with others are not joined
// by others when their destination has died and their request has gone to the retry transport.
func TestApartOnTheWayToRetry(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Transport = func(_ mail.Transport, c TransportConfig) TransportConfig {
		c.ProcessLimit, c.InitialConcurrency = 1, 1
		return c
	}
	w := newWorld(t, cfg)
	w.arrive(1, 0, rcpt("retry", "4.3.0 the one agent of this transport is busy"))
	w.manual, w.batch = true, 2
	list := many(3, "a.example")
	list[0].Apart, list[1].Apart = 1, 2
	w.arrive(2, 0, list...)
	read := func() {
		e := w.loads[0]
		w.loads = w.loads[1:]
		w.step(w.load(e))
	}
	read()
	w.done(w.order[1], unreachable, false) // recipient 0; that of 1 goes to retry, and waits
	read()
	w.done(w.order[0], sent, false)
	for len(w.order) > 0 { // each is looked at as it is handed out
		if e := w.busy[w.order[0]]; e.Transport != RetryTransport || len(e.Rcpts) != 1 {
			t.Errorf("%s gets recipients %v of message %d in one request", e.Transport, e.Rcpts, e.ID)
		}
		w.done(w.order[0], deferred, false)
	}
}
