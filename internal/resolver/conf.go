package resolver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// conf is what we use of a resolv.conf(5). Search list, domain, ndots and
// sortlist are left alone on purpose: see the package comment.
type conf struct {
	servers  []string // host:port, at most three
	timeout  time.Duration
	attempts int
	rotate   bool
	useVC    bool
	trustAD  bool
}

// Bounds of resolv.conf(5).
const (
	maxServers  = 3
	maxTimeout  = 30
	maxAttempts = 5
)

// parseConf reads a resolv.conf. It never fails: what it does not understand
// it ignores, as every resolver does, and without a server it is the one on
// this machine.
func parseConf(r io.Reader) *conf {
	c := &conf{timeout: 5 * time.Second, attempts: 2}
	for s := bufio.NewScanner(io.LimitReader(r, 1<<20)); s.Scan(); {
		line := s.Text()
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		f := strings.Fields(line)
		switch {
		case len(f) >= 2 && f[0] == "nameserver" && len(c.servers) < maxServers:
			c.servers = append(c.servers, parseServers(f[1:2])...)
		case len(f) >= 2 && f[0] == "options":
			for _, o := range f[1:] {
				c.option(o)
			}
		}
	}
	if len(c.servers) == 0 {
		c.servers = []string{"127.0.0.1:53"}
	}
	return c
}

// parseServers gives addresses their ports. What is no address is left out.
func parseServers(list []string) (servers []string) {
	for _, s := range list {
		if a, err := netip.ParseAddr(s); err == nil {
			servers = append(servers, net.JoinHostPort(a.String(), "53"))
		} else if ap, err := netip.ParseAddrPort(s); err == nil {
			servers = append(servers, ap.String()) // a port, as BSD's resolvers take it: [addr]:port
		}
	}
	return servers
}

// Configured are the Options of the parameters resolver_address, resolver_trust_ad and
// enable_idna2003_compatibility. The error says which server is not an address.
func Configured(cfg interface {
	List(name string) []string
	Bool(name string) bool
}) (Options, error) {
	o := Options{Servers: cfg.List("resolver_address"), TrustAD: cfg.Bool("resolver_trust_ad"), Names: NamesOf(cfg)}
	for _, s := range o.Servers {
		if len(parseServers([]string{s})) == 0 {
			return o, fmt.Errorf("resolver_address: %q: expected an IP address, or address:port", s)
		}
	}
	return o, nil
}

func (c *conf) option(o string) {
	name, value, _ := strings.Cut(o, ":")
	n, err := strconv.Atoi(value)
	switch {
	case name == "timeout" && err == nil && n > 0:
		c.timeout = time.Duration(min(n, maxTimeout)) * time.Second
	case name == "attempts" && err == nil && n > 0:
		c.attempts = min(n, maxAttempts)
	case o == "rotate":
		c.rotate = true
	case o == "use-vc":
		c.useVC = true
	case o == "trust-ad":
		c.trustAD = true
	}
}

// recheck is how often files are looked at for changes.
const recheck = 5 * time.Second

// watched is a file that is read again after it changed.
type watched struct {
	path    string
	next    time.Time // when to look again
	modTime time.Time
	size    int64
}

// open returns the file if it is time to look and it changed.
func (w *watched) open(now time.Time) *os.File {
	if now.Before(w.next) {
		return nil
	}
	w.next = now.Add(recheck)
	st, err := os.Stat(w.path)
	if err != nil || (st.ModTime().Equal(w.modTime) && st.Size() == w.size) {
		return nil
	}
	f, err := os.Open(w.path)
	if err != nil {
		return nil
	}
	w.modTime, w.size = st.ModTime(), st.Size()
	return f
}

// confFile is a resolv.conf that may change while we run.
type confFile struct {
	mu      sync.Mutex
	file    watched
	conf    *conf
	changed func()
	servers []string // in the place of the file's
	trustAD bool
}

func newConfFile(path string, changed func()) *confFile {
	if path == "" {
		path = "/etc/resolv.conf"
	}
	return &confFile{file: watched{path: path}, changed: changed}
}

// get returns the present settings. A file that cannot be read leaves the
// former ones in force, or those of an empty file.
func (c *confFile) get(now time.Time) *conf {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.file.open(now); f != nil {
		defer f.Close()
		first := c.conf == nil
		c.conf = c.own(parseConf(f))
		if !first {
			c.changed()
		}
	}
	if c.conf == nil {
		c.conf = c.own(parseConf(strings.NewReader("")))
	}
	return c.conf
}

// own puts what Options say over what the file says.
func (c *confFile) own(conf *conf) *conf {
	if len(c.servers) > 0 {
		conf.servers = c.servers
	}
	conf.trustAD = conf.trustAD || c.trustAD
	return conf
}

// hostsFile is /etc/hosts.
type hostsFile struct {
	mu    sync.Mutex
	file  watched
	names map[string][]netip.Addr // by lower-case name
}

func newHostsFile(path string) *hostsFile {
	if path == "" {
		path = "/etc/hosts"
	}
	return &hostsFile{file: watched{path: path}}
}

// lookup gives the addresses of a name, in the file's order.
func (h *hostsFile) lookup(name string, f Family) []netip.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.file.open(time.Now()); r != nil {
		h.names = parseHosts(r)
		r.Close()
	}
	var out []netip.Addr
	for _, a := range h.names[strings.ToLower(strings.TrimSuffix(name, "."))] {
		if (a.Is4() && f&IPv4 != 0) || (a.Is6() && f&IPv6 != 0) {
			out = append(out, a)
		}
	}
	return out
}

// parseHosts reads a hosts(5) file; lines that it does not understand are skipped.
func parseHosts(r io.Reader) map[string][]netip.Addr {
	names := make(map[string][]netip.Addr)
	for s := bufio.NewScanner(io.LimitReader(r, 16<<20)); s.Scan(); {
		line, _, _ := strings.Cut(s.Text(), "#")
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		a, err := netip.ParseAddr(f[0])
		if err != nil {
			continue
		}
		for _, n := range f[1:] {
			n = strings.ToLower(strings.TrimSuffix(n, "."))
			names[n] = append(names[n], a.Unmap())
		}
	}
	return names
}
