// Package whatif forecasts what becomes of the mail in the queue, with other settings. It runs the
// real scheduler (qmgr/sched) over a copy of the queue in virtual time, with destinations that
// behave as the queue manager has measured them (internal/pace).
//
// # What is in a forecast
//
// The mail that was in the queue when the copy was made, by destination. What comes later is not,
// nor is mail on hold, nor mail that is suspended. A message to several destinations counts as one
// for each. What was under way begins anew.
//
// A delivery takes as long, and is turned away as often, as others were that were one of as many.
// Of more at once than have ever been seen, it is supposed that their time grows as it has done
// so far, and that no more are turned away. A destination that has turned away all deliveries for
// some time is down, and stays so.
//
// Limits that destinations have in common, those of sources, of tenants, and of tenants at one place hold as the queue manager has them at the
// moment of the copy, with what was counted today. Mail goes from the source that it waits for, and from another one of its
// pool when the scheduler would choose that: when the first one is dead there, is suspended, or has sent what it may in a day. Of a pool of
// which nothing is in the active queue it is not known who is in it: its mail goes from no other source. What is left out
// is said in sentences ([Copy.LeftOut]).
//
// # Bounds
//
// A run has at most [MaxMessages] messages and maxSteps steps. Where more are queued, one stands
// for several of a large destination: there are fewer deliveries, which take longer.
//
// The same copy, settings and seed have the same forecast. Runs of several seeds say how much of a
// forecast is chance.
package whatif

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/pace"
	"posthaste/qmgr/sched"
)

const (
	// MaxMessages is how many messages a run has at most.
	MaxMessages = 100_000
	// maxDests is how many destinations its mail has.
	maxDests = MaxMessages / 2
	// maxRcpts bounds the recipients of all messages of a run.
	maxRcpts = 2_000_000
	// maxSteps bounds what may happen in a run.
	maxSteps = 10_000_000
	// Horizon is how far a forecast looks.
	Horizon = 48 * time.Hour
)

// Mail is a copy of the queue.
type Mail struct {
	Now   time.Time
	Dests []Dest
	Rows  []Row
	// What the tables say of tenants, for those of which they say anything, and what has been counted today for limits of
	// destinations and of tenants.
	Tenants map[string]sched.TenantTerms
	Spent   []sched.Spent
	// What a tenant may send to the place that a next hop is.
	Quotas map[quotaKey]*sched.Quota
}

// A quotaKey is a tenant's mail for a next hop.
type quotaKey struct {
	hop    mail.Nexthop
	tenant string
}

// A Dest is a destination that mail in the queue is for.
type Dest struct {
	sched.DestSnapshot
	Behaviour *pace.Behaviour // nil: nothing is known of it
	// Most is what an operator has set as its limit; 0: nothing. Raises is as in sched.SetLimits.
	Most   int
	Raises bool
	// Terms are its limits in common with others, and those of its source; nil: there are none. Untold says that this is not known,
	// learnt that it is adaptive.
	Terms          *sched.Terms
	untold, learnt bool
	// Weight is the source's part of the draws in its pool, whose other members are the destinations with the same name but for the
	// source; 0: who is in it is not known. Wait is as in sched.Member.
	Weight int
	Wait   bool
}

// A Row is messages that are alike.
type Row struct {
	Dest     int // index in Dests
	Tenant   string
	Count    int // of messages
	Rcpts    int // of each, at least 1
	Created  time.Time
	Deferred bool
	Due      time.Time // deferred
	Waits    bool      // deferred because the destination failed: it is tried when that answers
}

// An Outcome is what a forecast says of some mail. Times count from the moment of the copy, and
// less than 0 is: not within Horizon.
type Outcome struct {
	Messages int
	// Until half of it, 95 and 99 in 100, and all of it has left the queue: what half of those who wait wait at most, and so on.
	Half, Many, Most, Last time.Duration
	Mean                   time.Duration // how long a message that leaves takes, on average
	Expired, Left          int           // messages that were returned as too old, that are still there at the end
	Busy                   int           // deliveries at once, at most
	Unseen                 bool          // it is so little that no message of the run stands for it: nothing else is known of it
}

// A Forecast is what one run came to.
type Forecast struct {
	All     Outcome
	Alive   Outcome            // of the mail for destinations that are not down
	Dests   []Outcome          // as in Mail
	Down    []bool             // destinations that do not answer: the forecast is that it stays so
	Seen    []int              // deliveries at once that were ever seen there
	Tenants map[string]Outcome // nil: there are none
	Stands  float64            // for how many messages one stands, on average
}

