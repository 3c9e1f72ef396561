// What tables say of tenants: their limits (tenant_limit_maps), their weights (tenant_weight_maps) and
// how long their mail is tried (tenant_queue_lifetime_maps). A tenant is looked up when mail of it is
// loaded, and not again for a minute; the scheduler is told before it learns of the recipients. So no
// delivery begins before it is known what holds, and no table is asked in the loop.
//
// While a table cannot be asked, what was known of the tenant holds. If nothing is known, its mail is
// deferred: to let it go could break a promise to a provider, and nobody else's mail waits for that. Of a table that does
// not even say that it cannot be asked, one load at a time finds out whether it answers again: loads that wait
// have places that all mail needs.

package qmgr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/selection"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
)

const (
	// tenantTime is how long what was looked up of a tenant holds without another look.
	tenantTime = time.Minute
	// tenantPatience is how long the tables may take, in all. Who waits keeps one of the few places of loads.
	tenantPatience = 10 * time.Second
	// maxAsking is how many loads wait for the tables at a time: a part of the places that all loads have, so that
	// tables that begin to hang do not keep all mail from being read until that is known.
	maxAsking = 32
	// slowAnswer is from when on an answer that is an error has kept loads waiting.
	slowAnswer = time.Second
	// maxTenancies bounds the tenants of which it is remembered; then all are forgotten, and asked for again.
	maxTenancies = 10000
)

// tenancies are the tables of tenants, and what they have said. nil: there are none. They may be used by any
// goroutine.
//
// Tables are asked outside the lock, side by side: one slow answer must not keep the loads of other tenants' mail.
// Two loads of one tenant may then ask the same; what comes last is what is known.
type tenancies struct {
	limits, weights, lifetimes *table.Maps
	places                     *table.Maps // limits at places (quotas.go)
	warn                       func(string, ...any)

	asking chan struct{} // has one for each that is being asked; nil: any number may be

	// mu guards what follows, and is held for a moment only.
	mu     sync.Mutex
	known  map[string]tenancy
	quotas map[spot]quota
	said   map[string]bool // values that were complained of, maxTenancies at most
	// The last answer was an error that took long; and somebody is trying whether that is still so.
	mute, trying bool
}

// errMute is why the tables are not asked.
var errMute = errors.New("the tables of tenants do not answer, and are being tried")

// mayAsk says whether the tables may be asked now. Who may calls asked afterwards, with trial.
func (t *tenancies) mayAsk() (trial, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Everybody, or one at a time.
	if t.mute && t.trying {
		return false, false
	}
	t.trying = t.mute
	return t.mute, true
}

// asked takes note of how the tables have answered. The caller holds mu.
func (t *tenancies) asked(trial bool, took time.Duration, err error) {
	t.mute = err != nil && took >= slowAnswer
	// Others who have asked before they were known to be mute may still wait.
	if trial {
		t.trying = false
	}
}

// A tenancy is what holds for one tenant, and when that was looked up.
//
// One that was looked up too long ago is kept, for the time when a table cannot be asked.
type tenancy struct {
	terms sched.TenantTerms
	at    time.Time
}

// openTenancies opens the tables; nil: there are none.
//
// It is called before the process gives up what it may: files of tables are opened as root can. An error in a
// table is told with each look-up, as for all tables, and does not keep the queue manager from its work.
func openTenancies(cfg *config.Config, o table.Options, warn func(string, ...any)) *tenancies {
	maps := func(name string) *table.Maps { return table.OpenMaps(name, cfg.List(name), o) }
	t := &tenancies{limits: maps("tenant_limit_maps"), places: maps("tenant_destination_limit_maps"), weights: maps("tenant_weight_maps"), lifetimes: maps("tenant_queue_lifetime_maps"),
		warn: warn, asking: make(chan struct{}, maxAsking), known: make(map[string]tenancy), said: make(map[string]bool)}
	if t.limits.Empty() && t.places.Empty() && t.weights.Empty() && t.lifetimes.Empty() {
		return nil
	}
	return t
}

// counts says whether what tenants send is counted. Weights and lifetimes alone leave nothing behind that a restart
// could lose.
func (t *tenancies) counts() bool { return t != nil && !(t.limits.Empty() && t.places.Empty()) }

// recall is what is known of a tenant, if that is of now.
func (t *tenancies) recall(name string, now time.Time) (sched.TenantTerms, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.known[name]
	return k.terms, ok && now.Sub(k.at) < tenantTime && !now.Before(k.at)
}

// latest is what was said of a tenant last, however long ago.
func (t *tenancies) latest(name string) (sched.TenantTerms, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k, ok := t.known[name]
	return k.terms, ok
}

