package smtp

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/agent"
	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/testcert"
	"posthaste/internal/testpostfix"
	"posthaste/internal/testwait"
)

// A tlsCase is a server, and what a client demands of it.
type tlsCase struct {
	name, main string // of the client: without "smtp_tls_"
	cert       string // of testCA, or rsa
	suite      uint16 // of TLS 1.2; 0: TLS 1.3
	curve      tls.CurveID
	want       string // what is logged, less the server
}

const (
	tls13   = "TLSv1.3 with cipher TLS_AES_128_GCM_SHA256 (128/128 bits) key-exchange "
	means13 = tls13 + "X25519 server-signature ECDSA (prime256v1) server-digest SHA256"
)

var tlsCases = []tlsCase{
	{"may", "security_level=may", "good", 0, 0, "Trusted " + means13},
	{"may name", "security_level=may", "other", 0, 0, "Trusted " + means13},
	{"may old", "security_level=may", "old", 0, 0, "Untrusted " + means13},
	{"may self", "security_level=may", "self", 0, 0, "Untrusted " + means13},
	{"no CA", "security_level=may CAfile=", "good", 0, 0, "Untrusted " + means13},
	{"encrypt", "security_level=encrypt", "good", 0, 0, "Trusted " + means13},
	{"verify", "security_level=verify verify_cert_match=mx1.dest.test", "good", 0, 0, "Verified " + means13},
	{"verify name", "security_level=verify verify_cert_match=mx1.dest.test", "other", 0, 0, "Trusted " + means13},
	{"verify old", "security_level=verify verify_cert_match=mx1.dest.test", "old", 0, 0, "Untrusted " + means13},
	{"secure", "security_level=secure secure_cert_match=mx1.dest.test", "good", 0, 0, "Verified " + means13},
	{"secure self", "security_level=secure secure_cert_match=mx1.dest.test", "self", 0, 0, "Untrusted " + means13},
	{"fingerprint", "security_level=fingerprint fingerprint_cert_match=%GOODKEY% fingerprint_digest=sha256", "good", 0, 0, "Verified " + means13},
	{"fingerprint other", "security_level=fingerprint fingerprint_cert_match=%GOODKEY% fingerprint_digest=sha256", "other", 0, 0, "Untrusted " + means13},
	{"P-256", "security_level=may", "good", 0, tls.CurveP256, "Trusted " + tls13 + "ECDHE (prime256v1) server-signature ECDSA (prime256v1) server-digest SHA256"},
	{"P-384", "security_level=may", "good", 0, tls.CurveP384, "Trusted " + tls13 + "ECDHE (secp384r1) server-signature ECDSA (prime256v1) server-digest SHA256"},
	{"P-521", "security_level=may", "good", 0, tls.CurveP521, "Trusted " + tls13 + "ECDHE (secp521r1) server-signature ECDSA (prime256v1) server-digest SHA256"},
	{"RSA", "security_level=may", "rsa", 0, 0, "Untrusted " + tls13 + "X25519 server-signature RSA-PSS (2048 bits) server-digest SHA256"},
	{"1.2 ECDSA", "security_level=may", "good", tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, 0, "Trusted TLSv1.2 with cipher ECDHE-ECDSA-AES128-GCM-SHA256 (128/128 bits)"},
	{"1.2 ChaCha", "security_level=may", "good", tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, 0, "Trusted TLSv1.2 with cipher ECDHE-ECDSA-CHACHA20-POLY1305 (256/256 bits)"},
	{"1.2 RSA", "security_level=may", "rsa", tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384, 0, "Untrusted TLSv1.2 with cipher ECDHE-RSA-AES256-GCM-SHA384 (256/256 bits)"},
	{"1.2 CBC", "security_level=may", "rsa", tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, 0, "Untrusted TLSv1.2 with cipher ECDHE-RSA-AES128-SHA (128/128 bits)"},
}

// params are the client's parameters.
func (c *tlsCase) params(t *testing.T, ca string) []string {
	var list []string
	for _, p := range append([]string{"loglevel=1", "CAfile=" + ca}, strings.Fields(testCA().fill(t, c.main))...) {
		list = append(list, "smtp_tls_"+p)
	}
	return list
}

// config is what the server has.
func (c *tlsCase) config(t *testing.T, rsaCert tls.Certificate) *tls.Config {
	conf := &tls.Config{Certificates: []tls.Certificate{testCA().certs[c.cert]}, MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519},
		SessionTicketsDisabled: true}
	if c.cert == "rsa" {
		conf.Certificates[0] = rsaCert
	}
	if c.suite != 0 {
		conf.MinVersion, conf.MaxVersion, conf.CipherSuites = tls.VersionTLS12, tls.VersionTLS12, []uint16{c.suite}
	}
	if c.curve != 0 {
		conf.CurvePreferences = []tls.CurveID{c.curve}
	}
	return conf
}

func newRSACert(t *testing.T) tls.Certificate {
	return testcert.RSA(t, x509.Certificate{DNSNames: []string{"rsa.test"}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment}, nil).TLS()
}

// serveTLS serves sessions with STARTTLS until the test ends, and returns the port. All mail is
// taken.
func serveTLS(t *testing.T, conf *tls.Config) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { takeMail(conn, conf) })
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

