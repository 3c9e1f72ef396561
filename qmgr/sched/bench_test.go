package sched

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/rate"
)

// load is a steady state: messages times recipients are active, spread over
// destinations; each delivery that ends makes room for the next, each message
// that ends is followed by a new one.
type steady struct {
	s       *Scheduler
	now     time.Time
	out     []Effect
	rcpts   []Rcpt
	dests   []string
	next    MsgID
	turn    int
	per     func(id MsgID) int
	busy    []EntryID // ring of deliveries under way
	head, n int
	created time.Time
	terms   func(dest string) *Terms // nil: no limits
	tenant  func(id MsgID) string    // nil: all mail is nobody's
}

func newSteady(cfg Config, messages, dests int, per func(MsgID) int) *steady {
	return newSteadyOf(cfg, messages, dests, per, nil)
}

// newSteadyOf is newSteady with mail of tenants.
func newSteadyOf(cfg Config, messages, dests int, per func(MsgID) int, tenant func(MsgID) string) *steady {
	l := &steady{s: New(cfg), now: epoch, per: per, created: epoch, tenant: tenant}
	for i := range dests {
		l.dests = append(l.dests, fmt.Sprintf("d%d.example", i))
	}
	l.busy = make([]EntryID, 1<<17)
	for range messages {
		l.arrive()
	}
	return l
}

func (l *steady) arrive() {
	l.next++
	a := Arrival{Queue: QueueIncoming, Created: l.created, Rcpts: l.per(l.next), Size: 1000}
	if l.tenant != nil {
		a.Tenant = l.tenant(l.next)
	}
	l.step(Event{Kind: EventQueued, ID: l.next, Arrival: a})
}

func (l *steady) step(ev Event) {
	from := len(l.out)
	l.out = l.s.Step(l.now, ev, l.out)
	for i := from; i < len(l.out); i++ {
		e := l.out[i]
		switch e.Kind {
		case EffectLoad:
			n := l.per(e.ID)
			l.rcpts = l.rcpts[:0]
			i := e.From
			for ; i < n && len(l.rcpts) < e.Max; i++ {
				d := l.dests[(int(e.ID)*7+i)%len(l.dests)]
				r := Rcpt{Index: i, Transport: "smtp", Nexthop: mail.Nexthop(d), Queue: d}
				if l.terms != nil {
					r.Terms = l.terms(d)
				}
				l.rcpts = append(l.rcpts, r)
			}
			l.step(Event{Kind: EventLoaded, ID: e.ID, Rcpts: l.rcpts, Next: i, Unread: n - i})
		case EffectDeliver:
			l.busy[(l.head+l.n)%len(l.busy)] = e.Entry
			l.n++
		case EffectFinish:
			l.turn++ // owes an arrival
		}
	}
	l.out = l.out[:from]
}

// one ends the oldest delivery and makes up for messages that ended.
func (l *steady) one() {
	id := l.busy[l.head]
	l.head = (l.head + 1) % len(l.busy)
	l.n--
	l.now = l.now.Add(time.Microsecond)
	l.step(Event{Kind: EventDone, Entry: id})
	for ; l.turn > 0; l.turn-- {
		l.arrive()
	}
}

func benchConfig(processes, window int) Config {
	cfg := DefaultConfig()
	cfg.ClogWarn = 0
	cfg.RecipientLimit, cfg.DefaultTransports.RecipientLimit = 1<<20, 1<<20
	cfg.DefaultTransports.ProcessLimit = processes
	cfg.DefaultTransports.ConcurrencyLimit = window
	cfg.DefaultTransports.InitialConcurrency = window
	cfg.DefaultTransports.BatchLimit = 1
	return cfg
}

// processorTime is what this process has used: on a busy machine it says more
// than the clock.
func processorTime() time.Duration {
	var ru syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru)
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// BenchmarkDecision is the cost of one delivery's end and the choice of the
// next, with so many messages active and so many destinations; single has one
// recipient per message, wide twenty for as many destinations, mixed has a large message for every hundred small
// ones, for them to slip past, and full has every window full, so that most
// jobs are blocked.
func BenchmarkDecision(b *testing.B) {
	single := func(MsgID) int { return 1 }
	mixed := func(id MsgID) int {
		if id%100 == 1 {
			return 100
		}
		return 1 + int(id%3)
	}
	wide := func(MsgID) int { return 20 }
	for _, c := range []struct {
		name              string
		messages, dests   int
		processes, window int
		per               func(MsgID) int
	}{
		{"single/jobs=20000/dests=1000", 20000, 1000, 100, 20, single},
		{"wide/jobs=100/dests=1000", 100, 1000, 100, 20, wide},
		{"wide/jobs=20000/dests=1000", 20000, 1000, 100, 20, wide},
		{"wide/jobs=20000/dests=100000", 20000, 100000, 100, 20, wide},
		{"mixed/jobs=100/dests=1000", 100, 1000, 50, 20, mixed},
		{"mixed/jobs=1000/dests=1000", 1000, 1000, 100, 20, mixed},
		{"mixed/jobs=20000/dests=100", 20000, 100, 100, 20, mixed},
		{"mixed/jobs=20000/dests=1000", 20000, 1000, 100, 20, mixed},
		{"mixed/jobs=20000/dests=100000", 20000, 100000, 100, 20, mixed},
		{"full/jobs=20000/dests=100", 20000, 100, 0, 2, mixed},
		{"full/jobs=20000/dests=1000", 20000, 1000, 0, 2, mixed},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newSteady(benchConfig(c.processes, c.window), c.messages, c.dests, c.per)
			for range 2 * c.messages {
				l.one()
			}
			b.ReportAllocs()
			b.ResetTimer()
			start := processorTime()
			for b.Loop() {
				l.one()
			}
			b.ReportMetric(float64(processorTime()-start)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(l.s.Stats().Preemptions)/float64(l.s.Stats().Decisions), "preempt/decision")
		})
	}
}

