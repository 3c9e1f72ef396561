package simulate

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/rate"
	"posthaste/internal/returnpath"
	"posthaste/internal/shaping"
	"posthaste/internal/simnet"
	"posthaste/qmgr/sched"
)

// sendingSeeds is how many days of sending TestSending plays: a few, or what a long run is told.
var sendingSeeds = flag.Uint64("sending.seeds", 3, "how many seeds TestSending plays")

var sendingCheck = flag.Bool("sending.check", false, "have TestSending check the scheduler after each step")

// TestSending has all meet that those who send for others use: tenants with weights and limits, sources in pools, two of
// which warm up, limits of domains, sites, providers and sources, following of answers, rules of shaping files, complaints
// that come back to return paths and take recipients off lists, dead hosts, and providers of the four kinds, one of which
// blocks a source for hours. In more than a day of virtual time a mailing after the other goes out beside single
// messages. What must hold whatever the seed is checked at each delivery (begins) and at the end (ended).
func TestSending(t *testing.T) {
	t.Parallel()
	var all tally
	for seed := range *sendingSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newSending(t, seed)
			w.play()
			w.ended()
			all.add(&w.tally)
			t.Logf("%+v", w.tally)
		})
	}
	// A run in which things do not happen shows nothing.
	if all.blocked == 0 || all.suspended == 0 || all.set == 0 || all.complaints == 0 || all.stopped == 0 || all.spilled == 0 || all.back == 0 || all.grey == 0 || all.expired == 0 || all.bounced == 0 || all.forged == 0 {
		t.Errorf("this looks at too little: %+v", all)
	}
}

// A tally is what has happened.
type tally struct {
	delivered, bounced, expired, deferred, suppressed int // recipients
	blocked                                           int // refusals of the source that is blocked
	back                                              int // what it delivered there when it was not any more
	others                                            int // what others delivered there meanwhile
	suspended, set, stopped                           int // acts of rules: a source at a site, a rate, a campaign at a site
	complaints, forged                                int
	spilled, grey                                     int
}

func (a *tally) add(b *tally) {
	a.delivered, a.bounced, a.expired, a.deferred = a.delivered+b.delivered, a.bounced+b.bounced, a.expired+b.expired, a.deferred+b.deferred
	a.suppressed, a.blocked, a.back, a.others = a.suppressed+b.suppressed, a.blocked+b.blocked, a.back+b.back, a.others+b.others
	a.suspended, a.set, a.stopped = a.suspended+b.suspended, a.set+b.set, a.stopped+b.stopped
	a.complaints, a.forged, a.spilled, a.grey = a.complaints+b.complaints, a.forged+b.forged, a.spilled+b.spilled, a.grey+b.grey
}

// What the world is like.
const (
	sendingTime = 30 * time.Hour // as long new mail comes
	blockFrom   = 30 * time.Minute
	blockUntil  = 5 * time.Hour
	blockedFrom = "mta2"
	lifetime    = 24 * time.Hour
	sendingEnd  = sendingTime + lifetime + 2*time.Hour // by then all has left the queue
	suspendFor  = 2 * time.Hour
	batch       = 5 // recipients in a delivery, and in a tenant's turn
)

// A tableLimits is the limits of the tables, which hold whatever rules do.
type tableLimits struct{ domain, site, provider, from sched.Limits }

var (
	tenantTerms = map[string]sched.TenantTerms{
		"shop": {Weight: 3},
		"news": {Weight: 1},
		"club": {Weight: 1, Limits: sched.Limits{Concurrency: 3, Messages: rate.Rate{N: 200, Per: time.Hour}}},
	}
	// By the day, from when the run begins; 0: any number.
	warmups = map[string][]int64{"mta1": nil, "mta2": {40, 80, 160}, "mta3": {30, 60, 120}}
	pools   = map[string][]sched.Member{
		"shop": {{Source: "mta1", Weight: 1}, {Source: "mta2", Weight: 3}},
		"news": {{Source: "mta1", Weight: 1}, {Source: "mta2", Weight: 1}},
		"club": {{Source: "mta1", Weight: 1}, {Source: "mta3", Weight: 1, Wait: true}},
	}
)

