package trivialrewrite

import (
	"context"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/table"
)

const siteZone = `
a.example. MX 10 mx1.host.example.
a.example. MX 20 mx2.host.example.
b.example. MX 10 mx2.host.example.
b.example. MX 10 mx1.host.example.
c.example. MX 10 mx1.host.example.
big.example. MX 10 in.big.net.
big.example. MX 10 other.example.
backup.example. MX 10 own.backup.example.
backup.example. MX 20 in.big.net.
first.example. MX 10 in.big.net.
first.example. MX 20 own.backup.example.
exact.example. MX 10 special.big.net.
mixed.example. MX 10 aaa.example.
mixed.example. MX 10 in.big.net.
own.example. MX 10 mx9.host.example.
null.example. MX 0 .
none.example. A 192.0.2.1
dotty.example. MX 10 MX1.Host.Example.
dotty.example. MX 10 mx2.host.example.
!fail slow.example TIMEOUT MX
!fail bad.example SERVFAIL MX
`

func newSiteRewriter(t testing.TB, conf string) (*Rewriter, *[]string, *fakezone.Zone) {
	t.Helper()
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = mta.test\nmydestination = local.test\nvirtual_mailbox_domains = box.test\nrelay_domains = relay.test\n" + conf)
	if err != nil {
		t.Fatal(err)
	}
	var warned []string
	r, err := New(cfg, table.Options{Warn: func(text string) { warned = append(warned, text) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	zone, err := fakezone.Parse(siteZone)
	if err != nil {
		t.Fatal(err)
	}
	if r.sites.asksDNS() {
		dns := resolver.New(resolver.Options{Exchanger: zone})
		t.Cleanup(dns.Close)
		r.sites.dns = dns
	}
	return r, &warned, zone
}

// shared is what a reply says of limits, in one line.
func shared(t *testing.T, r *Rewriter, addr string) string {
	t.Helper()
	res, err := r.Resolve(context.Background(), "", addr, false)
	if err != nil {
		t.Fatal(err)
	}
	if r.sites != nil {
		if res.share, err = r.sites.share(context.Background(), &res); err != nil {
			t.Fatal(err)
		}
	}
	reply := Reply(res, nil)
	var again proto.ResolveReply
	if err := again.Decode(reply.Append(nil)); err != nil || again != reply {
		t.Fatalf("%+v is %+v on arrival: %v", reply, again, err)
	}
	var words []string
	add := func(name, value string) {
		if value != "" {
			words = append(words, name+value)
		}
	}
	add("site ", reply.Site)
	if reply.Alone {
		words = append(words, "alone")
	}
	add("provider ", reply.Provider)
	add("own: ", reply.OwnLimits)
	add("site: ", reply.SiteLimits)
	add("provider: ", reply.ProviderLimits)
	return strings.Join(words, "; ")
}

const siteMaps = `destination_provider_maps = inline:{ {.big.net=big} {special.big.net=special} {own.host.test=own} }
destination_limit_maps = inline:{ {a.example = concurrency=2} {exempt.example = none} {box.test = concurrency=7} {own.example = messages=1/s}
  {site:mx1.host.example,mx2.host.example = messages=5/s} {provider:big = concurrency=20, messages=1000/h, messages_per_connection=9}
  {smart.test = recipients=9/d} {* = connections=3/s} }
`

func TestSites(t *testing.T) {
	t.Parallel()
	both := "site mx1.host.example,mx2.host.example"
	for _, tt := range []struct{ name, conf, addr, want string }{
		{"off", "", "x@a.example", ""},
		{"rolled up", "destination_rollup = yes\n", "x@a.example", both},
		{"whatever their preferences", "destination_rollup = yes\n", "x@b.example", both},
		{"whatever their case", "destination_rollup = yes\n", "x@dotty.example", both},
		{"other hosts", "destination_rollup = yes\n", "x@c.example", "site mx1.host.example"},
		{"no MX", "destination_rollup = yes\n", "x@none.example", ""},
		{"null MX", "destination_rollup = yes\n", "x@null.example", ""},
		{"no such domain", "destination_rollup = yes\n", "x@unknown.example", ""},
		{"broken", "destination_rollup = yes\n", "x@bad.example", ""},
		{"for this transport", "destination_rollup = relay, smtp\n", "x@a.example", both},
		{"for another transport", "destination_rollup = relay\n", "x@a.example", ""},
		{"local", "destination_rollup = yes\n" + siteMaps, "x@local.test", ""},
		{"a mailbox domain", "destination_rollup = yes\n" + siteMaps, "x@box.test", "own: concurrency=7"},
		{"its own limits", "destination_rollup = yes\n" + siteMaps, "x@a.example", both + "; alone; own: concurrency=2; site: messages=5/s"},
		{"the site's limits", "destination_rollup = yes\n" + siteMaps, "x@b.example", both + "; site: messages=5/s"},
		{"those of all", "destination_rollup = yes\n" + siteMaps, "x@c.example", "site mx1.host.example; site: connections=3/s"},
		{"those of all, without a site", siteMaps, "x@c.example", "own: connections=3/s"},
		{"none", siteMaps, "x@exempt.example", "own: none"},
		{"a provider", siteMaps, "x@big.example", "provider big; own: connections=3/s; provider: concurrency=20, messages=1000/h, messages_per_connection=9"},
		{"a backup host of a provider", siteMaps, "x@backup.example", "own: connections=3/s"},
		{"a backup host of no provider", siteMaps, "x@first.example", "provider big; own: connections=3/s; provider: concurrency=20, messages=1000/h, messages_per_connection=9"},
		{"one of two best hosts", siteMaps, "x@mixed.example", "provider big; own: connections=3/s; provider: concurrency=20, messages=1000/h, messages_per_connection=9"},
		{"its own limits alone", "destination_rollup = yes\n" + siteMaps, "x@own.example", "site mx9.host.example; alone; own: messages=1/s"},
		{"the exact name first", siteMaps, "x@exact.example", "provider special; own: connections=3/s"},
		{"a relay host", "relayhost = [smart.test]:587\n" + siteMaps, "x@a.example", "own: recipients=9/d"},
		{"a relay host of a provider", "relayhost = [own.host.test]\ndestination_rollup = yes\n" + siteMaps, "x@a.example", "site own.host.test; provider own; site: connections=3/s"},
		{"several next hops", "relayhost = first.example:25, backup.example\n" + siteMaps, "x@b.example", "provider big; own: connections=3/s; provider: concurrency=20, messages=1000/h, messages_per_connection=9"},
		{"several next hops, the other way round", "relayhost = backup.example:25 first.example\n" + siteMaps, "x@b.example", "own: connections=3/s"},
		{"a socket", "relay_transport = lmtp:unix:private/lmtp\n" + siteMaps, "x@relay.test", ""},
		{"an error", "relay_transport = error:5.1.1 no\n" + siteMaps, "x@relay.test", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, warned, _ := newSiteRewriter(t, tt.conf)
			if got := shared(t, r, tt.addr); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if len(*warned) > 0 {
				t.Errorf("warned: %q", *warned)
			}
		})
	}
}

// A long set of hosts has a short name, which is that of no other set.
func TestSiteName(t *testing.T) {
	t.Parallel()
	var hosts []resolver.MX
	for _, n := range []string{"one", "two", "three", "four", "five"} {
		hosts = append(hosts, resolver.MX{Pref: 10, Host: n + ".mail-exchanger.provider.example"})
	}
	name := siteName(hosts)
	if len(name) > maxSiteName || !strings.HasPrefix(name, "five.mail-exchanger.provider.example+4-") {
		t.Errorf("%q", name)
	}
	// 128 bits of a hash that nobody can make collisions of; this is also the key of a table, and does not change.
	if want := "five.mail-exchanger.provider.example+4-"; name != want+"efd4b4161178964fc6ff53122af3f5b9" {
		t.Errorf("%q", name)
	}
	if other := siteName(append(hosts[:4:4], resolver.MX{Host: "six.mail-exchanger.provider.example"})); other == name {
		t.Errorf("two sites of one name: %q", name)
	}
	if got := siteName(append(hosts[:1:1], hosts[0])); got != hosts[0].Host {
		t.Errorf("%q", got)
	}
}

// An address cannot say that its mail is for a site: what becomes of it would be counted there.
func TestSiteForged(t *testing.T) {
	t.Parallel()
	r, _, _ := newSiteRewriter(t, "destination_rollup = yes\n")
	for hop, want := range map[mail.Nexthop]string{
		"[in.big.net]": "in.big.net",
		"[five.mail-exchanger.provider.example+4-efd4b4161178964fc6ff53122af3f5b9]": "",
		"five.mail-exchanger.provider.example+4-efd4b4161178964fc6ff53122af3f5b9":   "",
	} {
		x, err := r.sites.share(t.Context(), &Result{Transport: "smtp", Nexthop: hop, Flags: proto.ResolveDefault})
		if err != nil || x.site != want || x.hop != want {
			t.Errorf("%s: site %q, next hop %q, %v", hop, x.site, x.hop, err)
		}
	}
}

// Mail does not wait for name servers that are silent: what was known holds, and the
// domain is left alone for a while.
func TestSitesFailOpen(t *testing.T) {
	t.Parallel()
	r, _, zone := newSiteRewriter(t, "destination_rollup = yes\n")
	now := time.Now()
	r.sites.now = func() time.Time { return now }
	dns := &flaky{next: r.sites.dns}
	r.sites.dns = dns
	before := shared(t, r, "x@b.example")
	dns.fail = true
	if got := shared(t, r, "x@b.example"); got != before || before == "" {
		t.Errorf("it was %q, now the DNS fails it is %q", before, got)
	}
	if got := shared(t, r, "x@c.example"); got != "" {
		t.Errorf("nothing is known, and it is %q", got)
	}
	n := dns.asked
	for range 5 {
		shared(t, r, "x@b.example")
	}
	if dns.asked != n {
		t.Errorf("asked %d times within a minute of silence", dns.asked-n)
	}
	dns.fail = false
	now = now.Add(quietTime)
	if got := shared(t, r, "x@c.example"); got != "site mx1.host.example" {
		t.Errorf("the DNS is back, and it is %q", got)
	}
	_ = zone
}

// flaky fails as a resolver does whose servers are silent.
type flaky struct {
	next  mxLookup
	fail  bool
	asked int
}

func (f *flaky) MX(ctx context.Context, domain string) (resolver.Answer[resolver.MX], error) {
	f.asked++
	if f.fail {
		return resolver.Answer[resolver.MX]{}, &resolver.Error{Kind: resolver.TempFail, Name: domain, Type: "MX"}
	}
	return f.next.MX(ctx, domain)
}

// The lookup has a time limit of its own.
func TestSitesTimeout(t *testing.T) {
	t.Parallel()
	r, _, _ := newSiteRewriter(t, "destination_rollup = yes\ndestination_mx_timeout = 1s\n")
	r.sites.timeout = 10 * time.Millisecond
	if got := shared(t, r, "x@slow.example"); got != "" {
		t.Errorf("%q", got)
	}
}

// What is not understood is said once, and means one delivery at a time; limits for all
// that are not understood stop the service.
func TestBadLimits(t *testing.T) {
	t.Parallel()
	r, warned, _ := newSiteRewriter(t, "destination_limit_maps = inline:{ {a.example = messages=5/s, conections=3/s} {b.example = } }\n"+
		"destination_provider_maps = inline:{ {.host.example = big mail} }\n")
	for range 3 {
		if got := shared(t, r, "x@a.example"); got != "own: concurrency=1, messages=5/s" {
			t.Errorf("%q", got)
		}
	}
	if len(*warned) != 2 || !strings.Contains((*warned)[0], "is no name") || !strings.Contains((*warned)[1], `a.example: "conections": there is no limit of this name`) {
		t.Errorf("warned: %q", *warned)
	}
	cfg, err := config.LoadString("compatibility_level = 3.6\nmyhostname = a.test\ndestination_limit_maps = inline:{ {* = fast} }\n")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(cfg, table.Options{}); err == nil || !strings.Contains(err.Error(), `destination_limit_maps: the limits of *: "fast"`) {
		t.Errorf("%v", err)
	}
}

// Mail waits for a table that cannot be read: its limits are not known.
func TestLimitsUnreadable(t *testing.T) {
	t.Parallel()
	r, _, _ := newSiteRewriter(t, "destination_limit_maps = fail:no\n")
	res, err := r.Resolve(context.Background(), "", "x@a.example", false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.sites.share(context.Background(), &res); err == nil {
		t.Error("no error")
	}
}
