package qmgr

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/selection"
	"posthaste/internal/shaping"
	"posthaste/internal/statedir"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

const automationRules = `[["default".automation]]
regex = "450 later"
trigger = {Threshold="2/h"}
action = ["Suspend", {SetConfig={name="max_message_rate", value="7000/min"}}]
duration = "1h"
match_internal = true
`

// shapingConf writes a file of rules, and is the line of main.cf that names it.
func shapingConf(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "shaping.toml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "shaping_files = " + name + "\n"
}

// shapes has the resolver say that domains are of one site.
func (st *stage) shapes(site string, domains ...string) {
	st.share(func(r *proto.ResolveReply) {
		r.Site, r.Alone, r.Hop, r.SiteLimits, r.Advice = site, true, r.Nexthop, "messages=1000/s", "unit="+site+"&in=default"
	}, domains...)
}

// acts are what the store has, a line for each.
func (st *stage) acts() string {
	var b strings.Builder
	for _, e := range st.override(proto.OverrideList, "", "", time.Time{}).Entries {
		b.WriteString(strings.TrimSpace(e.Of+" "+e.Target+" "+e.Name+" "+e.Value) + "\n")
	}
	return b.String()
}

// waitActs waits until the store has acts that f is content with, and they are in force: they are written first, beside the loop.
func (st *stage) waitActs(f func(acts string) bool) {
	st.t.Helper()
	testwait.Until(st.t, "acts", func() bool {
		done := make(chan bool)
		acts := st.acts()
		st.srv.post(func() { done <- len(st.srv.auto.under) == 0 }, sched.Event{})
		return <-done && f(acts)
	})
}