const sendingRules = `["default"]
connection_limit = 50
[provider."strict"]
match = [{MXSuffix=".strict.example"}]
[[provider."strict".automation]]
regex = '^554 5\.7\.1 '
action = "Suspend"
duration = "2h"
[provider."metered"]
match = [{MXSuffix=".metered.example"}]
[[provider."metered".automation]]
regex = 'Throttled'
trigger = {Threshold="3/hr"}
action = {SetConfig={name="max_message_rate", value="30/min"}}
duration = "1h"
[provider."judged"]
match = [{MXSuffix=".judged.example"}]
[[provider."judged".automation]]
regex = 'user complaints'
trigger = {Threshold="5/hr"}
action = "SuspendCampaign"
duration = "30min"
`

// A place is a provider with one site, or a dead host.
type place struct {
	name, site string // of the provider, which a dead host has none of; of its site
	domains    []string
	host       *simnet.Host
	kind       simnet.Kind
}

// A posted message.
type posted struct {
	id               sched.MsgID
	tenant, campaign string
	rcpts            []string // local@domain
	final            []bool
	under            []bool
	tried            []bool
	notBefore        []time.Duration // its destination answers, and has deferred it: it is not tried before
	begun            time.Duration   // the first attempt; 0: none
	came             time.Duration
	left             int
	failed           bool
	// A destination of it failed. When that answers again all of the message is tried, whatever else was deferred.
	sited bool
}

// A sending is the world.
type sending struct {
	t       *testing.T
	rng     *rand.Rand
	s       *sched.Scheduler
	clock   time.Duration
	agenda  agenda
	seq     uint64
	out     []sched.Effect
	pending []sched.Event
	depth   int
	places  map[string]*place // by domain
	all     []*place
	mail    map[sched.MsgID]*posted
	next    sched.MsgID
	busy    map[sched.EntryID]sched.Effect
	rules   *shaping.Rules
	watch   shaping.Watcher
	coder   returnpath.Coder
	off     map[string]bool // tenant and recipient: they have complained, or do not exist
	// What rules have done.
	pauses    []sched.Pause
	campaigns map[sched.PauseID]string // campaign and site
	rates     map[string]lowered       // by source and site
	lastPause sched.PauseID
	// Terms as they are now.
	terms map[string]*sched.Terms // by source and domain
	pools map[string]*sched.Pool  // by tenant and domain
	day   int64
	// What is under way, and what has been, for the limits.
	under map[string]int
	spent map[string][]time.Duration
	days  map[string]int64
	is    tableLimits
	tally
}

// A lowered is a rate that a rule has set.
type lowered struct {
	rate  rate.Rate
	since time.Duration
	until time.Duration
}

func newSending(t *testing.T, seed uint64) *sending {
	w := &sending{t: t, rng: rand.New(rand.NewPCG(seed, 7)), places: map[string]*place{}, mail: map[sched.MsgID]*posted{}, busy: map[sched.EntryID]sched.Effect{},
		off: map[string]bool{}, campaigns: map[sched.PauseID]string{}, rates: map[string]lowered{}, under: map[string]int{}, spent: map[string][]time.Duration{}, days: map[string]int64{},
		coder: returnpath.Coder{Domain: "back.example", Secrets: []string{"a secret of a test, long enough"}, MaxDays: 30}}
	upTo := func(least, most int) int { return least + w.rng.IntN(most-least+1) }
	w.is = tableLimits{domain: sched.Limits{Concurrency: upTo(2, 8)}, site: sched.Limits{Concurrency: upTo(3, 10), Messages: rate.Rate{N: int64(upTo(20, 120)), Per: time.Minute}},
		provider: sched.Limits{Concurrency: upTo(4, 12), Recipients: rate.Rate{N: int64(upTo(500, 1200)), Per: rate.Day}}, from: sched.Limits{Concurrency: upTo(2, 6)}}
	file := filepath.Join(t.TempDir(), "shaping.toml")
	if err := os.WriteFile(file, []byte(sendingRules), 0o600); err != nil {
		t.Fatal(err)
	}
	rules, warnings, err := shaping.Load([]string{file})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	w.rules, w.watch.Rules = rules, rules
	profiles := simnet.Profiles()
	for i, name := range []string{"crowded", "metered", "judged", "grey", "strict", "good"} {
		p := profiles[map[string]string{"crowded": "microsoft", "metered": "comcast", "judged": "yahoo", "grey": "postgrey", "strict": "good", "good": "good"}[name]]
		if name == "judged" {
			p.Complaints, p.Tolerated = .2, 5 // people like these mailings less than others
		}
		w.add(name, p, 3, seed+uint64(i))
	}
	for i := range 10 {
		w.add(fmt.Sprint("dead", i), profiles["dead"], 1, 0)
	}
	cfg := sched.DefaultConfig()
	cfg.Seed, cfg.SharedActiveLimit, cfg.MaximalLifetime = seed, upTo(3, 80), lifetime
	cfg.TenantWeight = func(name string) int { return max(tenantTerms[name].Weight, 1) }
	cfg.DefaultTransports.ProcessLimit, cfg.DefaultTransports.SlowLimit, cfg.DefaultTransports.Adaptive = upTo(20, 60), 500, true
	cfg.DefaultTransports.BatchLimit = batch
	cfg.Transport = func(name mail.Transport, c sched.TransportConfig) sched.TransportConfig {
		c.Adaptive = name == "smtp"
		return c
	}
	w.s = sched.New(cfg)
	w.day = -1
	w.renew()
	w.plan()
	return w
}

