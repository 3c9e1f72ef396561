package advice

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"posthaste/internal/config"
)

var errNoEntry = errors.New("no entry")

// routes looks at what names a transport, in settings and in tables. The parameters
// that every site has are looked at by master.
func (c *checker) routes() {
	c.used = make(map[string]bool)
	for _, v := range c.of("local_transport", "virtual_transport", "relay_transport", "default_transport", "content_filter",
		"mailbox_transport", "fallback_transport", "address_verify_local_transport", "address_verify_virtual_transport",
		"address_verify_relay_transport", "address_verify_default_transport") {
		if set, _, _ := c.cfg.IsSet(v.name); !set && strings.HasPrefix(v.name, "address_verify_") && !strings.HasPrefix(v.title, "service ") {
			continue // what mail has, of which all is said
		}
		c.transport(v, v.text, !slices.Contains([]string{"local_transport", "virtual_transport", "relay_transport", "default_transport", "content_filter"}, v.name))
	}
	for _, v := range c.of("transport_maps", "sender_dependent_default_transport_maps", "mailbox_transport_maps", "fallback_transport_maps",
		"address_verify_transport_maps", "address_verify_sender_dependent_default_transport_maps") {
		for _, e := range c.entries(v) {
			if !strings.EqualFold(e.value, "DUNNO") {
				c.transport(e.at(v), e.value, true)
			}
		}
	}
	for _, v := range c.values {
		if !strings.HasSuffix(v.name, "_checks") && !strings.Contains(v.text, "_access") {
			continue
		}
		for _, e := range c.entries(v) {
			if to, ok := cutFold(e.value, "FILTER "); ok {
				c.transport(e.at(v), strings.TrimSpace(to), true)
			}
		}
	}
}

func cutFold(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || !strings.EqualFold(s[:len(prefix)], prefix) {
		return s, false
	}
	return s[len(prefix):], true
}

// transport looks at transport:nexthop. With say it says that master.cf has no such service.
func (c *checker) transport(v value, text string, say bool) {
	name, hop, _ := strings.Cut(text, ":")
	if name == "" || strings.ContainsAny(name, "$ \t") {
		return // the default, what a match says, or no transport
	}
	c.used[name] = true
	if !c.transports[name] {
		if say {
			meant := config.Nearest(name, slices.Values(c.transportNames()))
			if meant != "" {
				meant = "; did you mean " + meant + "?"
			}
			c.stop(v, "%s: master.cf has no service %s/unix, and the mail waits in the queue%s", text, name, meant)
		}
		return
	}
	if c.speaksSMTP(name) && hop != "" && !strings.Contains(hop, "$") {
		if why := c.badHop(hop); why != "" {
			c.stop(v, "%s: %s", text, why)
		}
	}
}

// transportNames are those of the delivery agents in master.cf.
func (c *checker) transportNames() (list []string) {
	for i := range c.services {
		switch c.services[i].Command {
		case "smtp", "lmtp", "local", "virtual", "pipe", "error", "discard":
			list = append(list, c.services[i].Name)
		}
	}
	return list
}

// speaksSMTP says whether a transport's next hop is a host.
func (c *checker) speaksSMTP(name string) bool {
	return slices.ContainsFunc(c.services, func(s config.Service) bool { return s.Name == name && s.Type != "inet" && s.Command == "smtp" })
}

// relays looks at the hosts that mail is sent to.
func (c *checker) relays() {
	for _, v := range c.of("relayhost", "smtp_fallback_relay", "fallback_relay") {
		for _, hop := range hops(v.text) {
			if why := c.badHop(hop); why != "" {
				c.stop(v, "%s: %s", hop, why)
			} else if v.name == "relayhost" && c.isOurs(hop) {
				c.stop(v, "%s is this machine: mail for other places would come back to it for ever; name the host that takes it on, or leave %s empty", hop, v.name)
			}
		}
	}
	for _, v := range c.of("sender_dependent_relayhost_maps") {
		for _, e := range c.entries(v) {
			if strings.EqualFold(e.value, "DUNNO") || strings.Contains(e.value, "$") {
				continue
			}
			for _, hop := range hops(e.value) {
				if why := c.badHop(hop); why != "" {
					c.stop(e.at(v), "%s: %s", hop, why)
				}
			}
		}
	}
}

// hops are the elements of a list of hosts.
func hops(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })
}

const hopForms = "expected example.com, example.com:587, [mail.example.com] or [mail.example.com]:587; mail for it will wait"

// badHop says why text names no host, or "".
func (c *checker) badHop(text string) string {
	for _, hop := range hops(text) {
		host, port := hop, ""
		if strings.HasPrefix(hop, "[") {
			end := strings.IndexByte(hop, ']')
			if end < 0 {
				return "a bracket is missing: " + hopForms
			}
			rest := hop[end+1:]
			host = hop[1:end]
			if rest != "" && rest[0] != ':' {
				return "there is something between the bracket and the end: " + hopForms
			}
			if port = strings.TrimPrefix(rest, ":"); rest == ":" {
				return "the port is missing after the colon: " + hopForms
			}
			if literal, ok := cutFold(host, "ipv6:"); ok || strings.Contains(host, ":") {
				if _, err := netip.ParseAddr(literal); err != nil {
					return "it is no IPv6 address: " + hopForms
				}
				host = "v6"
			}
		} else if strings.ContainsAny(hop, "[]") {
			return "a bracket is missing, or something is before it: " + hopForms
		} else if before, after, ok := strings.Cut(hop, ":"); ok {
			if host, port = before, after; port == "" {
				return "the port is missing after the colon: " + hopForms
			}
		}
		if host == "" || strings.ContainsAny(host, ":@/\"\\") {
			return "there is no host in it: " + hopForms
		}
		if port != "" && c.system.Port(c.cfg, port) != nil {
			return "there is no port or service " + port + ": " + hopForms
		}
	}
	return ""
}