// TestAutomation has a site defer two messages: its rule suspends it, for both of its domains, and sets a rate. An
// operator takes it back, and the same replies do nothing more.
func TestAutomation(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_recipient_limit = 1\n"+shapingConf(t, automationRules))
	st.keep()
	st.shapes("mx.big.test", "one.test", "two.test")
	held := deferredMail(queue.Hold, time.Minute, "s@from.test", "", "c@one.test")
	third := st.fill(held)[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	deferOne := func(rcpt string) {
		t.Helper()
		st.arrive("s@from.test", rcpt)
		o := smtp.next()
		o.answer("defer")
	}
	deferOne("a@one.test")
	st.quietly()
	if acts := st.acts(); acts != "" {
		t.Fatalf("one reply has done\n%s", acts)
	}
	deferOne("b@two.test")
	const both = "setting site=mx.big.test max_message_rate 7000/min\nsuspension site=mx.big.test\n"
	st.waitActs(func(acts string) bool { return acts == both })
	// They are in the store before they are in force; the log says that they are.
	testwait.Until(t, "the log", func() bool {
		return strings.Contains(st.log.String(), "max_message_rate set to 7000/min by automation")
	})
	st.command(proto.Command{Verb: proto.VerbRelease, ID: third})
	st.waitOp(third, "its deferral", inQueue(queue.Deferred))
	st.waitExplain(third, "delivery to site mx.big.test is suspended: .*shaping.toml:1: 2 replies within 2/h, the last: 450 4.2.0 450 later|site mx.big.test is suspended by automation")
	st.waitDest("one.test", "site mx.big.test: max_message_rate is 7000/min by automation", "posthaste shaping lift site=mx.big.test")
	if log := st.log.String(); !strings.Contains(log, "delivery to site mx.big.test suspended by automation until ") ||
		!strings.Contains(log, "site mx.big.test: max_message_rate set to 7000/min by automation until ") {
		t.Errorf("log:\n%s", log)
	}
	if r := st.override(proto.OverrideRemove, "site=mx.big.test", "", time.Time{}); !r.Found {
		t.Error("it was not found")
	}
	o := smtp.next() // it has waited for that
	if o.Envelope.Recipients[0].Address != "c@one.test" {
		t.Errorf("%+v", o.Envelope.Recipients)
	}
	o.answer("defer")
	deferOne("d@two.test")
	st.quietly()
	const after = "setting site=mx.big.test max_message_rate 7000/min\nwaiver site=mx.big.test suspension\n"
	if acts := st.acts(); acts != after {
		t.Errorf("what holds is\n%s", acts)
	}
}

// TestAutomationActive has a site suspended for which mail waits in the active queue: it is not tried any more.
func TestAutomationActive(t *testing.T) {
	t.Parallel()
	rules := strings.Replace(automationRules, `trigger = {Threshold="2/h"}`, "", 1)
	st := newStage(t, "smtp_destination_concurrency_limit = 1\ninitial_destination_concurrency = 1\n"+shapingConf(t, rules))
	st.keep()
	st.shapes("mx.big.test", "one.test")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@one.test")
	first := smtp.next()
	st.arrive("s@from.test", "b@one.test")
	waits := st.arrive("s@from.test", "c@one.test")
	st.quietly()
	// The agent may be given the second message before the rule acts, or not: it keeps it then.
	first.answer("defer")
	st.waitExplain(waits, "wait and are not tried: site mx.big.test is suspended by automation")
}

// TestAutomationEnds has an act end by itself: the log says so, it is off the disk, and the mail goes.
func TestAutomationEnds(t *testing.T) {
	t.Parallel()
	rules := strings.NewReplacer(`trigger = {Threshold="2/h"}`, "", "1h", "2s").Replace(automationRules)
	st := newStage(t, "smtp_destination_recipient_limit = 1\n"+shapingConf(t, rules))
	st.keep()
	st.shapes("mx.big.test", "one.test")
	third := st.fill(deferredMail(queue.Hold, time.Minute, "s@from.test", "", "c@one.test"))[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@one.test")
	first := smtp.next()
	first.answer("defer")
	// In the store it may be over before anybody looks.
	testwait.Until(t, "the act in the log", func() bool {
		return strings.Contains(st.log.String(), "delivery to site mx.big.test suspended by automation until ")
	})
	st.command(proto.Command{Verb: proto.VerbRelease, ID: third})
	if o := smtp.next(); o.Envelope.Recipients[0].Address != "c@one.test" {
		t.Errorf("%+v", o.Envelope.Recipients)
	}
	testwait.Until(t, "the log", func() bool {
		return strings.Contains(st.log.String(), "max_message_rate set back: the time is over") &&
			strings.Contains(st.log.String(), "delivery to site mx.big.test resumed: the time of its suspension is over")
	})
	testwait.Until(t, "an empty store", func() bool { return len(st.overrides.Entries(time.Time{})) == 0 })
}

// TestAutomationLifted begins with what rules have done that are not in force any more.
func TestAutomationLifted(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, conf, want string }{
		{"the rule is there", "", "suspension site=x.test\nsuspension y.test\n"},
		{"automation is off", "shaping_automation = no\n", "suspension y.test\n"},
		{"the rule is gone", "gone", "suspension y.test\n"},
	} {
		text, conf := automationRules, c.conf
		if conf == "gone" {
			text, conf = strings.Replace(text, "2/h", "3/h", 1), ""
		}
		st := newStage(t, conf+shapingConf(t, text))
		st.keep()
		rules, _, err := shaping.Load([]string{strings.TrimSpace(strings.TrimPrefix(shapingConf(t, automationRules), "shaping_files = "))})
		if err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		for _, e := range []override.Entry{
			{Kind: override.Suspension, Target: "site=x.test", By: automatic, Rule: rules.Automation()[0].ID, Since: now, Until: now.Add(time.Hour)},
			{Kind: override.Suspension, Target: "site=z.test", By: automatic, Rule: rules.Automation()[0].ID, Since: now.Add(time.Hour), Until: now.Add(2 * time.Hour)},
			{Kind: override.Suspension, Target: "y.test", By: "ann", Since: now},
		} {
			if err := st.overrides.Put(e, now); err != nil {
				t.Fatal(err)
			}
		}
		st.run()
		if acts := st.acts(); acts != c.want {
			t.Errorf("%s: what holds is\n%s", c.name, acts)
		}
	}
}

// TestMayAct has what operators and other rules have said come first.
func TestMayAct(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	in := func(d time.Duration) time.Time { return now.Add(d) }
	act := override.Entry{Kind: override.Setting, Target: "site=x", Name: "max_message_rate", Value: "1/min", Rule: "r", Until: in(time.Hour)}
	for _, c := range []struct {
		name  string
		there override.Entry
		want  bool
	}{
		{"nothing of it", override.Entry{Kind: override.Setting, Target: "site=y", Name: "max_message_rate"}, true},
		{"another key", override.Entry{Kind: override.Setting, Target: "site=x", Name: "connection_limit"}, true},
		{"an operator's", override.Entry{Kind: override.Setting, Target: "site=x", Name: "max_message_rate", Until: in(time.Minute)}, false},
		{"a waiver", override.Entry{Kind: override.Waiver, Target: "site=x", Name: "setting", Until: in(time.Minute)}, false},
		{"a waiver of suspensions", override.Entry{Kind: override.Waiver, Target: "site=x", Name: "suspension", Until: in(time.Minute)}, true},
		{"as long", override.Entry{Kind: override.Setting, Target: "site=x", Name: "max_message_rate", Value: "1/min", Rule: "r", Until: in(59 * time.Minute)}, false},
		{"shorter", override.Entry{Kind: override.Setting, Target: "site=x", Name: "max_message_rate", Value: "1/min", Rule: "r", Until: in(50 * time.Minute)}, true},
		{"longer", override.Entry{Kind: override.Setting, Target: "site=x", Name: "max_message_rate", Value: "1/min", Rule: "r", Until: in(2 * time.Hour)}, false},
		{"another rule's value", override.Entry{Kind: override.Setting, Target: "site=x", Name: "max_message_rate", Value: "9/min", Rule: "q", Until: in(time.Minute)}, false},
	} {
		s := &Server{now: now}
		if got := s.mayAct([]override.Entry{c.there}, &act, time.Hour); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	s := &Server{now: now}
	s.auto.under = map[string]time.Time{actKey(&act): in(time.Hour)}
	if s.mayAct(nil, &act, time.Hour) {
		t.Error("it is done twice at the same time")
	}
}

// targetNamed is a target by its text.
func targetNamed(t *testing.T, text string) selection.Target {
	t.Helper()
	target, err := selection.ParseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// TestLay lays settings on what the resolver says.
func TestLay(t *testing.T) {
	t.Parallel()
	set := &settingSet{byTarget: map[string][]*rule{}}
	add := func(target, name, value string) {
		set.byTarget[target] = append(set.byTarget[target], &rule{target: targetNamed(t, target), order: override.Entry{Name: name, Value: value}})
	}
	add("site=a,b", "connection_limit", "2")
	add("site=a,b", "provider_connection_limit", "3")
	add("site=a,b", "idle_timeout", "5s")
	add("source=s->a,b", "max_message_rate", "1/min")
	add("domain=x.test", "max_connection_rate", "9/s")
	if !set.ofDomain("X.test") || set.ofDomain("y.test") || (*settingSet)(nil).ofDomain("x.test") {
		t.Error("which domains have settings of their own")
	}
	for _, c := range []struct{ source, hop, site, want string }{
		{"", "y.test", "a,b", "own=|site=concurrency=2, messages=5/s|provider=concurrency=3|idle_timeout=5s&unit=a%2Cb"},
		{"", "X.test", "a,b", "own=connections=9/s|site=concurrency=2, messages=5/s|provider=concurrency=3|idle_timeout=5s&unit=a%2Cb"},
		{"", "y.test", "", "own=concurrency=2|site=messages=5/s|provider=concurrency=3|idle_timeout=5s&unit=a%2Cb"},
		{"s", "y.test", "a,b", "own=|site=messages=1/min|provider=|unit=a%2Cb"},
		{"t", "y.test", "a,b", "own=|site=messages=5/s|provider=|unit=a%2Cb"},
	} {
		own, site, provider, advice := "", "messages=5/s", "", "unit=a%2Cb"
		set.lay(c.source, c.hop, c.site, &own, &site, &provider, &advice)
		if got := "own=" + own + "|site=" + site + "|provider=" + provider + "|" + advice; got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// TestLayBelowTable has settings that would raise what a table has said, and some that lower it.
func TestLayBelowTable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, value, site, provider string }{
		{"connection_limit", "2", "concurrency=2, messages=5/s", "concurrency=9"},
		{"connection_limit", "20", "concurrency=3, messages=5/s", "concurrency=9"},
		{"max_message_rate", "1/min", "concurrency=3, messages=1/min", "concurrency=9"},
		{"max_message_rate", "1000/min", "concurrency=3, messages=5/s", "concurrency=9"},
		{"max_connection_rate", "8/s", "concurrency=3, connections=8/s, messages=5/s", "concurrency=9"},
		{"provider_connection_limit", "10", "concurrency=3, messages=5/s", "concurrency=9"},
		{"provider_connection_limit", "1", "concurrency=3, messages=5/s", "concurrency=1"},
	} {
		target := targetNamed(t, "site=a,b")
		set := &settingSet{byTarget: map[string][]*rule{target.String(): {{target: target, order: override.Entry{Name: c.name, Value: c.value}}}}}
		own, site, provider := "", "concurrency=3, messages=5/s", "concurrency=9"
		advice := "unit=a%2Cb&most=concurrency%3D3%2C+messages%3D5%2Fs&pmost=concurrency%3D9"
		set.lay("", "x.test", "a,b", &own, &site, &provider, &advice)
		if own != "" || site != c.site || provider != c.provider {
			t.Errorf("%s=%s: own %q, site %q, provider %q", c.name, c.value, own, site, provider)
		}
	}
}

// TestDomainSetting has a setting of one domain of a site: it is a destination of its own then, and no longer than that.
func TestDomainSetting(t *testing.T) {
	t.Parallel()
	target := targetNamed(t, "domain=x.test")
	set := &settingSet{byTarget: map[string][]*rule{target.String(): {{target: target, order: override.Entry{Name: "connection_limit", Value: "2"}}}}}
	var ts terms
	of := func(hop, nexthop string) *sched.Terms {
		return ts.of(&proto.ResolveReply{Transport: "smtp", Recipient: "a@" + hop, Nexthop: nexthop, Hop: hop, Site: "mx.big.test", Advice: "unit=mx.big.test"}, true)
	}
	if x, y := of("x.test", "x.test"), of("y.test", "y.test"); x != y || !x.Rollup {
		t.Errorf("without a setting: %+v, %+v", x, y)
	}
	ts.setSettings(set)
	x, port, y := of("x.test", "x.test"), of("x.test", "[x.test]:587"), of("y.test", "y.test")
	for _, of := range []*sched.Terms{x, port} {
		if of.Rollup || of.Shares[sched.OwnLimit].Limits.Concurrency != 2 {
			t.Errorf("%+v", of)
		}
	}
	if !y.Rollup || y.Shares[sched.OwnLimit].Limits.Concurrency != 0 {
		t.Errorf("another domain: %+v", y)
	}
	ts.setSettings(nil)
	if x := of("x.test", "x.test"); !x.Rollup {
		t.Errorf("afterwards: %+v", x)
	}
}

// TestActOvertaken has an operator order something while an act is on its way to the disk.
func TestActOvertaken(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	act := override.Entry{Kind: override.Suspension, Target: "site=x", By: automatic, Rule: "r", Until: now.Add(time.Hour)}
	for name, there := range map[string]override.Entry{
		"an order":  {Kind: override.Suspension, Target: "site=x", By: "ann", Until: now.Add(2 * time.Hour)},
		"a waiver":  {Kind: override.Waiver, Target: "site=x", Name: "suspension", By: "ann", Until: now.Add(time.Minute)},
		"elsewhere": {Kind: override.Suspension, Target: "site=y", By: "ann"},
	} {
		dir, err := statedir.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		store, err := override.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := store.Put(there, now); err != nil {
			t.Fatal(err)
		}
		put, err := store.PutIf(act, now, (&ordered{act, time.Second}).may)
		if err != nil || put != (name == "elsewhere") {
			t.Errorf("%s: %v, %v", name, put, err)
		}
		if n := len(store.Entries(now)); put != (n == 2) {
			t.Errorf("%s: %d entries", name, n)
		}
	}
}

// TestActAtReload has a rule act while the former queue manager still has the store: it is done when that is gone.
func TestActAtReload(t *testing.T) {
	t.Parallel()
	rules := strings.Replace(automationRules, `trigger = {Threshold="2/h"}`, "", 1)
	st := newStage(t, shapingConf(t, rules))
	former, err := statedir.Open(filepath.Join(st.site.Queue, "overrides"))
	if err != nil {
		t.Fatal(err)
	}
	predecessor, err := override.Open(former)
	if err != nil {
		t.Fatal(err)
	}
	defer predecessor.Close()
	st.keep()
	st.shapes("mx.big.test", "one.test")
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@one.test")
	first := smtp.next()
	first.answer("defer")
	st.quietly()
	if acts := st.acts(); acts != "" {
		t.Fatalf("without the store rules have done\n%s", acts)
	}
	if err := predecessor.Close(); err != nil {
		t.Fatal(err)
	}
	const both = "setting site=mx.big.test max_message_rate 7000/min\nsuspension site=mx.big.test\n"
	st.waitActs(func(acts string) bool { return acts == both })
	if log := st.log.String(); strings.Contains(log, "still owns") {
		t.Errorf("log:\n%s", log)
	}
}

// TestAllow takes back that rules may not act.
func TestAllow(t *testing.T) {
	t.Parallel()
	st := newStage(t, shapingConf(t, automationRules))
	st.keep()
	now := time.Now()
	for _, e := range []override.Entry{
		{Kind: override.Waiver, Target: "site=x.test", Name: "setting", By: "ann", Since: now, Until: now.Add(time.Hour)},
		{Kind: override.Waiver, Target: "site=x.test", Name: "suspension", By: "ann", Since: now, Until: now.Add(time.Hour)},
		{Kind: override.Waiver, Target: "site=y.test", Name: "suspension", By: "ann", Since: now, Until: now.Add(time.Hour)},
		// From before the clock was set back: nobody knows how long it would hold.
		{Kind: override.Waiver, Target: "site=z.test", Name: "suspension", By: "ann", Since: now.Add(time.Hour), Until: now.Add(2 * time.Hour)},
	} {
		if err := st.overrides.Put(e, now); err != nil {
			t.Fatal(err)
		}
	}
	st.run()
	const all = "waiver site=x.test setting\nwaiver site=x.test suspension\nwaiver site=y.test suspension\n"
	if acts := st.acts(); acts != all {
		t.Errorf("before:\n%s", acts)
	}
	var reply proto.OverrideReply
	q := &proto.Override{Op: proto.OverrideRemove, Entry: proto.OverrideEntry{Of: "waiver", Target: "site=x.test", By: "ann"}}
	for _, found := range []bool{true, false} {
		reply = proto.OverrideReply{}
		if err := st.tool.Call(st.t.Context(), q, &reply); err != nil || reply.Refused != "" || reply.Found != found {
			t.Errorf("%+v, %v", reply, err)
		}
	}
	if acts := st.acts(); acts != "waiver site=y.test suspension\n" {
		t.Errorf("after:\n%s", acts)
	}
	if log := st.log.String(); !strings.Contains(log, "site x.test: rules may act again, by ann") {
		t.Errorf("log:\n%s", log)
	}
}

// suspendedSite has a message for each of two domains of a site wait, since an operator has suspended it.
func suspendedSite(t *testing.T) (st *stage, smtp *fakeAgent, ids []mail.QueueID) {
	t.Helper()
	st = newStage(t, "smtp_destination_recipient_limit = 1\n"+shapingConf(t, automationRules))
	st.keep()
	st.shapes("mx.big.test", "one.test", "two.test")
	ids = st.fill(deferredMail(queue.Hold, time.Minute, "s@from.test", "", "a@one.test"), deferredMail(queue.Hold, time.Minute, "s@from.test", "", "b@two.test"))
	smtp = st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.override(proto.OverridePut, "site=mx.big.test", "", time.Time{})
	for _, id := range ids {
		st.command(proto.Command{Verb: proto.VerbRelease, ID: id})
		st.waitOp(id, "its deferral", inQueue(queue.Deferred))
		st.waitExplain(id, "site mx.big.test is suspended by ann")
	}
	return st, smtp, ids
}

// TestSiteMoves has the MX hosts of a domain change while mail for it waits for the suspension of its site.
func TestSiteMoves(t *testing.T) {
	t.Parallel()
	st, smtp, ids := suspendedSite(t)
	st.shapes("mx.other.test", "one.test")
	st.srv.post(func() { st.srv.terms.again = st.srv.now }, sched.Event{})
	if o := smtp.next(); o.Envelope.Recipients[0].Address != "a@one.test" {
		t.Errorf("%+v", o.Envelope.Recipients)
	}
	st.waitExplain(ids[1], "site mx.big.test is suspended by ann")
}

// TestActTooLate has the store become ours when the time of one of two acts is over: that one is not done, nor logged.
func TestActTooLate(t *testing.T) {
	t.Parallel()
	st := newStage(t, shapingConf(t, automationRules))
	st.keep()
	st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.srv.post(func() {
		for _, e := range []override.Entry{
			{Kind: override.Suspension, Target: "site=late.test", By: automatic, Rule: "r", Since: st.srv.now.Add(-time.Hour), Until: st.srv.now.Add(-time.Second)},
			{Kind: override.Suspension, Target: "site=due.test", By: automatic, Rule: "r", Since: st.srv.now.Add(-time.Hour), Until: st.srv.now.Add(time.Hour)},
		} {
			st.srv.auto.under[actKey(&e)] = e.Until
			st.srv.auto.later = append(st.srv.auto.later, ordered{Entry: e})
		}
		st.srv.takeActs()
	}, sched.Event{})
	testwait.Until(t, "the act in the log", func() bool { return strings.Contains(st.log.String(), "due.test") })
	if acts := st.acts(); acts != "suspension site=due.test\n" {
		t.Errorf("acts:\n%s", acts)
	}
	if log := st.log.String(); strings.Contains(log, "late.test") {
		t.Errorf("log:\n%s", log)
	}
	under := make(chan int, 1)
	st.srv.post(func() { under <- len(st.srv.auto.under) }, sched.Event{})
	if n := <-under; n != 0 {
		t.Errorf("%d acts are still under way", n)
	}
}

// TestSiteLeft has new mail bring the news that a domain has left a suspended site: what waits there for the domain goes, too.
func TestSiteLeft(t *testing.T) {
	t.Parallel()
	st, smtp, ids := suspendedSite(t)
	st.shapes("mx.other.test", "one.test")
	st.arrive("s@from.test", "new@one.test")
	for _, want := range []string{"new@one.test", "a@one.test"} {
		o := smtp.next()
		if got := o.Envelope.Recipients[0].Address; got != want {
			t.Fatalf("%s, not %s", got, want)
		}
		o.answer("ok")
		st.srv.post(func() { st.srv.terms.again = st.srv.now }, sched.Event{})
	}
	st.waitExplain(ids[1], "site mx.big.test is suspended by ann")
}

// TestRenewAllGoesOn has an end move while destinations are asked about: that says nothing new of any, and all are asked about.
// Other settings end it.
func TestRenewAllGoesOn(t *testing.T) {
	t.Parallel()
	st := newStage(t, shapingConf(t, automationRules))
	var asks atomic.Int32
	st.share(func(r *proto.ResolveReply) { asks.Add(1) }, "one.test")
	st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	set := &settingSet{text: "a"}
	list := make([]renewal, 3)
	for i := range list {
		list[i] = renewal{new(sched.Terms), asked{addr: "a@one.test", transport: "smtp", nexthop: "one.test"}}
	}
	for _, c := range []struct {
		text string
		asks int32
	}{{"a", 3}, {"b", 0}} {
		asks.Store(0)
		st.srv.auto.settings.Store(&settingSet{text: c.text})
		st.srv.renewAll(set, list)
		if n := asks.Load(); n != c.asks {
			t.Errorf("settings %s are in force: %d destinations were asked about, and not %d", c.text, n, c.asks)
		}
	}
}

// TestAutomationTenant has a reply to the mail of a campaign suspend that campaign at the site, and nobody else there.
func TestAutomationTenant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ action, target string }{
		{"SuspendCampaign", "campaign=news/spring->mx.big.test"},
		{"SuspendTenant", "tenant=news->mx.big.test"},
	} {
		rules := strings.NewReplacer(`trigger = {Threshold="2/h"}`, "", `["Suspend", {SetConfig={name="max_message_rate", value="7000/min"}}]`, `"`+c.action+`"`).Replace(automationRules)
		st := newStage(t, "smtp_destination_recipient_limit = 1\n"+shapingConf(t, rules))
		st.keep()
		st.shapes("mx.big.test", "one.test", "two.test")
		st.shapes("mx.other.test", "far.test")
		of := func(tenant, campaign, to string) mail.QueueID {
			m := deferredMail(queue.Hold, time.Minute, "s@from.test", "", to)
			m.Envelope.Tenant, m.Envelope.Campaign = tenant, campaign
			return st.fill(m)[0]
		}
		first, again := of("news", "spring", "a@one.test"), of("news", "spring", "b@two.test")
		rest := []mail.QueueID{of("shop", "spring", "c@two.test"), of("", "", "d@one.test"), of("news", "spring", "e@far.test")}
		summer := of("news", "summer", "f@two.test")
		smtp := st.agent("smtp", proto.Inventory{})
		st.run()
		st.waitAttached(1)
		release := func(id mail.QueueID) { st.command(proto.Command{Verb: proto.VerbRelease, ID: id}) }
		release(first)
		o := smtp.next()
		o.answer("defer")
		st.waitActs(func(acts string) bool { return acts == "suspension "+c.target+"\n" })
		release(again)
		st.waitExplain(again, "is suspended by automation")
		if c.action == "SuspendCampaign" {
			rest = append(rest, summer)
		} else {
			release(summer)
			st.waitExplain(summer, "tenant news to site mx.big.test is suspended by automation")
		}
		for _, id := range rest {
			release(id)
			o := smtp.next()
			if o.Envelope.ID != id {
				t.Fatalf("%s: ordered %s, not %s", c.action, o.Envelope.ID, id)
			}
			o.answer("ok")
		}
		st.override(proto.OverrideRemove, c.target, "", time.Time{})
		if o := smtp.next(); o.Envelope.ID != again && o.Envelope.ID != summer {
			t.Errorf("%s: ordered %s", c.action, o.Envelope.ID)
		}
	}
}

// TestAutomationReturns has a reply to the mail of a campaign return mail of that campaign, of its tenant, or all mail, to
// that domain: what waits and what comes. Nobody else's mail is returned, nor mail to another domain of the site; and what
// is taken back is delivered again.
func TestAutomationReturns(t *testing.T) {
	t.Parallel()
	type piece struct{ tenant, campaign, to string }
	all := []piece{{"news", "spring", "b@one.test"}, {"news", "summer", "c@one.test"}, {"shop", "spring", "d@one.test"}, {"", "", "e@one.test"}, {"news", "spring", "f@two.test"}}
	for _, c := range []struct {
		action, target, subject string
		returned                int // the first of all
	}{
		{"BounceCampaign", "campaign=news/spring->one.test", "mail of campaign news/spring to one.test", 1},
		{"BounceTenant", "tenant=news->one.test", "mail of tenant news to one.test", 2},
		{"Bounce", "domain=one.test", "mail to one.test", 4},
	} {
		t.Run(c.action, func(t *testing.T) {
			t.Parallel()
			rules := strings.NewReplacer(`trigger = {Threshold="2/h"}`, "", `["Suspend", {SetConfig={name="max_message_rate", value="7000/min"}}]`, `"`+c.action+`"`).Replace(automationRules)
			st := newStage(t, "smtp_destination_recipient_limit = 1\nsmtp_destination_concurrency_limit = 1\ninitial_destination_concurrency = 1\n"+shapingConf(t, rules))
			st.keep()
			st.shapes("mx.big.test", "one.test", "two.test")
			of := func(p piece) mail.QueueID {
				m := deferredMail(queue.Hold, time.Minute, "s@from.test", "", p.to)
				m.Envelope.Tenant, m.Envelope.Campaign = p.tenant, p.campaign
				return st.fill(m)[0]
			}
			// Three for the same mailbox: when the first has been answered the second begins, and the third waits in the active queue.
			mailbox := piece{"news", "spring", "a@one.test"}
			first, second, waits := of(mailbox), of(mailbox), of(mailbox)
			var ids []mail.QueueID
			for _, p := range all {
				ids = append(ids, of(p))
			}
			back := of(all[0])
			smtp, failed := st.agent("smtp", proto.Inventory{}), st.agent("error", proto.Inventory{})
			st.run()
			st.waitAttached(1)
			release := func(id mail.QueueID) { st.command(proto.Command{Verb: proto.VerbRelease, ID: id}) }
			release(first)
			o := smtp.next()
			release(second)
			st.waitExplain(second, "waits since")
			release(waits)
			st.waitExplain(waits, "waits since")
			o.answer("defer")
			under := smtp.next()
			if under.Envelope.ID != second {
				t.Errorf("ordered %s", under.Envelope.ID)
			}
			returned := func(id mail.QueueID) {
				t.Helper()
				o := failed.next()
				if want := mail.Nexthop("5.7.1 " + c.subject + " is not accepted for now, by a rule of this mail system"); o.Envelope.ID != id || o.Nexthop != want {
					t.Errorf("returned: %s, %s", o.Envelope.ID, o.Nexthop)
				}
				o.answer("fail")
			}
			testwait.Until(t, "the log", func() bool {
				return strings.Contains(st.log.String(), c.subject+" returned to its senders by automation until ")
			})
			if acts := st.acts(); acts != "return "+c.target+"\n" {
				t.Fatalf("what holds is\n%s", acts)
			}
			returned(waits)
			under.answer("ok")
			expectText(t, st.explainDest("one.test"), c.subject+" is returned by automation since ", ": 450 4.2.0 450 later", "posthaste shaping lift '"+c.target+"'")
			for i, id := range ids {
				release(id)
				if i < c.returned {
					returned(id)
					continue
				}
				o := smtp.next()
				if o.Envelope.ID != id {
					t.Errorf("ordered %s, not %s", o.Envelope.ID, id)
				}
				o.answer("ok")
			}
			// An operator takes it back: rules do not do it again.
			e := st.overrideOf(override.Return, proto.OverrideRemove, c.target)
			if !e.Found {
				t.Error("it was not found")
			}
			release(back)
			if o = smtp.next(); o.Envelope.ID != back {
				t.Errorf("ordered %s", o.Envelope.ID)
			}
			o.answer("defer")
			st.quietly()
			if acts := st.acts(); acts != "waiver "+c.target+" return\n" {
				t.Errorf("what holds is\n%s", acts)
			}
		})
	}
}

// TestOneDomain: what is done for a domain is never done for many, whatever name a message is sent to.
func TestOneDomain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, kind := range []shaping.ActionKind{shaping.Bounce, shaping.SetDomainConfig} {
		for name, want := range map[string]string{"a.test": "domain=a.test", "*.test": "domain=*.test", ".test": "", "*": "", "": "", ".": ""} {
			act := shaping.Act{Rule: &shaping.Rule{}, Report: &shaping.Report{Domain: name, Unit: "a.test"}, Until: now.Add(time.Hour)}
			e, err := entryOf(&act, &shaping.Action{Kind: kind}, now)
			if (err == nil) != (want != "") || err == nil && e.Target != want {
				t.Errorf("%s for %q: %q, %v", kind, name, e.Target, err)
			}
			if err != nil {
				continue
			}
			target, _ := selection.ParseTarget(e.Target)
			if target.Match(&selection.Mail{Domain: "other.test"}) {
				t.Errorf("%s for %q is for other.test", kind, name)
			}
		}
	}
}