func (w *sending) add(name string, p simnet.Profile, domains int, seed uint64) {
	x := &place{name: name, site: "in." + name + ".example", kind: p.Kind, host: simnet.New(p, seed)}
	for i := range domains {
		d := fmt.Sprintf("%s%d.example", name, i)
		x.domains = append(x.domains, d)
		w.places[d] = x
	}
	w.all = append(w.all, x)
}

// plan is what is sent.
func (w *sending) plan() {
	w.every(3*time.Minute, func() { w.post("shop", "", w.someone("good")) })
	w.every(7*time.Minute, func() { w.post("shop", "", w.someone(""), w.someone(""), w.someone("")) })
	w.every(11*time.Minute, func() { w.post("shop", "", w.someone("strict")) })
	w.every(5*time.Minute, func() { w.post("club", "", w.someone("")) })
	w.every(23*time.Minute, func() { w.post("club", "", w.someone("grey"), w.someone("metered"), w.someone("good")) })
	w.after(3*time.Hour, func() {
		for range 150 {
			w.post("club", "", w.someone(""))
		}
	})
	for i, at := range []time.Duration{time.Hour, 7 * time.Hour, 14 * time.Hour, 22 * time.Hour} {
		w.after(at, func() {
			for range 700 {
				w.post("news", fmt.Sprint("c", i), w.someone(""))
			}
		})
	}
}

func (w *sending) every(d time.Duration, do func()) {
	for at := time.Duration(w.rng.Int64N(int64(d))); at < sendingTime; at += d {
		w.after(at, do)
	}
}

// someone is a recipient, at a provider or anywhere.
func (w *sending) someone(at string) string {
	x := w.all[w.rng.IntN(len(w.all))]
	if w.rng.IntN(3) > 0 { // at a dead host not that often
		x = w.all[w.rng.IntN(6)]
	}
	for at != "" && x.name != at {
		x = w.all[w.rng.IntN(len(w.all))]
	}
	return fmt.Sprintf("u%d@%s", w.rng.IntN(400), x.domains[w.rng.IntN(len(x.domains))])
}

func domainOf(rcpt string) string { _, d, _ := strings.Cut(rcpt, "@"); return d }

func (w *sending) now() time.Time { return epoch.Add(w.clock) }

func (w *sending) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.agenda, item{w.clock + d, w.seq, do})
}

func (w *sending) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf("after %v: %s", w.clock, fmt.Sprintf(format, args...))
}

// post hands in a message. Recipients that have complained to its tenant, or do not exist, get none.
func (w *sending) post(tenant, campaign string, rcpts ...string) {
	slices.Sort(rcpts)
	rcpts = slices.DeleteFunc(slices.Compact(rcpts), func(r string) bool {
		if w.off[tenant+" "+r] {
			w.suppressed++
		}
		return w.off[tenant+" "+r]
	})
	if len(rcpts) == 0 {
		return
	}
	w.next++
	n := len(rcpts)
	m := &posted{id: w.next, tenant: tenant, campaign: campaign, rcpts: rcpts, final: make([]bool, n), under: make([]bool, n), tried: make([]bool, n),
		notBefore: make([]time.Duration, n), came: w.clock, left: n}
	w.mail[m.id] = m
	w.step(sched.Event{Kind: sched.EventQueued, ID: m.id, Arrival: sched.Arrival{Queue: sched.QueueIncoming, Created: w.now(), Rcpts: n, Size: 1000, Tenant: tenant}})
}

