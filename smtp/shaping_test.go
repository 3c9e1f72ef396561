package smtp

import (
	"net/netip"
	"testing"
	"time"

	"posthaste/internal/resolver"
	"posthaste/internal/shaping"
	"posthaste/internal/tlspolicy"
)

func TestAdvised(t *testing.T) {
	t.Parallel()
	set := &settings{port: "25", families: resolver.IPv4 | resolver.IPv6, idleLimit: 2 * time.Second, preference: "any", balance: true, discard: []string{"dsn"}}
	set.time.connect, set.time.mail = 30*time.Second, 300*time.Second
	var c advised
	a := c.of(set, "unit=x.test&connect_timeout=5s&banner_timeout=9&data_dot_timeout=60s&idle_timeout=60s&smtp_port=26&enable_pipelining=false&ip_lookup_strategy=Ipv6Only")
	if a.time.connect != 5*time.Second || a.time.mail != 300*time.Second || a.time.hello != 9*time.Second || a.time.dataXfer != time.Minute || a.time.dataDone != time.Minute ||
		a.idleLimit != 2*time.Second || a.port != "26" || len(a.discard) != 2 || a.families != resolver.IPv6 {
		t.Errorf("%+v", a)
	}
	if set.port != "25" || len(set.discard) != 1 || set.time.connect != 30*time.Second {
		t.Errorf("the settings of all have changed: %+v", set)
	}
	if b := c.of(set, "unit=x.test&ip_lookup_strategy=Ipv6ThenIpv4&idle_timeout=1"); b.preference != "ipv6" || b.balance || b.idleLimit != time.Second || b.port != "25" {
		t.Errorf("%+v", b)
	}
	// Which family comes first leaves nothing to chance, and one that this system does not have stays out.
	for strategy, want := range map[string]settings{
		"Ipv4Only":     {families: resolver.IPv4, preference: "any", balance: true},
		"Ipv6Only":     {families: resolver.IPv6, preference: "any", balance: true},
		"Ipv4ThenIpv6": {families: resolver.IPv4 | resolver.IPv6, preference: "ipv4"},
		"Ipv6ThenIpv4": {families: resolver.IPv4 | resolver.IPv6, preference: "ipv6"},
	} {
		if b := c.of(set, "unit=x.test&ip_lookup_strategy="+strategy); b.families != want.families || b.preference != want.preference || b.balance != want.balance {
			t.Errorf("%s: %v, %s, balanced %v", strategy, b.families, b.preference, b.balance)
		}
	}
	four := *set
	four.families = resolver.IPv4
	if b := new(advised).of(&four, "unit=x.test&ip_lookup_strategy=Ipv6Only"); b.families != 0 {
		t.Errorf("without IPv6: %v", b.families)
	}
	if x, y, again := c.of(set, "unit=x.test"), c.of(set, "unit=y.test"), c.of(set, "unit=y.test"); x == y || y != again {
		t.Error("settings are not those of their advice")
	}
	for i := range 3 * maxAdvised {
		c.of(set, "unit="+time.Duration(i).String())
	}
	if len(c.known) > maxAdvised {
		t.Errorf("%d are remembered", len(c.known))
	}
}

func TestAdvisedLevel(t *testing.T) {
	t.Parallel()
	const may, encrypt, secure = tlspolicy.May, tlspolicy.Encrypt, tlspolicy.Secure
	for _, c := range []struct {
		main    tlspolicy.Level
		dns     dnsLevel
		wrapper bool
		tls     string
		dane    bool
		want    tlspolicy.Level
	}{
		{may, dnsEnabled, false, "", false, may}, {may, dnsEnabled, false, "Disabled", false, tlspolicy.None}, {encrypt, dnsEnabled, false, "Disabled", false, encrypt},
		{may, dnsEnabled, true, "Disabled", false, encrypt}, {tlspolicy.None, dnsEnabled, false, "Opportunistic", false, may}, {may, dnsEnabled, false, "Required", false, tlspolicy.Verify},
		{secure, dnsEnabled, false, "Required", false, secure}, {may, dnsEnabled, false, "RequiredInsecure", false, encrypt}, {secure, dnsEnabled, false, "OpportunisticInsecure", false, secure},
		{may, dnsSecure, false, "Opportunistic", true, tlspolicy.Dane}, {may, dnsEnabled, false, "Opportunistic", true, may},
	} {
		client := &tlsClient{wrapper: c.wrapper}
		client.Level = c.main
		d := &delivery{a: &Agent{tls: client}, set: &settings{dns: c.dns}, client: &shaping.Client{TLS: c.tls, DANE: c.dane}}
		if got := d.advisedLevel(); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
		d.fallback = true
		if got := d.advisedLevel(); got != c.main {
			t.Errorf("%+v: %v for a fallback relay", c, got)
		}
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	list := func() []target {
		return []target{{host: "a", ip: netip.MustParseAddr("192.0.2.1")}, {host: "b", ip: netip.MustParseAddr("198.51.100.1")}}
	}
	net := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	d := &delivery{hop: &nexthop{host: "x.test"}}
	for _, c := range []struct {
		client *shaping.Client
		left   int
		why    string
	}{
		{nil, 2, ""}, {&shaping.Client{Skip: net}, 1, ""}, {&shaping.Client{Skip: all}, 0, "4.4.4 all hosts of x.test are left out (skip_hosts)"},
		{&shaping.Client{Prohibited: net}, 0, "5.4.4 host a[192.0.2.1] is prohibited for mail to x.test (prohibited_hosts)"},
	} {
		d.client = c.client
		left, f := d.allowed(list())
		why := ""
		if f != nil {
			why = f.Error()
		}
		if len(left) != c.left || why != c.why {
			t.Errorf("%+v: %v, %q", c.client, left, why)
		}
	}
	// What is on the way to a server asks it.
	d.a, d.set = &Agent{}, &settings{preference: "any"}
	d.hop = &nexthop{text: "[192.0.2.1]", host: "192.0.2.1", noMX: true, port: "25"}
	for _, c := range []struct {
		client *shaping.Client
		left   int
		why    string
	}{
		{nil, 1, ""}, {&shaping.Client{Skip: net}, 0, "4.4.4 all hosts of 192.0.2.1 are left out (skip_hosts)"},
		{&shaping.Client{Prohibited: net}, 0, "5.4.4 host 192.0.2.1[192.0.2.1] is prohibited for mail to 192.0.2.1 (prohibited_hosts)"},
	} {
		d.client = c.client
		left, f := d.route(t.Context())
		why := ""
		if f != nil {
			why = f.Error()
		}
		if len(left) != c.left || why != c.why {
			t.Errorf("%+v: %v, %q", c.client, left, why)
		}
	}
	s := &session{limits: peerLimits{rcpts: 50}}
	d.client = &shaping.Client{Recipients: 10}
	if d.boundRecipients(s); s.limits.rcpts != 10 {
		t.Error(s.limits.rcpts)
	}
}
