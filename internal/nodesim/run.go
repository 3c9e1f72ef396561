package nodesim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/mail"
)

// A run is one carrying out of a plan.
type run struct {
	seed  seed
	plan  *Plan
	began time.Time
	all   sync.WaitGroup // of goroutines
	plot  sync.WaitGroup // of letters and faults
	books *books
	nodes []*node
	hosts []*host
	hops  []*hop
	keep  bool // the log

	mu    sync.Mutex
	over  bool
	clock time.Time // until then leases of the database's clock may be wrong
	wrong int       // faults that go on
	quiet time.Time // when the last one ended
	lines []line
	taken map[int64]bool // instants at which something happens, in ns
}

// A line is one of the log. What happens at one instant has no order: it is sorted.
type line struct {
	at   time.Duration
	text string
}

// An Outcome is what came of a run.
type Outcome struct {
	Errors []string
	Log    string
	Doing  Counts
}

// Run carries out a plan. With keep the outcome has a log.
func Run(t *testing.T, p *Plan, keep bool) (out Outcome) {
	synctest.Test(t, func(*testing.T) {
		r := &run{seed: seed(p.Seed), plan: p, began: time.Now(), keep: keep, taken: map[int64]bool{}}
		r.books = &books{run: r, rcpts: map[mail.QueueID]int{}, acked: map[mail.QueueID]string{}, arrived: map[delivery]int{}, asks: map[delivery]int{}, silent: map[delivery]int{}, carried: map[int]int{}, answers: map[int]bool{}, left: map[int]bool{}, done: map[int]int{}, gone: map[int]bool{}, number: map[string]int64{}, told: map[string]int{}}
		r.furnish()
		r.carryOut()
		r.books.counts.Virtual = r.since()
		out = Outcome{Errors: r.books.errors, Log: r.text(), Doing: r.books.counts}
	})
	return out
}

func (r *run) since() time.Duration { return time.Since(r.began) }

func (r *run) note(format string, args ...any) {
	if !r.keep {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line{r.since(), fmt.Sprintf(format, args...)})
}

// step notes what nobody wants to read, unless two runs of one seed differ.
func (r *run) step(format string, args ...any) {
	if r.plan.Trace {
		r.note(format, args...)
	}
}

// text is the log.
func (r *run) text() string {
	slices.SortStableFunc(r.lines, func(a, b line) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.text, b.text)) })
	var b strings.Builder
	for _, l := range r.lines {
		fmt.Fprintf(&b, "%13.9f %s\n", l.at.Seconds(), l.text)
	}
	return b.String()
}

// alone is a time as good as at, at which nothing else happens.
func (r *run) alone(at time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := at.UnixNano()
	for r.taken[n] {
		n++
	}
	r.taken[n] = true
	return time.Unix(0, n)
}

// sleep waits for about so long, until an instant at which nothing else happens.
func (r *run) sleep(d time.Duration) { time.Sleep(time.Until(r.alone(time.Now().Add(d)))) }

// timer is one for about so long.
func (r *run) timer(d time.Duration) *time.Timer {
	return time.NewTimer(time.Until(r.alone(time.Now().Add(d))))
}

// disturb notes that a fault begins, or ends.
func (r *run) disturb(by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong += by
	r.quiet = time.Now()
}

// quietFor says whether no fault has gone on for so long.
func (r *run) quietFor(d time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wrong == 0 && time.Since(r.quiet) > d
}

// wrongClock says whether the database's clock has been set of late: leases may have run out for the database that are good for
// their nodes, which nobody can know of.
func (r *run) wrongClock() bool { return !time.Now().After(r.clockRight()) }

// clockRight is when that is over.
func (r *run) clockRight() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.clock
}

// turn lets others of those that one thing has woken have their turn: each at an instant of its own, that rnd says.
func (r *run) turn(rnd *rand.Rand) { r.sleep(between(rnd, time.Microsecond, 50*time.Microsecond)) }

func (r *run) isOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// primary is the host that is the primary now; nil: there is none.
func (r *run) primary() *host {
	for _, h := range r.hosts {
		h.mu.Lock()
		ok := h.up && h.primary
		h.mu.Unlock()
		if ok {
			return h
		}
	}
	return nil
}

// hopOf is where a recipient's mail goes.
func (r *run) hopOf(d delivery) *hop {
	return r.hops[(int(d.id[len(d.id)-1])+d.rcpt)%len(r.hops)]
}

