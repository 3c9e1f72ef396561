package resolver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Bounds of how long answers are kept, whatever their TTL says. A mail system
// comes back after minutes: what was wrong then should be asked for again.
const (
	maxTTL      = time.Hour
	maxNegative = 5 * time.Minute
	failTTL     = 5 * time.Second // a failure: enough to not ask for each message of a burst
	maxAliases  = 10              // CNAMEs followed, over all queries of a lookup
	maxRecords  = 100             // records of one answer that are used
	cacheSize   = 20000           // questions
)

// An Exchanger sends one question to whoever answers questions and returns the
// reply, whose identifier and question have been checked. It returns an error
// only if there was no reply. The reply is not changed afterwards.
type Exchanger interface {
	Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error)
}

// Options say how a Client works. The zero value asks the system's name servers.
type Options struct {
	Exchanger Exchanger // nil: the name servers of ResolvConf
	DNSSEC    bool      // ask for validation, and believe AD where that is safe
	// ResolvConf and Hosts are the system's files when empty.
	ResolvConf, Hosts string
	// Servers, if any, are asked in the place of those in ResolvConf: addresses,
	// with a port where it is not 53 (address:port, [address]:port). TrustAD
	// believes their word on DNSSEC; that of a server on this host is believed
	// in any case.
	Servers   []string
	TrustAD   bool
	CacheSize int // questions kept; 0: 20000; negative: none
	// Filter, if not nil, is shown each record of an answer that would be
	// used, as "NAME. TTL IN TYPE DATA", and says whether to keep it.
	Filter func(record string) bool
	// Names is how international names become those that are asked for.
	Names Names
	// Warn, if not nil, is told of a name server that does not answer: once
	// in five minutes, not for each question. It may be called concurrently.
	Warn func(format string, args ...any)
}

// Client is the Resolver over real name servers.
type Client struct {
	opt   Options
	ask   Exchanger
	cache *cache
	hosts *hostsFile
	wg    sync.WaitGroup

	mu    sync.Mutex
	calls map[key]*call
}

// call is a query under way, for all who wait for it.
type call struct {
	done   chan struct{}
	cancel context.CancelFunc
	res    result
}

var _ Resolver = (*Client)(nil)

// New returns a Client. Close it when the process is done with it. It reads
// ResolvConf and Hosts, which may be out of sight afterwards: inside chroot,
// what was read counts until there is a file of that name.
func New(o Options) *Client {
	if o.CacheSize == 0 {
		o.CacheSize = cacheSize
	}
	c := &Client{opt: o, ask: o.Exchanger, cache: newCache(o.CacheSize), calls: make(map[key]*call)}
	c.hosts = newHostsFile(o.Hosts)
	c.hosts.lookup("", 0)
	if c.ask == nil {
		w := newWire(o.ResolvConf, c.cache.clear)
		w.conf.servers, w.conf.trustAD = parseServers(o.Servers), o.TrustAD
		w.silence.warn = o.Warn
		w.conf.get(time.Now())
		c.ask = w
	}
	return c
}

// Close ends the queries that are under way, which fail, and waits for that.
func (c *Client) Close() {
	c.mu.Lock()
	for _, w := range c.calls {
		w.cancel()
	}
	c.mu.Unlock()
	c.wg.Wait()
}