// Rules see a server's words as they are, and what no server has said in the form of a reply, marked as such.
func TestReplyText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o        mail.Outcome
		want     string
		internal bool
	}{
		{mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 7, 0), Reason: "host x said: 421-4.7.0 slow 421 4.7.0 down", DiagType: "smtp", DiagText: "421-4.7.0 slow 421 4.7.0 down"}, "421 4.7.0 slow down", false},
		{mail.Outcome{Action: dsn.Failed, Status: dsn.S(5, 7, 0), Reason: "host x said: 550 no", DiagType: "smtp", DiagText: "550 no"}, "550 no", false},
		{mail.Outcome{Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 2.0.0 Ok"}, "250 2.0.0 Ok", false},
		{mail.Outcome{Action: dsn.Relayed, Status: dsn.S(2, 0, 0), Reason: "250 2.0.0 Ok"}, "250 2.0.0 Ok", false},
		{mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "timed out"}, "450 4.4.1 timed out", true},
		{mail.Outcome{Action: dsn.Failed, Status: dsn.S(5, 4, 4), Reason: "no such host"}, "550 5.4.4 no such host", true},
		{mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 3, 0), Reason: "it has ended", DiagType: "x-unix", DiagText: "in tears"}, "450 4.3.0 it has ended", true},
		{mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 3, 0), Reason: "nothing was said", DiagType: "smtp"}, "450 4.3.0 nothing was said", true},
	} {
		if got, internal := replyText(&c.o); got != c.want || internal != c.internal {
			t.Errorf("%+v: %q, internal %v", c.o, got, internal)
		}
	}
}

