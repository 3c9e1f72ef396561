package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"posthaste/internal/mail"
)

// The model makes the scheduler's decisions the way the documents tell them:
// it walks the lists from the beginning each time, and keeps no index, no
// heap and no cache. It knows selection, preemption, windows and dead
// destinations; admission, batches of recipients and retries it takes from
// the events.
//
// With literal it also keeps nqmgr's own notes: the job from which selection
// goes on, and marks on jobs that were found blocked, which are all taken back
// when a destination of one of them can take an entry.

type model struct {
	literal    bool
	cfg        Config
	now        int64
	transports []*mTransport
	msgs       map[MsgID]*mMsg
	seq        int
	busy       []*mEntry
	out        []string
	terms      map[string]*Terms
	shares     map[sharedKey]*mShare
	timers     int64
}

type mMsg struct {
	id      MsgID
	seq     int
	queued  int64
	unread  int
	single  bool
	arrived time.Time
	jobs    []*mJob
}

type mTransport struct {
	name   mail.Transport
	cfg    TransportConfig
	jobs   []*mJob // in list order
	queues []*mQueue
	busy   int
	cur    *mJob     // literal: nil is behind the last
	mark   int       // literal
	ring   []*mQueue // threads that wait for an agent
}

type mQueue struct {
	name                          string
	t                             *mTransport
	window, busy                  int
	success, failure, failCohorts float64
	deadUntil                     int64
	excuse                        string
	mark                          int
	turn                          int // of the agent that goes on here
	answered                      bool
	leaf                          *mShare
	held                          bool
}

type mJob struct {
	msg             *mMsg
	t               *mTransport
	listed          bool
	level           int
	parent          *mJob
	children        []*mJob
	used, avail     int
	selected, total int // entries
	peers           []*mPeer
	mark            int
}

type mPeer struct {
	q    *mQueue
	j    *mJob
	todo []*mEntry
	refs int
}

type mEntry struct {
	p     *mPeer
	rcpts []int
	apart uint32
	turn  int
	since int64 // when busy
}

func (m *model) transport(name mail.Transport) *mTransport {
	for _, t := range m.transports {
		if t.name == name {
			return t
		}
	}
	t := &mTransport{name: name, cfg: m.cfg.Transport(name, m.cfg.DefaultTransports), mark: 1}
	if n := t.cfg.AgentsPerThread; t.cfg.Mode == Thread && n > 0 && (t.cfg.ConcurrencyLimit == 0 || n < t.cfg.ConcurrencyLimit) {
		t.cfg.ConcurrencyLimit = n
	}
	m.transports = append([]*mTransport{t}, m.transports...)
	return t
}

// line brings q's place among the threads that wait in line with what it has.
func (m *model) line(q *mQueue) {
	m.ask(q)
	t := q.t
	if t.cfg.Mode != Thread {
		return
	}
	wants := q.free() && q.todo() > 0
	switch in := slices.Contains(t.ring, q); {
	case wants && !in:
		t.ring = append(t.ring, q)
	case !wants:
		q.turn = 0
		t.ring = slices.DeleteFunc(t.ring, func(o *mQueue) bool { return o == q })
	}
}

// chooseThread takes the oldest mail of the thread that is first in the ring.
func (m *model) chooseThread(t *mTransport) *mEntry {
	if len(t.ring) == 0 {
		return nil
	}
	q := t.ring[0]
	t.ring = t.ring[1:]
	var best *mPeer
	for _, j := range t.jobs {
		for _, p := range j.peers {
			if p.q == q && len(p.todo) > 0 && (best == nil || j.msg.arrived.Before(best.j.msg.arrived)) {
				best = p
			}
		}
	}
	e := m.takeFrom(best)
	e.turn = q.turn + 1
	q.turn = 0
	m.line(q)
	return e
}

// goOn: the agent that has ended e stays with its thread, unless its turn is over
// and others wait.
func (m *model) goOn(e *mEntry) {
	q, t := e.p.q, e.p.q.t
	if !slices.Contains(t.ring, q) || t.cfg.ThreadQuantum > 0 && e.turn >= t.cfg.ThreadQuantum && len(t.ring) > 1 {
		return
	}
	t.ring = slices.DeleteFunc(t.ring, func(o *mQueue) bool { return o == q })
	t.ring = slices.Insert(t.ring, 0, q)
	q.turn = e.turn
}