// query gives what is known or can be found out about a question. The error
// is an *Error or the context's.
func (c *Client) query(ctx context.Context, name string, qtype uint16) (*reply, time.Time, error) {
	ascii, ok := c.opt.Names.ToASCII(name)
	if qtype == dns.TypeNS && name == "." { // the root is no host, but has servers
		ok = true
	}
	if !ok {
		return nil, time.Time{}, &Error{Kind: Invalid, Name: name, Type: dns.TypeToString[qtype]}
	}
	k := key{qtype, ascii}
	if r, ok := c.cache.get(k, time.Now()); ok {
		return r.reply, r.expire, asError(r.err)
	}
	if isLocalhost(ascii) {
		return nil, time.Time{}, &Error{Kind: NoData, Name: name, Type: dns.TypeToString[qtype]}
	}
	if err := ctx.Err(); err != nil {
		return nil, time.Time{}, err
	}
	c.mu.Lock()
	w := c.calls[k]
	if w == nil {
		// The query belongs to nobody's context, since several may wait for it.
		own, cancel := context.WithCancel(context.Background())
		w = &call{done: make(chan struct{}), cancel: cancel}
		c.calls[k] = w
		c.wg.Go(func() { c.run(own, k, w) })
	}
	c.mu.Unlock()
	select {
	case <-w.done:
		return w.res.reply, w.res.expire, asError(w.res.err)
	case <-ctx.Done():
		return nil, time.Time{}, context.Cause(ctx)
	}
}

// asError keeps a nil *Error from becoming an error that is not nil.
func asError(e *Error) error {
	if e == nil {
		return nil
	}
	return e
}

// run does the query of w and tells who waits. Its time is bounded by the Exchanger.
func (c *Client) run(ctx context.Context, k key, w *call) {
	defer w.cancel()
	rep, err := c.resolve(ctx, k.name, k.qtype)
	now := time.Now()
	w.res = result{reply: rep, err: err}
	switch {
	case err == nil:
		w.res.expire = now.Add(min(rep.ttl, maxTTL))
	case err.Kind == NXDomain || err.Kind == NoData:
		w.res.expire = now.Add(min(rep.ttl, maxNegative))
	default:
		w.res.expire = now.Add(failTTL)
	}
	c.cache.put(k, w.res, now)
	c.mu.Lock()
	delete(c.calls, k)
	c.mu.Unlock()
	close(w.done)
}

// reply is the useful part of an answer: the records of the type asked for
// that belong to the name at the end of the aliases.
type reply struct {
	rrs    []dns.RR
	name   string
	ttl    time.Duration
	secure bool
}

// resolve asks, and follows aliases that the name server did not follow.
func (c *Client) resolve(ctx context.Context, name string, qtype uint16) (*reply, *Error) {
	fail := func(kind Kind, secure bool, err error) *Error {
		return &Error{Kind: kind, Name: name, Type: dns.TypeToString[qtype], Secure: secure, Err: err}
	}
	out := &reply{name: name, ttl: maxTTL, secure: true}
	aliases := 0
	for {
		m, err := c.ask.Exchange(ctx, c.question(out.name, qtype))
		if err != nil {
			return out, fail(TempFail, false, err)
		}
		out.secure = out.secure && m.AuthenticatedData && c.opt.DNSSEC
		switch m.Rcode {
		case dns.RcodeSuccess, dns.RcodeNameError:
		case dns.RcodeServerFailure, dns.RcodeRefused, dns.RcodeNotImplemented:
			return out, fail(TempFail, false, errors.New("name server says "+dns.RcodeToString[m.Rcode]))
		default:
			return out, fail(NoRecovery, false, errors.New("name server says "+dns.RcodeToString[m.Rcode]))
		}
		before := out.name
		var ok bool
		if out.rrs, aliases, ok = out.collect(m, qtype, aliases); !ok {
			return out, fail(TempFail, false, errors.New("alias loop, or more than 10 aliases"))
		}
		switch {
		case len(out.rrs) > 0:
			if out.rrs = c.filter(out.rrs); len(out.rrs) == 0 {
				return out, fail(Filtered, false, nil)
			}
			return out, nil
		case m.Rcode == dns.RcodeNameError:
			out.ttl = min(out.ttl, negativeTTL(m))
			return out, fail(NXDomain, out.secure, nil)
		case out.name == before || hasSOA(m):
			out.ttl = min(out.ttl, negativeTTL(m))
			return out, fail(NoData, out.secure, nil)
		}
	}
}

