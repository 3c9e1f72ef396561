package trivialrewrite

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/proto"
	"posthaste/internal/table"
)

const egressConf = `
destination_provider_maps = inline:{ {.big.net = big} }
egress_source_maps = inline:{
	{ mta1 = address=192.0.2.1 helo=mta1.test }
	{ mta2 = address=192.0.2.2 warmup=2026-11-28:50,100 warmup_over=wait }
	{ mta3 = address=192.0.2.3 warmup=2026-12-24:50 }
	{ wrong = address=192.0.2.300 } }
egress_pool_maps = inline:{
	{ news = mta1=10 mta2 mta3 }
	{ later = mta3 }
	{ lost = mta1 mta9 }
	{ broken = mta1 wrong }
	{ odd = mta1=0 } }
sender_dependent_egress_pool_maps = inline:{
	{ @news.test = news } { joe@own.test = none } { @later.test = later } { @lost.test = lost } { @broken.test = broken }
	{ @odd.test = odd } { @gone.test = nowhere } { @silly.test = /etc } { <> = other } }
`

// from is what mail goes from, in one line.
func from(t *testing.T, r *Rewriter, sender, named, addr string) string {
	t.Helper()
	s := newServer(context.Background(), r, nil, keepLong)
	t.Cleanup(s.Close)
	reply := s.resolve(&proto.Resolve{Sender: sender, Address: addr, Limits: true, Pool: named})
	if reply.Transport == "retry" {
		return reply.Nexthop
	}
	members, err := proto.DecodeMembers(reply.Members)
	if err != nil {
		t.Fatal(err)
	}
	text := reply.Pool
	for _, m := range members {
		text += fmt.Sprintf(" %s=%d[%s", m.Source, m.Weight, m.Spec)
		for i, l := range []string{m.OwnLimits, m.SiteLimits, m.ProviderLimits} {
			if l != "" {
				text += fmt.Sprintf("; %s %s", []string{"own", "site", "provider"}[i], l)
			}
		}
		if m.Warmup > 0 {
			text += fmt.Sprintf("; day %d of %d, wait %v", m.Day, m.Warmup, m.Wait)
		}
		text += "]"
	}
	return strings.TrimSpace(text)
}

// at has a Rewriter take it to be noon of a day.
func at(r *Rewriter, day string) {
	r.egressPools.now = func() time.Time {
		d, _ := time.Parse(time.DateOnly, day)
		return d.Add(12 * time.Hour)
	}
}

func TestEgressPools(t *testing.T) {
	t.Parallel()
	r, warned, _ := newSiteRewriter(t, egressConf)
	at(r, "2026-11-29")
	const news = "news mta1=10[address=192.0.2.1, helo=mta1.test] mta2=1[address=192.0.2.2; day 2 of 100, wait true]"
	const config = "4.3.5 mail system configuration error: "
	for _, c := range []struct{ sender, named, addr, want string }{
		{"ann@news.test", "", "joe@a.example", news},
		{"ann@sub.news.test", "", "joe@a.example", ""},
		{"ann@other.test", "", "joe@a.example", ""},
		{"joe@own.test", "", "joe@a.example", ""},
		{"joe@own.test", "news", "joe@a.example", news},
		{"ann@news.test", "none", "joe@a.example", ""},
		// What stays here goes from nowhere, whatever is named.
		{"ann@news.test", "", "joe@local.test", ""},
		{"ann@news.test", "", "joe@box.test", ""},
		{"ann@news.test", "", "joe@relay.test", news},
		{"ann@later.test", "", "joe@a.example", config + `egress pool "later": the warm-up of its sources has not begun yet`},
		{"ann@lost.test", "", "joe@a.example", config + `egress source "mta9" is not in egress_source_maps`},
		{"ann@broken.test", "", "joe@a.example", config + `egress_source_maps: wrong: "address=192.0.2.300": expected an IP address`},
		{"ann@odd.test", "", "joe@a.example", config + `egress_pool_maps: odd: "mta1=0": expected a weight from 1 to 1000000`},
		{"ann@gone.test", "", "joe@a.example", config + `egress pool "nowhere" is not in egress_pool_maps`},
		{"ann@silly.test", "", "joe@a.example", config + `"/etc" is no name of an egress pool`},
		{"", "", "joe@a.example", config + `egress pool "other" is not in egress_pool_maps`},
		{"ann@other.test", "lost", "joe@a.example", config + `egress source "mta9" is not in egress_source_maps`},
	} {
		if got := from(t, r, c.sender, c.named, c.addr); got != c.want {
			t.Errorf("from %s in %q to %s:\n%s, want\n%s", c.sender, c.named, c.addr, got, c.want)
		}
	}
	if len(*warned) != 7 {
		t.Errorf("%d complaints, each should be made once: %q", len(*warned), *warned)
	}
	// The day after the last number, and before the first.
	at(r, "2026-11-30")
	if got := from(t, r, "ann@news.test", "", "joe@a.example"); !strings.HasSuffix(got, "mta2=1[address=192.0.2.2]") {
		t.Errorf("after the warm-up: %s", got)
	}
	at(r, "2026-11-27")
	if got := from(t, r, "ann@news.test", "", "joe@a.example"); strings.Contains(got, "mta2") {
		t.Errorf("before the warm-up: %s", got)
	}
}