// Errors of Run.
var (
	ErrEmpty = errors.New("there is no mail in the queue to forecast")
	ErrLarge = errors.New("the queue is too large for a forecast")
	errDests = fmt.Errorf("%w: its mail is for more than %d destinations", ErrLarge, maxDests)
	ErrLong  = fmt.Errorf("the forecast has not come to an end within %d steps", maxSteps)
)

// message is a message of a run.
type message struct {
	row     int32
	left    int32
	again   bool
	expired bool
	done    []bool // by recipient; nil: it has one
}

// ending is a delivery that will end.
type ending struct {
	at    time.Duration
	entry sched.EntryID
}

type agenda []ending

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].entry < a[j].entry
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(ending)) }
func (a *agenda) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

// dest is a destination of a run.
type dest struct {
	*model     // of all runs
	busy, peak int
	messages   int     // of the queue
	stands     float64 // for how many of these one of the run stands
	terms      *sched.Terms
	pool       *sched.Pool // for mail that waits for its source; nil: it has none
	again      *sched.Pool // for mail that is tried again, which is drawn anew; nil: as pool
	members    []int       // the destinations of its pool, with its own; nil: it is alone
}

// delivery is one under way.
type delivery struct {
	dest  int // less than 0: the retry transport
	id    sched.MsgID
	rcpts []int
	away  bool
	keeps bool // its agent asks for more
	opens bool // it is the first over its connection
}

type run struct {
	mail    *Mail
	cfg     sched.Config
	s       *sched.Scheduler
	rng     *rand.Rand
	clock   time.Duration
	agenda  agenda
	out     []sched.Effect
	pending []sched.Event
	stepped bool
	dests   []dest
	index   map[destKey]int
	msgs    []message
	busy    map[sched.EntryID]delivery
	modes   map[mail.Transport]sched.Mode
	alive   int // messages that are not for a destination that is down
	left    []gone
	tenants map[string]sched.TenantTerms
	quotas  map[quotaKey]*sched.Quota
}

type destKey struct {
	transport mail.Transport
	queue     string
}

// gone is a message that has left.
type gone struct {
	at      time.Duration
	row     int32
	expired bool
}

// Run makes a forecast. cfg is not changed. It ends early with the context's error.
func Run(ctx context.Context, m *Mail, cfg sched.Config, seed uint64) (*Forecast, error) {
	return m.run(ctx, m.learn(), cfg, seed)
}

// run is Run with what was learnt of the destinations, which is the same for all runs of the mail.
func (m *Mail) run(ctx context.Context, known *lessons, cfg sched.Config, seed uint64) (*Forecast, error) {
	r := &run{mail: m, rng: rand.New(rand.NewPCG(seed, 1)), index: make(map[destKey]int), busy: make(map[sched.EntryID]delivery), modes: make(map[mail.Transport]sched.Mode)}
	cfg.Seed, cfg.DeferredLimit, cfg.DelayWarning, cfg.ClogWarn, cfg.FeedbackDebug = seed, 0, 0, 0, false
	if err := r.prepare(known, cfg); err != nil {
		return nil, err
	}
	r.fill()
	if err := r.play(ctx); err != nil {
		return nil, err
	}
	return r.forecast(), nil
}

// prepare makes the models, and finds for how many messages one stands.
func (r *run) prepare(known *lessons, cfg sched.Config) error {
	r.models(known)
	total := 0
	for _, row := range r.mail.Rows {
		r.dests[row.Dest].messages += row.Count
		total += row.Count
	}
	switch {
	case total == 0:
		return ErrEmpty
	case len(r.mail.Dests) > maxDests:
		return errDests
	}
	r.thin(total, r.paced(&cfg) || r.mail.limited() || r.mail.pooled())
	sims := 0.0
	for i := range r.dests {
		sims += float64(r.dests[i].messages) / r.dests[i].stands
	}
	by := float64(total) / sims
	r.scale(&cfg, by)
	limits := make(map[mail.Nexthop]int)
	for i := range r.mail.Dests {
		if d := &r.mail.Dests[i]; d.Most > 0 {
			limits[d.Nexthop] = i
		}
	}
	r.cfg, r.s = cfg, sched.New(cfg)
	r.share(by)
	if err := r.restore(); err != nil {
		return err
	}
	if len(limits) > 0 {
		r.step(sched.Event{Kind: sched.EventLimits, Limits: func(t mail.Transport, n mail.Nexthop) (int, bool) {
			if i, ok := limits[n]; ok && r.mail.Dests[i].Transport == t {
				return r.mail.Dests[i].Most, r.mail.Dests[i].Raises
			}
			return 0, false
		}})
	}
	return nil
}

