// Automation: what the rules of shaping_files do when servers answer this or that (package shaping). What agents
// report is looked at beside the loop, and an act is an override like an operator's: on disk, in the log, with an end,
// and taken back by "posthaste resume" or "posthaste shaping lift". Where there are no rules, nothing of this costs anything.
//
// The way of a reply: the agent reports what came of a delivery (note in replies.go). The delivery has the advice of
// its destination, which names the sections of the files that hold there, and the site or domain that counts
// (unit). One goroutine matches the reply with the rules of these sections, and counts. What a rule decides comes
// back to the loop, which asks whether it may be done, has it written to the store beside the loop, and then puts it in force
// with all other overrides (setRules).
//
// A suspension is one like an operator's: of the site, or, where mail goes from pools, of the source at the
// site, so that the mail goes from other sources. A setting is laid on what the resolver says of a destination, before
// terms are made of it (terms.go, egress.go). The terms of what waits are made anew when settings change: the resolver is
// asked again, as it is each minute for what waits for a limit. So nothing has to be undone when a
// setting ends: the terms are those of the files again.
//
// What is bounded: the replies that wait, the counters (package shaping), what rules have done, the destinations that are
// asked about at a time, and the writing to the disk for an act that is made longer.
//
// An action for a tenant or a campaign suspends its mail for the site, from whatever source. Mail without a tenant has none,
// and nothing is done; for mail without a campaign it is the tenant's.
//
// A rule that returns mail (Bounce, BounceTenant, BounceCampaign) makes an override of its own kind, for the domain of the
// recipient: see returns.go.
//
// An operator is stronger. What an operator has ordered for a target is not changed. What a rule did and an operator
// has taken back is not done again at that target before it would have ended by itself, whatever the server answers (a
// waiver, which outlives a restart), unless the waiver is taken back as well. A rule that is not in the files any more, or shaping_automation = no, lifts
// what was done, at the reload.

package qmgr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"posthaste/internal/bounceclass"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/internal/shaping"
	"posthaste/qmgr/sched"
)

const (
	// automatic is who has decided what a rule does, in logs and listings.
	automatic = "automation"
	// maxReports bounds the replies that wait to be looked at. What is more is not seen: so many come at once only
	// where the same is said again and again.
	maxReports = 4096
	// maxActs bounds what rules have done at one time. An operator's orders need room, too.
	maxActs = 2000
	// renewedAtOnce is how many destinations are asked about at a time when a setting changes.
	renewedAtOnce = 100
	// clockStep is by how much a clock may be put right without what rules have done being forgotten.
	clockStep = time.Minute
	// An act in force is made longer when that adds at least a part of its time: each reply would write to the disk.
	lengthenPart = 10
)

// automation is what belongs to the rules. Its fields belong to the loop, but for settings.
type automation struct {
	rules   *shaping.Rules
	known   map[string]bool      // the IDs of rules in force
	reports chan *shaping.Report // to the one who looks; nil: nobody does
	lost    bool                 // replies were not seen, and the log has it
	read    map[string]*shaping.Advice
	// Acts on their way to the disk, by kind, target and name, with their ends.
	under map[string]time.Time
	full  bool // that there are maxActs is in the log
	// Acts that wait until the store is ours: the former queue manager still has it. owner says that it has become ours.
	later []ordered
	owner bool
	// The settings in force; nil: none is. Read by whoever makes terms.
	settings atomic.Pointer[settingSet]
}

// A settingSet are settings by the target's text. It is not changed, so that it may be read while another takes its
// place. nil is the empty set.
type settingSet struct {
	byTarget map[string][]*rule
	list     []*rule
	text     string // tells sets apart
}

