package smallnet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

// The name servers: of the root, of the top-level domains, and of the domains below.
const (
	rootServer  = "11.22.33.1"
	topServer   = "11.22.33.2"
	belowServer = "11.22.33.3"
	reverse     = "33.22.11.in-addr.arpa"
	reverse6    = "3.3.0.0.2.2.0.0.1.1.0.0.c.0.a.2.ip6.arpa"
	prefix6     = "2a0c:11:22:33::" // of the addresses in it
)

// A tree is the whole DNS of an internet, each zone signed by a key of its own.
type tree struct {
	t         *testing.T
	host      *host
	zones     map[string]*zone
	resolvers []*host
}

// A zone is what is published of it, beside what makes it a zone.
type zone struct {
	name    string // without the dot at the end
	server  string
	records []string
	key     string // the base of its file names
	ds      string
	serial  int
}

// newTree serves the root, these domains, and the top-level domains above them.
func newTree(n *internet, domains ...string) *tree {
	n.t.Helper()
	for _, p := range []string{"ldns-signzone", "nsd", "unbound", "drill"} {
		testpeers.Program(n.t, p)
	}
	d := &tree{t: n.t, host: n.host("ns.dns", rootServer, topServer, belowServer), zones: map[string]*zone{}}
	d.add("", rootServer)
	for _, name := range domains {
		if top := name[strings.LastIndexByte(name, '.')+1:]; d.zones[top] == nil {
			d.add(top, topServer)
		}
	}
	for _, name := range append(domains, reverse, reverse6) {
		d.add(name, belowServer)
	}
	for _, server := range []string{rootServer, topServer, belowServer} {
		conf := "server:\n  ip-address: " + server + "\n  username: \"\"\n  chroot: \"\"\n  zonesdir: /srv/dns\n  zonefiles-check: yes\n  server-count: 1\n  database: \"\"\n" +
			fmt.Sprintf("  pidfile: /run/nsd.%[1]s\n  xfrdfile: /srv/dns/xfrd.%[1]s\n  zonelistfile: /srv/dns/list.%[1]s\n  logfile: \"\"\nremote-control:\n  control-enable: no\n", server)
		for _, z := range d.zones {
			if z.server == server {
				conf += fmt.Sprintf("zone:\n  name: %q\n  zonefile: %q\n", z.name+".", z.file()+".signed")
			}
		}
		d.host.write("srv/dns/nsd."+server, conf)
	}
	for _, z := range d.order() { // the deepest first: those above have their keys
		d.sign(z)
	}
	for _, server := range []string{rootServer, topServer, belowServer} {
		d.host.daemon("nsd."+server, "nsd -d -c /srv/dns/nsd."+server)
	}
	d.await()
	return d
}

// add makes a zone, and its key.
func (d *tree) add(name, server string) {
	d.t.Helper()
	z := &zone{name: name, server: server}
	d.zones[name] = z
	d.host.must("mkdir -p /srv/dns")
	z.key = strings.TrimSpace(d.host.must("cd /srv/dns; ldns-keygen -a ECDSAP256SHA256 -k " + name + ".; rm -f *.ds"))
	z.ds = strings.TrimSpace(d.host.must("cd /srv/dns; ldns-key2ds -n -2 " + z.key + ".key"))
}

func (z *zone) file() string {
	if z.name == "" {
		return "root"
	}
	return z.name
}

// parent is the zone above; nil for the root.
func (d *tree) parent(z *zone) *zone {
	for name := z.name; name != ""; {
		_, name, _ = strings.Cut(name, ".")
		if p := d.zones[name]; p != nil {
			return p
		}
	}
	return nil
}

// order has each zone before the one above it.
func (d *tree) order() []*zone {
	var zones []*zone
	for _, z := range d.zones {
		zones = append(zones, z)
	}
	slices.SortFunc(zones, func(a, b *zone) int { return len(b.name) - len(a.name) })
	return zones
}

