// Package egress describes what mail can be sent from: sources, which are addresses with what
// belongs to them, and pools of sources. It reads the values that egress_source_maps and
// egress_pool_maps have, and says what a source that warms up may send today. It opens no
// connection; smtp(8) does.
//
// # Sources
//
// A source is written as items between commas or blanks, in any order, each once:
//
//	address=192.0.2.1, address6=2001:db8::1, helo=mta1.example.org
//
// The items are
//
//	address=IPV4          what connections over IPv4 come from
//	address6=IPV6         the same over IPv6
//	helo=NAME             what EHLO says; without it smtp_helo_name
//	tls_cert=FILE         certificate of the client, and its chain, in PEM
//	tls_key=FILE          its key; without it the key is in the file of the certificate
//	proxy=KIND:HOST:PORT  connections are made by a proxy: haproxy or socks5
//	warmup=START:N,N,...  recipients of a day for each provider, from a date on
//	warmup_over=wait      what is over that waits for the next day
//
// At least one of address, address6 and proxy must be there: else nothing says what the mail
// comes from. A family of which the source has no address is not used for its mail. A SOCKS5 proxy chooses by
// itself what it connects from, and a source with one has no address.
//
// A source with an error is no source: mail must not leave from another address than was
// meant.
package egress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxName bounds the names of sources and pools, which are in log lines and names of queues.
const maxName = 64

// ValidName says whether a source or a pool may be called so: letters, digits, "-", "_" and
// "." make a name.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// A Source is what mail is sent from.
type Source struct {
	Name string
	// What connections come from, by family; not valid: none. With both not valid there is a
	// Proxy, which chooses.
	Address, Address6 netip.Addr
	Helo              string // "": the client's own
	CertFile, KeyFile string // PEM; CertFile "": the client's own certificate
	Proxy             Proxy
	Warmup            Warmup
}

// A ProxyKind is a protocol in which a proxy is asked for a connection.
type ProxyKind string

const (
	NoProxy ProxyKind = ""
	// The header of HAProxy's PROXY protocol, version 2, with the address that the connection
	// is to come from as source, and the server's as destination. The proxy connects to it.
	HAProxy ProxyKind = "haproxy"
	// RFC 1928, without authentication.
	SOCKS5 ProxyKind = "socks5"
)

// A Proxy makes connections for a source. The zero value is none.
type Proxy struct {
	Kind ProxyKind
	Addr string // host:port
}

// Parse reads a source. The error names the first item that is wrong.
func Parse(name, text string) (Source, error) {
	s := Source{Name: name}
	if !ValidName(name) {
		return s, fmt.Errorf("%.100q is no name: letters, digits, \"-\", \"_\" and \".\" make one", name)
	}
	seen := map[string]bool{}
	for _, item := range items(text) {
		key, value, ok := strings.Cut(item, "=")
		if !ok || value == "" {
			return s, fmt.Errorf("%.100q: expected name=value", item)
		}
		if seen[key] {
			return s, fmt.Errorf("%.100q: %s is named twice", item, key)
		}
		seen[key] = true
		if err := s.set(key, value); err != nil {
			return s, fmt.Errorf("%.100q: %w", item, err)
		}
	}
	switch {
	case !s.Address.IsValid() && !s.Address6.IsValid() && s.Proxy.Kind == NoProxy:
		return s, errors.New("neither address, address6 nor proxy: nothing says what mail comes from")
	case s.Proxy.Kind == HAProxy && !s.Address.IsValid() && !s.Address6.IsValid():
		return s, errors.New("proxy=haproxy needs an address: the proxy is told what to connect from")
	case s.Proxy.Kind == SOCKS5 && (s.Address.IsValid() || s.Address6.IsValid()):
		return s, errors.New("an address with proxy=socks5: such a proxy chooses what it connects from")
	case s.KeyFile != "" && s.CertFile == "":
		return s, errors.New("tls_key without tls_cert")
	case s.Warmup.Wait && s.Warmup.Start.IsZero():
		return s, errors.New("warmup_over without warmup")
	}
	return s, nil
}

// items cuts a text at commas and blanks. The numbers of warmup= have commas between them, and
// stay together: what follows it belongs to it as long as it is a number, or "=" and a number.
func items(text string) (list []string) {
	for _, f := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		n := len(list)
		if n > 0 && strings.HasPrefix(list[n-1], "warmup=") && strings.Trim(f, "=0123456789") == "" {
			list[n-1] += "," + f
			continue
		}
		list = append(list, f)
	}
	return list
}

// set takes in one item.
func (s *Source) set(key, value string) (err error) {
	switch key {
	case "address", "address6":
		ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(value, "["), "]"))
		if err != nil || ip.Zone() != "" || ip.Is4In6() || ip.IsUnspecified() || ip.IsMulticast() {
			return errors.New("expected an IP address")
		}
		if ip.Is4() != (key == "address") {
			return errors.New("an address of the other family")
		}
		if key == "address" {
			s.Address = ip
		} else {
			s.Address6 = ip
		}
	case "helo":
		// It is sent as it stands, and so must not hold what ends a line, or a blank.
		if len(value) > 255 || strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("expected a host name")
		}
		s.Helo = value
	case "tls_cert":
		s.CertFile = value
	case "tls_key":
		s.KeyFile = value
	case "proxy":
		s.Proxy, err = parseProxy(value)
	case "warmup":
		wait := s.Warmup.Wait
		s.Warmup, err = ParseWarmup(value)
		s.Warmup.Wait = wait
	case "warmup_over":
		if value != "wait" && value != "other" {
			return errors.New("expected wait or other")
		}
		s.Warmup.Wait = value == "wait"
	default:
		return errors.New("there is no item of this name")
	}
	return err
}