func (q *mQueue) initial() int {
	if q.t.cfg.SlowLimit > 0 && !q.answered {
		return 1
	}
	return q.t.initial()
}

func (t *mTransport) initial() int {
	n := t.cfg.InitialConcurrency
	if t.cfg.ConcurrencyLimit > 0 {
		n = min(n, t.cfg.ConcurrencyLimit)
	}
	return n
}

func (m *model) queue(t *mTransport, name string) *mQueue {
	for _, q := range t.queues {
		if q.name == name {
			return q
		}
	}
	q := &mQueue{name: name, t: t}
	if t.name != RetryTransport && t.name != ErrorTransport {
		q.leaf = m.shareOf(m.terms[name])
	}
	q.window = q.initial()
	t.queues = append(t.queues, q)
	return q
}

func (q *mQueue) todo() (n int) {
	for _, j := range q.t.jobs {
		for _, p := range j.peers {
			if p.q == q {
				n += len(p.todo)
			}
		}
	}
	return n
}

// free says whether q can take another delivery.
func (q *mQueue) free() bool {
	return q.deadUntil == 0 && q.window > q.busy && (q.leaf == nil || q.held)
}

func (j *mJob) waiting() (n int) {
	for _, p := range j.peers {
		n += len(p.todo)
	}
	return n
}

func (j *mJob) upper() int { return j.total + j.msg.unread }

// ready is the next peer in j's round robin that can be served.
func (j *mJob) ready() *mPeer {
	for _, p := range j.peers {
		if len(p.todo) > 0 && p.q.free() {
			return p
		}
	}
	return nil
}

func (m *model) job(msg *mMsg, t *mTransport) *mJob {
	for _, j := range msg.jobs {
		if j.t == t {
			m.list(j)
			return j
		}
	}
	j := &mJob{msg: msg, t: t, level: -1}
	msg.jobs = append(msg.jobs, j)
	m.list(j)
	return j
}

// list puts a job on the job list behind the last that has no parent and is
// not younger.
func (m *model) list(j *mJob) {
	t := j.t
	if j.listed {
		m.unmark(j)
		return
	}
	i := len(t.jobs)
	for i > 0 && (t.jobs[i-1].parent != nil || t.jobs[i-1].msg.seq > j.msg.seq) {
		i--
	}
	if t.cur == nil || i <= slices.Index(t.jobs, t.cur) {
		t.cur = j
	}
	t.jobs = slices.Insert(t.jobs, i, j)
	j.listed, j.level = true, 0
	m.unmark(j)
}

// unmark: j has something new.
func (m *model) unmark(j *mJob) {
	if j.mark == j.t.mark {
		j.mark = 0
		j.t.cur = j.t.jobs[0]
	}
}

// unblock takes all marks back when q, on account of which a job is marked,
// can take an entry.
func (m *model) unblock(q *mQueue) {
	t := q.t
	if q.mark != t.mark {
		return
	}
	if q.free() && q.todo() > 0 {
		t.mark += 2
		t.cur = t.jobs[0]
	}
	if q.free() || q.deadUntil != 0 {
		q.mark = 0
	}
}

func (m *model) pop(j *mJob) {
	p := j.parent
	if p != nil {
		if j.level == p.level+1 {
			p.avail -= j.used * j.t.cfg.SlotCost
		}
		p.children = slices.DeleteFunc(p.children, func(c *mJob) bool { return c == j })
	}
	for _, c := range j.children {
		c.parent = p
		if p != nil {
			p.children = append(p.children, c)
		}
	}
	j.children, j.parent, j.level = nil, nil, 0
}

func (m *model) retire(j *mJob) {
	if !j.listed || j.waiting() > 0 || j.msg.unread > 0 {
		return
	}
	if j.level > 0 {
		m.pop(j)
	}
	for _, c := range j.children {
		c.parent = nil
	}
	j.children = nil
	if j.t.cur == j {
		j.t.cur = nil
		if i := slices.Index(j.t.jobs, j); i+1 < len(j.t.jobs) {
			j.t.cur = j.t.jobs[i+1]
		}
	}
	j.t.jobs = slices.DeleteFunc(j.t.jobs, func(o *mJob) bool { return o == j })
	j.listed, j.level = false, -1
}