// renew makes terms of the day and of what rules have set, and tells the scheduler.
func (w *sending) renew() {
	first := w.terms == nil
	w.terms, w.pools = map[string]*sched.Terms{}, map[string]*sched.Pool{}
	for _, x := range w.all {
		for _, d := range x.domains {
			for source := range warmups {
				w.terms[source+" "+d] = w.termsFor(source, d, x)
			}
			for tenant, members := range pools {
				pool := &sched.Pool{Name: tenant}
				for _, mb := range members {
					mb.Terms = w.terms[mb.Source+" "+d]
					pool.Members = append(pool.Members, mb)
				}
				w.pools[tenant+" "+d] = pool
			}
		}
	}
	if first {
		return
	}
	for _, x := range w.all {
		for _, d := range x.domains {
			for _, source := range []string{"mta1", "mta2", "mta3"} {
				w.step(sched.Event{Kind: sched.EventTerms, Transport: "smtp", Site: sched.SourceQueue(d, source), Terms: w.terms[source+" "+d]})
			}
		}
	}
}

func (w *sending) termsFor(source, domain string, x *place) *sched.Terms {
	t := &sched.Terms{Source: source, Place: x.site}
	t.Shares[sched.OwnLimit] = sched.Share{Name: domain, Limits: w.is.domain}
	t.Shares[sched.SiteLimit] = sched.Share{Name: x.site, Limits: w.is.site}
	from := w.is.from
	if l, ok := w.rates[source+" "+x.site]; ok && w.clock < l.until {
		from.Messages = l.rate
	}
	t.From[sched.SiteLimit] = sched.Share{Name: x.site, Limits: from}
	warm := sched.Limits{Warmup: rate.Rate{N: w.warmup(source), Per: rate.Day}}
	if warm.Warmup.N == 0 {
		warm = sched.Limits{}
	}
	if x.kind == simnet.Dead { // of nobody's
		if warm != (sched.Limits{}) {
			t.From[sched.OwnLimit] = sched.Share{Name: domain, Limits: warm}
		}
		return t
	}
	t.Shares[sched.ProviderLimit] = sched.Share{Name: x.name, Limits: w.providerOf(x)}
	if warm != (sched.Limits{}) {
		t.From[sched.ProviderLimit] = sched.Share{Name: x.name, Limits: warm}
	}
	return t
}

// providerOf is the limit of a provider. Where it is measured how long mail waits there is no number for the day.
func (w *sending) providerOf(x *place) sched.Limits {
	l := w.is.provider
	if x.name == "good" {
		l.Recipients = rate.Rate{}
	}
	return l
}

// dayOf counts midnights of UTC.
func dayOf(at time.Time) int64 { return at.Unix() / 86400 }

func (w *sending) warmup(source string) int64 {
	list := warmups[source]
	if list == nil {
		return 0
	}
	return list[min(int(dayOf(w.now())-dayOf(epoch)), len(list)-1)]
}

// play lets everything happen.
func (w *sending) play() {
	for n := 0; len(w.mail) > 0 || len(w.agenda) > 0; n++ {
		if n > 5_000_000 || w.clock > sendingEnd {
			w.fail("%d messages never leave", len(w.mail))
		}
		wake := w.s.Wake()
		if d := wake.Sub(epoch); !wake.IsZero() && (len(w.agenda) == 0 || d <= w.agenda[0].at) {
			w.advance(d)
			w.step(sched.Event{Kind: sched.EventTick})
			continue
		}
		if len(w.agenda) == 0 {
			w.fail("%d messages are stuck", len(w.mail))
		}
		x := heap.Pop(&w.agenda).(item)
		w.advance(x.at)
		x.do()
	}
}

func (w *sending) advance(to time.Duration) {
	w.clock = max(w.clock, to)
	ended := false
	for k, l := range w.rates {
		if w.clock >= l.until {
			delete(w.rates, k)
			ended = true
		}
	}
	if day := dayOf(w.now()); day != w.day || ended {
		w.day = day
		w.renew()
	}
}

func (w *sending) step(ev sched.Event) {
	w.pending = append(w.pending, ev)
	if w.depth > 0 {
		return // the outermost call goes on
	}
	w.depth++
	for len(w.pending) > 0 {
		ev := w.pending[0]
		w.pending = append(w.pending[:0], w.pending[1:]...)
		w.out = w.s.Step(w.now(), ev, w.out[:0])
		if *sendingCheck {
			if err := w.s.Check(); err != nil {
				w.fail("%v", err)
			}
		}
		for i := range w.out {
			w.carryOut(&w.out[i])
		}
	}
	w.depth--
}

