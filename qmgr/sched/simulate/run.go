package simulate

import (
	"container/heap"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/rate"
	"posthaste/internal/simnet"
	"posthaste/qmgr/sched"
)

// MaxEvents bounds a run.
const MaxEvents = 50_000_000

// Run reads a workload and plays it to its end. The same workload gives the
// same report.
func Run(in io.Reader) (*Report, error) { return RunWatched(in, nil) }

// RunWatched is Run for somebody who looks on; nil: nobody.
func RunWatched(in io.Reader, watch *Watch) (*Report, error) {
	w, err := read(in)
	if err != nil {
		return nil, err
	}
	cfg := w.cfg
	cfg.Transport = func(name mail.Transport, common sched.TransportConfig) sched.TransportConfig {
		if k := w.transports[name]; k != nil {
			return k.TransportConfig
		}
		return common
	}
	r := &run{
		workload: w,
		s:        sched.New(cfg),
		rng:      rand.New(rand.NewPCG(w.cfg.Seed, 0)),
		servers:  map[string]*server{},
		agents:   map[sched.AgentID]*conn{},
		busy:     map[sched.EntryID]sched.Effect{},
		mail:     map[sched.MsgID]*message{},
		report:   newReport(w.title),
		cfg:      cfg,
		watch:    watch,
	}
	if watch != nil {
		r.after(watch.At, r.look)
	}
	for i := range w.sends {
		r.schedule(&w.sends[i], 0)
	}
	return r.report, r.play()
}

// run is a world in virtual time.
type run struct {
	*workload
	cfg     sched.Config
	s       *sched.Scheduler
	rng     *rand.Rand
	clock   time.Duration
	agenda  agenda
	seq     uint64
	out     []sched.Effect
	depth   int
	pending []sched.Event
	servers map[string]*server
	agents  map[sched.AgentID]*conn
	busy    map[sched.EntryID]sched.Effect
	mail    map[sched.MsgID]*message
	nextID  sched.MsgID
	coming  int // messages still to be sent
	report  *Report
	watch   *Watch // nil: nobody looks on
	under   map[mail.Nexthop]int
	begun   map[sched.EntryID]started
}

// message is a message of the workload.
type message struct {
	class    *Class
	rcpts    []sched.Rcpt
	tenant   string
	final    []bool
	left     int
	arrived  time.Duration
	deferred bool
}

// epoch is when every run begins.
var epoch = time.Unix(1_800_000_000, 0)

func (r *run) now() time.Time { return epoch.Add(r.clock) }

// item is something that will happen.
type item struct {
	at  time.Duration
	seq uint64
	do  func()
}

// agenda is what will happen, soonest first.
type agenda []item

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].seq < a[j].seq
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(item)) }
func (a *agenda) Pop() any {
	old := *a
	x := old[len(old)-1]
	*a = old[:len(old)-1]
	return x
}

func (r *run) after(d time.Duration, do func()) {
	r.seq++
	heap.Push(&r.agenda, item{r.clock + d, r.seq, do})
}

func (r *run) random(n uint64) uint64 { return r.rng.Uint64N(n) }

// vary returns d, more or less by a share of up to jitter.
func (r *run) vary(d time.Duration, jitter float64) time.Duration {
	return time.Duration(float64(d) * (1 + jitter*(2*r.rng.Float64()-1)))
}

// schedule arranges for the n-th message of s.
func (r *run) schedule(s *send, n int) {
	if n == 0 {
		r.coming += s.count
	}
	if n >= s.count {
		return
	}
	r.seq++
	heap.Push(&r.agenda, item{s.at + time.Duration(n)*s.every, r.seq, func() {
		r.coming--
		r.send(s, n)
		r.schedule(s, n+1)
	}})
}