// startAutomation begins to look at replies, if there are rules. It is called once, before the loop.
func (s *Server) startAutomation() {
	// The rules are those that Load has read: a reload starts another queue manager, which reads the files anew.
	a := &s.auto
	a.rules, a.under = s.opt.Settings.shaping, make(map[string]time.Time)
	a.known = make(map[string]bool)
	if a.rules == nil || !s.opt.Settings.automation {
		return
	}
	// With automation off no rule is known, and what was done is lifted.
	rules := a.rules.Automation()
	for _, r := range rules {
		a.known[r.ID] = true
	}
	// Without a store an act would be forgotten by a restart, and could not be taken back.
	if len(rules) == 0 || s.opt.Overrides == nil {
		return
	}
	a.reports = make(chan *shaping.Report, maxReports)
	s.tasks.Go(s.lookOut)
}

// lookOut looks at replies until the end. It is the only one that has the counters.
func (s *Server) lookOut() {
	w := shaping.Watcher{Rules: s.auto.rules, Late: func(r *shaping.Rule) {
		s.opt.Log.Warning("shaping_files: %s: an expression takes too long for some replies, and does not match them", r.At)
	}}
	// A successor at a reload begins with empty counters; what was done is on disk.
	for {
		select {
		case r := <-s.auto.reports:
			// What an operator has said is known to the loop, which decides.
			if acts := w.See(r, nil); len(acts) > 0 {
				s.post(func() { s.act(acts) }, sched.Event{})
			}
		case <-s.ctx.Done():
			return
		}
	}
}

// watchReplies passes what came of a delivery on to those rules that hold where it went.
func (s *Server) watchReplies(d *delivery, reply *proto.DeliverReply) {
	if s.auto.reports == nil || d.advice == "" {
		return
	}
	advice := s.auto.advised(d.advice)
	if len(advice.Sections) == 0 {
		return
	}
	var tenant, campaign string
	if m := s.messages[d.num]; m != nil && m.active != nil {
		tenant, campaign = m.active.env.Tenant, m.active.env.Campaign
	}
	// Limits and settings go by names of hosts and domains, which next hops in brackets, and with ports, have, too.
	domain, _ := d.nexthop.Host()
	// Each recipient counts, whether or not one reply was for all: so it is with KumoMTA.
	for i := range reply.Outcomes {
		text, internal := replyText(&reply.Outcomes[i])
		r := &shaping.Report{At: s.now, Unit: advice.Unit, Source: d.source, Domain: domain, Tenant: tenant, Campaign: campaign, Sections: advice.Sections, Text: text, Internal: internal}
		// The loop waits for nobody.
		select {
		case s.auto.reports <- r:
		default:
			if !s.auto.lost {
				s.auto.lost = true
				s.opt.Log.Warning("shaping_files: more replies come than the rules can look at: some are not seen")
			}
			return
		}
	}
}

// maxAdvised bounds the advices that are remembered: there is one for each destination from each source.
const maxAdvised = 2000

// advised reads an advice. The same text comes with all deliveries to a destination, and takes longer to read than the
// rest of what is done for a delivery here: it is read once.
func (a *automation) advised(text string) *shaping.Advice {
	x := a.read[text]
	if x == nil {
		if a.read == nil || len(a.read) >= maxAdvised {
			a.read = make(map[string]*shaping.Advice)
		}
		advice := shaping.ParseAdvice(text)
		x = &advice
		a.read[text] = x
	}
	return x
}

// replyText is what rules see of an outcome: the form that KumoMTA gives replies, for which the rules of the
// field are written, and which bounce_class_files have, too. internal says that no server has said it.
func replyText(o *mail.Outcome) (text string, internal bool) {
	if o.DiagType == "smtp" && o.DiagText != "" {
		return bounceclass.Text(o.DiagText), false
	}
	// A rule may be about what a server says when it accepts.
	if o.Action != dsn.Deferred && o.Action != dsn.Failed {
		return bounceclass.Text(o.Reason), false
	}
	return bounceclass.Local(o.Action == dsn.Failed, o.Status.String(), o.Reason), true
}

