package sched

import (
	"slices"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/reuse"
)

// Scheduler is the whole of the queue manager's knowledge. Its methods must
// be called by one goroutine at a time.
type Scheduler struct {
	cfg   Config
	clock clock
	now   int64
	rng   rng
	out   []Effect

	recs     *records
	incoming recList   // new mail that waits for a place
	due      recList   // deferred mail to be taken up as soon as there is a place
	retries  retryHeap // deferred mail by the time it is due

	slots                   []*message // active messages, by record.active
	slotFree                []int32
	firstActive, lastActive *message // in the order in which they became active
	messageSeq              uint64
	loading                 int  // messages whose first recipients are being read
	reserved                int  // recipients being read
	turnDeferred            bool // the next place in the active queue is for deferred mail

	transports     []*transport // in the order of their turns
	transportIndex map[mail.Transport]*transport
	queueCount     int

	busy     []*entry // by the lower bits of EntryID
	busyFree []int32
	entrySeq uint64
	agentSeq uint64

	sites      []site // sites[0] is none
	siteFree   int32
	siteIndex  map[siteKey]int32
	pauses     map[PauseID]*pause
	parkedAt   map[siteKey]int // deferred messages that wait for pauses, by destination
	parkedFor  map[PauseID]int // the same, by pause
	pauseEnd   int64           // when the first of the pauses ends by itself, by the wall clock
	ended      []MsgID         // that wait for pauses that have ended, to be made due; nil when there are none
	flushSites map[string]*flushSite
	window     window
	inherited  *inheritance // from Restore; nil: there is nothing, or it is too old

	timers   heap[*timer]
	timerSeq uint64
	sweeper  timer

	scratch []int // recipients of EffectDeferRcpts, until the next Step

	messages   reuse.Free[message]
	jobs       reuse.Free[job]
	peers      reuse.Free[peer]
	entries    reuse.Free[entry]
	queuePool  reuse.Free[queue]
	classPool  reuse.Free[class]
	bucketPool reuse.Free[bucket]
	agentPool  reuse.Free[agent]

	maxLoose int
	stats    Stats
}

// New returns a scheduler that knows of no message.
func New(cfg Config) *Scheduler {
	s := &Scheduler{
		cfg:            cfg,
		rng:            rng{cfg.Seed},
		recs:           newRecords(),
		transportIndex: map[mail.Transport]*transport{},
		sites:          make([]site, 1),
		siteIndex:      map[siteKey]int32{},
		parkedAt:       map[siteKey]int{},
		parkedFor:      map[PauseID]int{},
		flushSites:     map[string]*flushSite{},
		sweeper:        timer{kind: timerSweep},
		maxLoose:       maxLoose,
	}
	s.cfg.DeferTransports = slices.Clone(cfg.DeferTransports)
	s.sane(&s.cfg)
	return s
}

// sane raises what must not be less than one.
func (s *Scheduler) sane(c *Config) {
	c.ActiveLimit = max(c.ActiveLimit, 1)
	c.RecipientMinimum = max(c.RecipientMinimum, 1)
	c.RecipientLimit = max(c.RecipientLimit, c.ActiveLimit)
	c.BounceLifetime = min(c.BounceLifetime, c.MaximalLifetime)
	c.DeferredLimit = max(c.DeferredLimit, 0)
}

// Step takes note of one event and appends what is to be done about it to
// out. It does not block and reads no clock. now is the wall clock; when it
// goes back, the scheduler's time goes on at half speed until it is caught
// up with.
func (s *Scheduler) Step(now time.Time, ev Event, out []Effect) []Effect {
	s.now = s.clock.advance(now.UnixMicro())
	s.out = out
	s.scratch = reuse.Truncated(s.scratch)
	s.fireTimers()
	if s.pauseEnd != never && s.pauseEnd <= s.clock.wall {
		s.endPauses()
	}
	switch ev.Kind {
	case EventQueued:
		s.queued(&ev)
	case EventLoaded:
		s.loaded(&ev)
	case EventLoadFailed:
		s.loadFailed(&ev)
	case EventDone:
		s.done(ev.Entry, &ev.Result)
	case EventLost:
		s.lost(ev.Entry)
	case EventAgentDown:
		s.agentDown(&ev)
	case EventNotified:
		if m := s.activeMessage(ev.ID); m != nil {
			s.notified(m, ev.OK)
		}
	case EventFlush:
		ev.Site = strings.ToLower(ev.Site)
		s.flush(&ev)
	case EventHold, EventRelease, EventRemove, EventRequeue, EventExpire, EventCorrupt:
		s.command(&ev)
	case EventReconfigured:
		s.reconfigure(ev.Config)
	case EventPauses:
		s.setPauses(ev.Pauses)
	case EventPause:
		s.pauseActive(ev.ID, ev.Rcpts)
	case EventAttached:
		s.attach()
	case EventFetched:
		s.fetched(&ev)
	case EventForget:
		s.forget(ev.IDs)
	case EventRecalled:
		s.recalled(&ev)
	case EventPassed:
		s.window.passing = false
	}
	s.releaseEnded()
	s.admit()
	s.deliver()
	s.lookAhead()
	s.sayFar()
	if s.firstActive != nil && s.sweeper.pos == 0 {
		s.startTimer(&s.sweeper, s.now+sweepInterval)
	}
	out, s.out = s.out, nil
	return out
}