func (w *sending) carryOut(e *sched.Effect) {
	m := w.mail[e.ID]
	switch e.Kind {
	case sched.EffectLoad:
		w.step(sched.Event{Kind: sched.EventTenant, Tenant: m.tenant, TenantTerms: tenantTerms[m.tenant]})
		w.step(w.load(m, e))
	case sched.EffectDeliver:
		w.begins(m, e)
		w.deliver(*e)
	case sched.EffectDeferRcpts:
		for _, i := range e.Rcpts {
			m.tried[i] = false
		}
	case sched.EffectNotify:
		switch e.Notice {
		case sched.NoticeFailure:
			m.failed = false
		case sched.NoticeExpired:
			for i := range m.final {
				if !m.final[i] {
					m.final[i] = true
					w.expired++
					m.left--
				}
			}
		}
		w.step(sched.Event{Kind: sched.EventNotified, ID: e.ID, OK: true})
	case sched.EffectFinish:
		if m.left > 0 || m.failed || slices.Contains(m.under, true) {
			w.fail("message %d ends: %+v", e.ID, m)
		}
		delete(w.mail, e.ID)
	case sched.EffectCorrupt, sched.EffectRemove, sched.EffectHold:
		w.fail("message %d: effect %d that nobody has asked for", e.ID, e.Kind)
	}
}

// load answers EffectLoad.
func (w *sending) load(m *posted, e *sched.Effect) sched.Event {
	ev := sched.Event{Kind: sched.EventLoaded, ID: e.ID, Failed: m.failed}
	i := e.From
	for ; i < len(m.rcpts) && len(ev.Rcpts) < e.Max; i++ {
		if !m.final[i] {
			d := domainOf(m.rcpts[i])
			ev.Rcpts = append(ev.Rcpts, sched.Rcpt{Index: i, Transport: "smtp", Nexthop: mail.Nexthop(d), Queue: d, Terms: w.terms["mta1 "+d],
				Pool: w.pools[m.tenant+" "+d], Pause: w.pauseFor(m, d), Tried: m.tried[i]})
		}
	}
	ev.Next = i
	for ; i < len(m.rcpts); i++ {
		if !m.final[i] {
			ev.Unread++
		}
	}
	slices.SortStableFunc(ev.Rcpts, func(a, b sched.Rcpt) int { return strings.Compare(a.Queue, b.Queue) })
	return ev
}

// pauseFor is the suspension of a campaign that is for its mail to a domain.
func (w *sending) pauseFor(m *posted, domain string) sched.PauseID {
	for i := range w.pauses {
		p := &w.pauses[i]
		if c := w.campaigns[p.ID]; c != "" && c == m.campaign+" "+w.places[domain].site && p.Until.After(w.now()) {
			return p.ID
		}
	}
	return 0
}

// A limit holds for what is under way, in a time, or on a day.
func (w *sending) limits(m *posted, e *sched.Effect) map[string]sched.Limits {
	x := w.places[string(e.Nexthop)]
	list := map[string]sched.Limits{"domain " + string(e.Nexthop): w.is.domain, "site " + x.site: w.is.site, "tenant " + m.tenant: tenantTerms[m.tenant].Limits,
		"site " + x.site + " from " + e.Source: w.is.from}
	if x.kind != simnet.Dead {
		list["provider "+x.name] = w.providerOf(x)
		list["provider "+x.name+" from "+e.Source] = sched.Limits{Recipients: rate.Rate{N: w.warmup(e.Source), Per: rate.Day}}
	}
	return list
}

// begins checks what must hold of each delivery that begins.
func (w *sending) begins(m *posted, e *sched.Effect) {
	w.busy[e.Entry] = *e
	for _, i := range e.Rcpts {
		if m.final[i] || m.under[i] {
			w.fail("%s of message %d is delivered twice", m.rcpts[i], m.id)
		}
		m.under[i] = true
	}
	if e.Transport != "smtp" {
		return
	}
	x := w.places[string(e.Nexthop)]
	for _, i := range e.Rcpts {
		// The last attempt is made when the lifetime is over.
		if w.clock < m.notBefore[i] && !m.sited && w.clock < m.came+lifetime-time.Microsecond {
			w.fail("%s of message %d was deferred, and is tried %v before its back-off is over", m.rcpts[i], m.id, m.notBefore[i]-w.clock)
		}
	}
	if m.begun == 0 {
		m.begun = w.clock
		// Nothing is the matter there: only others' mail can be in the way.
		if m.tenant == "shop" && len(m.rcpts) == 1 && x.name == "good" && w.clock-m.came > w.patience(x) {
			w.fail("message %d of the small tenant has waited for %v, and may for %v", m.id, w.clock-m.came, w.patience(x))
		}
	}
	for i := range w.pauses {
		p := &w.pauses[i]
		if !p.Until.After(w.now()) {
			continue
		}
		if p.Source == e.Source && p.Place == x.site {
			w.fail("%s is suspended at %s until %v, and delivers there", e.Source, x.site, p.Until)
		}
		if c := w.campaigns[p.ID]; c != "" && c == m.campaign+" "+x.site {
			w.fail("campaign %s is suspended until %v, and delivers", c, p.Until)
		}
	}
	for name, l := range w.limits(m, e) {
		w.counts(name, l, len(e.Rcpts))
	}
	w.lowered(x, e)
}