// isOurs says whether mail that is sent to a host comes to this system's SMTP
// server: what is sent to another port goes to a filter.
func (c *checker) isOurs(hop string) bool {
	host, port := strings.Trim(hop, "[]"), ""
	if i := strings.LastIndex(hop, ":"); i > strings.LastIndexByte(hop, ']') {
		host, port = strings.Trim(hop[:i], "[]"), hop[i+1:]
	}
	if port != "" && port != "smtp" && port != "25" ||
		!slices.ContainsFunc(c.services, func(s config.Service) bool { return s.Type == "inet" && (s.Name == "smtp" || s.Name == "25") }) {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return strings.EqualFold(host, c.cfg.String("myhostname")) || strings.EqualFold(host, "localhost") || err == nil && ip.IsLoopback()
}

// classes are the lists of domains of which a domain may be in one only.
func (c *checker) classes() {
	in := make(map[string]string)
	for _, parameter := range []string{"mydestination", "virtual_alias_domains", "virtual_mailbox_domains", "relay_domains"} {
		if set, _, _ := c.cfg.IsSet(parameter); !set && parameter != "mydestination" {
			continue // by default it has what another one has
		}
		for _, v := range c.of(parameter) {
			if strings.HasPrefix(v.title, "service ") {
				continue // for one service only, which is then meant
			}
			for _, d := range c.domains(v) {
				if other, ok := in[d.key]; ok && other != parameter {
					c.warn(d.at(v), "%s is in %s and in %s: a domain has one kind of mailboxes, and %s counts; take it out of one of them",
						d.key, other, parameter, other)
				} else {
					in[d.key] = parameter
				}
			}
		}
	}
}

// domains are those in a list, and in the tables that it names.
func (c *checker) domains(v value) (list []entry) {
	for _, word := range c.cfg.List(v.name) {
		if !strings.ContainsAny(word, ":/!") { // no table, file, exception
			list = append(list, entry{key: strings.ToLower(word)})
		}
	}
	for _, e := range c.entries(v) {
		if !strings.ContainsAny(e.key, "/@") { // no pattern; an address in a table of aliases
			e.key = strings.ToLower(e.key)
			list = append(list, e)
		}
	}
	return list
}

// identity looks at our own names.
func (c *checker) identity() {
	host := c.of("myhostname")
	if len(host) == 0 {
		return
	}
	name := host[0].text
	if !strings.Contains(name, ".") {
		c.warn(host[0], "%s has no domain; other servers want the full name that the DNS has, such as mail.example.com", name)
	}
	for _, v := range c.of("myorigin") {
		if strings.TrimSpace(v.text) == "" {
			c.stop(v, "it is empty: addresses without a domain cannot be completed, and such mail is refused; use $myhostname or $mydomain")
		}
	}
	v := c.of("mydestination")
	if len(v) == 0 || v[0].file == "" || c.cfg.String("relayhost") != "" || c.cfg.String("inet_interfaces") == "loopback-only" ||
		!strings.HasPrefix(c.cfg.String("default_transport"), "smtp") || c.cfg.String("transport_maps") != "" {
		return
	}
	origin := strings.ToLower(c.cfg.String("myorigin"))
	if !strings.EqualFold(origin, name) {
		return // another machine has it, maybe
	}
	for _, parameter := range []string{"mydestination", "virtual_alias_domains", "virtual_mailbox_domains", "relay_domains", "virtual_alias_maps"} {
		for _, v := range c.of(parameter) {
			if strings.ContainsAny(v.text, ":/") || slices.ContainsFunc(c.cfg.List(parameter), func(d string) bool { return strings.EqualFold(d, origin) }) {
				return
			}
		}
	}
	c.warn(v[0], "%s, which this machine's own mail is from (myorigin), is nowhere among the domains that are delivered here: "+
		"mail to root and postmaster would go round in a loop; add $myhostname", origin)
}

// networks are those that may relay.
func (c *checker) networks() {
	for _, v := range c.of("mynetworks") {
		for _, word := range hops(v.text) {
			network, err := netip.ParsePrefix(strings.ReplaceAll(strings.ReplaceAll(word, "[", ""), "]", ""))
			if err == nil && network.Bits() == 0 {
				c.warn(v, "%s matches every address: this machine is an open relay; name your own networks", word)
			}
		}
	}
	if set, _, _ := c.cfg.IsSet("mynetworks"); !set {
		for _, v := range c.of("mynetworks_style") {
			if v.text == "class" {
				c.warn(v, "class trusts every machine of the provider's network that this one is in: name your networks in mynetworks")
			}
		}
	}
}

// interfaces are the addresses to listen on, and to connect from.
func (c *checker) interfaces() {
	own, err := c.system.Own()
	if err != nil {
		return
	}
	for _, v := range c.values {
		switch v.name {
		case "inet_interfaces", "smtp_bind_address", "smtp_bind_address6", "lmtp_bind_address", "lmtp_bind_address6":
		default:
			continue
		}
		for _, word := range hops(v.text) {
			ip, err := netip.ParseAddr(strings.Trim(word, "[]"))
			if err == nil && !ip.IsLoopback() && !ip.IsUnspecified() && !slices.Contains(own, ip.Unmap()) {
				c.stop(v, "this machine does not have the address %s; \"ip address\" lists those that it has", word)
			}
		}
	}
}