// BenchmarkTenants is what a whole life of a message with one recipient costs where mail is that of so many tenants.
func BenchmarkTenants(b *testing.B) {
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprint("tenant", i)
	}
	for _, tenants := range []int{0, 1, 2, 1000} {
		b.Run(fmt.Sprint("tenants=", tenants), func(b *testing.B) {
			var tenant func(MsgID) string
			if tenants > 0 {
				// Several have mail for each destination.
				tenant = func(id MsgID) string { return names[int(uint32(id)*2654435761>>8)%tenants] }
			}
			l := newSteadyOf(benchConfig(100, 20), 10000, 1000, func(MsgID) int { return 1 }, tenant)
			for range 20000 {
				l.one()
			}
			b.ReportAllocs()
			b.ResetTimer()
			start := processorTime()
			for b.Loop() {
				l.one()
			}
			b.ReportMetric(float64(processorTime()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkDeferred is a million deferred messages: what each costs to keep
// and to retry.
func BenchmarkDeferred(b *testing.B) {
	s := New(DefaultConfig())
	var out []Effect
	now := epoch
	for i := range 1000000 {
		out = s.Step(now, Event{Kind: EventQueued, ID: MsgID(i + 1), Arrival: Arrival{Queue: QueueDeferred, Created: now,
			Next: now.Add(time.Duration(i%4000+1) * time.Second), Rcpts: 1}}, out[:0])
	}
	rcpts := []Rcpt{{Transport: "smtp", Nexthop: "a.example", Queue: "a.example"}}
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		now = s.Wake()
		out = s.Step(now, Event{Kind: EventTick}, out[:0])
		for len(out) > 0 {
			e := out[len(out)-1]
			out = out[:len(out)-1]
			switch e.Kind {
			case EffectLoad:
				out = s.Step(now, Event{Kind: EventLoaded, ID: e.ID, Rcpts: rcpts, Next: 1}, out)
			case EffectDeliver:
				out = s.Step(now, Event{Kind: EventDone, Entry: e.Entry, Result: Result{Deferred: e.Rcpts}}, out)
			}
		}
	}
}

// BenchmarkWalk is a decision of the model, which walks the job list as nqmgr
// does, with the first job current and the others behind it: what the indexes
// are for.
func BenchmarkWalk(b *testing.B) {
	for _, jobs := range []int{100, 1000, 20000} {
		b.Run(fmt.Sprintf("jobs=%d", jobs), func(b *testing.B) {
			cfg := benchConfig(0, 0)
			cfg.Transport = func(_ mail.Transport, c TransportConfig) TransportConfig { return c }
			m := &model{cfg: cfg, now: epoch.UnixMicro(), msgs: map[MsgID]*mMsg{}}
			t := m.transport("smtp")
			for i := range jobs {
				n := 2
				if i == 0 {
					n = 1 << 20
				}
				j := &mJob{msg: &mMsg{id: MsgID(i), seq: i, queued: epoch.Unix()}, t: t, listed: true, total: n}
				q := &mQueue{name: fmt.Sprint(i % 1000), t: t, window: 1 << 30}
				p := &mPeer{q: q, j: j, refs: n}
				for range 2 {
					p.todo = append(p.todo, &mEntry{p: p, rcpts: nil})
				}
				j.peers = []*mPeer{p}
				t.jobs = append(t.jobs, j)
			}
			t.cfg.SlotLoan, t.cfg.SlotDiscount = 0, 0
			cur := t.jobs[0]
			cur.avail = 1
			b.ResetTimer()
			for b.Loop() {
				m.preempt(t, cur)
			}
		})
	}
}

// BenchmarkShared is the same under shared limits: all destinations are a provider's that
// takes 50 deliveries at once, in sites of ten, so that nearly all of them wait in lines.
func BenchmarkShared(b *testing.B) {
	for _, dests := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("dests=%d", dests), func(b *testing.B) {
			cfg := benchConfig(100, 20)
			cfg.SharedActiveLimit = 0
			l := newSteady(cfg, 0, dests, func(MsgID) int { return 1 })
			terms := map[string]*Terms{}
			for i := range l.dests {
				x := &Terms{}
				x.Shares[SiteLimit] = Share{fmt.Sprint("s", i/10), Limits{Concurrency: 5}}
				x.Shares[ProviderLimit] = Share{"p", Limits{Concurrency: 50, Messages: rate.Rate{N: 50000, Per: time.Second}}}
				if i%10 > 0 {
					x = terms[l.dests[i/10*10]]
				}
				terms[l.dests[i]] = x
			}
			l.terms = func(d string) *Terms { return terms[d] }
			for range 20000 {
				l.arrive()
			}
			b.ReportAllocs()
			start := processorTime()
			for b.Loop() {
				if l.n == 0 {
					l.now = l.now.Add(time.Millisecond)
					l.step(Event{Kind: EventTick})
					continue
				}
				l.now = l.now.Add(20 * time.Microsecond)
				l.one()
			}
			b.ReportMetric(float64(processorTime()-start)/float64(b.N), "cpu-ns/op")
		})
	}
}