// models makes the model of each destination. One that has not been tried yet is as the others of
// its transport are; as many of such are down as of those, which ones is chance.
func (r *run) models(known *lessons) {
	r.dests = make([]dest, 0, len(r.mail.Dests))
	for i := range r.mail.Dests {
		d := &r.mail.Dests[i]
		m := known.models[i]
		if m == nil {
			o := known.others[d.Transport]
			if m = o.asAlive; o.ndown > 0 && r.rng.IntN(o.ndown+o.nalive) < o.ndown {
				m = o.asDown
			}
		}
		r.dests = append(r.dests, dest{model: m, stands: 1})
		r.index[destKey{d.Transport, d.Queue}] = i
	}
}

// settings are a transport's.
func settings(cfg *sched.Config, t mail.Transport) sched.TransportConfig {
	if cfg.Transport == nil {
		return cfg.DefaultTransports
	}
	return cfg.Transport(t, cfg.DefaultTransports)
}

// paced says whether there are delays between deliveries. They hold for all destinations alike, so
// that one message must stand for as many everywhere.
func (r *run) paced(cfg *sched.Config) bool {
	return slices.ContainsFunc(r.mail.Dests, func(d Dest) bool {
		t := settings(cfg, d.Transport)
		return t.DestinationRateDelay > 0 || t.TransportRateDelay > 0
	})
}

// thin finds for how many messages one stands, so that there are no more than MaxMessages: of all
// destinations as many, or of those with most to do.
func (r *run) thin(total int, even bool) {
	if total <= MaxMessages {
		return
	}
	low, high := 1, MaxMessages
	for low < high { // the most that a destination may have
		n, most := 0, (low+high+1)/2
		for i := range r.dests {
			n += min(r.dests[i].messages, most)
		}
		if n <= MaxMessages {
			low = most
		} else {
			high = most - 1
		}
	}
	for i := range r.dests {
		d := &r.dests[i]
		if d.stands = max(float64(d.messages)/float64(low), 1); even {
			d.stands = float64(total) / MaxMessages
		}
	}
}

// scale makes limits of messages as many times smaller as there are fewer messages, and delays
// longer.
func (r *run) scale(cfg *sched.Config, by float64) {
	cfg.ActiveLimit = max(int(float64(cfg.ActiveLimit)/by), 1)
	cfg.RecipientLimit = max(int(float64(cfg.RecipientLimit)/by), 1)
	of := cfg.Transport
	cfg.Transport = func(name mail.Transport, t sched.TransportConfig) sched.TransportConfig {
		if of != nil {
			t = of(name, t)
		}
		t.DestinationRateDelay = time.Duration(float64(t.DestinationRateDelay) * by)
		t.TransportRateDelay = time.Duration(float64(t.TransportRateDelay) * by)
		r.modes[name] = t.Mode
		return t
	}
}

// restore has the scheduler know of destinations what the queue manager does.
func (r *run) restore() error {
	var snap sched.Snapshot
	for i := range r.mail.Dests {
		d := r.mail.Dests[i].DestSnapshot
		if d.Window > 0 || d.State != sched.DestReady {
			snap.Dests = append(snap.Dests, d)
		}
		snap.Sites = append(snap.Sites, sched.SiteSnapshot{Transport: d.Transport, Queue: d.Queue, Alive: d.State != sched.DestDead})
	}
	rest := make([]float64, len(r.mail.Dests))
	rcpts := 0
	for i := range r.mail.Rows {
		row := &r.mail.Rows[i]
		d := &r.dests[row.Dest]
		// What is left of one row is for the next.
		rest[row.Dest] += float64(row.Count) / d.stands
		for ; rest[row.Dest] >= 0.5; rest[row.Dest]-- {
			m := message{row: int32(i), left: int32(max(row.Rcpts, 1)), again: row.Deferred}
			if rcpts += int(m.left); rcpts > maxRcpts {
				return fmt.Errorf("%w: it has more than %d recipients", ErrLarge, maxRcpts)
			}
			if m.left > 1 {
				m.done = make([]bool, m.left)
			}
			r.msgs = append(r.msgs, m)
			if row.Waits {
				snap.Sites[row.Dest].Waiting = append(snap.Sites[row.Dest].Waiting, sched.MsgID(len(r.msgs)))
			}
			if !r.down(row.Dest) {
				r.alive++
			}
		}
	}
	r.s.Restore(r.mail.Now, snap)
	return nil
}