// parseProxy reads KIND:HOST:PORT.
func parseProxy(text string) (Proxy, error) {
	kind, addr, _ := strings.Cut(text, ":")
	host, port, err := net.SplitHostPort(addr)
	if n, e := strconv.Atoi(port); err != nil || e != nil || n < 1 || n > 65535 || host == "" {
		return Proxy{}, errors.New("expected haproxy:host:port or socks5:host:port")
	}
	switch p := (Proxy{ProxyKind(kind), addr}); p.Kind {
	case HAProxy, SOCKS5:
		return p, nil
	}
	return Proxy{}, fmt.Errorf("there is no kind of proxy %q", kind)
}

// String is s as Parse reads it, but for the name and the warm-up: all that smtp(8) needs.
func (s *Source) String() string {
	var list []string
	add := func(key, value string) {
		if value != "" {
			list = append(list, key+"="+value)
		}
	}
	addr := func(ip netip.Addr) string {
		if !ip.IsValid() {
			return ""
		}
		return ip.String()
	}
	add("address", addr(s.Address))
	add("address6", addr(s.Address6))
	add("helo", s.Helo)
	add("tls_cert", s.CertFile)
	add("tls_key", s.KeyFile)
	if s.Proxy.Kind != NoProxy {
		add("proxy", string(s.Proxy.Kind)+":"+s.Proxy.Addr)
	}
	return strings.Join(list, ", ")
}

// From is the address of the family of a server's; ok is false when the source cannot reach
// it. An address that is not valid, with ok, is for the proxy to choose.
func (s *Source) From(server netip.Addr) (from netip.Addr, ok bool) {
	from = s.Address6
	if server.Is4() {
		from = s.Address
	}
	if !from.IsValid() {
		return from, !s.Address.IsValid() && !s.Address6.IsValid()
	}
	return from, true
}

// A Warmup says how much a new source may send, day by day. The zero value is no bound.
type Warmup struct {
	Start  time.Time // midnight UTC of the first day; zero: there is none
	PerDay []int64   // recipients of each day for each provider, at least one number
	Stay   bool      // the last number holds for ever; else there is no bound after its day
	Wait   bool      // what is over waits for the next day; else other sources send it
}

// maxDays bounds the days of a warm-up.
const maxDays = 366

// ParseWarmup reads START:N,N,..., where START is a date as in 2026-11-28. A last number with
// "=" before it holds for ever.
func ParseWarmup(text string) (w Warmup, err error) {
	date, numbers, ok := strings.Cut(text, ":")
	if w.Start, err = time.Parse(time.DateOnly, date); err != nil || !ok || w.Start.Unix() <= 0 {
		return Warmup{}, errors.New("expected a date, a colon and numbers, as in 2026-11-28:50,100,200")
	}
	list := strings.Split(numbers, ",")
	if len(list) > maxDays {
		return Warmup{}, fmt.Errorf("more than %d days", maxDays)
	}
	for i, text := range list {
		if last, ok := strings.CutPrefix(text, "="); ok && i == len(list)-1 {
			w.Stay, text = true, last
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || n > 1_000_000_000 {
			return Warmup{}, fmt.Errorf("%.30q is no number of recipients", text)
		}
		w.PerDay = append(w.PerDay, n)
	}
	return w, nil
}

// Today is the day of the warm-up that now is, from 1, and how many recipients the source may
// have in it. 0 recipients are no bound: the warm-up is over, or there is none. Day 0 is before
// it: then the source must send nothing.
func (w *Warmup) Today(now time.Time) (day int, n int64) {
	if w.Start.IsZero() {
		return 1, 0
	}
	if now.Before(w.Start) {
		return 0, 0
	}
	day = int(now.Sub(w.Start)/(24*time.Hour)) + 1
	switch {
	case day <= len(w.PerDay):
		return day, w.PerDay[day-1]
	case w.Stay:
		return day, w.PerDay[len(w.PerDay)-1]
	}
	return day, 0
}

// A Member is a source in a pool, by its name.
type Member struct {
	Source string
	Weight int // its share of the mail, at least 1
}

// maxMembers bounds a pool: choosing may look at all of them.
const maxMembers = 256

// ParsePool reads a pool: names of sources between commas or blanks, each with "=" and a
// weight, which is 1 without.
func ParsePool(text string) (list []Member, err error) {
	for _, item := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' }) {
		name, weight, given := strings.Cut(item, "=")
		mb := Member{name, 1}
		if !ValidName(name) {
			return nil, fmt.Errorf("%.100q is no name of a source", name)
		}
		if given {
			if mb.Weight, err = strconv.Atoi(weight); err != nil || mb.Weight < 1 || mb.Weight > 1_000_000 {
				return nil, fmt.Errorf("%.100q: expected a weight from 1 to 1000000", item)
			}
		}
		if slices.ContainsFunc(list, func(o Member) bool { return o.Source == name }) {
			return nil, fmt.Errorf("%q is named twice", name)
		}
		list = append(list, mb)
	}
	if len(list) == 0 || len(list) > maxMembers {
		return nil, fmt.Errorf("%d sources: expected 1 to %d", len(list), maxMembers)
	}
	return list, nil
}