// preempt is the chapter on preemption.
func (m *model) preempt(t *mTransport, cur *mJob) *mJob {
	c := t.cfg
	if c.SlotCost < 2 || c.Mode != Preemptive || cur.avail <= 0 || cur.upper() < c.MinimumSlots*c.SlotCost {
		return cur
	}
	slots := (cur.total - cur.selected + cur.avail) / c.SlotCost
	var best *mJob
	var bestScore float64
	seen := false
	for _, j := range t.jobs {
		if j == cur {
			seen = true
			continue
		}
		if !seen || len(j.children) > 0 || !m.literal && j.ready() == nil || j.mark == t.mark {
			continue
		}
		needed := j.upper() - j.selected
		score := float64(m.now/second-j.msg.queued+1) / float64(j.upper())
		if needed > 0 && needed <= slots && score > bestScore {
			best, bestScore = j, score
		}
	}
	if best == nil {
		return cur
	}
	expected := best.upper() - best.selected
	if float64(cur.avail/c.SlotCost+c.SlotLoan) < float64(expected)*float64(100-c.SlotDiscount)/100 {
		return cur
	}
	if best.level > 0 {
		m.pop(best)
	}
	t.jobs = slices.DeleteFunc(t.jobs, func(o *mJob) bool { return o == best })
	t.jobs = slices.Insert(t.jobs, slices.Index(t.jobs, cur), best)
	best.parent, best.level = cur, cur.level+1
	cur.children = append(cur.children, best)
	cur.avail -= expected * c.SlotCost
	best.used = -expected
	t.cur = best
	return best
}

// slow is how many deliveries of t have gone on for so long that they take no place.
func (m *model) slow(t *mTransport) (n int) {
	for _, e := range m.busy {
		if e.p.q.t == t && e.since+micros(t.cfg.SlowTime) <= m.now {
			n++
		}
	}
	return min(n, t.cfg.SlowLimit)
}

// choose is the selection of one entry of t; nil when nothing can go.
func (m *model) choose(t *mTransport) *mEntry {
	if t.busy-m.slow(t) >= t.cfg.ProcessLimit && t.cfg.ProcessLimit > 0 {
		return nil
	}
	if m.literal {
		return m.chooseLiteral(t)
	}
	if t.cfg.Mode == Thread {
		return m.chooseThread(t)
	}
	for _, j := range t.jobs {
		if j.ready() == nil {
			continue
		}
		return m.take(m.preempt(t, j))
	}
	return nil
}

// chooseLiteral is nqmgr's selection.
func (m *model) chooseLiteral(t *mTransport) *mEntry {
	work := false
	for _, q := range t.queues {
		work = work || q.free() && q.todo() > 0
	}
	if !work || t.cur == nil {
		return nil
	}
	for j := m.preempt(t, t.cur); j != nil; {
		i := slices.Index(t.jobs, j)
		var next *mJob
		if i+1 < len(t.jobs) {
			next = t.jobs[i+1]
		}
		switch {
		case j.mark == t.mark:
		case j.ready() != nil:
			t.cur = j
			return m.take(j)
		case j.waiting() > 0:
			j.mark = t.mark
			for _, p := range j.peers {
				if len(p.todo) > 0 {
					p.q.mark = t.mark
				}
			}
		default:
			m.retire(j)
		}
		j = next
	}
	t.cur = nil
	return nil
}

// take selects j's next entry.
func (m *model) take(j *mJob) *mEntry { return m.takeFrom(j.ready()) }

func (m *model) takeFrom(p *mPeer) *mEntry {
	j := p.j
	t := j.t
	if p.q.leaf != nil {
		m.divide(p)
	}
	e := p.todo[0]
	p.todo = p.todo[1:]
	j.peers = slices.DeleteFunc(j.peers, func(o *mPeer) bool { return o == p })
	j.peers = append(j.peers, p)
	j.selected++
	j.used++
	j.avail++
	p.q.busy++
	t.busy++
	e.since = m.now
	m.busy = append(m.busy, e)
	if p.q.leaf != nil {
		m.beginShared(e)
		m.ask(p.q)
	}
	m.retire(j)
	return e
}

func (m *model) deliver() {
	for again := true; again; {
		again = false
		m.grants()
		for i, t := range m.transports {
			if e := m.choose(t); e != nil {
				m.transports = append(slices.Delete(m.transports, i, i+1), t)
				m.out = append(m.out, fmt.Sprintf("%d %v %s:%s", e.p.j.msg.id, e.rcpts, t.name, e.p.q.name))
				again = true
				break
			}
		}
	}
}

