package whatif

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"posthaste/internal/mail"
	"posthaste/internal/pace"
	"posthaste/qmgr/sched"
	"posthaste/qmgr/sched/simulate"
)

// A load is mail and hosts, and what is changed when some of it has gone. The hosts are those of
// the simulator, of which a forecast knows only what was measured.
type load struct {
	name, text string
	at         time.Duration
	change     string // of the transport smtp
}

const smtp = "transport smtp process_limit=100 "

var loads = []load{
	{"one host with time to spare, limit 20 to 50", smtp + `destination_concurrency_limit=20
		server a per_recipient=1s jitter=30%
		send to=smtp:a count=12000`, 2 * time.Minute, "destination_concurrency_limit=50"},
	{"the same, 20 to 5", smtp + `destination_concurrency_limit=20
		server a per_recipient=1s jitter=30%
		send to=smtp:a count=6000`, 2 * time.Minute, "destination_concurrency_limit=5"},
	{"a host with five processes and a line, 10 to 40", smtp + `destination_concurrency_limit=10
		server a processes=5 queue=100 per_recipient=1s jitter=10%
		send to=smtp:a count=4000`, 3 * time.Minute, "destination_concurrency_limit=40"},
	{"421 beyond five sessions, 20 to 4", smtp + `destination_concurrency_limit=20 destination_concurrency_failed_cohort_limit=10 destination_concurrency_positive_feedback=1/concurrency destination_concurrency_negative_feedback=1/concurrency
		server a client_limit=5 per_recipient=1s
		send to=smtp:a count=6000`, 3 * time.Minute, "destination_concurrency_limit=4"},
	{"a fifth is deferred, retries and all", smtp + `destination_concurrency_limit=10
		server a per_recipient=500ms defer=20%
		send to=smtp:a count=8000`, 2 * time.Minute, "destination_concurrency_limit=20"},
	{"100 hosts, few processes, 10 to 30", `transport smtp process_limit=10
		server a per_recipient=2s jitter=50%
		send to=smtp:a count=6000 spread=100`, 3 * time.Minute, "process_limit=30"},
	{"a delay between deliveries is begun", smtp + `
		server a per_recipient=100ms
		send to=smtp:a count=6000`, 20 * time.Second, "destination_rate_delay=1s"},
	{"many recipients, 50 to 5 in a delivery", smtp + `destination_recipient_limit=50
		server a setup=2s per_recipient=100ms
		send to=smtp:a count=600 rcpts=200
		send to=smtp:a count=600 rcpts=20`, time.Minute, "destination_recipient_limit=5"},
	{"threads in place of windows", `transport smtp process_limit=20
		server a per_recipient=500ms
		server b per_recipient=3s
		send to=smtp:a count=3000 spread=30
		send to=smtp:b count=600 spread=5`, time.Minute, "scheduler=thread"},
	{"dead hosts hold the processes, slow deliveries are set aside", `transport smtp process_limit=20
		server dead silent=yes timeout=30s
		server a per_recipient=1s
		send to=smtp:dead count=2000 spread=400
		send to=smtp:a count=8000 spread=20`, 3 * time.Minute, "slow_delivery_limit=500 slow_delivery_time=2s"},
	{"a provider that takes 15 at once, at ten domains, 20 to 5 at each", smtp + `destination_concurrency_limit=20
		server a per_recipient=1s jitter=30% provider_limits=big:concurrency=15
		server b per_recipient=2s provider_limits=big:concurrency=15
		send to=smtp:a,smtp:b count=6000 spread=5`, 2 * time.Minute, "destination_concurrency_limit=5"},
	{"a site that takes ten in a second, at five domains, 20 to 50", smtp + `destination_concurrency_limit=20
		server a per_recipient=500ms jitter=30% site_limits=mx:messages=10/s
		server b per_recipient=500ms jitter=30%
		send to=smtp:a count=5000 spread=5
		send to=smtp:b count=5000`, 2 * time.Minute, "destination_concurrency_limit=50"},
	{"a pool: one of two sources has soon sent what it may in a day, 10 to 20", smtp + `destination_concurrency_limit=10
		server a per_recipient=1s jitter=30%
		send to=smtp:a count=9000 sources=new*1/2500,old*1`, 2 * time.Minute, "destination_concurrency_limit=20"},
	{"a tenant that may have five deliveries, among others, 20 to 40", `transport smtp process_limit=60 destination_concurrency_limit=20
		tenant acme limits=concurrency=5
		server a per_recipient=1s jitter=30%
		send to=smtp:a count=1500 spread=10 tenant=acme
		send to=smtp:a count=6000 spread=10 tenant=other`, 2 * time.Minute, "destination_concurrency_limit=40"},
}

// proven is what a load came to.
type proven struct {
	load           load
	messages       int
	forecast, real time.Duration // until 99 in 100 messages for hosts that answer have gone
	low, high      time.Duration // of the forecast, by seed
}

const seeds = 3