// fill queues the mail.
func (r *run) fill() {
	for i := range r.msgs {
		m := &r.msgs[i]
		row := &r.mail.Rows[m.row]
		a := sched.Arrival{Queue: sched.QueueIncoming, Created: row.Created, Rcpts: int(m.left), Tenant: row.Tenant}
		if row.Deferred {
			a.Queue, a.Next, a.Attempts = sched.QueueDeferred, row.Due, 1
		}
		r.step(sched.Event{Kind: sched.EventQueued, ID: sched.MsgID(i + 1), Arrival: a})
	}
}

func (r *run) now() time.Time { return r.mail.Now.Add(r.clock) }

// play lets everything happen, until nothing is left that will leave.
func (r *run) play(ctx context.Context) error {
	for n := 0; r.alive > 0; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if n > maxSteps {
			return ErrLong
		}
		at := Horizon + 1
		if len(r.agenda) > 0 {
			at = r.agenda[0].at
		}
		wake := r.s.Wake()
		tick := !wake.IsZero() && wake.Sub(r.mail.Now) <= at
		if tick {
			at = wake.Sub(r.mail.Now)
		}
		if at > Horizon {
			return nil
		}
		r.clock = max(r.clock, at)
		if tick {
			r.step(sched.Event{Kind: sched.EventTick})
			continue
		}
		r.end(heap.Pop(&r.agenda).(ending).entry)
	}
	return nil
}

// step gives the scheduler an event and carries out what comes of it.
func (r *run) step(ev sched.Event) {
	r.pending = append(r.pending, ev)
	if r.stepped {
		return // the outermost call goes on
	}
	r.stepped = true
	for len(r.pending) > 0 {
		ev := r.pending[0]
		r.pending = append(r.pending[:0], r.pending[1:]...)
		r.out = r.s.Step(r.now(), ev, r.out[:0])
		for i := range r.out {
			r.carryOut(&r.out[i])
		}
	}
	r.stepped = false
}

func (r *run) carryOut(e *sched.Effect) {
	switch e.Kind {
	case sched.EffectLoad:
		r.step(r.load(e))
	case sched.EffectDeliver:
		r.deliver(e)
	case sched.EffectNotify:
		if e.Notice == sched.NoticeExpired {
			r.msgs[e.ID-1].expired = true
		}
		r.step(sched.Event{Kind: sched.EventNotified, ID: e.ID, OK: true})
	case sched.EffectDefer:
		r.msgs[e.ID-1].again = true
	case sched.EffectFinish:
		m := &r.msgs[e.ID-1]
		r.left = append(r.left, gone{r.clock, m.row, m.expired})
		if !r.down(int(r.mail.Rows[m.row].Dest)) {
			r.alive--
		}
		m.done = nil
	}
}

// load answers EffectLoad.
func (r *run) load(e *sched.Effect) sched.Event {
	m := &r.msgs[e.ID-1]
	row := &r.mail.Rows[m.row]
	d, of := &r.mail.Dests[row.Dest], &r.dests[row.Dest]
	if t, ok := r.tenants[row.Tenant]; ok {
		r.step(sched.Event{Kind: sched.EventTenant, Tenant: row.Tenant, TenantTerms: t})
	}
	// Of mail that goes from sources the queue is that of the destination; the pool makes it the one that it is.
	queue, pool := d.Queue, of.pool
	if pool != nil {
		queue = baseQueue(d)
	}
	if of.again != nil && (row.Deferred || m.again) {
		pool = of.again
	}
	quota := r.quotas[quotaKey{d.Nexthop, row.Tenant}]
	ev := sched.Event{Kind: sched.EventLoaded, ID: e.ID}
	all := max(len(m.done), 1)
	pending := func(i int) bool { return m.left > 0 && (m.done == nil || !m.done[i]) }
	i := e.From
	for ; i < all && len(ev.Rcpts) < e.Max; i++ {
		if pending(i) {
			ev.Rcpts = append(ev.Rcpts, sched.Rcpt{Index: i, Transport: d.Transport, Nexthop: d.Nexthop, Queue: queue, Terms: of.terms, Pool: pool, Quota: quota})
		}
	}
	ev.Next = i
	for ; i < all; i++ {
		if pending(i) {
			ev.Unread++
		}
	}
	return ev
}

