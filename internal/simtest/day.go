package simtest

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/cleanup"
	"posthaste/internal/bounce"
	"posthaste/internal/config"
	"posthaste/internal/resolver"
	"posthaste/internal/testcert"
	"posthaste/internal/vfs"
	"posthaste/qmgr"
	"posthaste/smtp"
	"posthaste/smtpd"
	"posthaste/trivialrewrite"
)

// dayLines are the services of a day. postscreen is in front of the SMTP server.
var dayLines = []masterLine{
	{"cleanup", "public/cleanup", cleanup.Spec()},
	{"qmgr", "public/qmgr", qmgr.Spec()},
	{"rewrite", "private/rewrite", trivialrewrite.Spec()},
	{"bounce", "private/bounce", bounce.Spec()},
	{"smtp", "private/smtp", smtp.Spec()},
	{"smtp", "inet", smtpd.ScreenSpec()},
}

// daySessions is how many SMTP sessions there may be at a time.
const daySessions = 200

// dayCF are the settings of a day, behind mainCF.
const dayCF = `in_flow_delay = 0
mydestination =
mynetworks = 198.18.0.0/15
relay_domains = relay.test, wild.test
relay_transport = smtp
relay_recipient_maps = pcre:{{/^(user\d+|never\d*)@relay\.test$$/ ok} {/[@.]wild\.test$$/ ok}}
message_size_limit = 1000000
smtpd_error_sleep_time = 1s
smtpd_peername_lookup = yes
smtpd_tls_security_level = may
smtpd_tls_chain_files = $config_directory/day.pem
smtpd_sasl_auth_enable = yes
smtpd_sasl_type = table
smtpd_sasl_path = texthash:$config_directory/day.users
smtpd_authorized_verp_clients = static:all
smtp_tls_security_level = may
postscreen_greet_action = enforce
postscreen_dnsbl_sites = bl.test
postscreen_dnsbl_action = enforce
recipient_delimiter = +
`

// dayUser has an account whose password nobody guesses.
const dayUser = "joe SCRAM-SHA-256$4096:MDEyMzQ1Njc4OWFiY2RlZg==$bpSY5Ze9NUH+I35LC3gVq+DpBfK46iXBxvhAKqVu9pE=:VpYlBuxyzeCI1KnctrefdljpB1mk3Gp7sBI/t11+NkQ=\n"

// A dayOrder says what a day is to be.
type dayOrder struct {
	length time.Duration
	warm   time.Duration // from when on samples are taken
	every  time.Duration // of the samples
	rate   float64       // how many hostile clients come, by 1
	// How many clients, and how many strange domains, there are in the world; 0: there is no end of them. With a number, what
	// is remembered of them reaches its size within a short day.
	crowd int
	// How long somebody goes on at most who wants to be a nuisance, and for how long mail stays in the queue.
	patience, lifetime time.Duration
	known              int       // clients that postscreen knows at the beginning
	heap               string    // heap profiles go there, one for each sample; empty: nowhere
	log                io.Writer // where the log goes; nil: nowhere
	leak               int       // octets that are kept of each session, for ever: a fault that must be found
}

// A sample is how things are at one time of a day.
type sample struct {
	at                          time.Duration
	heap, disk                  float64 // octets
	goroutines, conns, files    float64
	sessions, commands, arrived int64 // since the beginning
	taken                       int64 // messages, likewise
	screened                    int   // clients that postscreen knows
	asked                       int64 // questions to name servers
	queue, destinations         float64
}

// A day is a site with hostile clients, hosts and name servers around it, and some honest ones.
type day struct {
	*site
	order dayOrder
	dir   string
	began time.Time
	dns   *dayNames
	rnd   *rand.Rand // of hosts; rmu guards it
	rmu   sync.Mutex
	kept  map[int][]byte // what leaks; rmu guards it

	sessions, commands, taken, delivered atomic.Int64

	// What honest clients have sent and nobody has got yet, by token, and how long others took at most; rmu guards both.
	letters         map[string]time.Time
	accept, deliver time.Duration
	complaints      []string // what was wrong; rmu guards it
	samples         []sample
}

