// The scheduler's state and its one door, Step. What each event means is in the file that
// keeps the state it changes; here are those that concern the end of a delivery, because
// they touch nearly all of it.

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
	// The configuration in force. Only New and reconfigure set it, and sane has been
	// applied to it.
	cfg Config
	// The time of the present Step: now is clock.sane, in microseconds.
	clock clock
	now   int64
	// The now of the last Step, or when that of the predecessor was whose snapshot was restored; 0: none has been.
	stepped int64
	// Until then, by now, mail that waits for a limit is not returned because of its age: see graced.
	graceEnd int64
	// Retry times and the order of random threads draw from it. Drawing is part of the
	// state: one draw more or fewer changes everything that follows.
	rng rng
	// What the present Step has ordered so far; nil between Steps. It is the caller's
	// slice, so that a shell that reuses one makes no garbage.
	out []Effect

	// Every message that is known, in one of the four places below or active;
	// record.where says which. On hold is in none.
	recs     *records
	incoming int       // new messages that wait for a place, in their tenants' lists
	due      int       // the same of deferred mail to be taken up as soon as there is a place
	ripe     int       // of those: by their own time
	retries  retryHeap // deferred mail by the time it is due

	// The active queue. slots and slotFree give a message an int32 for its record, which
	// must not contain a pointer; the list through message.nxt is in the order of arrival
	// in the queue. sweep and listings walk it.
	slots                   []*message
	slotFree                []int32
	firstActive, lastActive *message // in the order in which they became active
	messageSeq              uint64
	loading                 int // messages whose first recipients are being read
	reserved                int // recipients being read

	// Transports take turns, as in nqmgr: the one that was just served is moved to the
	// end.
	transports []*transport // in the order of their turns
	// The same transports by name. A transport is never removed: its recipient pool and
	// its dead time outlive its mail.
	transportIndex map[mail.Transport]*transport
	// Destinations in core, of all transports. It bounds the dead ones that are
	// remembered.
	queueCount int

	// Deliveries under way. The lower bits of an EntryID are its index here; busyFree are
	// the indexes not in use. The sequence numbers only grow, so that an ID that is
	// reported late names nobody.
	busy     []*entry
	busyFree []int32
	entrySeq uint64
	agentSeq uint64

	// What deferred mail waits for: a destination that failed, one that answered with a
	// deferral, or a pause. Indexes are used instead of pointers, since records must have
	// none. sites[0] means "nothing"; siteFree heads the chain of unused ones.
	sites     []site
	siteFree  int32
	siteIndex map[siteKey]int32
	// Decisions of operators. Their counts are kept as mail comes and goes, since a
	// listing of a million parked messages must not walk them.
	pauses    map[PauseID]*pause
	parkedAt  map[siteKey]int // deferred messages that wait for pauses, by destination
	parkedFor map[PauseID]int // the same, by pause
	// Destinations for which a hint was taken, and that have not been tried since; until when that matters (hint.go). It is
	// empty unless others deliver mail of the same queue.
	hinted map[siteKey]int64
	// How much of the shared limits is for this scheduler; nil: all.
	portions    Portions
	stopped     map[stop]PauseID // of sources that are suspended; nil: none is
	pausedAfter uint64           // the last delivery that had begun when they were given
	pauseEnd    int64            // when the first of the pauses ends by itself, by the wall clock
	ended       []MsgID          // that wait for pauses that have ended, to be made due; nil when there are none
	// A source is not suspended any more; false once all that waits for sources has been looked at.
	sourceBack bool
	limits     SetLimits // what operators have set of windows; nil: nothing
	// Domains of fast_flush_domains, with the messages that may wait for each.
	flushSites map[string]*flushSite
	// The part of the deferred queue that is in memory.
	window window
	// Limits that several destinations share (shared.go): all of them, those at the top that
	// have room and somebody in line, those that parked mail may go on for, and how many are
	// remembered for their counts alone. All are empty when nothing is limited.
	shares   map[sharedKey]*shared
	numbered []*shared // the same by number; nil: the number is not in use
	numbers  []int32   // not in use
	roots    []*shared
	owing    []*shared
	// Sources that have sent what they may today and may have mail in line, and destinations
	// that have lined up for a source (source.go).
	full      []*shared
	spilling  []*queue
	resting   [kinds]int
	inherited *inheritance // from Restore; nil: there is nothing, or it is too old

	// Whose mail there is in memory, by number; 0 is nobody's. nil: the number is not in use.
	tenants     []*tenant
	tenantIndex map[string]*tenant
	tenantFree  []uint16
	entry       ring          // of those with mail that waits for a place in the active queue
	crowding    heap[*tenant] // those that have their part of it, and more mail, by what they have

	// timerSeq breaks ties between timers of the same microsecond, so that they fire in
	// the order in which they were started.
	timers   heap[*timer]
	timerSeq uint64
	sweeper  timer

	// The recipients of this Step's EffectDeferRcpts. Effects hold slices of it, and so
	// it is only cut back at the next Step; growing it in between is harmless, since the
	// old array stays with the effects that have it.
	scratch []int

	// Objects that have been given back. Their slices keep their storage. In a steady
	// state nothing is allocated for a delivery.
	messages   reuse.Free[message]
	jobs       reuse.Free[job]
	peers      reuse.Free[peer]
	entries    reuse.Free[entry]
	queuePool  reuse.Free[queue]
	classPool  reuse.Free[class]
	bucketPool reuse.Free[bucket]
	lanePool   reuse.Free[lane]
	claimPool  reuse.Free[claim]
	agentPool  reuse.Free[agent]

	// The bounds of transport.loose and of resting. Always the constants of those names, but in tests.
	maxLoose   int
	maxResting [kinds]int
	// Kept up as things change; Check recounts them.
	stats Stats
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
		maxResting:     maxResting,
	}
	s.cfg.DeferTransports = slices.Clone(cfg.DeferTransports)
	s.sane(&s.cfg)
	s.tenants = []*tenant{{weight: 1}}
	s.tenants[0].seat.tenant = s.tenants[0]
	return s
}

