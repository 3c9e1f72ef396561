package sched

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// epoch is when every test begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// tester is what a world needs of a *testing.T or *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is a spool, a resolver and the agents in memory: what the shell and
// the other services are to the scheduler. It keeps what must be true of any
// history: nobody is given two agents at once, nobody is delivered twice, no
// message is forgotten.
type world struct {
	t     tester
	s     *Scheduler
	now   time.Time
	mail  map[MsgID]*letter
	busy  map[EntryID]Effect
	order []EntryID // of busy, in order of hand-out
	out   []Effect
	loads []Effect // unanswered, when manual
	asks  []Effect // unanswered notices, when manual

	manual  bool                 // loads and notices wait for the test
	batch   int                  // recipients given per load at most; 0: as many as asked for
	refuse  func(m *letter) bool // notices that cannot be made
	onEvent func(ev Event)
	on      func(e Effect)
	steps   int
	pauses  map[PauseID]testPause
	limits  map[string]testLimit // by next hop
	terms   map[string]*Terms    // by destination
	pools   map[string]*Pool     // by destination
	stopped map[string]PauseID   // sources that are suspended
	site    map[string]string    // of a next hop: the destination's name, if it is another
	asked   func(r *Result)      // what replies ask besides
	each    func(r *rand.Rand)   // in random histories, before each turn
	end     func()               // the same, after the last
	tenant  func(id MsgID) string
	whose   map[string]TenantTerms // by tenant
	quotas  map[string]*Quota      // by tenant, " at " and the destination
	check   bool
	tries   bool // recipients are said to have been tried (Rcpt.Tried)
	stale   bool // also those of whom an EffectDeferRcpts was the last, as before it is on record
	far     far
}

// letter is a message as the spool has it.
type letter struct {
	id       MsgID
	rcpts    []Rcpt
	final    []bool
	tried    map[int]bool
	pending  int
	inflight map[int]bool
	queue    Queue
	next     time.Time
	attempts int
	flags    Flags
	tenant   string
	created  time.Time
	gone     EffectKind
	failed   bool
	notices  []Notice
}

func newWorld(t tester, cfg Config) *world {
	w := &world{t: t, s: New(cfg), now: epoch, mail: map[MsgID]*letter{}, busy: map[EntryID]Effect{}, pauses: map[PauseID]testPause{}, limits: map[string]testLimit{}, check: true,
		terms: map[string]*Terms{}, pools: map[string]*Pool{}, stopped: map[string]PauseID{}, site: map[string]string{}}
	w.far.away = map[MsgID]bool{}
	if cfg.DeferredLimit > 0 {
		w.step(Event{Kind: EventAttached})
	}
	return w
}

// rcpt builds a recipient; its queue name is its nexthop.
func rcpt(transport, nexthop string) Rcpt {
	return Rcpt{Transport: mail.Transport(transport), Nexthop: mail.Nexthop(nexthop), Queue: nexthop}
}

// A testPause is for all mail for one destination.
type testPause struct {
	Pause
	queue string
	odd   bool // only recipients with odd numbers
}

// marked is a recipient with the pause that is for it.
func (w *world) marked(r Rcpt) Rcpt {
	for _, id := range slices.Sorted(maps.Keys(w.pauses)) {
		if p := w.pauses[id]; p.queue == r.Queue && (!p.odd || r.Index%2 == 1) {
			r.Pause = id
		}
	}
	if r.Transport != RetryTransport && r.Transport != ErrorTransport {
		if site := w.site[string(r.Nexthop)]; site != "" {
			r.Queue = site
		}
		r.Terms, r.Pool = w.terms[r.Queue], w.pools[r.Queue]
	}
	return r
}

// quotaOf is what holds for a tenant's mail where r goes.
func (w *world) quotaOf(tenant string, r Rcpt) *Quota {
	if tenant == "" || r.Transport == RetryTransport || r.Transport == ErrorTransport {
		return nil
	}
	return w.quotas[tenant+" at "+r.Queue]
}

// A testLimit is what an operator has set of a destination's window.
type testLimit struct {
	most   int
	raises bool
}

// setLimits tells of the limits, by next hop.
func (w *world) setLimits() {
	w.t.Helper()
	limits := maps.Clone(w.limits)
	w.step(Event{Kind: EventLimits, Limits: func(_ mail.Transport, nexthop mail.Nexthop) (int, bool) {
		l := limits[string(nexthop)]
		return l.most, l.raises
	}})
}

// setPauses tells of the pauses, and has what is affected in the active queue parked.
func (w *world) setPauses() {
	w.t.Helper()
	var list []Pause
	for _, id := range slices.Sorted(maps.Keys(w.pauses)) {
		list = append(list, w.pauses[id].Pause)
	}
	for _, name := range slices.Sorted(maps.Keys(w.stopped)) {
		list = append(list, Pause{ID: w.stopped[name], Source: name, Status: dsn.S(4, 3, 2), Reason: "source " + name + " is suspended"})
	}
	w.step(Event{Kind: EventPauses, Pauses: list})
	var ids []MsgID
	for id := range w.mail {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		var marked []Rcpt
		for _, r := range w.mail[id].rcpts {
			if r = w.marked(r); r.Pause != 0 {
				marked = append(marked, r)
			}
		}
		if len(marked) > 0 {
			w.step(Event{Kind: EventPause, ID: id, Rcpts: marked})
		}
	}
}

