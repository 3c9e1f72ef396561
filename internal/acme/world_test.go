package acme

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
	"github.com/mholt/acmez/v3/acme"
	"github.com/miekg/dns"

	"posthaste/internal/config"
	"posthaste/internal/nameserver"
	"posthaste/internal/resolver"
	"posthaste/internal/servercert"
)

func TestMain(m *testing.M) {
	os.Setenv("PEBBLE_VA_NOSLEEP", "1") // it reads that when it begins
	os.Exit(m.Run())
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	list []string
}

func (l *lines) Info(format string, args ...any)    { l.add("info: "+format, args) }
func (l *lines) Warning(format string, args ...any) { l.add("warning: "+format, args) }

func (l *lines) add(format string, args []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, fmt.Sprintf(format, args...))
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.list, "\n")
}

// tsig is the key of the test's name server.
const tsig = `key "posthaste" { algorithm hmac-sha256; secret "c2VjcmV0IG9mIDMyIG9jdGV0cywgYmFzZTY0Lg=="; };`

// A zoneServer has the zone example.org, all of whose names have the address 127.0.0.1, and takes
// updates of TXT records.
type zoneServer struct {
	addr string

	provider string // a directory

	mu   sync.Mutex
	txt  map[string][]string
	seen int // updates that were signed and carried out
}

func newZoneServer(t *testing.T) *zoneServer {
	t.Helper()
	n := &zoneServer{txt: make(map[string][]string)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.addr = l.Addr().String()
	pc, err := net.ListenPacket("udp", n.addr)
	if err != nil {
		t.Fatal(err)
	}
	secrets := map[string]string{"posthaste.": "c2VjcmV0IG9mIDMyIG9jdGV0cywgYmFzZTY0Lg=="}
	for _, s := range []*dns.Server{{Listener: l}, {PacketConn: pc}} {
		s.Handler, s.TsigSecret = n, secrets
		s.MsgAcceptFunc = func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept } // updates too
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		done := make(chan struct{})
		go func() { defer close(done); s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { s.Shutdown(); <-done })
	}
	return n
}

func (n *zoneServer) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg)
	r.SetReply(q)
	r.Authoritative = true
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.Opcode == dns.OpcodeUpdate {
		n.update(w, q, r)
	} else {
		n.answer(q.Question[0], r)
	}
	if t := q.IsTsig(); t != nil && w.TsigStatus() == nil {
		r.SetTsig(t.Hdr.Name, t.Algorithm, 300, int64(t.TimeSigned))
	}
	w.WriteMsg(r)
}

func (n *zoneServer) update(w dns.ResponseWriter, q, r *dns.Msg) {
	if q.IsTsig() == nil || w.TsigStatus() != nil || q.Question[0].Name != "example.org." {
		r.Rcode = dns.RcodeRefused
		return
	}
	n.seen++
	for _, rr := range q.Ns {
		name := strings.ToLower(rr.Header().Name)
		txt, ok := rr.(*dns.TXT)
		switch {
		case ok && rr.Header().Class == dns.ClassINET:
			n.txt[name] = append(n.txt[name], txt.Txt[0])
		case ok && rr.Header().Class == dns.ClassNONE: // this text; others of the name stay (RFC 2136 section 2.5.4)
			if n.txt[name] = slices.DeleteFunc(n.txt[name], func(text string) bool { return text == txt.Txt[0] }); len(n.txt[name]) == 0 {
				delete(n.txt, name)
			}
		}
	}
}

func (n *zoneServer) answer(q dns.Question, r *dns.Msg) {
	name := strings.ToLower(q.Name)
	apex := name == "example.org."
	h := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 1}
	switch {
	case q.Qtype == dns.TypeSOA && apex:
		r.Answer = append(r.Answer, &dns.SOA{Hdr: h, Ns: "ns.example.org.", Mbox: "x.example.org."})
	case q.Qtype == dns.TypeNS && apex:
		r.Answer = append(r.Answer, &dns.NS{Hdr: h, Ns: "ns.example.org."})
	case q.Qtype == dns.TypeA:
		r.Answer = append(r.Answer, &dns.A{Hdr: h, A: net.IPv4(127, 0, 0, 1)})
	case q.Qtype == dns.TypeTXT:
		for _, text := range append(n.ordered(name), n.txt[name]...) {
			r.Answer = append(r.Answer, &dns.TXT{Hdr: h, Txt: []string{text}})
		}
	}
	if len(r.Answer) == 0 {
		h = dns.RR_Header{Name: "example.org.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}
		r.Ns = append(r.Ns, &dns.SOA{Hdr: h, Ns: "ns.example.org.", Mbox: "x.example.org.", Minttl: 1})
	}
}

// ordered are the texts that the provider of the DNS has been ordered to publish: the lines of a file
// that is called like the record.
func (n *zoneServer) ordered(name string) []string {
	text, _ := os.ReadFile(filepath.Join(n.provider, strings.TrimSuffix(name, ".")))
	return strings.Fields(string(text))
}

// texts are the records that are there now.
func (n *zoneServer) texts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.txt) + len(n.ordered("_acme-challenge.example.org")) + len(n.ordered("_acme-challenge.mail.example.org"))
}