// sane raises what must not be less than one.
func (s *Scheduler) sane(c *Config) {
	c.ActiveLimit = max(c.ActiveLimit, 1)
	c.RecipientMinimum = max(c.RecipientMinimum, 1)
	// A message must be able to become active with at least one recipient each.
	c.RecipientLimit = max(c.RecipientLimit, c.ActiveLimit)
	// As Postfix: a bounce is never tried for longer than mail.
	c.BounceLifetime = min(c.BounceLifetime, c.MaximalLifetime)
	c.DeferredLimit = max(c.DeferredLimit, 0)
}

// Step takes note of one event and appends what is to be done about it to
// out. It does not block and reads no clock. now is the wall clock; when it
// goes back, the scheduler's time goes on at half speed until it is caught
// up with.
func (s *Scheduler) Step(now time.Time, ev Event, out []Effect) []Effect {
	return s.Take(now, &ev, out)
}

// Take is Step for an event that is not copied: it has several hundred octets. ev is not changed but for the letter
// case of a site, and not kept, though what it refers to may be.
func (s *Scheduler) Take(now time.Time, ev *Event, out []Effect) []Effect {
	s.advance(now)
	s.out = out
	s.scratch = reuse.Truncated(s.scratch)
	// Timers come first. An event then finds destinations and transports in the state
	// that belongs to its time, whichever of the two the shell was quicker with.
	s.fireTimers()
	if s.pauseEnd != never && s.pauseEnd <= s.clock.wall {
		s.endPauses()
	}
	s.happened(ev)
	// Whatever happened, places may have become free. Mail that is due is taken up first
	// and delivered next, in that order, so that one Step does for a message all that can
	// be done; only then does the window of deferred mail see what is missing.
	s.releaseEnded()
	s.admit()
	s.deliver()
	if len(s.owing) > 0 {
		s.takeBack()
		s.admit()
	}
	s.lookAhead()
	s.sayFar()
	if s.firstActive != nil && s.sweeper.pos == 0 {
		s.startTimer(&s.sweeper, s.now+sweepInterval)
	}
	out, s.out = s.out, nil
	return out
}