// send queues one message.
func (r *run) send(s *send, n int) {
	r.nextID++
	m := &message{class: r.report.class(s.class), tenant: s.tenant, arrived: r.clock, left: s.rcpts, final: make([]bool, s.rcpts)}
	for i := range s.rcpts {
		t := s.to[(n+i)%len(s.to)]
		dest := t.server
		if s.spread > 1 {
			dest = fmt.Sprintf("%s.%d", t.server, (n*s.rcpts+i)/len(s.to)%s.spread)
		}
		if r.servers[dest] == nil {
			r.servers[dest] = r.newServer(t.server, dest)
		}
		m.rcpts = append(m.rcpts, sched.Rcpt{Index: i, Transport: t.transport, Nexthop: mail.Nexthop(dest), Queue: dest, Terms: r.servers[dest].terms, Pool: r.servers[dest].pool(s, dest)})
	}
	r.mail[r.nextID] = m
	m.class.Messages++
	m.class.Recipients += s.rcpts
	r.step(sched.Event{Kind: sched.EventQueued, ID: r.nextID,
		Arrival: sched.Arrival{Queue: sched.QueueIncoming, Created: r.now(), Rcpts: s.rcpts, Tenant: s.tenant}})
}

// newServer makes a server of a kind, for a destination.
func (r *run) newServer(kind, dest string) *server {
	s := &server{serverKind: r.workload.servers[kind]}
	var terms sched.Terms
	if s.limits != (sched.Limits{}) {
		terms.Shares[sched.OwnLimit] = sched.Share{Name: dest, Limits: s.limits}
	}
	terms.Shares[sched.ProviderLimit], terms.Shares[sched.SiteLimit] = s.common[0], s.common[1]
	if terms != (sched.Terms{}) {
		s.terms = &terms
	}
	if s.provider != nil {
		s.host = simnet.New(*s.provider, r.workload.cfg.Seed^uint64(len(r.servers)))
	}
	return s
}

// pool is what mail for a destination at the server goes from; nil: it has no sources. The scheduler tells pools apart by their
// addresses, so there is one for each stream.
func (s *server) pool(of *send, dest string) *sched.Pool {
	if len(of.sources) == 0 {
		return nil
	}
	if p := s.pools[of]; p != nil {
		return p
	}
	p := &sched.Pool{Name: dest}
	for _, src := range of.sources {
		t := sched.Terms{Source: src.name}
		if s.terms != nil {
			t.Shares = s.terms.Shares
		}
		if src.day > 0 {
			t.From[sched.OwnLimit] = sched.Share{Name: dest, Limits: sched.Limits{Warmup: rate.Rate{N: src.day, Per: rate.Day}}}
		}
		p.Members = append(p.Members, sched.Member{Source: src.name, Weight: src.weight, Terms: &t})
	}
	if s.pools == nil {
		s.pools = make(map[*send]*sched.Pool)
	}
	s.pools[of] = p
	return p
}

// play lets everything happen.
func (r *run) play() error {
	for n := 0; ; n++ {
		if n > MaxEvents {
			return fmt.Errorf("simulate: more than %d events: the workload is too large, or never ends", MaxEvents)
		}
		st := r.s.Stats()
		if r.end == 0 && r.coming == 0 && st.Active+st.Incoming == 0 {
			break
		}
		at := r.end
		if len(r.agenda) > 0 && (at == 0 || r.agenda[0].at < at) {
			at = r.agenda[0].at
		}
		wake := r.s.Wake()
		switch d := wake.Sub(epoch); {
		case !wake.IsZero() && (d <= at || len(r.agenda) == 0 && r.end == 0):
			r.advance(max(d, r.clock))
			r.step(sched.Event{Kind: sched.EventTick})
			continue
		case len(r.agenda) == 0 || r.end > 0 && at == r.end:
			r.advance(max(at, r.clock))
			r.report.finish(r.clock)
			return nil
		}
		x := heap.Pop(&r.agenda).(item)
		r.advance(x.at)
		x.do()
	}
	r.report.finish(r.clock)
	return nil
}

// advance moves the clock.
func (r *run) advance(to time.Duration) {
	if to > r.clock {
		r.report.pass(to-r.clock, len(r.busy))
		r.clock = to
		r.report.sample(r.clock, len(r.busy))
	}
}

// step gives the scheduler an event and carries out what comes of it.
func (r *run) step(ev sched.Event) {
	r.pending = append(r.pending, ev)
	if r.depth > 0 {
		return // the outermost call goes on
	}
	r.depth++
	for len(r.pending) > 0 {
		ev := r.pending[0]
		r.pending = append(r.pending[:0], r.pending[1:]...)
		r.out = r.s.Step(r.now(), ev, r.out[:0])
		for i := range r.out {
			r.carryOut(&r.out[i])
		}
	}
	r.depth--
}