// prove plays a load to its end, with a forecast in the middle of it.
func prove(t *testing.T, l load) proven {
	t.Helper()
	var book pace.Book
	var begin time.Time
	there := make(map[sched.MsgID]bool) // queued when the forecast is made, for hosts that answer
	p := proven{load: l, low: math.MaxInt64}
	w := &simulate.Watch{At: l.at, Change: map[mail.Transport]string{"smtp": l.change}}
	w.Ended = func(now time.Time, e simulate.Ended) {
		if begin.IsZero() {
			book.Add(now, string(e.Nexthop), pace.Delivery{Took: e.Took, Busy: e.Busy, Away: e.Away, Again: e.Again, Rcpts: e.Rcpts, Later: e.Later})
		}
	}
	w.Look = func(now time.Time, s *sched.Scheduler, list []simulate.Queued, to sched.Config) {
		begin = now
		m, ids := copyOf(now, s, list, &book, w.Tenants)
		for seed := range uint64(seeds) {
			f, err := Run(t.Context(), m, to, seed)
			if err != nil {
				t.Errorf("%s: %v", l.name, err)
				return
			}
			p.forecast += f.Alive.Most / seeds
			p.low, p.high = min(p.low, f.Alive.Most), max(p.high, f.Alive.Most)
		}
		for id, row := range ids {
			if there[id] = !strings.HasPrefix(string(m.Dests[m.Rows[row].Dest].Nexthop), "dead"); there[id] {
				p.messages++
			}
		}
	}
	gone := 0
	w.Left = func(at time.Duration, id sched.MsgID) {
		if there[id] {
			if gone++; p.real == 0 && float64(gone) >= 0.99*float64(p.messages) {
				p.real = at - l.at
			}
		}
	}
	if _, err := simulate.RunWatched(strings.NewReader("seed 7\nend at=12h\n"+l.text), w); err != nil {
		t.Fatalf("%s: %v", l.name, err)
	}
	return p
}

// copyOf is a copy of a simulated queue, and the row of each message.
func copyOf(now time.Time, s *sched.Scheduler, list []simulate.Queued, book *pace.Book, tenants map[string]sched.TenantTerms) (*Mail, map[sched.MsgID]int) {
	m, ids, index := &Mail{Now: now, Tenants: tenants, Spent: s.Spent()}, make(map[sched.MsgID]int), make(map[string]int)
	snap := s.Snapshot()
	dest := func(d sched.DestSnapshot) int {
		i, ok := index[d.Queue]
		if !ok {
			i = len(m.Dests)
			index[d.Queue] = i
			m.Dests = append(m.Dests, Dest{DestSnapshot: d, Behaviour: book.Of(string(d.Nexthop))})
		}
		return i
	}
	for _, d := range snap.Dests {
		dest(d)
	}
	// members are the destinations of a recipient's pool, the first of which its mail is for as long as no source is drawn.
	members := func(r *sched.Rcpt) {
		for i := range r.Pool.Members {
			mb := &r.Pool.Members[i]
			d := &m.Dests[dest(sched.DestSnapshot{Transport: r.Transport, Queue: sched.SourceQueue(r.Queue, mb.Source), Nexthop: r.Nexthop, Source: mb.Source})]
			d.Weight, d.Wait, d.Terms = mb.Weight, mb.Wait, mb.Terms
		}
	}
	waits := make(map[sched.MsgID]bool)
	for _, st := range snap.Sites {
		for _, id := range st.Waiting {
			waits[id] = true
		}
	}
	for _, q := range list {
		ids[q.ID] = len(m.Rows)
		to, deferred := &q.To[0], q.Queue == sched.QueueDeferred
		queue := to.Queue
		if to.Pool != nil {
			members(to)
			if _, at := s.Bound(q.ID); at != "" {
				queue = at
			} else { // it is drawn when it is tried, as what is tried again
				queue, deferred = sched.SourceQueue(to.Queue, to.Pool.Members[0].Source), true
			}
		}
		i := dest(sched.DestSnapshot{Transport: to.Transport, Queue: queue, Nexthop: to.Nexthop})
		if to.Pool == nil {
			m.Dests[i].Terms = to.Terms
		}
		due := q.Next
		if q.Queue != sched.QueueDeferred {
			due = now
		}
		s.Parts(q.ID, func(p sched.Part) {
			if p.Beyond {
				due, deferred = now, q.Attempts > 0
			}
		})
		m.Rows = append(m.Rows, Row{Dest: i, Tenant: q.Tenant, Count: 1,
			Rcpts: len(q.To), Created: q.Created, Deferred: deferred, Due: due, Waits: waits[q.ID]})
	}
	return m, ids
}

// Forecasts come true: on each of the loads, of which ten have destinations of their own and four have limits in common, a pool of sources
// or tenants, the time until 99 in 100 messages have gone is within a fifth of what
// the forecast was. The table is in docs/scheduler.md.
func TestForecasts(t *testing.T) {
	var b strings.Builder
	for _, l := range loads {
		p := prove(t, l)
		off := 100 * (p.forecast.Seconds()/p.real.Seconds() - 1)
		fmt.Fprintf(&b, "| %s | %d | %.0f s | %.0f to %.0f s | %.0f s | %+.0f %% |\n", l.name, p.messages, p.forecast.Seconds(), p.low.Seconds(), p.high.Seconds(), p.real.Seconds(), off)
		if !(math.Abs(off) <= 20) {
			t.Errorf("%s: the forecast was %v, and it took %v", l.name, p.forecast, p.real)
		}
	}
	t.Log("\n" + b.String())
	page, err := os.ReadFile("../../docs/scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), b.String()) {
		t.Error("docs/scheduler.md does not have this table")
	}
}
