package whatif

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/pace"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/qmgr/sched"
)

var shareDay = time.Unix(1_800_000_000, 0) // at 8:00 UTC

// answered is a destination that takes a second for each message, as the queue manager tells of it.
func answered(queue, source string, limits ...proto.BacklogLimit) proto.BacklogDest {
	b := new(pace.Behaviour)
	for range 100 {
		b.Add(shareDay, pace.Delivery{Took: time.Second, Busy: 20, Rcpts: 1})
	}
	hop, _, _ := strings.Cut(queue, " ")
	return proto.BacklogDest{Transport: "smtp", Queue: queue, Nexthop: hop, Source: source, Limits: limits, Behaviour: b.Append(nil), Window: 20}
}

func waiting(queue string, count int, tenant string) proto.BacklogRow {
	return proto.BacklogRow{Transport: "smtp", Queue: queue, Count: count, Rcpts: 1, Created: shareDay, Tenant: tenant}
}

// took makes a copy of what the queue manager tells.
func took(t *testing.T, reply *proto.BacklogReply) *Copy {
	t.Helper()
	g := taking{Copy: Copy{Mail: Mail{Now: shareDay}}, index: make(map[destKey]int)}
	if err := g.part(reply); err != nil {
		t.Fatal(err)
	}
	if err := g.share(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.leaveOut()
	return &g.Copy
}

// Limits that destinations have in common, those of sources and of tenants hold in a forecast as they do in the queue manager, also
// where one message stands for several, and so does what has been counted today.
func TestLimitsInCommon(t *testing.T) {
	t.Parallel()
	provider := func(concurrency int) proto.BacklogLimit {
		return proto.BacklogLimit{Level: int(sched.ProviderLimit), Name: "big", Concurrency: concurrency}
	}
	messages := func(n int64, per time.Duration) proto.BacklogLimit {
		l := provider(0)
		l.N[1], l.Per[1] = n, per
		return l
	}
	warm := proto.BacklogLimit{Level: int(sched.OwnLimit), Source: true, Name: "a.test", N: [4]int64{3: 500}, Per: [4]time.Duration{3: rate.Day}, Today: [4]int64{3: 200}}
	members := func(wait bool) []proto.BacklogMember {
		return []proto.BacklogMember{{Transport: "smtp", Queue: "a.test from s1", Weight: 3, Wait: wait}, {Transport: "smtp", Queue: "a.test from s2", Weight: 1}}
	}
	quota := func(queue string, l proto.BacklogLimit) proto.BacklogQuota {
		return proto.BacklogQuota{Transport: "smtp", Queue: queue, Tenant: "acme", Limits: []proto.BacklogLimit{l}}
	}
	spent := messages(1000, rate.Day)
	spent.Today[1] = 1000
	const hour, minute = time.Hour, time.Minute
	for _, c := range []struct {
		name        string
		reply       proto.BacklogReply
		least, most time.Duration // until all has left
	}{
		{"no limit: twenty at once at each", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", ""), answered("b.test", "")},
			Rows: []proto.BacklogRow{waiting("a.test", 1000, ""), waiting("b.test", 1000, "")}}, 40 * time.Second, 2 * minute},
		{"five at once at a provider", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", "", provider(5)), answered("b.test", "", provider(5))},
			Rows: []proto.BacklogRow{waiting("a.test", 1000, ""), waiting("b.test", 1000, "")}}, 390 * time.Second, 450 * time.Second},
		{"a hundred in a minute to a provider", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", "", messages(100, minute)), answered("b.test", "", messages(100, minute))},
			Rows: []proto.BacklogRow{waiting("a.test", 1000, ""), waiting("b.test", 1000, "")}}, 19 * minute, 23 * minute},
		{"one message stands for three", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", "", messages(1000, minute))},
			Rows: []proto.BacklogRow{waiting("a.test", 300_000, "")}}, 290 * minute, 340 * minute},
		{"a source that warms up: 300 today, 500 tomorrow, and the others", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test from s1", "s1", warm)},
			Rows: []proto.BacklogRow{waiting("a.test from s1", 1000, "")}}, 40 * hour, 40*hour + 20*minute},
		{"two sources, of which one warms up", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test from s1", "s1", warm), answered("a.test from s2", "s2")},
			Rows: []proto.BacklogRow{waiting("a.test from s1", 250, ""), waiting("a.test from s2", 1000, "")}}, 40 * time.Second, 3 * minute},
		{"a source that warms up, and another one of its pool", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test from s1", "s1", warm), answered("a.test from s2", "s2")},
			Rows: []proto.BacklogRow{waiting("a.test from s1", 1000, "")}, Members: members(false)}, 40 * time.Second, 2 * minute},
		{"a source that is well off keeps what waits for it", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test from s1", "s1"), answered("a.test from s2", "s2")},
			Rows: []proto.BacklogRow{waiting("a.test from s1", 2000, "")}, Members: members(false)}, 80 * time.Second, 3 * minute},
		{"the same, and what is over waits", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test from s1", "s1", warm), answered("a.test from s2", "s2")},
			Rows: []proto.BacklogRow{waiting("a.test from s1", 700, "")}, Members: members(true)}, 16 * hour, 16*hour + 10*minute},
		{"a tenant that may have two deliveries", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", ""), answered("b.test", "")},
			Rows:    []proto.BacklogRow{waiting("a.test", 500, "acme"), waiting("b.test", 500, "acme")},
			Tenants: []proto.BacklogTenant{{Name: "acme", Limit: proto.BacklogLimit{Level: int(sched.TenantLimit), Name: "acme", Concurrency: 2}}}}, 490 * time.Second, 560 * time.Second},
		{"a tenant that has sent today what it may", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", "")}, Rows: []proto.BacklogRow{waiting("a.test", 100, "acme")},
			Tenants: []proto.BacklogTenant{{Name: "acme", Limit: proto.BacklogLimit{Level: int(sched.TenantLimit), Name: "acme", N: [4]int64{1: 1000}, Per: [4]time.Duration{1: rate.Day}, Today: [4]int64{1: 1000}}}}}, 16 * hour, 16*hour + 10*minute},
		{"a tenant that may have two deliveries at a provider", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", ""), answered("b.test", "")},
			Rows:   []proto.BacklogRow{waiting("a.test", 500, "acme"), waiting("b.test", 500, "acme"), waiting("b.test", 2000, "")},
			Quotas: []proto.BacklogQuota{quota("a.test", provider(2)), quota("b.test", provider(2))}}, 490 * time.Second, 560 * time.Second},
		{"the same of a rate, where one message stands for three", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", "")},
			Rows: []proto.BacklogRow{waiting("a.test", 300_000, "acme")}, Quotas: []proto.BacklogQuota{quota("a.test", messages(1000, minute))}}, 290 * minute, 340 * minute},
		{"a tenant that has sent to a provider what it may today", proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test from s1", "s1"), answered("a.test from s2", "s2")},
			Rows: []proto.BacklogRow{waiting("a.test from s1", 100, "acme")}, Members: members(false), Quotas: []proto.BacklogQuota{quota("a.test from s1", spent)}}, 16 * hour, 16*hour + 10*minute},
	} {
		copied := took(t, &c.reply)
		if c.reply.Tenants != nil && len(copied.LeftOut) != 0 {
			t.Errorf("%s: %v", c.name, copied.LeftOut)
		}
		f, err := Run(t.Context(), &copied.Mail, sched.DefaultConfig(), 1)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if f.All.Last < c.least || f.All.Last > c.most {
			t.Errorf("%s: all has left after %v, want %v to %v: %+v", c.name, f.All.Last, c.least, c.most, f.All)
		}
		if o := f.All; o.Half > o.Many || o.Many > o.Most || o.Most > o.Last {
			t.Errorf("%s: %+v is not in order", c.name, o)
		}
	}
}