func (m *model) add(msg *mMsg, t *mTransport, q *mQueue, rcpts []int, apart uint32, batch bool) {
	j := m.job(msg, t)
	var p *mPeer
	for _, o := range j.peers {
		if o.q == q {
			p = o
		}
	}
	if p == nil {
		p = &mPeer{q: q, j: j}
		j.peers = append(j.peers, p)
	}
	if n := len(p.todo); batch && n > 0 && !msg.single && p.todo[n-1].apart == apart && (t.cfg.BatchLimit == 0 || len(p.todo[n-1].rcpts) < t.cfg.BatchLimit) {
		p.todo[n-1].rcpts = append(p.todo[n-1].rcpts, rcpts...)
		return
	}
	p.todo = append(p.todo, &mEntry{p: p, rcpts: slices.Clone(rcpts), apart: apart})
	p.refs++
	j.total++
	m.line(q)
}

func (m *model) loaded(ev Event) {
	msg := m.msgs[ev.ID]
	msg.unread = ev.Unread
	for _, r := range ev.Rcpts {
		t := m.transport(r.Transport)
		q := m.queue(t, r.Queue)
		if q.deadUntil != 0 {
			retry := m.transport(RetryTransport)
			m.add(msg, retry, m.queue(retry, q.excuse), []int{r.Index}, r.Apart, true)
			continue
		}
		m.add(msg, t, q, []int{r.Index}, r.Apart, true)
	}
	for _, j := range msg.jobs {
		m.retire(j)
	}
}

// ended takes an entry away from its peer, and forgets what is empty.
func (m *model) ended(e *mEntry) {
	p := e.p
	p.refs--
	if p.refs == 0 {
		p.j.peers = slices.DeleteFunc(p.j.peers, func(o *mPeer) bool { return o == p })
	}
	m.retire(p.j)
	q := p.q
	m.unblock(q)
	if q.deadUntil == 0 && q.busy == 0 && q.todo() == 0 {
		q.t.queues = slices.DeleteFunc(q.t.queues, func(o *mQueue) bool { return o == q })
	}
}

func (m *model) done(e *mEntry, r Result) {
	q := e.p.q
	if q.leaf != nil && !r.Opened {
		m.reused(e)
	}
	if r.SiteFailed {
		m.negative(q, r)
	} else {
		m.positive(q)
	}
	m.line(q)
	q.busy--
	q.t.busy--
	m.endShared(e)
	m.busy = slices.DeleteFunc(m.busy, func(o *mEntry) bool { return o == e })
	m.ended(e)
	m.line(q)
	if !r.SiteFailed {
		m.goOn(e)
	}
}

func (m *model) positive(q *mQueue) {
	c := q.t.cfg
	q.failCohorts = 0
	first := !q.answered
	q.answered = true
	if q.deadUntil != 0 {
		q.deadUntil = 0
		q.window, q.success, q.failure = q.busy, 0, 0
		return
	}
	if first && c.SlowLimit > 0 {
		q.window = max(q.window, q.initial())
	}
	if (c.ConcurrencyLimit == 0 || q.window < c.ConcurrencyLimit) && q.window < q.busy+q.initial() {
		fb := c.PositiveFeedback.Value(q.window)
		for q.success += fb; q.success+fb/2 >= 1; q.success-- {
			q.window++
			q.failure = 0
		}
		if c.ConcurrencyLimit > 0 {
			q.window = min(q.window, c.ConcurrencyLimit)
		}
	}
}

func (m *model) negative(q *mQueue, r Result) {
	c := q.t.cfg
	if q.deadUntil != 0 {
		return
	}
	q.failCohorts += 1 / float64(q.window)
	if c.FailedCohortLimit > 0 && q.failCohorts >= float64(c.FailedCohortLimit) {
		q.answered = false
		q.deadUntil = m.now + micros(m.cfg.MinimalBackoff)
		m.ask(q)
		q.excuse = r.Status.String() + " delivery temporarily suspended: " + r.Reason
		for _, j := range slices.Clone(q.t.jobs) {
			for _, p := range slices.Clone(j.peers) {
				for p.q == q && len(p.todo) > 0 {
					e := p.todo[0]
					retry := m.transport(RetryTransport)
					m.add(j.msg, retry, m.queue(retry, q.excuse), e.rcpts, e.apart, false)
					p.todo = p.todo[1:]
					j.selected++
					m.ended(e)
				}
			}
		}
		return
	}
	fb := c.NegativeFeedback.Value(q.window)
	for q.failure -= fb; q.failure-fb/2 < 0; q.failure++ {
		q.window--
		q.success = 0
	}
	q.window = max(q.window, 1)
}