// ask is what holds for a tenant, from the tables if it is not known as of now. It may wait for them.
func (t *tenancies) ask(ctx context.Context, name string) (sched.TenantTerms, error) {
	// The age of an answer counts from before the question: the table may change meanwhile.
	now := time.Now()
	if terms, ok := t.recall(name, now); ok {
		return terms, nil
	}
	terms := sched.TenantTerms{}
	err := t.consult(ctx, func(ctx context.Context) (err error) {
		terms, err = t.look(ctx, name)
		return err
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		// However old it is. It was right once, and nobody has said anything else.
		if k, ok := t.known[name]; ok {
			return k.terms, nil
		}
		return terms, err
	}
	if len(t.known) >= maxTenancies {
		clear(t.known)
	}
	t.known[name] = tenancy{terms, now}
	return terms, nil
}

// consult asks the tables, if they may be asked now, and takes note of how they have answered.
func (t *tenancies) consult(ctx context.Context, look func(context.Context) error) error {
	began := time.Now()
	trial, may := t.mayAsk()
	// Who tries whether the tables answer again must not wait for those who found out that they do not. Of who has not
	// asked nothing is learnt.
	if !may || !trial && !t.place(ctx) {
		return errMute
	}
	err := look(ctx)
	if !trial && t.asking != nil {
		<-t.asking
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked(trial, time.Since(began), err)
	return err
}

// place waits until one of the places of those who ask is free, and takes it. It does not wait for longer than an answer
// should take: all places are taken then, and whoever has them finds out soon whether the tables hang.
func (t *tenancies) place(ctx context.Context) bool {
	if t.asking == nil {
		return true
	}
	// Mostly there is one.
	select {
	case t.asking <- struct{}{}:
		return true
	default:
	}
	late := time.NewTimer(slowAnswer)
	defer late.Stop()
	select {
	case t.asking <- struct{}{}:
		return true
	case <-late.C:
		// Those who come now need not find that out once more.
		t.mu.Lock()
		t.mute = true
		t.mu.Unlock()
	case <-ctx.Done():
	}
	return false
}

// look asks all tables. What they say of "*" holds for tenants that they do not have.
func (t *tenancies) look(ctx context.Context, name string) (terms sched.TenantTerms, err error) {
	for _, m := range [...]struct {
		maps *table.Maps
		read func(*sched.TenantTerms, string) error
	}{{t.limits, readTenantLimits}, {t.weights, readTenantWeight}, {t.lifetimes, readTenantLifetime}} {
		value, found, err := m.maps.Lookup(ctx, name, false)
		if !found && err == nil {
			value, found, err = m.maps.Lookup(ctx, "*", true)
		}
		if err != nil {
			return terms, err
		}
		if !found {
			continue
		}
		// What is understood of it holds.
		if err := m.read(&terms, value); err != nil {
			t.complain(fmt.Sprintf("%s: %s: %v: %.200q", m.maps.Title(), name, err, value))
		}
	}
	return terms, nil
}

// complain warns of something once. Tables are read again and again.
func (t *tenancies) complain(text string) {
	t.mu.Lock()
	again := t.said[text] || len(t.said) >= maxTenancies
	if !again {
		t.said[text] = true
	}
	t.mu.Unlock()
	if !again {
		t.warn("%s", text)
	}
}

// readTenantLimits reads a value of tenant_limit_maps. With one that is not understood there is one delivery at a
// time, as in destination_limit_maps: whoever wrote it wanted less than comes without.
func readTenantLimits(terms *sched.TenantTerms, text string) error {
	l, err := rate.ParseLimits(text)
	if err == nil && (l.Reuse > 0 || l.Connections != rate.Rate{}) {
		err = fmt.Errorf("connections and messages_per_connection are for destination_limit_maps")
	}
	terms.Limits = sched.Limits{Concurrency: l.Concurrency, Messages: l.Messages, Recipients: l.Recipients}
	if err != nil {
		terms.Limits.Concurrency = 1
		return fmt.Errorf("%w; what is understood holds, and one delivery at a time", err)
	}
	return nil
}

// readTenantWeight reads a value of tenant_weight_maps.
func readTenantWeight(terms *sched.TenantTerms, text string) error {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 || n > sched.MaxWeight {
		return fmt.Errorf("a weight is a number from 1 to %d", sched.MaxWeight)
	}
	terms.Weight = n
	return nil
}

// readTenantLifetime reads a value of tenant_queue_lifetime_maps: a time, and another one for mail with the null sender
// behind "bounce=".
func readTenantLifetime(terms *sched.TenantTerms, text string) error {
	for item := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		value, bounce := strings.CutPrefix(item, "bounce=")
		d, err := selection.ParseTime(value)
		switch {
		case err != nil:
			return err
		case bounce:
			terms.BounceLifetime = d
		default:
			terms.Lifetime = d
		}
	}
	return nil
}

// knowTenant finds out what holds for the tenant of a message that is being loaded. It returns false when that has to be
// waited for, and l must not wait.
func (s *Server) knowTenant(l *loading) bool {
	t := s.opt.Settings.tenants
	if t == nil || l.env.Tenant == "" || l.tenantKnown {
		return true
	}
	// In the loop nothing is waited for; a task goes on from here.
	if !l.asks {
		l.tenant, l.tenantKnown = t.recall(l.env.Tenant, time.Now())
		return l.tenantKnown
	}
	ctx, cancel := context.WithTimeout(s.ctx, min(tenantPatience, s.opt.ResolveTime))
	defer cancel()
	if l.tenant, l.tenantErr = t.ask(ctx, l.env.Tenant); l.tenantErr != nil && s.ctx.Err() == nil {
		s.opt.Log.Warning("%s: tenant %s: %v", l.id, l.env.Tenant, l.tenantErr)
	}
	l.tenantKnown = true
	return true
}

// askTenants has tenants looked up whose mail waits for their limits, once a minute: no mail of theirs may come that
// would bring the news that the table has changed.
func (s *Server) askTenants() {
	t := s.opt.Settings.tenants
	if t == nil || s.now.Before(s.tenantsAgain) {
		return
	}
	// At the start all mail that comes up brings the news itself.
	first := s.tenantsAgain.IsZero()
	s.tenantsAgain = s.now.Add(tenantTime)
	if first {
		return
	}
	s.askQuotas()
	var names []string
	s.sched.Tenants(func(x sched.Tenant) bool {
		if x.Name != "" && x.Active > 0 {
			names = append(names, x.Name)
		}
		return len(names) < termsAtOnce
	})
	if len(names) == 0 {
		return
	}
	// One after another: it is a hundred look-ups at most, and nobody waits for them.
	s.tasks.Go(func() {
		for _, name := range names {
			ctx, cancel := context.WithTimeout(s.ctx, min(tenantPatience, s.opt.ResolveTime))
			terms, err := t.ask(ctx, name)
			cancel()
			if err != nil {
				return // what holds goes on to hold
			}
			s.post(nil, sched.Event{Kind: sched.EventTenant, Tenant: name, TenantTerms: terms})
		}
	})
}

// tenantPrefix begins the name of a tenant where a destination could stand.
const tenantPrefix = "tenant="

// explainTenant answers "posthaste explain tenant=NAME".
func (s *Server) explainTenant(r *ipc.Request, name string) {
	if !mail.GroupName(name) {
		r.Reply(&proto.ExplainReply{Lines: []string{fmt.Sprintf("%.100q is not the name of a tenant", name)}})
		return
	}
	s.ask(r, func() {
		// Of a tenant without mail in memory, rules may still say something. The scheduler has forgotten the
		// limit with the mail, but for what was counted.
		lines := []string{"tenant " + name + ": no mail in memory"}
		s.sched.Tenants(func(x sched.Tenant) bool {
			if x.Name == name {
				lines = tenantLines(&x)
			}
			return x.Name != name
		})
		lines = append(lines, s.quotaLines(name)...)
		for _, rule := range s.rules.set.all() {
			if rule.target.OfTenant(name) && !rule.over(s.now) {
				lines = append(lines, "  "+rule.text())
			}
		}
		for _, rule := range s.rules.returns.Load().all() {
			if rule.target.OfTenant(name) && !rule.over(s.now) {
				lines = append(lines, "  "+rule.returnText())
			}
		}
		r.Reply(&proto.ExplainReply{Lines: lines})
	})
}

// tenantLines is what the scheduler has of a tenant, in words. Of mail that is not in memory it knows nothing: in a deep
// queue that is most of what is deferred ("posthaste queue list --tenant" counts all).
func tenantLines(x *sched.Tenant) []string {
	lines := []string{fmt.Sprintf("tenant %s: %d message(s) in memory, %d of them in the active queue; %d deliveries under way; weight %d", x.Name, x.Messages, x.Active, x.Busy, x.Weight)}
	if x.Limit.Name != "" {
		text := limitText(&x.Limit)
		if x.Sated {
			text += "; more of its mail waits outside the active queue"
		}
		lines = append(lines, "  limit of tenant "+x.Name+": "+text)
	}
	if t := x.Terms; t.Lifetime > 0 || t.BounceLifetime > 0 {
		lines = append(lines, fmt.Sprintf("  mail is returned after %v, and notices of failure are given up after %v", x.Lifetime, x.BounceLifetime))
	}
	return lines
}

// byMail sorts tenants: those with most mail first.
func byMail(a, b sched.Tenant) int {
	return cmp.Or(cmp.Compare(b.Messages+b.Busy, a.Messages+a.Busy), cmp.Compare(a.Name, b.Name))
}