// happened takes in what an event says.
func (s *Scheduler) happened(ev *Event) {
	switch ev.Kind {
	case EventQueued:
		s.queued(ev)
	case EventLoaded:
		s.loaded(ev)
	case EventLoadFailed:
		s.loadFailed(ev)
	case EventDone:
		s.done(ev.Entry, &ev.Result)
	case EventLost:
		s.lost(ev.Entry)
	case EventAgentDown:
		s.agentDown(ev)
	case EventNotified:
		if m := s.activeMessage(ev.ID); m != nil {
			s.notified(m, ev.OK)
		}
	case EventFlush:
		ev.Site = strings.ToLower(ev.Site)
		s.flush(ev)
	case EventHold, EventRelease, EventRemove, EventRequeue, EventExpire, EventCorrupt:
		s.command(ev)
	case EventReconfigured:
		s.reconfigure(ev.Config)
	case EventPauses:
		s.setPauses(ev.Pauses)
	case EventLimits:
		s.setLimits(ev.Limits)
	case EventPause:
		s.pauseActive(ev.ID, ev.Rcpts)
	case EventAttached:
		s.attach()
	case EventFetched:
		s.fetched(ev)
	case EventForget:
		s.forget(ev.IDs)
	case EventRecalled:
		s.recalled(ev)
	case EventPassed:
		s.window.passing = false
	case EventTerms:
		if t := s.transportIndex[ev.Transport]; t != nil && t.queues[ev.Site] != nil {
			s.setTerms(t.queues[ev.Site], ev.Terms)
			if len(s.stopped) > 0 {
				s.stopSources() // it may be at another place now
			}
		}
	case EventPortions:
		s.setPortions(ev.Portions)
	case EventHints:
		s.takeHints(ev.Hints)
	case EventTenant:
		s.setTenant(ev.Tenant, &ev.TenantTerms)
	case EventQuota:
		s.tellQuota(ev)
	}
}

// emit orders an effect. The order of calls is the order in which the shell carries them
// out, and in which records reach the log.
func (s *Scheduler) emit(e Effect) { s.out = append(s.out, e) }

// note has a line logged. It copies n: effects outlive the Step.
func (s *Scheduler) note(n Note) {
	s.out = append(s.out, Effect{Kind: EffectNote, ID: n.ID, Note: &n})
}

// Wake is when EventTick is needed if nothing happens before, by the wall clock
// as it was at the last Step; zero: never.
func (s *Scheduler) Wake() time.Time {
	// A Step that stopped at its budget has more to do at once.
	if len(s.ended) > 0 || len(s.window.far) > 0 {
		return toTime(s.clock.when(s.now))
	}
	at := never
	if s.timers.len() > 0 {
		at = s.timers.s[0].v.at
	}
	// A message that is due while the queue is full does not need a tick: what makes room
	// is an event, and that event's Step takes the message up.
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

// dueTime converts a recorded time. A time that is further ahead than any the scheduler
// sets itself was written by a clock that was wrong, and is brought within the longest
// back-off: such mail must not wait for years.
func (s *Scheduler) dueTime(t time.Time) int64 {
	next := toMicros(t)
	if next == never {
		return never
	}
	return s.clock.sanely(min(next, s.clock.wall+s.longest()))
}

// realTime converts a time for the record. It is the inverse of dueTime.
func (s *Scheduler) realTime(t int64) time.Time {
	if t == never {
		return time.Time{}
	}
	return toTime(s.clock.real(t))
}

// queued takes in a message that exists: a new one, one that was recovered at a start, or
// one that EffectFetch or EffectRecall asked for. A message that is known is left alone,
// because the shell may tell of the same one twice, for example by a fetch while cleanup
// announces it.
func (s *Scheduler) queued(ev *Event) {
	if ev.ID == 0 || s.recs.find(ev.ID) != 0 {
		return
	}
	a := &ev.Arrival
	i := s.recs.add(ev.ID)
	rec := s.recs.at(i)
	// A creation time ahead of the clock would make the age negative, and the back-off
	// wrong.
	rec.created, rec.next, rec.size = min(toMicros(a.Created), s.clock.wall), s.dueTime(a.Next), a.Size
	rec.mark = toMicros(a.Next)
	rec.rcpts = int32(a.Rcpts)
	rec.tenant = s.tenantFor(a.Tenant)
	rec.attempts = uint16(min(a.Attempts, 1<<16-1))
	// The upper bits are the scheduler's own; a record must not bring any.
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
		s.queueNew(i)
	}
}