func takeMail(conn net.Conn, conf *tls.Config) {
	defer func() { conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testwait.Patience))
	in := bufio.NewReader(conn)
	fmt.Fprint(conn, "220 x ESMTP\r\n")
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch verb := strings.ToUpper(strings.Fields(line + " x")[0]); verb {
		case "EHLO":
			fmt.Fprint(conn, "250-x\r\n250 STARTTLS\r\n")
		case "STARTTLS":
			fmt.Fprint(conn, "220 go\r\n")
			conn = tls.Server(conn, conf)
			in = bufio.NewReader(conn)
		case "DATA":
			fmt.Fprint(conn, "354 go\r\n")
			for text := ""; text != ".\r\n"; {
				if text, err = in.ReadString('\n'); err != nil {
					return
				}
			}
			fmt.Fprint(conn, "250 taken\r\n")
		default:
			fmt.Fprint(conn, "250 ok\r\n")
		}
	}
}

var established = regexp.MustCompile(`(?m)(\w+) TLS connection established to 127\.0\.0\.1\[127\.0\.0\.1\]:(\d+): (.*)$`)

// tlsLines are the lines about TLS in a log, by the server's port.
func tlsLines(log string) map[string]string {
	lines := make(map[string]string)
	for _, m := range established.FindAllStringSubmatch(log, -1) {
		lines[m[2]] = m[1] + " " + m[3]
	}
	return lines
}

// How a session is encrypted is logged in Postfix's words; it says the same of the same servers.
func TestTLSLog(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, testCA().pem, 0o644); err != nil {
		t.Fatal(err)
	}
	rsaCert := newRSACert(t)
	ports := make([]int, len(tlsCases))
	for i := range tlsCases {
		ports[i] = serveTLS(t, tlsCases[i].config(t, rsaCert))
	}
	t.Run("ours", func(t *testing.T) {
		t.Parallel()
		for i := range tlsCases {
			c := &tlsCases[i]
			t.Run(c.name, func(t *testing.T) {
				cfg, err := config.LoadString("myhostname = me.test\n" + strings.Join(c.params(t, ca), "\n") + "\n")
				if err != nil {
					t.Fatal(err)
				}
				sink := new(lines)
				log := maillog.New("log", sink)
				a, err := newAgent(deps{Config: cfg, Log: log})
				if err != nil {
					t.Fatal(err)
				}
				r := agent.NewTestRequest(envelope(10), mail.Nexthop(fmt.Sprintf("[127.0.0.1]:%d", ports[i])), []byte("A: b\r\n\r\n"), log)
				a.Deliver(t.Context(), r)
				a.Close()
				if err := log.Close(); err != nil {
					t.Error(err)
				}
				if got := tlsLines(sink.b.String())[fmt.Sprint(ports[i])]; got != c.want {
					t.Errorf("got  %s\nwant %s\n%s", got, c.want, sink.b.String())
				}
			})
		}
	})
	t.Run("Postfix", func(t *testing.T) {
		t.Parallel()
		p := testpostfix.New(t)
		master := "pickup unix n - n 60 1 pickup\ncleanup unix n - n - 0 cleanup\nqmgr unix n - n 300 1 qmgr\nrewrite unix - - n - - trivial-rewrite\n" +
			"bounce unix - - n - 0 bounce\ndefer unix - - n - 0 bounce\ntlsmgr unix - - n 1000? 1 tlsmgr\nscache unix - - n - 1 scache\nproxymap unix - - n - - proxymap\npostlog unix-dgram n - n - 1 postlogd\n"
		var transports []string
		for i := range tlsCases {
			master += fmt.Sprintf("case%d unix - - n - - smtp -o %s\n", i, strings.Join(tlsCases[i].params(t, ca), " -o "))
			transports = append(transports, fmt.Sprintf("{case%d.test=case%d:[127.0.0.1]:%d}", i, i, ports[i]))
		}
		p.Configure("myhostname = me.test\nmydestination =\ninet_interfaces = 127.0.0.1\nalias_maps =\nalias_database =\nlocal_recipient_maps =\ntransport_maps = inline:{"+strings.Join(transports, ", ")+"}\n", master)
		p.Start()
		args := []string{"-f", "a@from.test"}
		for i := range tlsCases {
			args = append(args, fmt.Sprintf("b@case%d.test", i))
		}
		p.Run("Subject: s\n\nbody\n", "sendmail", args...)
		ctx, stop := context.WithTimeout(t.Context(), testwait.Patience)
		defer stop()
		got := tlsLines(p.Log())
		for ; len(got) < len(tlsCases) && ctx.Err() == nil; got = tlsLines(p.Log()) {
			time.Sleep(20 * time.Millisecond)
		}
		for i := range tlsCases {
			want := tlsCases[i].want
			if tlsCases[i].name == "verify name" { // 3.7 says so when the name is the only thing that is wrong; newer ones do not
				want = strings.Replace(want, "Trusted", "Untrusted", 1)
			}
			if got := got[fmt.Sprint(ports[i])]; got != want {
				t.Errorf("%s: Postfix says %s, want %s", tlsCases[i].name, got, want)
			}
		}
		if t.Failed() {
			t.Log(p.Log())
		}
	})
}
