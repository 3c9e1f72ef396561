package domain

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/emersion/go-smtp"

	"posthaste/internal/config"
	"posthaste/internal/mailauth/dkimkey"
	"posthaste/internal/resolver/fakezone"
)

// A stage is a site and the world around it, in which everything is right until a test breaks it.
type stage struct {
	zone      string
	main      string
	master    string
	policy    string // the MTA-STS policy
	autoconf  string
	expires   time.Duration // of the certificate, from now
	certNames []string
	plain     bool             // smtpd does not offer STARTTLS
	closed    bool             // port 25 outward
	silent    map[string]error // addresses of the host at which smtpd does not answer, and why
	away      bool             // the addresses are those of a translator
	wishes    Wishes
	answer    string            // what somebody types
	views     map[string]string // the zone as name servers have it that have another one, by address

	dir     string
	tlsa    string // the digest of the host's key
	key     *ecdsa.PrivateKey
	now     time.Time
	dkimKey string // the text of its record
}

const goodZone = `
mail.a.test. A 192.0.2.1
mail.a.test. AAAA 2001:db8::1
mail.a.test. TXT "v=spf1 a -all"
mail.a.test. CAA 0 issue "ca.test"
_25._tcp.mail.a.test. TLSA 3 1 1 TLSADIGEST
1.2.0.192.in-addr.arpa. PTR mail.a.test.
1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR mail.a.test.
a.test. MX 10 mail.a.test.
a.test. TXT "v=spf1 ip4:192.0.2.1 ip6:2001:db8::1 mx -all"
s1._domainkey.a.test. TXT DKIMRECORD
_dmarc.a.test. TXT "v=DMARC1; p=reject; rua=mailto:dmarc@a.test"
_mta-sts.a.test. TXT "v=STSv1; id=20261101T000000Z"
_smtp._tls.a.test. TXT "v=TLSRPTv1; rua=mailto:tls@a.test"
_submissions._tcp.a.test. SRV 0 1 465 mail.a.test.
_submission._tcp.a.test. SRV 0 1 587 mail.a.test.
autoconfig.a.test. A 192.0.2.1
probe.test. MX 10 mx.probe.test.
mx.probe.test. A 198.51.100.1
2.0.0.127.list.test. A 127.0.0.2
!secure a.test
`

const goodPolicy = "version: STSv1\nmode: enforce\nmx: mail.a.test\nmax_age: 1209600\n"

const goodAutoconf = `<clientConfig version="1.1"><emailProvider id="a.test"><outgoingServer type="smtp">
<hostname>mail.a.test</hostname><port>465</port></outgoingServer></emailProvider></clientConfig>`