// sign writes a zone and signs it.
func (d *tree) sign(z *zone) {
	d.t.Helper()
	z.serial++
	names := map[string]string{rootServer: "ns1.dns.", topServer: "ns2.dns.", belowServer: "ns3.dns."}
	text := fmt.Sprintf("$ORIGIN %s.\n$TTL 60\n@ SOA %s hostmaster.dns. %d 3600 600 86400 1\n@ NS %[2]s\n", z.name, names[z.server], z.serial)
	if z.name == "" {
		for server, name := range names {
			text += name + " A " + server + "\n"
		}
	}
	for _, child := range d.zones {
		if child != z && d.parent(child) == z {
			text += child.name + ". NS " + names[child.server] + "\n" + child.ds + "\n"
		}
	}
	d.host.write("srv/dns/"+z.file(), text+strings.Join(z.records, "\n")+"\n")
	d.host.must(fmt.Sprintf("cd /srv/dns; ldns-signzone -o %s. -f %s.signed %[2]s %s", z.name, z.file(), z.key))
}

// await waits until the name servers have the zones as they were signed last.
func (d *tree) await() {
	d.t.Helper()
	for _, z := range d.zones {
		testwait.Until(d.t, "zone "+z.file()+" is served", func() bool {
			out, _ := d.host.run("drill @" + z.server + " SOA " + z.name + ".")
			return strings.Contains(out, fmt.Sprintf("hostmaster.dns. %d 3600", z.serial))
		})
	}
}

// set replaces what a zone has, and add's records: it is signed, served, and forgotten by
// resolvers that know of an older one.
func (d *tree) set(name string, records ...string) {
	d.t.Helper()
	z := d.zones[name]
	if z == nil {
		d.t.Fatalf("there is no zone %s", name)
	}
	z.records = records
	d.sign(z)
	d.host.must("kill -HUP $(cat /run/nsd." + z.server + ")")
	testwait.Until(d.t, "zone "+z.file()+" is served", func() bool {
		out, _ := d.host.run("drill @" + z.server + " SOA " + z.name + ".")
		return strings.Contains(out, fmt.Sprintf("hostmaster.dns. %d 3600", z.serial))
	})
	for _, h := range d.resolvers {
		h.must("unbound-control -c /etc/small-unbound.conf flush_zone .; unbound-control -c /etc/small-unbound.conf flush_negative")
	}
}

// publish adds records to a zone, in the form of a zone file.
func (d *tree) publish(name string, records ...string) {
	d.t.Helper()
	d.set(name, append(slices.Clone(d.zones[name].records), records...)...)
}

// resolve has a host find names by a resolver of its own, which verifies what it is told.
func (d *tree) resolve(h *host) {
	d.t.Helper()
	h.write("etc/small-unbound.conf", `server:
  interface: 0.0.0.0
  access-control: 0.0.0.0/0 allow
  username: ""
  chroot: ""
  directory: /run
  pidfile: ""
  use-syslog: no
  logfile: ""
  do-daemonize: no
  do-ip6: no
  num-threads: 1
  msg-cache-size: 1m
  rrset-cache-size: 1m
  module-config: "validator iterator"
  root-hints: /etc/small-hints
  trust-anchor-file: /etc/small-anchor
  infra-host-ttl: 1
  val-log-level: 2
remote-control:
  control-enable: yes
  control-interface: /run/unbound.ctl
  control-use-cert: no
`)
	h.write("etc/small-hints", ". 3600 NS ns1.dns.\nns1.dns. 3600 A "+rootServer+"\n")
	h.write("etc/small-anchor", d.zones[""].ds+"\n")
	h.write("usr/share/dns/root.key", d.zones[""].ds+"\n")
	h.daemon("unbound", "unbound -d -p -c /etc/small-unbound.conf")
	testwait.Until(d.t, h.name+" resolves, and verifies", func() bool {
		// A question to a port that nobody has opened yet would be repeated after seconds only.
		if _, status := h.run("unbound-control -c /etc/small-unbound.conf status"); status != 0 {
			return false
		}
		out, _ := h.run("drill -D @127.0.0.1 NS org.")
		return strings.Contains(out, " ad ") && strings.Contains(out, "ns2.dns.")
	})
	d.resolvers = append(d.resolvers, h)
}

// provider is a host that finds names for machines which have no resolver of their own, as providers
// have one.
func (d *tree) provider(n *internet) *host {
	d.t.Helper()
	h := n.host("resolver.dns", "11.22.33.4")
	d.resolve(h)
	return h
}
