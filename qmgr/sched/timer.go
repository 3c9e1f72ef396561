// Timers: all times at which something happens without an event. They are in one heap, so
// that Wake knows the first.

package sched

// timerKind says what a timer's end means.
type timerKind uint8

const (
	timerNone      timerKind = iota
	timerQueue               // a dead or suspended destination becomes ready
	timerTransport           // a transport that failed may be tried again
	timerRate                // transport_rate_delay is over
	timerRefill              // recipient_refill_delay is over
	timerSlow                // a delivery has gone on for SlowTime
	timerIdle                // an idle agent has waited for IdleMax
	timerInherit             // what a predecessor knew and nobody has asked for is forgotten
	timerSweep               // look for mail in the active queue that is out of time
	timerShared              // a shared limit lets the next delivery go
	timerBeyond              // a shared limit may take parked mail back
	timerHalf                // a destination has waited with a place in one tree of limits for long enough
	timerPlace               // a claim has waited with a place of its tenant's limit for long enough
)

// A timer is part of what it is for, and there at most once.
type timer struct {
	kind timerKind
	// When it fires, and its place in the heap; pos is 0 while it does not run.
	at  int64
	pos int32
	// Of timerShared and timerBeyond: the number of the shared limit that it is part of.
	shared int32
	// What it is part of; kind says which one is set.
	queue *queue
	tport *transport
	msg   *message
	agent *agent
	claim *claim
}

func (t *timer) place(_ int, at int32) { t.pos = at }

// startTimer sets t to end at time at, whether it was running or not. Timers that
// end at the same time end in the order they were started in.
func (s *Scheduler) startTimer(t *timer, at int64) {
	s.timerSeq++
	t.at = at
	k := key{uint64(at), s.timerSeq}
	if t.pos != 0 {
		s.timers.fix(t.pos, k)
	} else {
		s.timers.push(k, t)
	}
}

func (s *Scheduler) stopTimer(t *timer) {
	if t.pos != 0 {
		s.timers.remove(t.pos)
	}
}

// fireTimers ends every timer whose time has come.
func (s *Scheduler) fireTimers() {
	for s.timers.len() > 0 && s.timers.s[0].v.at <= s.now {
		t := s.timers.s[0].v
		s.timers.remove(t.pos)
		switch t.kind {
		case timerQueue:
			s.queueReady(t.queue)
		case timerTransport:
			t.tport.undead()
		case timerRate:
			t.tport.rate = rateOpen
		case timerRefill:
			s.refillDue(t.msg)
		case timerSlow:
			s.markSlow(t.tport)
		case timerIdle:
			s.dismiss(t.agent)
		case timerInherit:
			s.disinherit()
		case timerSweep:
			s.sweep()
		case timerShared:
			s.settleShared(s.numbered[t.shared])
		case timerBeyond:
			s.beyondDue(s.numbered[t.shared])
		case timerHalf:
			s.giveBackHalf(t.queue)
		case timerPlace:
			s.giveBackPlace(t.claim)
		}
	}
}