// What a rule decides becomes an override of the kind, and for the target, that the action names, and says why.
func TestEntryOf(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 5e8)
	report := shaping.Report{Unit: "mx.test", Domain: "to.test", Source: "m1", Tenant: "acme", Campaign: "spring", Text: "450 a\x1bb"}
	for _, c := range []struct {
		action shaping.Action
		kind   override.Kind
		target string
	}{
		{shaping.Action{Kind: shaping.Suspend}, override.Suspension, "source=m1>mx.test"},
		{shaping.Action{Kind: shaping.SuspendTenant}, override.Suspension, "tenant=acme>mx.test"},
		{shaping.Action{Kind: shaping.SuspendCampaign}, override.Suspension, "campaign=acme/spring>mx.test"},
		{shaping.Action{Kind: shaping.SetConfig, Name: "max_message_rate", Value: shaping.Value{Text: "7/min"}}, override.Setting, "source=m1>mx.test"},
		{shaping.Action{Kind: shaping.SetDomainConfig, Name: "max_message_rate", Value: shaping.Value{Text: "7/min"}}, override.Setting, "domain=to.test"},
		{shaping.Action{Kind: shaping.Bounce}, override.Return, "domain=to.test"},
		{shaping.Action{Kind: shaping.BounceTenant}, override.Return, "tenant=acme>to.test"},
		{shaping.Action{Kind: shaping.BounceCampaign}, override.Return, "campaign=acme/spring>to.test"},
	} {
		for per, reason := range map[time.Duration]string{0: "f:3: 450 a?b", time.Hour: "f:3: 2 replies within 2/h, the last: 450 a?b"} {
			act := shaping.Act{Rule: &shaping.Rule{At: shaping.Place{File: "f", Line: 3}, ID: "id", Trigger: shaping.Trigger{N: 2, Per: per}}, Report: &report, Count: 2, Until: now.Add(time.Hour)}
			e, err := entryOf(&act, &c.action, now)
			want := override.Entry{Kind: c.kind, Target: strings.ReplaceAll(c.target, ">", toSiteOf(t)), By: automatic, Rule: "id", Since: now.Truncate(time.Second), Until: now.Add(time.Hour).Truncate(time.Second), Reason: reason}
			if c.kind == override.Setting {
				want.Name, want.Value = "max_message_rate", "7/min"
			}
			if err != nil || e != want {
				t.Errorf("%s:\n%+v, %v, want\n%+v", c.action.Kind, e, err, want)
			}
		}
	}
	// Without pools the site is meant; what is over, or has no end in words, is none; and a stranger's words have an end.
	act := shaping.Act{Rule: &shaping.Rule{At: shaping.Place{File: strings.Repeat("f", override.MaxReason)}}, Report: &shaping.Report{Unit: "mx.test", Text: strings.Repeat("\xff", 400)}, Until: now.Add(time.Hour)}
	if e, err := entryOf(&act, &shaping.Action{Kind: shaping.Suspend}, now); err != nil || e.Target != "site=mx.test" || len(e.Reason) != override.MaxReason {
		t.Errorf("%+v, %v", e, err)
	}
	for _, over := range []time.Duration{0, -time.Second} {
		act.Until = now.Add(over).Truncate(time.Second)
		if _, err := entryOf(&act, &shaping.Action{Kind: shaping.Suspend}, now.Truncate(time.Second)); err == nil {
			t.Error("what is over is put in force")
		}
	}
}

