// What the files of shaping_files say of a destination (package shaping), as far as it is the agent's: the
// queue manager sends it with the order. It takes the place of parameters. Tables of main.cf for the
// destination or the server (smtp_tls_policy_maps, smtp_discard_ehlo_keyword_address_maps) count more.

package smtp

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/resolver"
	"posthaste/internal/shaping"
	"posthaste/internal/tlspolicy"
)

// maxAdvised bounds the advices that are remembered: there is one for each destination.
const maxAdvised = 1000

// advised are settings with advice in them, by its text. Deliveries share them.
type advised struct {
	mu    sync.Mutex
	known map[string]*advisedSettings
}

// An advisedSettings is what holds for a destination with advice. It is not changed.
type advisedSettings struct {
	settings
	client shaping.Client
}

// of finds the settings for an advice.
func (c *advised) of(set *settings, advice string) *advisedSettings {
	// An advice is read once, and not for each message: the same text comes with all mail for a
	// destination.
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.known[advice]
	if a == nil {
		if c.known == nil || len(c.known) >= maxAdvised {
			// Deliveries under way keep what they have.
			c.known = make(map[string]*advisedSettings)
		}
		// A copy of all settings is simpler than a question wherever one of them is used.
		a = &advisedSettings{*set, shaping.ParseAdvice(advice).Client}
		a.apply()
		c.known[advice] = a
	}
	return a
}

// apply puts the advice in the place of parameters.
func (a *advisedSettings) apply() {
	c, t := &a.client, &a.time
	for _, x := range []struct {
		to *time.Duration
		by time.Duration
	}{{&t.connect, c.Connect}, {&t.hello, c.Hello}, {&t.starttls, c.StartTLS}, {&t.mail, c.Mail}, {&t.rcpt, c.Rcpt},
		{&t.dataInit, c.DataInit}, {&t.dataXfer, c.DataXfer}, {&t.dataDone, c.DataXfer}, {&t.rset, c.Rset}} {
		// What the file leaves open is as main.cf says.
		if x.by > 0 {
			*x.to = x.by
		}
	}
	// A session that waits is beside the limits of the destination: it is not kept for longer than main.cf says.
	if c.Idle > 0 {
		a.idleLimit = min(a.idleLimit, c.Idle)
	}
	// A next hop that has a port of its own, as [host]:port has, keeps it.
	if c.Port > 0 {
		a.port = strconv.Itoa(c.Port)
	}
	// The server's offer is not believed, as with smtp_discard_ehlo_keywords.
	if c.NoPipelining {
		a.discard = append(slices.Clone(a.discard), "pipelining")
	}
	// A family that this system does not have stays out.
	switch c.Families {
	case "Ipv4Only":
		a.families &= resolver.IPv4
	case "Ipv6Only":
		a.families &= resolver.IPv6
	// Both are tried: balance would put the second before the last of the first.
	case "Ipv4ThenIpv6":
		a.preference, a.balance = "ipv4", false
	case "Ipv6ThenIpv4":
		a.preference, a.balance = "ipv6", false
	}
}

// advisedLevel is the security level of a destination of which no table says anything. A file does not
// weaken what main.cf demands.
func (d *delivery) advisedLevel() tlspolicy.Level {
	c := d.a.tls
	// smtp_fallback_relay is somebody else, of whom the file says nothing.
	if d.client == nil || d.fallback || d.client.TLS == "" && !d.client.DANE {
		return c.Level
	}
	level := c.Level
	switch d.client.TLS {
	case "Disabled":
		level = tlspolicy.None
	// KumoMTA has the former want a valid certificate where STARTTLS is offered. No level here does,
	// and it must not be more than what is meant for everybody.
	case "Opportunistic", "OpportunisticInsecure":
		level = tlspolicy.May
	case "RequiredInsecure":
		level = tlspolicy.Encrypt
	// The name that the certificate must have is that of the MX host, as with KumoMTA.
	case "Required":
		level = tlspolicy.Verify
	}
	// Without DNSSEC there is nothing that DANE could go by (smtp_dns_support_level = dnssec).
	if d.client.DANE && d.set.dns == dnsSecure {
		level = max(level, tlspolicy.Dane)
	}
	// There is no way to go on in the clear then.
	if c.wrapper {
		level = max(level, tlspolicy.Encrypt)
	}
	// The shipped file has Opportunistic for everybody: where main.cf demands TLS it stays demanded.
	if c.Level > tlspolicy.May {
		level = max(level, c.Level)
	}
	return level
}

// allowed leaves out servers that are not to be used (skip_hosts). Because of one that is prohibited the mail is
// returned. The list is changed.
func (d *delivery) allowed(list []target) ([]target, *failure) {
	if d.client == nil || len(d.client.Skip) == 0 && len(d.client.Prohibited) == 0 {
		return list, nil
	}
	in := func(nets []netip.Prefix, t *target) bool {
		return t.path == "" && slices.ContainsFunc(nets, func(p netip.Prefix) bool { return p.Contains(t.ip.Unmap()) })
	}
	// One is enough: a domain that names this host's own network as its mail host is not to be tried at
	// another one first.
	for i := range list {
		if in(d.client.Prohibited, &list[i]) {
			return nil, lookupFailure(dsn.S(5, 4, 4), fmt.Sprintf("host %s[%s] is prohibited for mail to %s (prohibited_hosts)", list[i].host, list[i].ip, d.hop.host))
		}
	}
	list = slices.DeleteFunc(list, func(t target) bool { return in(d.client.Skip, &t) })
	// They may come back, or the file may change.
	if len(list) == 0 {
		return nil, lookupFailure(dsn.S(4, 4, 4), fmt.Sprintf("all hosts of %s are left out (skip_hosts)", d.hop.host))
	}
	return list, nil
}

// boundRecipients has a session's transactions have no more recipients than the file says.
func (d *delivery) boundRecipients(s *session) {
	// The smaller of two numbers: the server may have said one, too.
	if d.client != nil && d.client.Recipients > 0 && (s.limits.rcpts == 0 || s.limits.rcpts > d.client.Recipients) {
		s.limits.rcpts = d.client.Recipients
	}
}