// step is the model's Step.
func (m *model) step(now time.Time, ev Event, find func(EntryID) (MsgID, []int)) {
	m.now = now.UnixMicro()
	for _, t := range m.transports {
		for _, q := range slices.Clone(t.queues) {
			if q.deadUntil != 0 && q.deadUntil <= m.now {
				q.deadUntil = 0
				q.window, q.success, q.failure = q.initial(), 0, 0
				if q.busy > 0 {
					q.window = q.busy
				} else {
					t.queues = slices.DeleteFunc(t.queues, func(o *mQueue) bool { return o == q })
				}
			}
		}
	}
	m.wakeShares()
	switch ev.Kind {
	case EventLoaded:
		m.loaded(ev)
	case EventDone:
		id, rcpts := find(ev.Entry)
		for _, e := range m.busy {
			if e.p.j.msg.id == id && slices.Equal(e.rcpts, rcpts) {
				m.done(e, ev.Result)
				break
			}
		}
	}
	m.deliver()
}

// modelConfig leaves out what the model does not know.
func modelConfig(r *rand.Rand) Config { return someModelConfig(r, false) }

// threadConfig has transports schedule threads.
func threadConfig(r *rand.Rand) Config { return someModelConfig(r, true) }

func someModelConfig(r *rand.Rand, threads bool) Config {
	agents, quantum := 0, 0
	if threads {
		agents, quantum = r.IntN(3), r.IntN(4)
	}
	cfg := smallConfig(r)
	cfg.ActiveLimit = 5 + r.IntN(60)
	cfg.RecipientLimit = 1 << 20
	cfg.MaximalLifetime, cfg.BounceLifetime = 1000*time.Hour, 1000*time.Hour
	inner := cfg.Transport
	stack := r.IntN(2) == 0 // many jobs let past, many of them blocked
	cost, loan, window, processes := 2+r.IntN(3), 1+r.IntN(5), 1+r.IntN(3), 2+r.IntN(8)
	cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
		c = inner(name, c)
		if stack && name == "smtp" {
			c.Mode, c.SlotCost, c.SlotLoan, c.MinimumSlots, c.SlotDiscount = Preemptive, cost, loan, 0, 50
			c.ProcessLimit, c.ConcurrencyLimit, c.InitialConcurrency, c.BatchLimit = processes, window, window, 1
		}
		c.DestinationRateDelay, c.TransportRateDelay, c.RefillLimit = 0, 0, 1
		c.RecipientLimit = 1 << 20
		if c.Mode == Thread && !threads {
			c.Mode = Preemptive
		}
		if threads && name != RetryTransport {
			c.Mode, c.Order = Thread, Age
			c.AgentsPerThread, c.ThreadQuantum = agents, quantum
		}
		if name == RetryTransport || name == ErrorTransport {
			c.FailedCohortLimit = 0
		}
		return c
	}
	return cfg
}

// TestModel plays random histories to the scheduler and to the model: every
// decision must be the same.
func TestModel(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 20
	}
	preempted := uint64(0)
	for seed := range n {
		p, differs := compare(t, seed, modelConfig, false)
		if differs != "" {
			t.Fatalf("seed %d: %s", seed, differs)
		}
		preempted += p
	}
	if preempted < n {
		t.Errorf("%d preemptions in %d histories: this compares too little", preempted, n)
	}
}

// TestThreadModel does so with transports that schedule threads: the ring as a
// list, and who goes on with which thread.
func TestThreadModel(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 40
	}
	for seed := range n {
		if _, differs := compare(t, seed, threadConfig, false); differs != "" {
			t.Fatalf("seed %d: %s", seed, differs)
		}
	}
}