func (r *run) carryOut(e *sched.Effect) {
	m := r.mail[e.ID]
	switch e.Kind {
	case sched.EffectLoad:
		if t, ok := r.tenants[m.tenant]; ok {
			r.step(sched.Event{Kind: sched.EventTenant, Tenant: m.tenant, TenantTerms: t})
		}
		r.step(m.load(e))
	case sched.EffectDeliver:
		r.deliver(*e)
	case sched.EffectDismiss:
		r.hangUp(r.agents[e.Agent])
	case sched.EffectNotify:
		if e.Notice == sched.NoticeExpired {
			for i := range m.final {
				m.final[i] = true
			}
			r.report.Expired += m.left
			m.left = 0
		}
		r.step(sched.Event{Kind: sched.EventNotified, ID: e.ID, OK: true})
	case sched.EffectDefer:
		if !m.deferred {
			m.deferred = true
			m.class.Deferred++
		}
	case sched.EffectFinish:
		m.class.wait(r.clock - m.arrived)
		r.report.Finished++
		delete(r.mail, e.ID)
		if r.watch != nil {
			r.watch.Left(r.clock, e.ID)
		}
	}
}

// load answers EffectLoad.
func (m *message) load(e *sched.Effect) sched.Event {
	ev := sched.Event{Kind: sched.EventLoaded, ID: e.ID}
	i := e.From
	for ; i < len(m.rcpts) && len(ev.Rcpts) < e.Max; i++ {
		if !m.final[i] {
			ev.Rcpts = append(ev.Rcpts, m.rcpts[i])
		}
	}
	ev.Next = i
	for ; i < len(m.rcpts); i++ {
		if !m.final[i] {
			ev.Unread++
		}
	}
	return ev
}

func (r *run) kindOf(name mail.Transport) agentKind {
	if k := r.transports[name]; k != nil {
		return *k
	}
	return agentKind{TransportConfig: r.cfg.DefaultTransports}
}

// deliver starts an agent, or gives a waiting one more to do.
func (r *run) deliver(e sched.Effect) {
	r.busy[e.Entry] = e
	r.report.Deliveries++
	r.begins(&e)
	if e.Transport == sched.RetryTransport {
		r.after(time.Millisecond, func() { r.done(e.Entry, e.Rcpts, sched.Result{Deferred: e.Rcpts}) })
		return
	}
	if c := r.agents[e.Agent]; c != nil {
		if e.Reuse {
			c.entry, c.rcpts = e.Entry, e.Rcpts
			r.report.Reused++
			if c.srv.host != nil {
				r.speak(c)
			} else {
				r.serve(c, 0)
			}
			return
		}
		r.hangUp(c)
	}
	c := &conn{srv: r.servers[string(e.Nexthop)], agent: e.Agent, entry: e.Entry, rcpts: e.Rcpts}
	r.agents[e.Agent] = c
	r.connect(c)
}

// done reports the end of a request to the scheduler.
func (r *run) done(id sched.EntryID, rcpts []int, res sched.Result) {
	e := r.busy[id]
	m := r.mail[e.ID]
	if e.Transport != sched.RetryTransport {
		if d, ok := r.s.Dest(e.Transport, string(e.Nexthop)); ok && d.Window > 0 {
			r.report.window(d.Window)
		}
	}
	delete(r.busy, id)
	r.ends(&e, rcpts, &res)
	deferred := map[int]bool{}
	for _, i := range res.Deferred {
		deferred[i] = true
	}
	for _, i := range rcpts {
		if !deferred[i] && !m.final[i] {
			m.final[i] = true
			m.left--
			m.class.Delivered++
			r.report.delivered(r.clock, m.class)
		}
	}
	r.report.DeferredRcpts += len(res.Deferred)
	if e.Transport == sched.RetryTransport {
		r.report.Suspended += len(res.Deferred)
	}
	r.step(sched.Event{Kind: sched.EventDone, Entry: id, Result: res})
}
