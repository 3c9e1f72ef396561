// Package fakezone answers DNS questions from a text: for tests of whatever
// needs a resolver, without a network or over a real one.
//
// The text is a master file (RFC 1035 section 5) with two more kinds of line:
//
//	!fail NAME RCODE [TYPE]   questions for NAME get RCODE (SERVFAIL, REFUSED, ...), or TIMEOUT
//	!secure NAME              NAME and all under it are signed: answers have the AD bit
//
// A name that does not occur does not exist; one that occurs, or that has
// names under it, has no data of other types.
package fakezone

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"

	"github.com/miekg/dns"

	"posthaste/internal/resolver"
)

// A Zone is all that there is in its world. It may be used by many goroutines at once.
type Zone struct {
	mu      sync.Mutex
	records map[string][]dns.RR // by lower-case absolute name
	exists  map[string]bool
	fail    map[failKey]string
	secure  []string
	asked   []string
}

type failKey struct{ name, qtype string }

// Parse reads a zone.
func Parse(text string) (*Zone, error) {
	z := &Zone{records: make(map[string][]dns.RR), exists: make(map[string]bool), fail: make(map[failKey]string)}
	var master strings.Builder
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) >= 3 && f[0] == "!fail":
			k := failKey{name: canonical(f[1])}
			if len(f) > 3 {
				k.qtype = f[3]
			}
			z.fail[k] = f[2]
			z.exists[k.name] = true
		case len(f) == 2 && f[0] == "!secure":
			z.secure = append(z.secure, canonical(f[1]))
		case len(f) > 0 && strings.HasPrefix(f[0], "!"):
			return nil, fmt.Errorf("zone line %d: %q: expected !fail NAME RCODE [TYPE] or !secure NAME", i+1, line)
		default:
			master.WriteString(line)
		}
		master.WriteByte('\n')
	}
	p := dns.NewZoneParser(strings.NewReader(master.String()), ".", "zone")
	p.SetDefaultTTL(300)
	for rr, ok := p.Next(); ok; rr, ok = p.Next() {
		name := canonical(rr.Header().Name)
		z.records[name] = append(z.records[name], rr)
		for off, end := 0, false; !end; off, end = dns.NextLabel(name, off) {
			z.exists[name[off:]] = true
		}
	}
	return z, p.Err()
}

// Must is Parse for a text that is known to be right.
func Must(text string) *Zone {
	z, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return z
}

// Resolver gives a Client that asks z directly.
func (z *Zone) Resolver() *resolver.Client {
	return resolver.New(resolver.Options{Exchanger: z, DNSSEC: true, Hosts: os.DevNull})
}

// Asked lists the questions so far, as "NAME TYPE" without trailing dots.
func (z *Zone) Asked() []string {
	z.mu.Lock()
	defer z.mu.Unlock()
	return append([]string(nil), z.asked...)
}

func canonical(name string) string { return strings.ToLower(dns.Fqdn(name)) }

// Exchange implements resolver.Exchanger.
func (z *Zone) Exchange(ctx context.Context, q *dns.Msg) (*dns.Msg, error) {
	m := z.answer(q)
	if m == nil {
		return nil, os.ErrDeadlineExceeded
	}
	return m, ctx.Err()
}

// answer answers q; nil stands for silence.
func (z *Zone) answer(q *dns.Msg) *dns.Msg {
	z.mu.Lock()
	defer z.mu.Unlock()
	m := new(dns.Msg)
	m.SetReply(q)
	question := q.Question[0]
	name, qtype := canonical(question.Name), dns.TypeToString[question.Qtype]
	z.asked = append(z.asked, strings.TrimSuffix(question.Name, ".")+" "+qtype)
	m.AuthenticatedData = true
	for range 20 {
		m.AuthenticatedData = m.AuthenticatedData && z.signed(name)
		rcode, ok := z.fail[failKey{name, qtype}]
		if !ok {
			rcode, ok = z.fail[failKey{name, ""}]
		}
		if ok {
			if rcode == "TIMEOUT" {
				return nil
			}
			m.Rcode = dns.StringToRcode[rcode]
			return m
		}
		alias := ""
		for _, rr := range z.records[name] {
			switch {
			case rr.Header().Rrtype == question.Qtype:
				m.Answer = append(m.Answer, rr)
			case rr.Header().Rrtype == dns.TypeCNAME:
				m.Answer = append(m.Answer, rr)
				alias = canonical(rr.(*dns.CNAME).Target)
			}
		}
		if alias == "" {
			break
		}
		name = alias
	}
	if !z.exists[name] {
		m.Rcode = dns.RcodeNameError
	}
	return m
}

func (z *Zone) signed(name string) bool {
	for _, s := range z.secure {
		if dns.IsSubDomain(s, name) {
			return true
		}
	}
	return false
}

// A Server answers for a zone on a UDP and a TCP port.
type Server struct {
	Addr string // host:port, for a resolv.conf as "nameserver [host]:port" (see package resolver)
	udp  *dns.Server
	tcp  *dns.Server
	wg   sync.WaitGroup
}

// Listen starts a server on a free port of loopback. Close it.
func (z *Zone) Listen() (*Server, error) {
	pc, l, err := sockets()
	if err != nil {
		return nil, err
	}
	return z.Serve(pc, l), nil
}

// Serve starts a server on sockets that it owns from now on. Close it.
func (z *Zone) Serve(pc net.PacketConn, l net.Listener) *Server {
	h := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := z.answer(q)
		if m == nil {
			return
		}
		if _, udp := w.LocalAddr().(*net.UDPAddr); udp {
			size := dns.MinMsgSize
			if o := q.IsEdns0(); o != nil {
				size = int(o.UDPSize())
				m.SetEdns0(1232, o.Do())
			}
			m.Truncate(size)
		}
		_ = w.WriteMsg(m) // the client went away: it will ask again
	})
	s := &Server{Addr: pc.LocalAddr().String(), udp: &dns.Server{PacketConn: pc, Handler: h}, tcp: &dns.Server{Listener: l, Handler: h}}
	var ready sync.WaitGroup
	for _, d := range []*dns.Server{s.udp, s.tcp} {
		ready.Add(1)
		d.NotifyStartedFunc = ready.Done
		s.wg.Go(func() { _ = d.ActivateAndServe() }) // ends by Close
	}
	ready.Wait()
	return s
}

// sockets finds a port of loopback that is free for UDP and for TCP.
func sockets() (net.PacketConn, net.Listener, error) {
	var last error
	for range 50 {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, err
		}
		l, err := net.Listen("tcp", pc.LocalAddr().String())
		if err == nil {
			return pc, l, nil
		}
		pc.Close()
		last = err
	}
	return nil, nil, last
}

// Close stops the server.
func (s *Server) Close() error {
	err := s.udp.Shutdown()
	if e := s.tcp.Shutdown(); err == nil {
		err = e
	}
	s.wg.Wait()
	return err
}