// patience is for how long a message of the small tenant may wait at a provider that takes everything: for a turn of each
// other tenant (twice the recipients of a delivery, and two deliveries) in each of the site's domains, at the site's rate.
func (w *sending) patience(x *place) time.Duration {
	turns := (len(tenantTerms) - 1) * (2*batch + 2) * len(x.domains)
	return time.Minute + time.Duration(turns)*w.is.site.Messages.Per/time.Duration(w.is.site.Messages.N)
}

// counts counts a delivery against a limit, which must have room for it.
func (w *sending) counts(name string, l sched.Limits, rcpts int) {
	w.under[name]++
	if l.Concurrency > 0 && w.under[name] > l.Concurrency {
		w.fail("%d deliveries are under way at %s, which allows %d", w.under[name], name, l.Concurrency)
	}
	if r := l.Messages; r.N > 0 {
		list := append(w.spent[name], w.clock)
		for w.clock-list[0] >= r.Per-time.Microsecond { // the scheduler knows no less
			list = list[1:]
		}
		if w.spent[name] = list; int64(len(list)) > r.N {
			w.fail("%d deliveries in %v at %s, which allows %d", len(list), r.Per, name, r.N)
		}
	}
	if r := l.Recipients; r.N > 0 {
		key := fmt.Sprint(name, " ", dayOf(w.now()))
		if w.days[key] += int64(rcpts); w.days[key] > r.N {
			w.fail("%d recipients today at %s, which allows %d", w.days[key], name, r.N)
		}
	}
}

// lowered checks the rate that a rule has set, once it has held for its span: what went before was at another one.
func (w *sending) lowered(x *place, e *sched.Effect) {
	key := e.Source + " " + x.site
	l, ok := w.rates[key]
	if !ok || w.clock < l.since+l.rate.Per {
		w.spent[key] = append(w.spent[key][max(len(w.spent[key])-200, 0):], w.clock)
		return
	}
	list := append(w.spent[key], w.clock)
	for w.clock-list[0] >= l.rate.Per {
		list = list[1:]
	}
	if w.spent[key] = list; int64(len(list)) > l.rate.N+1 {
		w.fail("%d deliveries in %v from %s, where a rule allows %d", len(list), l.rate.Per, key, l.rate.N)
	}
}

// A spoken is a delivery in which an agent and a host speak.
type spoken struct {
	e        sched.Effect
	m        *posted
	x        *place
	res      sched.Result
	accepted int
}

// deliver is an agent.
func (w *sending) deliver(e sched.Effect) {
	m := w.mail[e.ID]
	if e.Transport != "smtp" {
		w.after(time.Millisecond, func() { w.done(&spoken{e: e, m: m, res: sched.Result{Deferred: e.Rcpts}}) })
		return
	}
	d := &spoken{e: e, m: m, x: w.places[string(e.Nexthop)]}
	d.res.Opened = true
	if d.x.name == "strict" && e.Source == blockedFrom && w.clock >= blockFrom && w.clock < blockUntil {
		w.after(100*time.Millisecond, func() {
			w.blocked++
			w.refuse(d, e.Rcpts, simnet.Answer{Code: 554, Text: "5.7.1 " + e.Source + " is listed at bl.example"}, true)
		})
		return
	}
	a := d.x.host.Connect(w.now(), e.Source)
	switch {
	case a.Away():
		w.after(30*time.Second, func() {
			d.res.Deferred, d.res.SiteFailed, d.res.Status, d.res.Reason = e.Rcpts, true, dsn.S(4, 4, 1), "connect to "+d.x.site+": Connection timed out"
			w.done(d)
		})
	case a.OK():
		w.after(a.Took, func() { w.hear(d, 0) })
	default:
		w.after(a.Took, func() { w.refuse(d, e.Rcpts, a, true) })
	}
}