// runDay has a mail system live through a day. What it finds wrong is in the errors.
func runDay(t *testing.T, dir string, seedNo uint64, o dayOrder) (samples []sample, errors []string, d *day) {
	w := &World{dir: dir, lines: dayLines}
	if err := w.accounts(); err != nil {
		t.Fatal(err)
	}
	etc := filepath.Join(dir, "etc0")
	born := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when a bubble begins
	pair := testcert.Make(t, x509.Certificate{Subject: pkix.Name{CommonName: "mail.sim.test"}, DNSNames: []string{"mail.sim.test"},
		NotBefore: born.Add(-time.Hour), NotAfter: born.Add(1000 * time.Hour)}, nil)
	for _, err := range []error{os.MkdirAll(etc, 0o700), os.WriteFile(filepath.Join(etc, "day.pem"), append(pair.KeyPEM(), pair.CertPEM()...), 0o600),
		os.WriteFile(filepath.Join(etc, "day.users"), []byte(dayUser), 0o600),
		os.MkdirAll(filepath.Join(dir, "data", "qmgr"), 0o700), os.MkdirAll(filepath.Join(dir, "data", "overrides"), 0o700),
		os.WriteFile(filepath.Join(dir, "data", "postscreen_cache"), knownClients(o.known, born), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	life := strconv.Itoa(int(o.lifetime.Seconds()))
	cfg := w.configure(t, 0, dayCF+"maximal_queue_lifetime = "+life+"s\nbounce_queue_lifetime = "+life+"s\n")
	flow, free, err := flowPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer free()
	synctest.Test(t, func(t *testing.T) {
		d = &day{order: o, dir: dir, letters: map[string]time.Time{}, kept: map[int][]byte{}}
		d.site = &site{seed: seed(seedNo), plan: &Plan{Seed: seedNo, configs: []map[string]*config.Config{cfg}}, disk: vfs.NewMem(4096), sockets: map[string]*socket{}, flow: flow,
			hosts: map[string]*hop{}, counts: map[string]int{}}
		d.outside, d.dns, d.rnd = d, newDayNames(d.seed), d.seed.source("hosts")
		d.live(t)
	})
	return d.samples, d.complaints, d
}

// knownClients is a file of postscreen's with so many clients that have passed the tests.
func knownClients(n int, at time.Time) []byte {
	var b bytes.Buffer
	until := at.Add(30 * 24 * time.Hour).Unix()
	for i := range n {
		a := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
		fmt.Fprintf(&b, "%s %d %d 0 0 0\n", a, until, until)
	}
	return b.Bytes()
}

// live is the day, from the first client to the last message.
func (d *day) live(t *testing.T) {
	for _, l := range dayLines {
		e := &entry{site: d.site, name: l.name, path: l.path, spec: l.spec, sock: newSocket(l.path)}
		if l.path == "inet" {
			e.most = daySessions
		}
		d.services = append(d.services, e)
		d.sockets[l.path] = e.sock
	}
	d.began = time.Now()
	d.boot()
	for _, k := range kinds {
		d.all.Go(func() { d.troop(k) })
	}
	for i := range honest {
		d.all.Go(func() { d.correspond(i) })
	}
	time.Sleep(d.order.warm)
	for range int((d.order.length - d.order.warm) / d.order.every) {
		time.Sleep(d.order.every)
		s := d.measure()
		d.samples = append(d.samples, s)
		t.Logf("%s", s)
		d.profile(t)
	}
	d.afterwards(t)
}

// afterwards: hostile clients go, what they have left behind comes to its end, and all is as before.
func (d *day) afterwards(t *testing.T) {
	time.Sleep(4 * time.Hour)
	s := d.measure()
	t.Logf("afterwards %s", s)
	if s.conns > 60 { // of services among each other
		d.complain(fmt.Sprintf("%v connections are open hours after the last client", s.conns))
	}
	items, err := d.queued()
	if len(items) > 0 || err != nil {
		d.complain(fmt.Sprintf("%d messages are in the queue hours after the last client; %v; the first %v", len(items), err, items[:min(3, len(items))]))
	}
	d.rmu.Lock()
	missing := slices.Sorted(maps.Keys(d.letters))
	d.rmu.Unlock()
	for _, token := range missing {
		d.complain("a letter that was taken did not arrive: " + token)
	}
	d.mu.Lock()
	d.over = true
	d.mu.Unlock()
	d.stop()
	d.closeSockets()
	d.all.Wait()
}

// ended says whether hostile clients have gone.
func (d *day) ended() bool { return time.Since(d.began) >= d.order.length }

func (d *day) complain(text string) {
	d.rmu.Lock()
	defer d.rmu.Unlock()
	if len(d.complaints) < 50 {
		d.complaints = append(d.complaints, text)
	}
}

// line is a line of a process's log. Those that no client may bring about are complaints.
func (d *day) line(log []byte) {
	if d.order.log != nil {
		_, _ = d.order.log.Write(log)
	}
	for _, word := range []string{"panic", "fatal", "corrupt", "simtest: "} {
		if bytes.Contains(log, []byte(word)) {
			d.complain("the log: " + string(log[:min(len(log), 2000)]))
		}
	}
}

func (d *day) names() resolver.Exchanger { return d.dns }

// call connects a client. The kernel keeps no more than room octets on their way to it or from it.
func (d *day) call(client netip.Addr) *conn {
	const room = 64 << 10
	n := d.count("client")
	near, far := d.site.connect(nil, fmt.Sprintf("client %d", n), farDelay, 0, &net.TCPAddr{IP: client.AsSlice(), Port: 1024 + n%60000}, smtpdAddr)
	far.uid = -1
	near.in.room, near.out.room = room, room
	d.sessions.Add(1)
	if d.order.leak > 0 {
		d.rmu.Lock()
		d.kept[n] = make([]byte, d.order.leak)
		d.rmu.Unlock()
	}
	d.sockets["inet"].push(far)
	d.demand("inet")
	return near
}

// connect connects an agent to a host, which behaves as its address says.
func (d *day) connect(ctx context.Context, p *process, addr string) (net.Conn, error) {
	ap, err := netip.ParseAddrPort(addr)
	if err != nil {
		return nil, err
	}
	d.rmu.Lock()
	h := &dayHost{day: d, rnd: rand.New(rand.NewPCG(d.rnd.Uint64(), 0))}
	d.rmu.Unlock()
	if h.choose(ap.Addr()); h.act == nil {
		return nil, errRefused
	}
	n := d.count("host")
	near, far := d.site.connect(p, fmt.Sprintf("host %d", n), farDelay, -1, &net.TCPAddr{IP: smtpdAddr.IP, Port: 1024 + n%60000}, net.TCPAddrFromAddrPort(ap))
	near.in.room, near.out.room = 64<<10, 64<<10
	if !p.own(near) {
		return nil, errKilled
	}
	h.talker = newTalker(far)
	d.all.Go(func() { defer far.Close(); h.act(h) })
	return near, ctx.Err()
}