// newStage makes a world in which a.test is as it should be.
func newStage(t *testing.T) *stage {
	s := &stage{zone: goodZone, dir: t.TempDir(), policy: goodPolicy, autoconf: goodAutoconf, expires: 60 * 24 * time.Hour,
		certNames: []string{"mail.a.test"}, now: time.Now(),
		main:   "compatibility_level = 3.6\nmail_owner = nobody\nmyhostname = mail.a.test\nmydestination = a.test\ndkim_sign_maps = texthash:DIR/dkim\n",
		master: "smtps inet n - n - - smtpd\n192.0.2.1:submission inet n - n - - smtpd\nsmtp inet n - n - - smtpd\n",
		wishes: Wishes{Probe: "probe.test", Blocklist: []string{"list.test"}}}
	var err error
	if s.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(s.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(spki)
	s.tlsa = hex.EncodeToString(sum[:])
	if status := dkimkey.Command([]string{"genkey", "-d", "a.test", "-s", "s1", "-o", s.dir}, io.Discard, io.Discard); status != 0 {
		t.Fatal("no DKIM key was made")
	}
	file := filepath.Join(s.dir, "a.test.s1.pem")
	key, err := dkimkey.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	if s.dkimKey, err = dkimkey.Record(key); err != nil {
		t.Fatal(err)
	}
	s.write(t, "dkim", "a.test s1:"+file+"\n")
	s.passable(t)
	if nobody, err := user.Lookup("nobody"); err == nil && os.Getuid() == 0 {
		gid, err := strconv.Atoi(nobody.Gid)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(file, -1, gid), os.Chmod(file, 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *stage) write(t *testing.T, name, text string) {
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// passable lets the mail system's user get to the files.
func (s *stage) passable(t *testing.T) {
	for d := s.dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// config is the site's.
func (s *stage) config(t *testing.T) *config.Config {
	cfg, err := config.LoadString(strings.ReplaceAll(s.main, "DIR", s.dir))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// site opens the site.
func (s *stage) site(t *testing.T) *Site {
	cfg := s.config(t)
	services, faulty := config.LoadMasterString(s.master, cfg)
	if len(faulty) > 0 {
		t.Fatal(faulty)
	}
	site, err := OpenSite(t.Context(), cfg, services, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")},
		func(text string) { t.Error(text) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { site.Close() })
	return site
}

// world is what is around it.
func (s *stage) world(t *testing.T) *World {
	text := strings.NewReplacer("TLSADIGEST", s.tlsa, "DKIMRECORD", quoted(s.dkimKey)).Replace(s.zone)
	zone, err := fakezone.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	dns := zone.Resolver()
	t.Cleanup(dns.Close)
	cert, roots := s.certificate(t)
	server := smtp.NewServer(nobody{})
	if !s.plain {
		server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
	}
	server.ErrorLog = log.New(io.Discard, "", 0) // clients leave without QUIT
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); l.Close(); <-done })
	return &World{DNS: dns, Here: func(netip.Addr) bool { return !s.away }, At: func(addr netip.Addr) (Asker, func()) { return s.view(t, addr) }, Roots: roots, Now: s.now, HTTP: &http.Client{Transport: s}, Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		switch host, port, _ := net.SplitHostPort(addr); {
		case port != "25":
			return nil, errors.New("unexpected port " + port)
		case s.silent[host] != nil:
			return nil, &net.OpError{Op: "dial", Net: network, Err: s.silent[host]}
		case host == "192.0.2.1" || host == "2001:db8::1":
			return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		case host == "mx.probe.test" && !s.closed:
			ours, theirs := net.Pipe()
			theirs.Close()
			return ours, nil
		}
		return nil, errors.New("connect to " + addr + ": Connection timed out")
	}}
}

// RoundTrip serves the web sites of a.test.
func (s *stage) RoundTrip(req *http.Request) (*http.Response, error) {
	body, kind := "", "text/plain"
	switch req.URL.Host + req.URL.Path {
	case "mta-sts.a.test/.well-known/mta-sts.txt":
		body = s.policy
	case "ca.test/dir":
		body = `{"newOrder": "https://ca.test/order", "meta": {"caaIdentities": ["CA.test", "not a name"]}}`
	case "autoconfig.a.test/mail/config-v1.1.xml":
		body, kind = s.autoconf, "text/xml"
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body)), Request: req}
	if body == "" {
		resp.StatusCode = 404
	}
	return resp, nil
}

// certificate is the one that smtpd shows.
func (s *stage) certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: s.certNames,
		NotBefore: s.now.Add(-90 * 24 * time.Hour), NotAfter: s.now.Add(s.expires), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, s.key.Public(), s.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: s.key}, roots
}

// nobody takes no mail.
type nobody struct{}

func (nobody) NewSession(*smtp.Conn) (smtp.Session, error) { return nobody{}, nil }
func (nobody) Mail(string, *smtp.MailOptions) error        { return smtp.ErrAuthRequired }
func (nobody) Rcpt(string, *smtp.RcptOptions) error        { return smtp.ErrAuthRequired }
func (nobody) Data(io.Reader) error                        { return smtp.ErrAuthRequired }
func (nobody) Reset()                                      {}
func (nobody) Logout() error                               { return nil }

// check runs all checks on a.test.
func (s *stage) check(t *testing.T) []Finding {
	list, err := Check(t.Context(), s.world(t), s.site(t), "a.test", s.wishes)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// A domain that is as it should be has good findings only, in every area.
func TestGood(t *testing.T) {
	t.Parallel()
	list := newStage(t).check(t)
	areas := make(map[string]bool)
	for _, f := range list {
		areas[f.Area] = true
		if f.Level != Good || f.Why != "" || f.Publish != nil {
			t.Errorf("%s %s: %s (%s)", f.Level, f.Area, f.Text, f.Why)
		}
	}
	if len(areas) != 14 {
		t.Errorf("%d areas, expected 14: %v", len(areas), areas)
	}
	if s := status(list); s != 0 {
		t.Errorf("status %d", s)
	}
}