// hear has the host take the n-th recipient.
func (w *sending) hear(d *spoken, n int) {
	if n == len(d.e.Rcpts) {
		d.x.host.Leave(w.now(), d.e.Source)
		w.done(d)
		return
	}
	i := d.e.Rcpts[n]
	a := d.x.host.Hear(w.now(), d.e.Source, fmt.Sprint(d.m.id), d.m.rcpts[i])
	w.after(a.Took, func() {
		switch {
		case a.Code == 421:
			d.x.host.Leave(w.now(), d.e.Source)
			w.refuse(d, d.e.Rcpts[n:], a, false)
			return
		case !a.OK():
			d.res.Deferred = append(d.res.Deferred, i)
			d.res.Ask, d.res.After = adaptive.Read(a.Code, a.Text, false)
			d.res.Said = fmt.Sprint(a.Code, " ", a.Text)
			w.report(d, i, a)
			// The message waits for its back-off, whatever other recipients of it do.
			d.m.notBefore[i] = w.clock + 300*time.Second
			if d.x.kind == simnet.Grey {
				w.grey++
			}
		case w.rng.IntN(100) == 0: // nobody is there
			d.res.Failed = true
			d.m.failed = true
			w.off[d.m.tenant+" "+d.m.rcpts[i]] = true
			w.bounced++
		default:
			w.took(d, i)
		}
		d.accepted++
		w.hear(d, n+1)
	})
}

// took is a recipient who has the message.
func (w *sending) took(d *spoken, i int) {
	w.delivered++
	if d.x.name == "strict" {
		switch {
		case w.clock >= blockFrom && w.clock < blockUntil && d.e.Source != blockedFrom:
			w.others++
		case w.clock >= blockUntil && d.e.Source == blockedFrom:
			w.back++
		}
	}
	if w.days[fmt.Sprint("provider ", d.x.name, " from mta2 ", dayOf(w.now()))] >= w.warmup("mta2") && d.e.Source == "mta1" {
		w.spilled++
	}
	if d.x.name == "judged" && w.rng.IntN(30) == 0 {
		w.complain(d.m, d.m.rcpts[i])
	}
}

// complain has a complaint come back, some time later, to the return path that the message had, or to one that somebody
// has made up.
func (w *sending) complain(m *posted, rcpt string) {
	path := w.coder.Make(returnpath.Token{Day: returnpath.Day(w.now()), Position: int64(m.id), QueueID: fmt.Sprint("Q", m.id)}, rcpt)
	forged := w.rng.IntN(4) == 0
	if forged {
		other := w.coder
		other.Secrets = []string{"the secret of somebody else who sends"}
		path = other.Make(returnpath.Token{Day: returnpath.Day(w.now()), Position: int64(m.id), QueueID: fmt.Sprint("Q", m.id)}, rcpt)
	}
	w.after(time.Duration(1+w.rng.IntN(60))*time.Minute, func() {
		token, err := w.coder.Parse(path, w.now())
		if forged != (err != nil) {
			w.fail("a return path, forged: %v: %v", forged, err)
		}
		if forged {
			w.forged++
			return
		}
		if !token.IsFor(rcpt) || token.Position != int64(m.id) {
			w.fail("a return path of message %d to %s says %+v", m.id, rcpt, token)
		}
		w.complaints++
		w.off[m.tenant+" "+rcpt] = true
	})
}

// refuse ends a session in which the host took no part, or part of it.
func (w *sending) refuse(d *spoken, rcpts []int, a simnet.Answer, greeting bool) {
	for _, i := range rcpts {
		d.res.Deferred = append(d.res.Deferred, i)
		w.report(d, i, a)
	}
	d.res.Said = fmt.Sprint(a.Code, " ", a.Text)
	d.res.Ask, d.res.After = adaptive.Read(a.Code, a.Text, greeting)
	d.res.SiteFailed, d.res.SitePartly, d.res.Status, d.res.Reason = true, d.accepted > 0, dsn.S(4, 7, 1), "host "+d.x.site+" refused to talk to me: "+d.res.Said
	w.done(d)
}

// done reports the end of a delivery.
func (w *sending) done(d *spoken) {
	if d.x != nil {
		for name := range w.limits(d.m, &d.e) {
			w.under[name]--
		}
	}
	delete(w.busy, d.e.Entry)
	d.m.sited = d.m.sited || d.x == nil || d.res.SiteFailed
	for _, i := range d.e.Rcpts {
		d.m.under[i] = false
		if d.m.tried[i] = slices.Contains(d.res.Deferred, i); d.m.tried[i] {
			w.deferred++
			continue
		}
		d.m.final[i] = true
		d.m.left--
	}
	w.step(sched.Event{Kind: sched.EventDone, Entry: d.e.Entry, Result: d.res})
}