// arrive queues a message with these recipients.
func (w *world) arrive(id MsgID, flags Flags, rcpts ...Rcpt) {
	w.t.Helper()
	l := &letter{id: id, rcpts: rcpts, final: make([]bool, len(rcpts)), pending: len(rcpts), inflight: map[int]bool{},
		queue: QueueIncoming, created: w.now, flags: flags}
	if w.tenant != nil {
		l.tenant = w.tenant(id)
	}
	for i := range l.rcpts {
		l.rcpts[i].Index = i
	}
	w.mail[id] = l
	w.step(Event{Kind: EventQueued, ID: id, Arrival: Arrival{Queue: QueueIncoming, Created: w.now, Rcpts: len(rcpts), Size: 1000, Flags: flags, Tenant: l.tenant}})
}

// step gives the scheduler events and carries out the effects; events that
// follow at once, such as loads, are given too.
func (w *world) step(queue ...Event) {
	w.t.Helper()
	for len(queue) > 0 {
		ev := queue[0]
		queue = queue[1:]
		if w.onEvent != nil {
			w.onEvent(ev)
		}
		w.steps++
		w.out = w.s.Step(w.now, ev, w.out[:0])
		if w.check {
			if err := w.s.Check(); err != nil {
				w.t.Fatalf("step %d, event kind %d id %d entry %d: %v", w.steps, ev.Kind, ev.ID, ev.Entry, err)
			}
		}
		for _, e := range w.out {
			if w.on != nil {
				w.on(e)
			}
			queue = append(queue, w.carryOut(e)...)
		}
		if w.check {
			w.checkFar()
		}
		if len(queue) == 0 && !w.far.late {
			queue = w.forget()
		}
	}
}

// carryOut does what an effect asks for and returns the answers.
func (w *world) carryOut(e Effect) []Event {
	w.t.Helper()
	l := w.mail[e.ID]
	switch e.Kind {
	case EffectLoad:
		if w.manual {
			w.loads = append(w.loads, e)
			return nil
		}
		if terms, ok := w.whose[l.tenant]; ok {
			return []Event{{Kind: EventTenant, Tenant: l.tenant, TenantTerms: terms}, w.load(e)}
		}
		return []Event{w.load(e)}
	case EffectDeliver:
		for _, r := range e.Rcpts {
			if l.final[r] || l.inflight[r] {
				w.t.Fatalf("message %d recipient %d: delivered twice", e.ID, r)
			}
			l.inflight[r] = true
			w.fromPool(e, l.rcpts[r])
			if to := l.rcpts[r]; e.Transport == to.Transport && e.Nexthop != to.Nexthop && e.Nexthop != "" { // a snapshot may have none
				w.t.Fatalf("message %d recipient %d: delivered to %s, and goes to %s", e.ID, r, e.Nexthop, to.Nexthop)
			}
			if l.rcpts[r].Apart != l.rcpts[e.Rcpts[0]].Apart {
				w.t.Fatalf("message %d: recipients %v are in one request", e.ID, e.Rcpts)
			}
		}
		if w.busy[e.Entry].Entry != 0 {
			w.t.Fatalf("entry %d given twice", e.Entry)
		}
		w.busy[e.Entry] = e
		w.order = append(w.order, e.Entry)
	case EffectNotify:
		if w.manual {
			w.asks = append(w.asks, e)
			return nil
		}
		return []Event{w.answer(e, w.refuse == nil || !w.refuse(l))}
	case EffectDefer:
		l.queue, l.next, l.attempts = QueueDeferred, e.Next, e.Attempts
		if e.Warned {
			l.flags |= FlagWarned
		}
		delete(w.far.away, l.id)
		w.quiet(l)
	case EffectFinish, EffectRemove, EffectRequeue, EffectCorrupt:
		l.gone = e.Kind
		w.quiet(l)
		if e.Kind == EffectFinish && (l.pending > 0 || l.failed) {
			w.t.Fatalf("message %d finished with %d recipients pending, notice due: %v", l.id, l.pending, l.failed)
		}
	case EffectHold:
		l.queue = QueueHold
		w.quiet(l)
	case EffectRelease:
		l.queue, l.next = QueueDeferred, e.Next
	case EffectExpire:
		l.flags |= FlagExpire
		l.next = e.Next
		if info, ok := w.s.Lookup(e.ID); ok && info.Queue != QueueHold {
			l.queue = QueueDeferred
		}
	default:
		if e.Kind == EffectDeferRcpts && !w.stale {
			for _, i := range e.Rcpts {
				delete(l.tried, i)
			}
		}
		return w.farEffect(e)
	}
	return nil
}