// The default is for mail that leaves this host, and whose sender has no pool.
func TestDefaultEgressPool(t *testing.T) {
	t.Parallel()
	r, _, _ := newSiteRewriter(t, "egress_source_maps = inline:{ {m = address=192.0.2.1} }\negress_pool_maps = inline:{ {p = m} {q = m=3} }\n"+
		"sender_dependent_egress_pool_maps = inline:{ {@q.test = q} {@none.test = none} {@dunno.test = DUNNO} }\ndefault_egress_pool = p\n")
	for sender, want := range map[string]string{"a@q.test": "q m=3[address=192.0.2.1]", "a@b.test": "p m=1[address=192.0.2.1]", "": "p m=1[address=192.0.2.1]",
		"a@none.test": "", "a@dunno.test": "p m=1[address=192.0.2.1]"} {
		if got := from(t, r, sender, "", "joe@a.example"); got != want {
			t.Errorf("from %s: %s, want %s", sender, got, want)
		}
	}
	cfg, err := config.LoadString("compatibility_level = 3.6\ndefault_egress_pool = a b\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, table.Options{}); err == nil || !strings.Contains(err.Error(), "default_egress_pool") {
		t.Errorf("a pool of no name: %v", err)
	}
}

// A message that names a pool waits where there are none.
func TestEgressPoolWithoutTables(t *testing.T) {
	t.Parallel()
	r, _, _ := newSiteRewriter(t, "")
	if got := from(t, r, "a@b.test", "p", "joe@a.example"); got != `4.3.5 mail system configuration error: egress pool "p": egress_pool_maps is empty` {
		t.Error(got)
	}
	if got := from(t, r, "a@b.test", "", "joe@a.example"); got != "" || r.sites != nil {
		t.Errorf("%q, and %v is kept for nothing", got, r.sites)
	}
}

// Limits of a source are looked up beside those for all, at each level.
func TestSourceLimits(t *testing.T) {
	t.Parallel()
	r, warned, _ := newSiteRewriter(t, `
destination_provider_maps = inline:{ {.big.net = big} }
destination_rollup = yes
egress_source_maps = inline:{ {m1 = address=192.0.2.1} {m2 = address=192.0.2.2} }
egress_pool_maps = inline:{ {p = m1 m2} }
default_egress_pool = p
destination_limit_maps = inline:{
	{ * = connections=5/s } { * from m1 = concurrency=2 } { provider:big = concurrency=9 } { provider:big from m2 = concurrency=3 }
	{ site:mx1.host.example,mx2.host.example from m1 = messages=9/h } { c.example from m1 = recipients=4/d } { own.example from m2 = cuncorrency=1 } }
`)
	for addr, want := range map[string]string{
		"joe@a.example":   "p m1=1[address=192.0.2.1; site messages=9/h] m2=1[address=192.0.2.2]",
		"joe@c.example":   "p m1=1[address=192.0.2.1; own recipients=4/d] m2=1[address=192.0.2.2]",
		"joe@big.example": "p m1=1[address=192.0.2.1; site concurrency=2] m2=1[address=192.0.2.2; provider concurrency=3]",
		"joe@own.example": "p m1=1[address=192.0.2.1; site concurrency=2] m2=1[address=192.0.2.2; own concurrency=1]",
	} {
		if got := from(t, r, "a@b.test", "", addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
	if len(*warned) != 1 || !strings.Contains((*warned)[0], "own.example from m2") {
		t.Errorf("%q", *warned)
	}
}

// An answer that depends on the sender is for nobody else. With a pool in the envelope those who keep answers keep them
// by the pool, too.
func TestEgressAnswersKept(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string]bool{
		"": true,
		"default_egress_pool = p\negress_pool_maps = inline:{ {p = m} }\negress_source_maps = inline:{ {m = address=192.0.2.1} }\n": true,
		"sender_dependent_egress_pool_maps = inline:{ {@a.test = none} }\n":                                                         false,
	} {
		r, _, _ := newSiteRewriter(t, conf)
		s := newServer(context.Background(), r, nil, keepLong)
		for _, pool := range []string{"", "none"} {
			got := s.resolve(&proto.Resolve{Sender: "a@a.test", Address: "joe@a.example", Limits: true, Pool: pool})
			if got.Fixed != want || got.FixedSender == want {
				t.Errorf("%q, pool %q: kept for any sender %v, for this one %v", conf, pool, got.Fixed, got.FixedSender)
			}
		}
		s.Close()
	}
}