// filter keeps the records that Options.Filter lets pass.
func (c *Client) filter(rrs []dns.RR) []dns.RR {
	if c.opt.Filter == nil {
		return rrs
	}
	kept := rrs[:0]
	for _, rr := range rrs {
		if c.opt.Filter(strings.ReplaceAll(rr.String(), "\t", " ")) {
			kept = append(kept, rr)
		}
	}
	return kept
}

func (c *Client) question(name string, qtype uint16) *dns.Msg {
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), qtype)
	q.SetEdns0(ednsSize, c.opt.DNSSEC)
	q.AuthenticatedData = c.opt.DNSSEC
	return q
}

// collect follows the aliases inside m from r.name on, and returns the records
// of type qtype that the last name has. Records of other names do not count.
func (r *reply) collect(m *dns.Msg, qtype uint16, aliases int) ([]dns.RR, int, bool) {
	for {
		var found []dns.RR
		var alias *dns.CNAME
		for _, rr := range m.Answer {
			h := rr.Header()
			if h.Class != dns.ClassINET || !strings.EqualFold(unqualify(h.Name), r.name) {
				continue
			}
			if h.Rrtype == qtype && len(found) < maxRecords {
				found = append(found, rr)
				r.ttl = min(r.ttl, time.Duration(h.Ttl)*time.Second)
			} else if a, ok := rr.(*dns.CNAME); ok && qtype != dns.TypeCNAME {
				alias = a
			}
		}
		if len(found) > 0 || alias == nil {
			return found, aliases, true
		}
		if aliases++; aliases > maxAliases {
			return nil, aliases, false
		}
		r.ttl = min(r.ttl, time.Duration(alias.Hdr.Ttl)*time.Second)
		// Any name will do: reverse zones are delegated by names that no host
		// can have (RFC 2317).
		r.name = strings.ToLower(unqualify(alias.Target))
	}
}

func hasSOA(m *dns.Msg) bool {
	for _, rr := range m.Ns {
		if _, ok := rr.(*dns.SOA); ok {
			return true
		}
	}
	return false
}

// negativeTTL is how long absence may be kept: RFC 2308 section 5. Without an
// SOA it must not be kept; a few seconds spare the server a burst.
func negativeTTL(m *dns.Msg) time.Duration {
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			return time.Duration(min(soa.Hdr.Ttl, soa.Minttl)) * time.Second
		}
	}
	return failTTL
}

// lookup asks for records of one type and turns each into a T; one that
// convert refuses is left out. If that leaves nothing the answer is Invalid.
func lookup[T any](ctx context.Context, c *Client, name string, qtype uint16, convert func(dns.RR) (T, bool)) (Answer[T], error) {
	rep, expire, err := c.query(ctx, name, qtype)
	if err != nil {
		return Answer[T]{}, err
	}
	a := Answer[T]{Name: rep.name, TTL: max(0, time.Until(expire)), Secure: rep.secure}
	a.Records = make([]T, 0, len(rep.rrs))
	for _, rr := range rep.rrs {
		if v, ok := convert(rr); ok {
			a.Records = append(a.Records, v)
		}
	}
	if len(a.Records) == 0 {
		return a, &Error{Kind: Invalid, Name: name, Type: dns.TypeToString[qtype]}
	}
	return a, nil
}

// hostIn gives a host name out of a record's data; "" stands for the root.
func hostIn(name string) (string, bool) {
	name = unqualify(name)
	return name, name == "" || ValidHostname(name)
}

// MX looks up mail exchangers, in the order of the reply.
func (c *Client) MX(ctx context.Context, domain string) (Answer[MX], error) {
	return lookup(ctx, c, domain, dns.TypeMX, func(rr dns.RR) (MX, bool) {
		mx, ok := rr.(*dns.MX)
		if !ok {
			return MX{}, false
		}
		host, ok := hostIn(mx.Mx)
		if !ok {
			// An address where a name should be is a common mistake that
			// every mail system lets pass.
			_, err := netip.ParseAddr(host)
			ok = err == nil
		}
		return MX{mx.Preference, host}, ok
	})
}