// act carries out what rules have decided, as far as it may. It runs in the loop.
func (s *Server) act(acts []shaping.Act) {
	entries := s.opt.Overrides.Entries(s.now)
	var list []ordered
	defer func() { s.enforce(list) }()
	for i := range acts {
		for k := range acts[i].Rule.Actions {
			a := &acts[i].Rule.Actions[k]
			// The other actions of the rule are carried out even so.
			if a.NoEffect() != "" || a.ForGroup() && acts[i].Report.Tenant == "" {
				continue // the start has said so, or it is nobody's
			}
			e, err := entryOf(&acts[i], a, s.now)
			if err != nil {
				s.opt.Log.Warning("shaping_files: %s: %v", acts[i].Rule.At, err)
				continue
			}
			if lasts := acts[i].Rule.Duration; s.mayAct(entries, &e, lasts) {
				s.auto.under[actKey(&e)] = e.Until
				list = append(list, ordered{e, enough(lasts)})
			}
		}
	}
}

// entryOf is an act as an override.
func entryOf(act *shaping.Act, a *shaping.Action, now time.Time) (override.Entry, error) {
	// Without pools there is no source, and the site is meant.
	r := act.Report
	target, err := selection.SiteTarget(r.Source, r.Unit)
	switch a.Kind {
	case shaping.SetDomainConfig:
		target, err = oneDomain(r.Domain)
	case shaping.SuspendTenant:
		target, err = selection.GroupTarget(r.Tenant, "", r.Unit)
	case shaping.SuspendCampaign:
		target, err = selection.GroupTarget(r.Tenant, r.Campaign, r.Unit)
	// Mail is returned to senders for the domain alone, as with KumoMTA.
	case shaping.Bounce:
		target, err = oneDomain(r.Domain)
	case shaping.BounceTenant:
		target, err = selection.GroupTarget(r.Tenant, "", r.Domain)
	case shaping.BounceCampaign:
		target, err = selection.GroupTarget(r.Tenant, r.Campaign, r.Domain)
	}
	// The reply is a stranger's. What is logged of it is clean and has an end.
	text := string(maillog.AppendClean(nil, []byte(r.Text[:min(len(r.Text), 300)])))
	e := override.Entry{Kind: override.Suspension, By: automatic, Rule: act.Rule.ID, Since: now.Truncate(time.Second), Until: act.Until.Truncate(time.Second),
		Reason: fmt.Sprintf("%s: %s", act.Rule.At, strings.ToValidUTF8(text, "?"))}
	if act.Rule.Trigger.Per > 0 {
		e.Reason = fmt.Sprintf("%s: %d replies within %s, the last: %s", act.Rule.At, act.Count, act.Rule.Trigger, strings.ToValidUTF8(text, "?"))
	}
	// The store refuses what is longer, and what is not UTF-8.
	if e.Reason = e.Reason[:min(len(e.Reason), override.MaxReason)]; err != nil {
		return e, err
	}
	e.Reason = strings.ToValidUTF8(e.Reason, "")
	if a.Returns() {
		e.Kind = override.Return
	}
	// Two settings of one target are told apart by their keys.
	if e.Target = target.String(); a.Kind == shaping.SetConfig || a.Kind == shaping.SetDomainConfig {
		e.Kind, e.Name, e.Value = override.Setting, a.Name, a.Value.Text
	}
	if !e.Until.After(now) {
		return e, errors.New("its time is over before it has begun")
	}
	return e, nil
}

// oneDomain is the target that means a domain. What an operator writes for many is none here: whoever gives a message to
// somebody@.com chooses the name, and all mail to .com would be returned for what is said of that one.
func oneDomain(name string) (selection.Target, error) {
	if name == "" || name == "*" || name[0] == '.' {
		return selection.Target{}, fmt.Errorf("%q is not the name of one domain: nothing is done", name)
	}
	return selection.NewTarget("domain", name)
}

// An ordered is an act on its way to the disk, and by how much it must make one longer that holds.
type ordered struct {
	override.Entry
	enough time.Duration
}