// toSiteOf is what stands between a source and a site in the text of a target.
func toSiteOf(t *testing.T) string {
	t.Helper()
	target, err := selection.SiteTarget("m1", "mx.test")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(strings.TrimPrefix(target.String(), "source=m1"), "mx.test")
}

// Each recipient's reply is told to the rules with all that they go by: where it went, from which source, whose mail it was. The loop does not
// wait for who looks at replies; what is not seen for that is in the log once.
func TestWatchReplies(t *testing.T) {
	t.Parallel()
	s, lines := still(t)
	m := s.aMessage(2)
	m.active.env.Tenant, m.active.env.Campaign = "acme", "spring"
	d := &delivery{num: m.num, source: "m1", nexthop: "[to.test]:26", advice: "unit=mx.test&in=default&in=big"}
	reply := &proto.DeliverReply{Outcomes: []mail.Outcome{{Action: dsn.Deferred, Status: dsn.S(4, 4, 1), Reason: "timed out"}, {Action: dsn.Failed, DiagType: "smtp", DiagText: "550 no"}}}
	s.watchReplies(d, reply) // nobody looks
	s.auto.reports = make(chan *shaping.Report, 3)
	want := shaping.Report{At: s.now, Unit: "mx.test", Source: "m1", Domain: "to.test", Tenant: "acme", Campaign: "spring", Sections: []string{"default", "big"}, Text: "450 4.4.1 timed out", Internal: true}
	other := want
	other.Text, other.Internal = "550 no", false
	s.watchReplies(d, reply)
	for _, w := range []shaping.Report{want, other} {
		if got := <-s.auto.reports; !reflect.DeepEqual(*got, w) {
			t.Errorf("%+v, want\n%+v", *got, w)
		}
	}
	// What no rule is for is not told. Of a message that has left it is not known whose it was.
	for _, advice := range []string{"", "unit=mx.test"} {
		s.watchReplies(&delivery{num: m.num, advice: advice}, reply)
	}
	resting := s.aMessage(1)
	resting.active = nil
	for _, num := range []sched.MsgID{99, resting.num} {
		gone := *d
		gone.num = num
		if s.watchReplies(&gone, &proto.DeliverReply{Outcomes: reply.Outcomes[:1]}); len(s.auto.reports) != 1 {
			t.Fatalf("%d replies are told", len(s.auto.reports))
		}
		if got := <-s.auto.reports; got.Tenant != "" || got.Campaign != "" || got.Text != want.Text {
			t.Errorf("%+v", got)
		}
	}
	for range 4 {
		s.watchReplies(d, reply)
	}
	if got := lines(); len(s.auto.reports) != 3 || len(got) != 1 || !strings.Contains(got[0], "more replies come than the rules can look at: some are not seen") {
		t.Errorf("%d are told, the log: %q", len(s.auto.reports), got)
	}
}