// Addrs looks up addresses; both families are asked for at once.
func (c *Client) Addrs(ctx context.Context, host string, f Family) (Answer[netip.Addr], error) {
	if a, ok := c.localhost(host, f); ok {
		return a, nil
	}
	var v4, v6 Answer[netip.Addr]
	var err4, err6 error
	switch f {
	case IPv4:
		return c.addrs4(ctx, host)
	case IPv6:
		return c.addrs6(ctx, host)
	}
	if c.known(host, dns.TypeAAAA) {
		v6, err6 = c.addrs6(ctx, host)
		v4, err4 = c.addrs4(ctx, host)
	} else {
		done := make(chan struct{})
		c.wg.Go(func() {
			defer close(done)
			v6, err6 = c.addrs6(ctx, host)
		})
		v4, err4 = c.addrs4(ctx, host)
		<-done
	}
	switch {
	case err4 == nil && err6 == nil:
		return Answer[netip.Addr]{
			Records: append(v4.Records[:len(v4.Records):len(v4.Records)], v6.Records...),
			Name:    v4.Name, TTL: min(v4.TTL, v6.TTL), Secure: v4.Secure && v6.Secure,
		}, nil
	case err4 == nil:
		return v4, nil
	case err6 == nil:
		return v6, nil
	case KindOf(err4) == TempFail:
		return v4, err4
	}
	return v6, err6
}

// known says whether a question can be answered from the cache.
func (c *Client) known(name string, qtype uint16) bool {
	ascii, ok := c.opt.Names.ToASCII(name)
	if !ok {
		return true
	}
	_, ok = c.cache.get(key{qtype, ascii}, time.Now())
	return ok
}

func (c *Client) addrs4(ctx context.Context, host string) (Answer[netip.Addr], error) {
	return lookup(ctx, c, host, dns.TypeA, func(rr dns.RR) (netip.Addr, bool) {
		a, ok := rr.(*dns.A)
		if !ok {
			return netip.Addr{}, false
		}
		addr, _ := netip.AddrFromSlice(a.A.To4())
		return addr, addr.Is4()
	})
}

func (c *Client) addrs6(ctx context.Context, host string) (Answer[netip.Addr], error) {
	return lookup(ctx, c, host, dns.TypeAAAA, func(rr dns.RR) (netip.Addr, bool) {
		a, ok := rr.(*dns.AAAA)
		if !ok {
			return netip.Addr{}, false
		}
		return netip.AddrFromSlice(a.AAAA)
	})
}