// fromPool: what has a pool goes from a member of it, and nothing else from any source.
func (w *world) fromPool(e Effect, r Rcpt) {
	if e.Transport == RetryTransport || e.Transport == ErrorTransport {
		if e.Source != "" {
			w.t.Fatalf("message %d goes to %s from %s", e.ID, e.Transport, e.Source)
		}
		return
	}
	if w.stopped[e.Source] != 0 {
		w.t.Fatalf("message %d goes from %s, which is suspended", e.ID, e.Source)
	}
	if pool := r.Pool; pool != nil || e.Source != "" {
		for i := range pool.Members {
			if pool.Members[i].Source == e.Source {
				return
			}
		}
		w.t.Fatalf("message %d goes from %q, which is not in its pool", e.ID, e.Source)
	}
}

// quiet: nothing of l may be under way.
func (w *world) quiet(l *letter) {
	if len(l.inflight) > 0 {
		w.t.Fatalf("message %d left the active queue with deliveries under way: %v", l.id, l.inflight)
	}
}

// load answers EffectLoad.
func (w *world) load(e Effect) Event {
	l := w.mail[e.ID]
	ev := Event{Kind: EventLoaded, ID: e.ID, Failed: l.failed}
	most := e.Max
	if w.batch > 0 && most > w.batch {
		most = w.batch
	}
	i := e.From
	for ; i < len(l.rcpts); i++ {
		if l.final[i] {
			continue
		}
		if len(ev.Rcpts) == most {
			break
		}
		r := w.marked(l.rcpts[i])
		r.Quota = w.quotaOf(l.tenant, r)
		l.rcpts[i].Pool = r.Pool // as it was told
		r.Tried = w.tries && l.tried[i]
		ev.Rcpts = append(ev.Rcpts, r)
	}
	ev.Next = i
	for ; i < len(l.rcpts); i++ {
		if !l.final[i] {
			ev.Unread++
		}
	}
	sort.SliceStable(ev.Rcpts, func(i, j int) bool {
		a, b := ev.Rcpts[i], ev.Rcpts[j]
		return a.Transport < b.Transport || a.Transport == b.Transport && a.Queue < b.Queue
	})
	return ev
}

// answer answers EffectNotify.
func (w *world) answer(e Effect, ok bool) Event {
	l := w.mail[e.ID]
	if ok {
		l.notices = append(l.notices, e.Notice)
		switch e.Notice {
		case NoticeFailure:
			l.failed = false
		case NoticeExpired:
			for i := range l.final {
				l.final[i] = true
			}
			l.pending = 0
		}
	}
	return Event{Kind: EventNotified, ID: e.ID, OK: ok}
}

// outcome is what a delivery comes to, for all its recipients.
type outcome uint8

const (
	sent outcome = iota
	bounced
	deferred // the destination took part
	unreachable
	enough        // the destination took part, and said that it wants less
	over          // sent, over a connection that was open
	refusedAtOnce // the destination answered, and refused to take part
)

// done reports the end of a busy entry.
func (w *world) done(id EntryID, o outcome, hungry bool) {
	w.t.Helper()
	e, ok := w.busy[id]
	if !ok {
		w.t.Fatalf("entry %d is not busy", id)
	}
	delete(w.busy, id)
	for i, x := range w.order {
		if x == id {
			w.order = append(w.order[:i], w.order[i+1:]...)
			break
		}
	}
	l := w.mail[e.ID]
	r := Result{Hungry: hungry, Opened: !e.Reuse && o != over}
	if o == over {
		o = sent
	}
	if e.Transport == RetryTransport {
		o = deferred
	}
	for _, i := range e.Rcpts {
		delete(l.inflight, i)
		if o == sent || o == bounced {
			l.final[i] = true
			l.pending--
		} else {
			r.Deferred = append(r.Deferred, i)
			if l.tried == nil {
				l.tried = map[int]bool{}
			}
			l.tried[i] = true
		}
	}
	switch o {
	case bounced:
		r.Failed, l.failed = true, true
	case unreachable:
		r.SiteFailed, r.Status, r.Reason = true, dsn.S(4, 4, 1), fmt.Sprintf("connect to %s: Connection refused", e.Nexthop)
	case refusedAtOnce:
		r.SiteFailed, r.Status, r.Reason = true, dsn.S(4, 7, 1), fmt.Sprintf("host %s refused to talk to me: 554 5.7.1 blocked", e.Nexthop)
	case enough:
		r.SiteFailed, r.SitePartly, r.Status, r.Reason = true, true, dsn.S(4, 7, 0), fmt.Sprintf("host %s said: 421 4.7.0 Too many connections", e.Nexthop)
	}
	if w.asked != nil && e.Transport != RetryTransport {
		w.asked(&r)
	}
	w.step(Event{Kind: EventDone, Entry: id, Result: r})
}

// tick lets time pass.
func (w *world) tick(d time.Duration) {
	w.t.Helper()
	w.now = w.now.Add(d)
	w.step(Event{Kind: EventTick})
}

// sleep lets time pass until the scheduler wants to be woken, and says
// whether it does.
func (w *world) sleep() bool {
	w.t.Helper()
	at := w.s.Wake()
	if at.IsZero() {
		return false
	}
	if at.After(w.now) {
		w.now = at
	}
	w.step(Event{Kind: EventTick})
	return true
}