// hook is a command as tls_acme_command wants one. Its first argument is the directory of the
// provider, and what it was told is in the file "told" beside that.
const hook = `#!/bin/sh
set -eu
echo "$2 $3 $4" >>"$1.told"
case $2 in
present) echo "$4" >>"$1/$3" ;;
cleanup) grep -vxF -e "$4" "$1/$3" >"$1/new" || true
	mv "$1/new" "$1/$3" ;;
*) exit 64 ;;
esac
`

// A site is a mail system with tls_acme, an authority (pebble), and the DNS.
type site struct {
	*manager
	dns     *zoneServer
	pebble  *db.MemoryStore
	lines   *lines
	cfg     *config.Config
	answers *responder
	shown   *counter
	bound   bool // the authority has customers only
}

// boundID and boundKey are by what the authority knows a customer.
const boundID, boundKey = "kid-1", "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"

// A counter counts the challenges that are answered now, and how many that were at most.
type counter struct {
	solver
	now, most int
}

func (c *counter) present(ctx context.Context, ch acme.Challenge) (func(context.Context), error) {
	undo, err := c.solver.present(ctx, ch)
	if err != nil {
		return undo, err
	}
	c.now++
	c.most = max(c.most, c.now)
	return func(ctx context.Context) { c.now--; undo(ctx) }, nil
}

// newSite makes a site with these settings. Its authority connects to the port where the site
// answers, or, if it is closed, finds nobody there.
func newSite(t *testing.T, main string, closed bool) *site {
	t.Helper()
	data := t.TempDir()
	key := filepath.Join(data, "tsig")
	if err := os.WriteFile(key, []byte(tsig), 0o600); err != nil {
		t.Fatal(err)
	}
	binding := filepath.Join(data, "eab")
	if err := os.WriteFile(binding, []byte(boundID+" "+boundKey+"==\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	provider := filepath.Join(data, "provider")
	hooks := map[string]string{"hook": hook, "forgetful": strings.Replace(hook, `>>"$1/$3"`, `>"$1/$3"`, 1), "failing": strings.Replace(hook, "cleanup) ", "cleanup) echo 'not now'; exit 3; ", 1)}
	if err := os.Mkdir(provider, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range hooks {
		if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := &site{dns: newZoneServer(t), lines: new(lines), answers: newResponder(), bound: strings.Contains(main, "# customers only")}
	s.dns.provider = provider
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	directory, roots := s.newPebble(t, port)
	s.cfg = load(t, strings.NewReplacer("{dns}", s.dns.addr, "{key}", key, "{eab}", binding, "{dir}", data).Replace(main)+
		"\ntls_acme = yes\ntls_acme_agree = yes\nmyhostname = mail.example.org\ndata_directory = "+data+"\ntls_acme_directory = "+directory+"\n")
	set, err := read(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	set.roots = roots
	handle := s.answers.http
	if set.challenge == alpn01 {
		handle = s.answers.alpn
	}
	if l.Close(); !closed {
		serve(t, l.Addr().String(), handle)
	}
	s.manager = s.open(t, set)
	return s
}

// open makes a manager, as after a start of the service.
func (s *site) open(t *testing.T, set *settings) *manager {
	t.Helper()
	store, err := servercert.OpenStore(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	var solve solver = s.answers
	if set.challenge == dns01 {
		names := resolver.New(resolver.Options{Servers: []string{s.dns.addr}, CacheSize: -1})
		t.Cleanup(names.Close)
		d := &dnsSolver{patience: time.Second, publisher: set.update, warn: s.lines.Warning, view: &view{nameserver.View[asker]{DNS: names, At: func(netip.Addr) (asker, func()) { return names, func() {} }}}}
		if set.update == nil {
			d.publisher = commander(set.command)
		}
		solve = d
	}
	s.shown = &counter{solver: solve}
	c := newClient(set, s.shown)
	c.acme.PollInterval = 1e6
	return &manager{set: set, store: store, ca: c, log: s.lines, spread: func() float64 { return 0.5 }, look: lookAgain}
}

// newPebble starts the authority. It validates by connecting to port.
func (s *site) newPebble(t *testing.T, port int) (directory string, roots *x509.CertPool) {
	t.Helper()
	quiet := log.New(io.Discard, "", 0)
	s.pebble = db.NewMemoryStore()
	authority := ca.New(quiet, s.pebble, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {Description: "of the test"}})
	web := wfe.New(quiet, s.pebble, va.New(quiet, port, port, true, s.dns.addr, s.pebble), authority, nil, true, s.bound, 0, 0)
	if err := s.pebble.AddExternalAccountKeyByID(boundID, boundKey); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(web.Handler())
	t.Cleanup(server.Close)
	roots = x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return server.URL + wfe.DirectoryPath, roots
}

// serve serves connections at an address until the test ends.
func serve(t *testing.T, addr string, handle func(context.Context, net.Conn)) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer c.Close(); handle(context.Background(), c) })
		}
	})
}

func load(t *testing.T, main string) *config.Config {
	t.Helper()
	cfg, err := config.LoadString(main)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
