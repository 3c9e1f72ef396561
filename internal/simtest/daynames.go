package simtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// dayNames are the name servers of a day. What they say of a name depends on the name alone: most of the names of
// strangers are in zones of people who want trouble.
type dayNames struct {
	seed  seed
	asked atomic.Int64
}

func newDayNames(s seed) *dayNames { return &dayNames{seed: s} }

var errNoAnswer = errors.New("simtest: the name servers do not answer")

// wellKnown are names of honest people.
var wellKnown = map[string]string{
	"relay.test. MX": "relay.test. 600 IN MX 10 mx.relay.test.", "mx.relay.test. A": "mx.relay.test. 600 IN A 203.0.113.1",
	"victim.test. MX": "victim.test. 600 IN MX 10 mx.victim.test.", "mx.victim.test. A": "mx.victim.test. 600 IN A 203.0.113.2",
	"sim.test. MX": "sim.test. 600 IN MX 10 mx.victim.test.",
}

// Exchange implements resolver.Exchanger.
func (n *dayNames) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	n.asked.Add(1)
	time.Sleep(time.Millisecond)
	m := new(dns.Msg)
	m.SetReply(q)
	m.RecursionAvailable = true
	name, typ := strings.ToLower(q.Question[0].Name), q.Question[0].Qtype
	if text := wellKnown[name+" "+dns.TypeToString[typ]]; text != "" {
		rr, err := dns.NewRR(text)
		m.Answer = append(m.Answer, rr)
		return m, err
	}
	r := n.seed.source("name " + name)
	switch {
	case strings.HasSuffix(name, ".in-addr.arpa.") && typ == dns.TypePTR:
		return n.pointer(ctx, m, name, r)
	case strings.HasSuffix(name, ".bl.test.") && typ == dns.TypeA:
		if r.IntN(10) == 0 && !strings.HasSuffix(name, ".113.0.203.bl.test.") {
			m.Answer = append(m.Answer, &dns.A{Hdr: header(name, dns.TypeA, 300), A: net.IPv4(127, 0, 0, 2)})
			return m, nil
		}
	case strings.HasSuffix(name, ".wild.test."):
		return n.wild(ctx, m, name, typ, r)
	}
	return nobody(m, dns.RcodeNameError), nil
}

func header(name string, typ uint16, ttl uint32) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: typ, Class: dns.ClassINET, Ttl: ttl}
}

// nobody is an answer without records, which may be kept for an hour.
func nobody(m *dns.Msg, code int) *dns.Msg {
	m.Rcode = code
	m.Ns = append(m.Ns, &dns.SOA{Hdr: header("test.", dns.TypeSOA, 3600), Ns: "ns.test.", Mbox: "root.test.", Minttl: 3600})
	return m
}

// pointer says what the name of a client is.
func (n *dayNames) pointer(ctx context.Context, m *dns.Msg, name string, r *rand.Rand) (*dns.Msg, error) {
	ptr := func(to string) {
		m.Answer = append(m.Answer, &dns.PTR{Hdr: header(name, dns.TypePTR, pick(r, uint32(0), 300, 86400, 1<<31)), Ptr: to})
	}
	host := "c-" + strings.ReplaceAll(strings.TrimSuffix(name, ".in-addr.arpa."), ".", "-") + ".wild.test."
	switch d := r.IntN(100); {
	case d < 40:
		return nobody(m, dns.RcodeNameError), nil
	case d < 45:
		return nobody(m, dns.RcodeServerFailure), nil
	case d < 48:
		return nil, silent5s(ctx)
	case d < 55: // as many names as there is room for
		for i := range 900 {
			ptr(fmt.Sprintf("%s-%d.%s", strings.Repeat("x", 50), i, host))
		}
	case d < 60:
		ptr(`\000\255evil\010.` + host)
	case d < 65:
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(name, dns.TypeCNAME, 300), Target: name})
	case d < 68:
		m.Question[0].Name = "another.test."
	default:
		ptr(host)
	}
	return m, nil
}

// silent5s is no answer.
func silent5s(ctx context.Context) error {
	t := time.NewTimer(5 * time.Second)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return errNoAnswer
}

// wild answers for the zone in which each name does what it likes.
func (n *dayNames) wild(ctx context.Context, m *dns.Msg, name string, typ uint16, r *rand.Rand) (*dns.Msg, error) {
	addr := func() {
		m.Answer = append(m.Answer, &dns.A{Hdr: header(name, dns.TypeA, pick(r, uint32(0), 60, 3600, 1<<31)), A: net.IPv4(100, byte(64+r.IntN(64)), byte(r.IntN(256)), byte(r.IntN(256)))})
	}
	switch d := r.IntN(100); {
	case d < 4:
		return nobody(m, dns.RcodeServerFailure), nil
	case d < 6:
		return nil, silent5s(ctx)
	case d < 8:
		m.Answer = append(m.Answer, &dns.CNAME{Hdr: header(name, dns.TypeCNAME, 300), Target: "loop." + name})
	case typ == dns.TypeA && strings.HasPrefix(name, "c-") && d < 80: // the address of the client of that name
		p := strings.Split(strings.TrimSuffix(name, ".wild.test."), "-")
		m.Answer = append(m.Answer, &dns.A{Hdr: header(name, dns.TypeA, 3600), A: net.ParseIP(p[4] + "." + p[3] + "." + p[2] + "." + p[1])})
	case typ == dns.TypeA && d < 12:
		for range 1000 {
			addr()
		}
	case typ == dns.TypeA:
		addr()
	case typ == dns.TypeMX && strings.HasPrefix(name, "d"):
		for i := range pick(r, 1, 1, 1, 1, 2, 5, 60) {
			m.Answer = append(m.Answer, &dns.MX{Hdr: header(name, dns.TypeMX, 600), Preference: uint16(i), Mx: fmt.Sprintf("mx%d.%s", i, name)})
		}
	default:
		return nobody(m, dns.RcodeSuccess), nil
	}
	return m, nil
}