// What is not in a forecast is said, in its sentences too: limits and tables of which the queue manager does not know, what answers have
// taught, and other sources of a pool. Mail that has no source yet is shared out among those of its destination.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	untold, learnt := answered("u.test", ""), answered("l.test", "")
	untold.Untold, learnt.Learnt = true, true
	c := took(t, &proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test from s1", "s1"), answered("a.test from s2", "s2"), answered("a.test", ""), untold, learnt},
		Rows:    []proto.BacklogRow{waiting("a.test from s1", 30, ""), waiting("a.test from s2", 10, ""), waiting("a.test", 8, "x\x1b"), waiting("u.test", 1, ""), waiting("l.test", 1, ""), {Domain: "a.test", Count: 4, Rcpts: 1}},
		Tenants: []proto.BacklogTenant{{Name: "acme", Untold: true}, {Name: "news", Places: true}}})
	var n [5]int
	for _, row := range c.Rows {
		n[row.Dest] += row.Count
	}
	if n != [5]int{39, 13, 0, 1, 1} {
		t.Errorf("the mail is shared out as %v", n)
	}
	r, err := Compare(t.Context(), c, sched.DefaultConfig(), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"limits in common of smtp:u.test, of which", "the tenants acme, which", "a part of what the tenants news may send to one domain", "answers of smtp:l.test have taught", "other sources of the pool of smtp:a.test from s1, smtp:a.test from s2. "} {
		if !slices.ContainsFunc(r.LeftOut, func(s string) bool { return strings.Contains(s, want) }) || !strings.Contains(string(r.Text()), want) {
			t.Errorf("%q is not said: %q\n%s", want, r.LeftOut, r.Text())
		}
	}
	if e := r.Lines[0].Now; e.Many == nil || *e.Many < *e.Half || *e.Many > *e.Most {
		t.Errorf("%+v", e)
	}
}

// Mail of which there is so little that no message of the forecast stands for it is said not to be in it: its times are not known, and
// are not long.
func TestTooLittle(t *testing.T) {
	t.Parallel()
	limit := proto.BacklogLimit{Level: int(sched.ProviderLimit), Name: "big", N: [4]int64{1: 1_000_000}, Per: [4]time.Duration{1: time.Minute}}
	c := took(t, &proto.BacklogReply{Dests: []proto.BacklogDest{answered("a.test", "", limit), answered("b.test", "")},
		Rows: []proto.BacklogRow{waiting("a.test", 300_000, ""), waiting("b.test", 1, "acme")}})
	r, err := Compare(t.Context(), c, sched.DefaultConfig(), nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range r.Lines {
		unseen := strings.Contains(l.Note, "not in the forecast")
		if want := l.Name == "smtp:b.test" || l.Name == "acme"; unseen != want || l.Now.Left != l.Now.Messages && want {
			t.Errorf("%s: %+v, %q", l.Title(), *l.Now, l.Note)
		}
	}
}

// A queue with mail for too many destinations is refused while it is told, and not when all of it has been shared out.
func TestTooManyDestinations(t *testing.T) {
	t.Parallel()
	reply := proto.BacklogReply{Rows: []proto.BacklogRow{{Domain: "d0.test", Count: 1, Rcpts: 1}}}
	for i := range maxDests + 1 {
		reply.Dests = append(reply.Dests, proto.BacklogDest{Transport: "smtp", Queue: fmt.Sprintf("d%d.test", i)})
	}
	g := taking{index: make(map[destKey]int)}
	if err := g.part(&reply); !errors.Is(err, ErrLarge) || len(g.Dests) != maxDests {
		t.Errorf("%v, %d destinations", err, len(g.Dests))
	}
}