func (s *Scheduler) emit(e Effect) { s.out = append(s.out, e) }

func (s *Scheduler) note(n Note) {
	s.out = append(s.out, Effect{Kind: EffectNote, ID: n.ID, Note: &n})
}

// Wake is when EventTick is needed if nothing happens before, by the wall clock
// as it was at the last Step; zero: never.
func (s *Scheduler) Wake() time.Time {
	if len(s.ended) > 0 || len(s.window.far) > 0 {
		return toTime(s.clock.when(s.now))
	}
	at := never
	if s.timers.len() > 0 {
		at = s.timers.s[0].v.at
	}
	if len(s.retries.s) > 0 && s.stats.Active < s.cfg.ActiveLimit && s.loading < maxLoading {
		if next := s.retries.s[0].at; at == never || next < at {
			at = next
		}
	}
	if at == never {
		return time.Time{}
	}
	return toTime(s.clock.when(at))
}

// dueTime is a recorded time as the scheduler has it. One that lies further
// ahead than any that is decided on is from a clock that was wrong.
func (s *Scheduler) dueTime(t time.Time) int64 {
	next := toMicros(t)
	if next == never {
		return never
	}
	return s.clock.sanely(min(next, s.clock.wall+s.longest()))
}

// realTime is the contrary.
func (s *Scheduler) realTime(t int64) time.Time {
	if t == never {
		return time.Time{}
	}
	return toTime(s.clock.real(t))
}

// queued: a message exists.
func (s *Scheduler) queued(ev *Event) {
	if ev.ID == 0 || s.recs.find(ev.ID) != 0 {
		return
	}
	a := &ev.Arrival
	i := s.recs.add(ev.ID)
	rec := s.recs.at(i)
	rec.created, rec.next, rec.size = min(toMicros(a.Created), s.clock.wall), s.dueTime(a.Next), a.Size
	rec.mark = toMicros(a.Next)
	rec.rcpts = int32(a.Rcpts)
	rec.attempts = uint16(min(a.Attempts, 1<<16-1))
	rec.flags = a.Flags &^ flagsOwn
	site := s.inheritedSite(ev.ID, a.Queue)
	switch a.Queue {
	case QueueHold:
		rec.where = whereHold
		s.stats.Hold++
		s.mayLeave(rec)
	case QueueDeferred:
		s.enterDeferred(i, site)
	default:
		rec.where = whereIncoming
		s.incoming.append(s.recs, i)
	}
}

// done: an agent finished a delivery request.
func (s *Scheduler) done(id EntryID, r *Result) {
	e := s.busyEntry(id)
	if e == nil {
		return
	}
	m, q := e.msg, e.peer.queue
	t := q.tport
	s.endAgent(e, r.Hungry)
	late := min(len(r.Deferred), len(e.rcpts))
	m.late += late
	s.record(m).rcpts -= int32(len(e.rcpts) - late)
	m.failed = m.failed || r.Failed
	m.success = m.success || r.Success
	if len(r.Deferred) > 0 {
		m.deferred = true
		m.later = siteKey{tport: t, name: q.name, pause: laterID}
		s.rememberDeferred(e, r.Deferred)
	}
	if r.SiteFailed {
		if len(r.Deferred) > 0 {
			m.site = siteKey{tport: t, name: q.name}
		}
		s.negative(q, r)
	} else {
		s.transportAlive(t)
		s.positive(q)
	}
	turn := e.turn
	s.endEntry(e)
	if t.cfg.Mode == Thread && q.avail && !r.SiteFailed {
		t.goOn(q, turn)
	}
}

// endAgent lets the agent of a busy entry go, or keeps it.
func (s *Scheduler) endAgent(e *entry, hungry bool) {
	t := e.peer.queue.tport
	if t.rate == rateBusy {
		t.rate = rateIdle
	}
	switch {
	case !hungry:
		s.freeAgent(e.agent)
	case t.cfg.IdleMax <= 0:
		s.sendAway(e.agent)
	default:
		s.idleAgent(e.agent, e.peer.queue)
	}
	e.agent = nil
}

// rememberDeferred notes for which flush domains e's message waits.
func (s *Scheduler) rememberDeferred(e *entry, deferred []int) {
	if len(e.sites) == 0 {
		return
	}
	for _, r := range deferred {
		if i := slices.Index(e.rcpts, r); i >= 0 && e.sites[i] != "" {
			s.rememberSite(e.sites[i], e.msg.id)
		}
	}
}

func (s *Scheduler) rememberSites(m *message, sites []string) {
	for _, d := range sites {
		if d != "" {
			s.rememberSite(d, m.id)
		}
	}
}

// lost: an agent died with a request that it had accepted. Nothing is known
// of the destination from that.
func (s *Scheduler) lost(id EntryID) {
	e := s.busyEntry(id)
	if e == nil {
		return
	}
	e.msg.deferred = true
	e.msg.late += len(e.rcpts)
	s.rememberSites(e.msg, e.sites)
	s.endAgent(e, false)
	s.endEntry(e)
}

// agentDown: a transport cannot be used.
func (s *Scheduler) agentDown(ev *Event) {
	t := s.transportFor(ev.Transport)
	s.killTransport(t, ev.Status, ev.Reason)
	for _, id := range ev.Entries {
		if e := s.busyEntry(id); e != nil {
			s.endAgent(e, false)
			s.excuseEntry(e, t.excuse, t.status, t.reason)
		}
	}
}