// may says whether the act may be done, with the entries that hold.
func (o *ordered) may(entries []override.Entry) bool {
	acts, may := permits(entries, &o.Entry, o.enough)
	return may && acts < maxActs
}

// enough is that of a rule whose acts last so long.
func enough(lasts time.Duration) time.Duration { return max(lasts/lengthenPart, time.Second) }

// actKey names what an act is about: a second one of the same name takes the place of the first.
func actKey(e *override.Entry) string { return string(e.Kind) + " " + e.Target + " " + e.Name }

// mayAct says whether an act is to be carried out: it is new, or makes one longer by enough, and no operator has said
// otherwise.
func (s *Server) mayAct(entries []override.Entry, e *override.Entry, lasts time.Duration) bool {
	// While it is on its way to the disk the store does not have it.
	if until, ok := s.auto.under[actKey(e)]; ok && e.Until.Sub(until) < enough(lasts) {
		return false
	}
	acts, may := permits(entries, e, enough(lasts))
	if may && acts >= maxActs && !s.auto.full {
		s.auto.full = true
		s.opt.Log.Warning("shaping_files: rules have done %d things that hold now: nothing more is done before some of it ends", acts)
	}
	return may && acts < maxActs
}

// permits says whether the entries that hold let an act be, and how many of them are of rules.
func permits(entries []override.Entry, e *override.Entry, enough time.Duration) (acts int, may bool) {
	// There are few entries, and acts are rare: replies that make none do not come here.
	may = true
	for i := range entries {
		o := &entries[i]
		if o.Rule != "" {
			acts++
		}
		switch {
		case o.Target != e.Target:
		case o.Kind == override.Waiver && o.Name == string(e.Kind):
			may = false
		case o.Kind != e.Kind || o.Name != e.Name:
		// An operator's own order stands. A rule that does something shorter does not undo what another does, and
		// of two values the first stays for its time.
		case o.Rule == "" || e.Until.Sub(o.Until) < enough || o.Value != e.Value && o.Rule != e.Rule:
			may = false
		}
	}
	return acts, may
}

// enforce writes acts to the disk, beside the loop and in their order, and then puts them in force.
func (s *Server) enforce(list []ordered) {
	if len(list) == 0 {
		return
	}
	store := s.opt.Overrides
	s.tasks.Go(func() {
		errs, put := make([]error, len(list)), make([]bool, len(list))
		for i := range list {
			o := &list[i]
			// An operator may have said something about it since the loop has looked.
			put[i], errs[i] = store.PutIf(o.Entry, o.Since, o.may)
		}
		// The log line is for whoever wonders why mail waits, or is slow: it has the reply.
		s.post(func() {
			for i := range list {
				e := &list[i].Entry
				// At a reload the predecessor still has the store. It is done when that is ours (takeActs).
				if errors.Is(errs[i], override.ErrNotOwner) && (store.Owner() || !s.auto.owner) && len(s.auto.later) < maxActs {
					s.auto.later = append(s.auto.later, list[i])
					continue
				}
				if key := actKey(e); s.auto.under[key].Equal(e.Until) {
					delete(s.auto.under, key)
				}
				if errs[i] == nil && !put[i] {
					continue
				}
				if errs[i] != nil {
					s.opt.Log.Warning("shaping_files: automation: %v", errs[i])
					continue
				}
				s.opt.Log.Log(actEvent(e))
			}
			s.setRules(store.Entries(s.now))
			if store.Owner() { // it has become ours since
				s.takeActs()
			}
		}, sched.Event{})
	})
}

// takeActs does what could not be done before the store was ours. It runs in the loop.
func (s *Server) takeActs() {
	s.auto.owner = true
	// The former queue manager may have taken long to end. What is over by now is not done: the log would say
	// that mail waits, and it does not.
	list := slices.DeleteFunc(s.auto.later, func(o ordered) bool {
		if !o.Over(s.now) {
			return false
		}
		delete(s.auto.under, actKey(&o.Entry))
		return true
	})
	s.auto.later = nil
	// They are asked about once more: the former queue manager may have done the same, and operators may have said
	// something to it.
	s.enforce(list)
}

