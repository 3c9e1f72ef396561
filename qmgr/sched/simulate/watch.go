package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/mail"
	"posthaste/qmgr/sched"
)

// A Watch looks on while a workload is played, and changes settings in the middle. Its functions
// are called in the run.
type Watch struct {
	// At is when Look is called, with the mail that is queued then, the scheduler, which it must
	// not change, and the settings that are to hold.
	At   time.Duration
	Look func(now time.Time, s *sched.Scheduler, mail []Queued, to sched.Config)
	// Tenants are what holds for tenants, from Look on.
	Tenants map[string]sched.TenantTerms
	// Change are settings that hold from then on, by transport: "destination_concurrency_limit=50".
	Change map[mail.Transport]string
	// Ended is called for each delivery that ends, Left for each message that leaves.
	Ended func(now time.Time, e Ended)
	Left  func(at time.Duration, id sched.MsgID)
}

// Queued is a message that is queued.
type Queued struct {
	sched.Info
	Class  string
	Tenant string
	To     []sched.Rcpt // that are left
}

// Ended is a delivery that has ended.
type Ended struct {
	Transport    mail.Transport
	Nexthop      mail.Nexthop
	Took         time.Duration
	Busy         int // to that destination at once, with this one, when it ended
	Rcpts, Later int
	Away         bool // the destination took no part
	Again        bool // the message had been deferred before
}

// started is a delivery that is watched.
type started struct {
	at    time.Duration
	again bool
}

// look calls Look, and changes the settings.
func (r *run) look() {
	var list []Queued
	for id, m := range r.mail {
		info, ok := r.s.Lookup(id)
		if !ok {
			continue
		}
		q := Queued{Info: info, Class: m.class.Name, Tenant: m.tenant}
		for i, rc := range m.rcpts {
			if !m.final[i] {
				q.To = append(q.To, rc)
			}
		}
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b Queued) int { return int(a.ID) - int(b.ID) })
	changed := make(map[mail.Transport]*agentKind, len(r.transports))
	for name, k := range r.transports {
		kind := *k
		if err := r.settings(strings.Fields(r.watch.Change[name]), kind.setting); err != nil {
			panic(fmt.Sprint("simulate: watch: ", err))
		}
		changed[name] = &kind
	}
	r.transports, r.watch.Tenants = changed, r.tenants
	r.watch.Look(r.now(), r.s, list, r.cfg)
	r.step(sched.Event{Kind: sched.EventReconfigured, Config: &r.cfg})
}

// begins notes a delivery that begins.
func (r *run) begins(e *sched.Effect) {
	if r.watch == nil || e.Transport == sched.RetryTransport {
		return
	}
	if r.under == nil {
		r.under, r.begun = make(map[mail.Nexthop]int), make(map[sched.EntryID]started)
	}
	r.under[e.Nexthop]++
	r.begun[e.Entry] = started{r.clock, r.mail[e.ID].deferred}
}

// ends tells of a delivery that has ended.
func (r *run) ends(e *sched.Effect, rcpts []int, res *sched.Result) {
	b, ok := r.begun[e.Entry]
	if !ok {
		return
	}
	delete(r.begun, e.Entry)
	r.watch.Ended(r.now(), Ended{Transport: e.Transport, Nexthop: e.Nexthop, Took: r.clock - b.at, Busy: r.under[e.Nexthop], Rcpts: len(rcpts),
		Later: len(res.Deferred), Away: res.SiteFailed, Again: b.again})
	r.under[e.Nexthop]--
}