// furnish makes the database, the nodes and the next hops.
func (r *run) furnish() {
	p := r.plan
	r.hosts = []*host{newHost(r, "db1", p.shift, p.flush), newHost(r, "db2", p.shift+p.skew, p.flush)}
	r.hosts[0].up, r.hosts[0].primary, r.hosts[0].standby, r.hosts[1].up = true, true, r.hosts[1], true
	for _, h := range r.hosts {
		h.fill(p.shards, p.rolling)
		r.all.Go(h.ship)
	}
	for i, limit := range p.limits {
		r.hops = append(r.hops, &hop{run: r, name: fmt.Sprint("hop", i+1), limit: limit, day: p.days[i], rate: p.rates[i], spent: map[string]int{}, active: map[*proc]map[delivery]time.Time{}})
	}
	for i := range p.nodes {
		n := &node{run: r, name: fmt.Sprint("n", i+1), links: map[string]*link{}, wall: p.shift, spent: map[string]int{}, due: map[*hop]time.Time{}, older: p.rolling}
		for _, h := range r.hosts {
			n.links[h.name] = &link{node: n, host: h, slow: p.slow}
		}
		r.nodes = append(r.nodes, n)
	}
}

// carryOut is all of a run.
func (r *run) carryOut() {
	rnd := r.seed.source("start")
	for _, n := range r.nodes {
		after := between(rnd, 0, time.Second)
		r.all.Go(func() {
			r.sleep(after)
			n.start()
		})
	}
	for i := range r.plan.letters {
		l := &r.plan.letters[i]
		r.plot.Go(func() { r.send(l, r.seed.source(fmt.Sprint("letter ", i))) })
	}
	for i := range r.plan.orders {
		r.plot.Go(func() { r.ask(i, &r.plan.orders[i]) })
	}
	for i := range r.plan.Faults {
		f := &r.plan.Faults[i]
		r.plot.Go(func() {
			r.sleep(f.At)
			r.books.count(func(c *Counts) { c.Faults++ })
			r.note("fault: %s of n%d for %v", f.Kind, f.Node+1, f.Last)
			r.disturb(1)
			r.happen(f)
			r.disturb(-1)
		})
	}
	ended := make(chan struct{})
	r.all.Go(func() { r.plot.Wait(); close(ended) })
	select {
	case <-ended:
	case <-r.timer(longest).C:
		r.books.fail("after %v letters or faults have not ended", longest)
	}
	r.settle()
	r.books.check()
	r.end()
}

// longest is more than letters and faults take.
const longest = 5 * time.Minute

// patience is how long the queue may take to become empty when nothing goes wrong any more: a drain may wait 30 seconds.
const patience = 90 * time.Second

// settle waits until the queue is empty.
func (r *run) settle() {
	for begun := time.Now(); time.Since(begun) < patience; {
		r.sleep(500 * time.Millisecond)
		if len(r.books.missing()) > 0 || r.books.waiting() {
			continue
		}
		empty := true
		for _, n := range r.nodes {
			if p := n.current(); p != nil {
				if en := p.engine(); en != nil {
					for range en.Entries {
						empty = false
					}
				}
			}
		}
		if empty {
			return
		}
	}
}

// end ends everything.
func (r *run) end() {
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	for _, n := range r.nodes {
		n.kill(false)
	}
	for _, h := range r.hosts {
		h.die(false)
		h.ring()
	}
	r.all.Wait()
	r.sleep(20 * time.Second) // pgconn takes up to 15 to close a connection
}

// send has a client try until a node takes its letter, or it does not know whether one has.
func (r *run) send(l *letter, rnd *rand.Rand) {
	r.sleep(l.at)
	r.books.count(func(c *Counts) { c.Letters++ })
	refused := 0
	for i := l.node; !r.isOver() && i < l.node+30; i++ {
		if p := r.nodes[i%len(r.nodes)].current(); p != nil {
			queued, sure := p.submit(l.nrcpt)
			r.turn(rnd) // others were told at the same instant
			if queued || !sure {
				break
			}
		}
		refused++
		r.sleep(between(rnd, 80*time.Millisecond, 120*time.Millisecond))
	}
	r.books.count(func(c *Counts) { c.Refused += refused })
	if f := r.plan.Faults; r.plan.single == drain && len(f) > 0 && r.plan.shards >= len(r.nodes) && l.at > f[0].At && l.at < f[0].At+f[0].Last && refused >= len(r.nodes) {
		r.books.fail("a letter of %v was refused %d times while a node is drained", l.at, refused)
	}
}