// actEvent is the line of the log about an act.
func actEvent(e *override.Entry) maillog.Event {
	target, _ := selection.ParseTarget(e.Target)
	return overrideEvent(proto.OverridePut, e, target)
}

// liftActs takes back what rules have done that are not in force any more. It is called when the store is ours.
func (s *Server) liftActs() {
	store := s.opt.Overrides
	now := time.Now()
	// One that began later than now is from before the clock was set back: nobody knows how long it would hold. That is so of
	// what rules must not do, too. A clock that is put right by a moment is none that was set back.
	gone, err := store.Drop(func(e *override.Entry) bool {
		ahead := e.Since.After(now.Add(clockStep))
		return e.Rule != "" && (!s.auto.known[e.Rule] || ahead) || e.Kind == override.Waiver && ahead
	}, now)
	if err != nil {
		s.opt.Log.Warning("shaping_files: what rules have done that are gone cannot be taken back: %v", err)
		return
	}
	// What waited is made due when the rules are set, which follows.
	for i := range gone {
		if gone[i].Kind == override.Waiver {
			continue
		}
		target, _ := selection.ParseTarget(gone[i].Target)
		e := gone[i]
		e.By = "automation: it holds no more"
		s.opt.Log.Log(overrideEvent(proto.OverrideRemove, &e, target))
	}
}

// forgetActs takes what rules have done and what is over off the disk, beside the loop: should the clock be set back, it
// must not hold again. The list of an operator's orders is short, and theirs are left until the next change.
func (s *Server) forgetActs() {
	now, store := s.now, s.opt.Overrides
	s.tasks.Go(func() {
		_, err := store.Drop(func(e *override.Entry) bool { return e.Rule != "" && e.Over(now) }, now)
		if err != nil && !errors.Is(err, override.ErrNotOwner) {
			s.opt.Log.Warning("shaping_files: what is over stays on the disk: %v", err)
		}
	})
}

// setSettings puts other settings in force, and has the terms of what waits made anew.
func (s *Server) setSettings(list []*rule) {
	old := s.auto.settings.Load()
	if len(list) == 0 && old == nil {
		return
	}
	// The order is that of the store, by target and name, so that the same settings are the same text.
	var set *settingSet
	if len(list) > 0 {
		set = &settingSet{byTarget: make(map[string][]*rule), list: list}
		var text strings.Builder
		for _, r := range list {
			t := r.target.String()
			set.byTarget[t] = append(set.byTarget[t], r)
			fmt.Fprintf(&text, "%q %q %q\n", t, r.order.Name, r.order.Value)
		}
		set.text = text.String()
	}
	// To make all terms anew is work for each destination.
	if set.sameAs(old) {
		s.auto.settings.Store(set) // an end has moved
		return
	}
	s.auto.settings.Store(set)
	// Mail that comes has it from now on.
	s.terms.setSettings(set)
	// Mail that waits is asked about: its answer is the same, and its terms are not.
	waiting := make(map[*sched.Terms]bool)
	s.sched.Dests(func(d sched.Dest) bool {
		if d.Terms != nil && (old.concerns(d.Terms) || set.concerns(d.Terms)) {
			waiting[d.Terms] = true
		}
		return true
	})
	// Those of which nothing is known any more are asked about when they are tried.
	var asked []renewal
	s.terms.mu.Lock()
	for t := range waiting {
		if q, ok := s.terms.from[t]; ok {
			asked = append(asked, renewal{t, q})
		}
	}
	s.terms.mu.Unlock()
	if len(asked) > 0 {
		s.tasks.Go(func() { s.renewAll(set, asked) })
	}
}

// A renewal is a destination that is to be asked about.
type renewal struct {
	terms *sched.Terms
	asked asked
}