// TestLiteral compares with nqmgr's own notes instead. Where no window is ever
// full, and where nobody preempts, every decision is the same. Where windows
// are full, nqmgr's notes lag behind what they note: it may let a job past that
// cannot be served, or past one that cannot. Decisions may then differ; in how
// many histories is only counted.
func TestLiteral(t *testing.T) {
	t.Parallel()
	n := *histories
	if !*long {
		n = 20
	}
	open := func(r *rand.Rand) Config {
		cfg := modelConfig(r)
		inner := cfg.Transport
		cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
			c = inner(name, c)
			c.ConcurrencyLimit, c.InitialConcurrency, c.SlowLimit = 0, 1<<20, 0
			return c
		}
		return cfg
	}
	polite := func(r *rand.Rand) Config {
		cfg := modelConfig(r)
		inner := cfg.Transport
		cfg.Transport = func(name mail.Transport, c TransportConfig) TransportConfig {
			c = inner(name, c)
			c.SlotCost = 0
			return c
		}
		return cfg
	}
	preempted, others := uint64(0), 0
	for seed := range n {
		p, differs := compare(t, seed, open, true)
		if differs == "" {
			_, differs = compare(t, seed, polite, true)
		}
		if differs != "" {
			t.Fatalf("seed %d: %s", seed, differs)
		}
		preempted += p
		if _, differs = compare(t, seed, modelConfig, true); differs != "" {
			others++
		}
	}
	if preempted < n {
		t.Errorf("%d preemptions in %d histories: this compares too little", preempted, n)
	}
	t.Logf("%d preemptions the same; %d of %d histories with full windows have a decision that differs", preempted, others, n)
}

// compare plays one history until the first decision that differs, and says
// which.
func compare(t *testing.T, seed uint64, config func(*rand.Rand) Config, literal bool) (preemptions uint64, differs string) {
	var s *Scheduler
	differs = compareWith(t, seed, config, literal, func(_ *rand.Rand, w *world, _ *model) { s = w.s })
	return s.Stats().Preemptions, differs
}

// compareWith is compare in a world that begin has made ready.
func compareWith(t *testing.T, seed uint64, config func(*rand.Rand) Config, literal bool, begin func(*rand.Rand, *world, *model)) (differs string) {
	r := rand.New(rand.NewPCG(seed, 2))
	w := newWorld(t, config(r))
	w.check = seed%8 == 0
	w.s.maxLoose = []int{1, 2, maxLoose}[seed%3]
	w.batch = r.IntN(12)
	m := &model{literal: literal, cfg: w.s.cfg, msgs: map[MsgID]*mMsg{}, shares: map[sharedKey]*mShare{}}
	begin(r, w, m)
	var got []string
	entries := map[EntryID]Effect{}
	w.onEvent = func(ev Event) {
		if differs == "" {
			differs = compareLast(m, &got)
		}
		m.step(w.now, ev, func(id EntryID) (MsgID, []int) { return entries[id].ID, entries[id].Rcpts })
	}
	w.on = func(e Effect) {
		switch e.Kind {
		case EffectDeliver:
			entries[e.Entry] = Effect{ID: e.ID, Rcpts: slices.Clone(e.Rcpts)}
			got = append(got, fmt.Sprintf("%d %v %s:%s", e.ID, e.Rcpts, e.Transport, e.Nexthop))
		case EffectLoad:
			if e.First {
				m.seq++
				l := w.mail[e.ID]
				m.msgs[e.ID] = &mMsg{id: e.ID, seq: m.seq, queued: w.now.Unix(), arrived: l.created, single: l.flags&FlagSingleRcpt != 0}
			}
		}
	}
	id := MsgID(0)
	for range 250 {
		if differs != "" {
			return differs
		}
		if w.each != nil {
			w.each(r)
		}
		switch x := r.IntN(100); {
		case x < 35:
			id++
			rcpts := randomRcpts(r)
			if r.IntN(3) > 0 { // large mail to one place, for small mail to slip past
				rcpts = nil
				places, size := 1+r.IntN(30), 60>>r.IntN(5)
				for range 2 + r.IntN(size) {
					x := rcpt("smtp", fmt.Sprintf("d%d.example", r.IntN(places)))
					x.Apart = uint32(r.IntN(9) / 7)
					rcpts = append(rcpts, x)
				}
			}
			sort.SliceStable(rcpts, func(i, j int) bool { return rcpts[i].Transport < rcpts[j].Transport })
			w.arrive(id, []Flags{0, 0, 0, FlagSingleRcpt}[r.IntN(4)], rcpts...)
		case x < 95:
			w.finishOne(r, 8)
		default:
			w.tick(time.Duration(r.IntN(40)) * time.Second)
		}
	}
	return compareLast(m, &got)
}

// compareLast compares what came of the last step.
func compareLast(m *model, got *[]string) (differs string) {
	if !slices.Equal(*got, m.out) {
		differs = fmt.Sprintf("decisions differ\nscheduler %q\nmodel     %q", *got, m.out)
	}
	*got, m.out = nil, nil
	return differs
}