// An advice is read once, and so many are remembered.
func TestAdvised(t *testing.T) {
	t.Parallel()
	var a automation
	first := a.advised("unit=a")
	if first.Unit != "a" || a.advised("unit=a") != first || a.advised("unit=b").Unit != "b" {
		t.Errorf("%+v", first)
	}
	for i := len(a.read); i < maxAdvised; i++ {
		a.advised(fmt.Sprintf("unit=x%d", i))
	}
	if a.advised("unit=a") != first || len(a.read) != maxAdvised {
		t.Errorf("%d advices, and the first is forgotten", len(a.read))
	}
	if a.advised("unit=more"); len(a.read) != 1 {
		t.Errorf("%d advices", len(a.read))
	}
}

// Nobody looks at replies when there are no rules, when they are off, or when what they do could not be kept. What was done before is known to be
// of a rule all the same, unless they are off.
func TestStartAutomation(t *testing.T) {
	t.Parallel()
	conf := shapingConf(t, automationRules)
	for _, c := range []struct {
		name, main   string
		store, looks bool
		known        int
	}{{"no rules", "", true, false, 0}, {"off", conf + "shaping_automation = no\n", true, false, 0}, {"no store", conf, false, false, 1}, {"no rule", shapingConf(t, "[\"default\"]\nconnection_limit = 3\n"), true, false, 0}, {"all", conf, true, true, 1}} {
		st := newStage(t, c.main)
		if c.store {
			st.keep()
		}
		st.run()
		st.waitAttached(1)
		ch := make(chan bool)
		st.srv.post(func() { ch <- st.srv.auto.reports != nil && st.srv.auto.under != nil }, sched.Event{})
		if looks := <-ch; looks != c.looks || len(st.srv.auto.known) != c.known {
			t.Errorf("%s: replies are looked at: %v; %d rules are known", c.name, looks, len(st.srv.auto.known))
		}
	}
}