// renewAll asks about many destinations, some at a time: there may be one for each domain that mail waits for. It ends when
// the settings have changed again, since all are asked about then.
func (s *Server) renewAll(set *settingSet, list []renewal) {
	var wg sync.WaitGroup
	turn := make(chan struct{}, renewedAtOnce)
	for _, r := range list {
		turn <- struct{}{}
		// A round that has been overtaken would only ask the same things.
		if s.ctx.Err() != nil || !s.auto.settings.Load().sameAs(set) {
			break
		}
		wg.Go(func() {
			defer func() { <-turn }()
			s.renew(r.terms, r.asked)
		})
	}
	wg.Wait()
}

// sameAs says whether another set says the same, so that terms made by either are those of both: the ends may differ. Each
// order of an operator, and each act that is made longer, makes a new set. Either may be nil.
func (set *settingSet) sameAs(o *settingSet) bool {
	return set == o || set != nil && o != nil && set.text == o.text
}

// concerns says whether a setting may be for a destination with these terms.
func (set *settingSet) concerns(t *sched.Terms) bool {
	if set == nil {
		return false
	}
	// A domain's may be for any destination: it is not known here which are its.
	for _, r := range set.list {
		if site := r.target.Site(); site == "" || site == t.Place && r.target.Source() == t.Source {
			return true
		}
	}
	return false
}

// of are the settings for a destination, those of its domain last.
func (set *settingSet) of(unit, source, domain string) []*rule {
	if set == nil {
		return nil
	}
	// A site whose name no target can have was never acted upon.
	target, err := selection.SiteTarget(source, unit)
	if err != nil {
		return nil
	}
	list := set.byTarget[target.String()]
	if d, err := selection.NewTarget("domain", domain); err == nil {
		list = append(list[:len(list):len(list)], set.byTarget[d.String()]...)
	}
	return list
}

// ofDomain says whether there are settings for a domain, whatever its site is. They hold for it alone, so that it is a
// destination of its own then.
func (set *settingSet) ofDomain(hop string) bool {
	if set == nil || len(set.byTarget) == 0 {
		return false
	}
	d, err := selection.NewTarget("domain", hop)
	return err == nil && len(set.byTarget[d.String()]) > 0
}

// lay puts settings on the limits and the advice of a destination. own and site are limits of the domain and of the site,
// where one is the unit.
func (set *settingSet) lay(source, hop, siteName string, own, site, provider, advice *string) {
	if set == nil || *advice == "" {
		return
	}
	// The advice says where the limits are: the resolver has decided it.
	// It also has what the tables say, which a setting may make less.
	said := shaping.ParseAdvice(*advice)
	unit := said.Unit
	// Of the same key the domain's comes last, and counts.
	for _, r := range set.of(unit, source, strings.ToLower(hop)) {
		v, err := shaping.Set(r.order.Name, r.order.Value)
		if err != nil {
			continue // another version knew the key
		}
		// What is no limit is for the agent.
		limit, ofProvider := shaping.IsLimit(r.order.Name)
		to, most := own, said.Most
		switch {
		case !limit:
			*advice = shaping.SetAdvice(*advice, r.order.Name, r.order.Value)
			continue
		case ofProvider:
			to, most = provider, said.ProviderMost
		case r.target.Site() != "" && unit == siteName && siteName != "":
			to = site
		}
		*to, _, _ = shaping.SetLimit(*to, most, r.order.Name, &v)
	}
}

// settingText is a setting in words, for explain, with the way to end it.
func (r *rule) settingText() string {
	e := &r.order
	text := fmt.Sprintf("%s: %s is %s by %s since %s until %s: %s; \"posthaste shaping lift %s\" ends it", r.target.Name(), e.Name, e.Value, e.By,
		e.Since.Local().Format(time.DateTime), e.Until.Local().Format(time.DateTime), e.Reason, e.Target)
	return string(maillog.AppendClean(nil, []byte(text)))
}