// deliver begins a delivery.
func (r *run) deliver(e *sched.Effect) {
	x := delivery{dest: -1, id: e.ID, rcpts: e.Rcpts}
	took := time.Millisecond
	if e.Transport != sched.RetryTransport && e.Transport != sched.ErrorTransport {
		row := r.mail.Rows[r.msgs[e.ID-1].row].Dest
		x.dest = r.from(row, e.Source)
		d := &r.dests[x.dest]
		d.busy++
		d.peak = max(d.peak, d.busy)
		took, x.away = d.deliver(r.rng, d.busy, len(e.Rcpts), r.dests[row].stands)
		x.opens = !e.Reuse
		x.keeps = r.modes[e.Transport] == sched.Thread && e.Cache&sched.CacheStore != 0
	}
	r.busy[e.Entry] = x
	heap.Push(&r.agenda, ending{r.clock + took, e.Entry})
}

// end ends a delivery.
func (r *run) end(id sched.EntryID) {
	x := r.busy[id]
	delete(r.busy, id)
	var res sched.Result
	if x.dest < 0 {
		res.Deferred = x.rcpts
		r.step(sched.Event{Kind: sched.EventDone, Entry: id, Result: res})
		return
	}
	res.Opened = x.opens
	d, m := &r.dests[x.dest], &r.msgs[x.id-1]
	d.busy--
	if x.away {
		res = sched.Result{Deferred: x.rcpts, SiteFailed: true, Opened: x.opens, Status: dsn.S(4, 4, 1), Reason: "turned away"}
	} else {
		res.Hungry = x.keeps
		for _, i := range x.rcpts {
			later, failed := d.rcpt(r.rng, m.again)
			if later {
				res.Deferred = append(res.Deferred, i)
				continue
			}
			res.Failed = res.Failed || failed
			if m.left--; m.done != nil {
				m.done[i] = true
			}
		}
	}
	r.step(sched.Event{Kind: sched.EventDone, Entry: id, Result: res})
}

// forecast adds up what has happened.
func (r *run) forecast() *Forecast {
	f := &Forecast{Dests: make([]Outcome, len(r.dests)), Down: make([]bool, len(r.dests)), Seen: make([]int, len(r.dests)), Stands: 1}
	tenants := make(map[string]*tally)
	all, alive, dests := new(tally), new(tally), make([]tally, len(r.dests))
	each := func(row *Row, add func(*tally)) {
		add(all)
		add(&dests[row.Dest])
		if !r.down(row.Dest) {
			add(alive)
		}
		t := tenants[row.Tenant]
		if t == nil {
			t = new(tally)
			tenants[row.Tenant] = t
		}
		add(t)
	}
	total := 0
	for i := range r.mail.Rows {
		row := &r.mail.Rows[i]
		total += row.Count
		each(row, func(t *tally) { t.messages += row.Count })
	}
	for i := range r.msgs {
		row := &r.mail.Rows[r.msgs[i].row]
		each(row, func(t *tally) { t.made, t.count = t.made+r.dests[row.Dest].stands, t.count+1 })
	}
	for _, g := range r.left {
		row := &r.mail.Rows[g.row]
		each(row, func(t *tally) { t.add(g, r.dests[row.Dest].stands) })
	}
	f.All, f.Alive = all.outcome(), alive.outcome()
	for i := range dests {
		d := &r.dests[i]
		f.Dests[i], f.Down[i], f.Seen[i] = dests[i].outcome(), r.down(i), d.most
		f.Dests[i].Busy = d.peak
		f.All.Busy += d.peak
	}
	if tenants[""] == nil || len(tenants) > 1 {
		f.Tenants = make(map[string]Outcome, len(tenants))
		for name, t := range tenants {
			f.Tenants[name] = t.outcome()
		}
	}
	f.Stands = float64(total) / float64(len(r.msgs))
	return f
}