// done ends a delivery request. A report on an entry that is not busy is ignored: the
// transport may have been declared dead meanwhile, and its requests given to "retry".
func (s *Scheduler) done(id EntryID, r *Result) {
	e := s.busyEntry(id)
	if e == nil {
		return
	}
	m, q := e.msg, e.peer.queue
	t := q.tport
	if e.leaves != ([trees]*shared{}) && !r.Opened {
		s.reused(e)
	}
	// The agent is free before its entry ends, for ending the entry may choose the next
	// one for the same destination, which should get this agent's session.
	s.endAgent(e, r.Hungry)
	// An agent cannot defer more recipients than it was given. The count bounds what a
	// confused report does to the message's sums.
	late := min(len(r.Deferred), len(e.rcpts))
	s.record(m).rcpts -= int32(len(e.rcpts) - late)
	second := s.secondTry(e, r)
	m.failed = m.failed || r.Failed
	m.success = m.success || r.Success
	// later is the weakest reason to wait; postpone prefers a dead destination or a
	// pause.
	if len(r.Deferred) > 0 && second == nil {
		m.late += late
		m.deferred = true
		m.later = siteKey{tport: t, name: q.name, pause: laterID}
		s.rememberDeferred(e, r.Deferred)
	}
	// Only a delivery in which the destination took part says anything good about it. One
	// recipient that was refused is no sign of overload, and so counts as positive.
	if r.SiteFailed {
		// What can go from another source does not wait for this one.
		if len(r.Deferred) > 0 && second == nil && !s.elsewhere(e) {
			m.site = siteKey{tport: t, name: q.name}
		}
		s.negative(q, e, r)
	} else {
		s.transportAlive(t)
		s.positive(q)
	}
	if q.course != nil {
		s.follow(q, e, r)
	}
	if second != nil {
		s.sendFrom(e, second, r.Deferred)
	}
	// endEntry gives the entry back to its pool.
	turn, mine := e.turn, e.peer.claim
	s.endEntry(e)
	if t.cfg.Mode == Thread && len(s.roots) > 0 {
		s.grantAll() // the agent goes on with this thread if it may
	}
	if t.cfg.Mode == Thread && q.cur == mine && mine.open && !r.SiteFailed {
		q.cur.goOn(turn)
	}
}

// endAgent parts a busy entry from its agent. A hungry agent is kept idle with its open
// session; with no idle time it is told to close it.
func (s *Scheduler) endAgent(e *entry, hungry bool) {
	t := e.peer.queue.tport
	// With transport_rate_delay one delivery goes on at a time: the next pause begins
	// when there is work.
	if t.rate == rateBusy {
		t.rate = rateIdle
	}
	switch {
	case !hungry:
		s.freeAgent(e.agent)
	case t.cfg.IdleMax <= 0 || !s.roomFor(e):
		s.sendAway(e.agent)
	default:
		s.idleAgent(e.agent, e.peer.queue)
	}
	e.agent = nil
}

// rememberDeferred notes for which domains of fast_flush_domains e's message waits, so
// that "sendmail -qR" finds it. Only recipients that were deferred count: those delivered
// wait for nothing.
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

// rememberSites does the same for recipients that all wait. The empty string stands for a
// domain that is not in fast_flush_domains.
func (s *Scheduler) rememberSites(m *message, sites []string) {
	for _, d := range sites {
		if d != "" {
			s.rememberSite(d, m.id)
		}
	}
}

// lost ends the request of an agent that died after it had accepted it. What it did is
// unknown, and nothing is learnt of the destination: a crash of ours must not make a
// working destination dead. The recipients are tried again with the message's next
// attempt; those whose outcome is already on record are not.
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

// agentDown declares a transport dead. Requests that were never accepted go the same way
// as those still waiting: to "retry", with the transport's failure as the reason.
func (s *Scheduler) agentDown(ev *Event) {
	t := s.transportFor(ev.Transport)
	s.killTransport(t, ev.Status, ev.Reason)
	for _, id := range ev.Entries {
		if e := s.busyEntry(id); e != nil {
			s.unmade(e)
			s.endAgent(e, false)
			s.excuseEntry(e, t.excuse, t.status, t.reason)
		}
	}
}