// localhost answers for the loopback names.
func (c *Client) localhost(host string, f Family) (Answer[netip.Addr], bool) {
	name, ok := c.opt.Names.ToASCII(host)
	if !ok || !isLocalhost(name) {
		return Answer[netip.Addr]{}, false
	}
	a := Answer[netip.Addr]{Name: name, TTL: maxTTL}
	if f&IPv4 != 0 {
		a.Records = append(a.Records, netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	}
	if f&IPv6 != 0 {
		a.Records = append(a.Records, netip.IPv6Loopback())
	}
	return a, len(a.Records) > 0
}

// PTR looks up the names of an address.
func (c *Client) PTR(ctx context.Context, addr netip.Addr) (Answer[string], error) {
	arpa, err := dns.ReverseAddr(addr.Unmap().WithZone("").String())
	if err != nil {
		return Answer[string]{}, &Error{Kind: Invalid, Name: addr.String(), Type: "PTR", Err: err}
	}
	return lookup(ctx, c, arpa, dns.TypePTR, func(rr dns.RR) (string, bool) {
		p, ok := rr.(*dns.PTR)
		if !ok {
			return "", false
		}
		host, ok := hostIn(p.Ptr)
		return host, ok && host != ""
	})
}

// TXT looks up texts.
func (c *Client) TXT(ctx context.Context, name string) (Answer[string], error) {
	return lookup(ctx, c, name, dns.TypeTXT, func(rr dns.RR) (string, bool) {
		t, ok := rr.(*dns.TXT)
		if !ok {
			return "", false
		}
		return unescape(strings.Join(t.Txt, "")), true
	})
}

// TLSA looks up certificate associations.
func (c *Client) TLSA(ctx context.Context, name string) (Answer[TLSA], error) {
	return lookup(ctx, c, name, dns.TypeTLSA, func(rr dns.RR) (TLSA, bool) {
		t, ok := rr.(*dns.TLSA)
		if !ok {
			return TLSA{}, false
		}
		data, ok := unhex(t.Certificate)
		return TLSA{t.Usage, t.Selector, t.MatchingType, data}, ok
	})
}

// SRV looks up service locations, in the order of the reply.
func (c *Client) SRV(ctx context.Context, name string) (Answer[SRV], error) {
	return lookup(ctx, c, name, dns.TypeSRV, func(rr dns.RR) (SRV, bool) {
		s, ok := rr.(*dns.SRV)
		if !ok {
			return SRV{}, false
		}
		host, ok := hostIn(s.Target)
		return SRV{s.Priority, s.Weight, s.Port, host}, ok
	})
}

// CAA looks up who may issue certificates for a name, by that name alone: where it has no such
// record, those of the domains above it count (RFC 8659 section 3).
func (c *Client) CAA(ctx context.Context, name string) (Answer[CAA], error) {
	return lookup(ctx, c, name, dns.TypeCAA, func(rr dns.RR) (CAA, bool) {
		r, ok := rr.(*dns.CAA)
		if !ok {
			return CAA{}, false
		}
		return CAA{r.Flag&128 != 0, strings.ToLower(r.Tag), r.Value}, true
	})
}

// NS looks up a zone's name servers.
func (c *Client) NS(ctx context.Context, name string) (Answer[string], error) {
	return lookup(ctx, c, name, dns.TypeNS, func(rr dns.RR) (string, bool) {
		n, ok := rr.(*dns.NS)
		if !ok {
			return "", false
		}
		host, ok := hostIn(n.Ns)
		return host, ok && host != ""
	})
}

// CNAME looks up an alias, and does not follow it.
func (c *Client) CNAME(ctx context.Context, name string) (Answer[string], error) {
	return lookup(ctx, c, name, dns.TypeCNAME, func(rr dns.RR) (string, bool) {
		a, ok := rr.(*dns.CNAME)
		if !ok {
			return "", false
		}
		host, ok := hostIn(a.Target)
		return host, ok && host != ""
	})
}

// Native asks as the system's other programs do.
func (c *Client) Native(ctx context.Context, host string, f Family) (Answer[netip.Addr], error) {
	if a, ok := c.localhost(host, f); ok {
		return a, nil
	}
	if found := c.hosts.lookup(host, f); len(found) > 0 {
		return Answer[netip.Addr]{Records: found, Name: host}, nil
	}
	if c.opt.Exchanger != nil {
		// Somebody else answers the questions of this Client: the system
		// must not be asked behind its back.
		return c.Addrs(ctx, host, f)
	}
	network := map[Family]string{IPv4: "ip4", IPv6: "ip6"}[f]
	if network == "" {
		network = "ip"
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, network, host)
	if err != nil {
		kind := TempFail
		if de, ok := errors.AsType[*net.DNSError](err); ok && de.IsNotFound {
			kind = NXDomain
		}
		return Answer[netip.Addr]{}, &Error{Kind: kind, Name: host, Type: "A", Err: err}
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return Answer[netip.Addr]{Records: addrs, Name: host}, nil
}