// report shows the rules a reply, and does what they say.
func (w *sending) report(d *spoken, i int, a simnet.Answer) {
	domain := domainOf(d.m.rcpts[i])
	sections := w.rules.Resolve(&shaping.Query{Domain: domain, Hosts: []string{d.x.site}, Source: d.e.Source}).Sections
	r := &shaping.Report{At: w.now(), Unit: d.x.site, Source: d.e.Source, Domain: domain, Tenant: d.m.tenant, Campaign: d.m.campaign, Sections: sections, Text: fmt.Sprint(a.Code, " ", a.Text)}
	for _, act := range w.watch.See(r, nil) {
		for k := range act.Rule.Actions {
			w.act(&act, &act.Rule.Actions[k])
		}
	}
}

// act carries out what a rule says, if it does not hold already.
func (w *sending) act(act *shaping.Act, a *shaping.Action) {
	r := act.Report
	p := sched.Pause{Until: act.Until.Truncate(time.Second), Status: dsn.S(4, 3, 2), Reason: "suspended by a rule"}
	holds := func(same func(*sched.Pause) bool) bool {
		return slices.ContainsFunc(w.pauses, func(p sched.Pause) bool { return p.Until.After(w.now()) && same(&p) })
	}
	switch a.Kind {
	case shaping.Suspend:
		if holds(func(o *sched.Pause) bool { return o.Source == r.Source && o.Place == r.Unit }) {
			return
		}
		p.Source, p.Place = r.Source, r.Unit
		w.suspended++
	case shaping.SuspendCampaign:
		name := r.Campaign + " " + r.Unit
		if r.Campaign == "" || holds(func(o *sched.Pause) bool { return w.campaigns[o.ID] == name }) {
			return
		}
		w.campaigns[w.lastPause+1] = name
		w.stopped++
	case shaping.SetConfig:
		if _, ok := w.rates[r.Source+" "+r.Unit]; !ok {
			w.rates[r.Source+" "+r.Unit] = lowered{a.Value.Rate, w.clock, act.Until.Sub(epoch)}
			w.set++
			w.renew()
		}
		return
	default:
		w.fail("a rule has done %s", a)
	}
	w.lastPause++
	p.ID = w.lastPause
	w.pauses = append(slices.DeleteFunc(w.pauses, func(p sched.Pause) bool { return !p.Until.After(w.now()) }), p)
	w.step(sched.Event{Kind: sched.EventPauses, Pauses: slices.Clone(w.pauses)})
	// As the queue manager does, mail that waits in the active queue is looked at.
	w.parkWaiting()
}

// parkWaiting parks what waits in the active queue and is suspended.
func (w *sending) parkWaiting() {
	for id := sched.MsgID(1); id <= w.next; id++ {
		m := w.mail[id]
		if m == nil || m.campaign == "" {
			continue
		}
		var list []sched.Rcpt
		w.s.Waiting(id, func(r sched.Rcpt) {
			if r.Pause = w.pauseFor(m, string(r.Nexthop)); r.Pause != 0 && r.Transport == "smtp" {
				list = append(list, r)
			}
		})
		if len(list) > 0 {
			w.step(sched.Event{Kind: sched.EventPause, ID: id, Rcpts: list})
		}
	}
}

// ended checks what must be true in the end.
func (w *sending) ended() {
	if st := w.s.Stats(); st.Active+st.Incoming+st.Deferred+st.Hold+st.Rcpts+st.Busy != 0 || len(w.busy) > 0 {
		w.fail("nothing is left, and the counts say %+v", st)
	}
	for name, n := range w.under {
		if n != 0 {
			w.fail("%d deliveries are under way at %s", n, name)
		}
	}
	if err := w.s.Check(); err != nil {
		w.fail("%v", err)
	}
	if w.others == 0 || w.back == 0 {
		w.fail("while %s was blocked others delivered %d, and it %d when it was not any more", blockedFrom, w.others, w.back)
	}
	// By the rule one look in two hours. More may be under way at that moment.
	if most := int(blockUntil-blockFrom)/int(suspendFor) + 1; w.blocked > most*w.is.from.Concurrency {
		w.fail("%s is blocked, and was refused %d times", blockedFrom, w.blocked)
	}
}
