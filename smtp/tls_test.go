package smtp

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// authority is a CA for tests, with the certificates that servers of the
// dialogues have: "good" for mx1.dest.test and mx.dest.test, "domain" for
// dest.test, "international" for bücher.firm.test, "other" for other.test, "self" signed by itself, "old" expired.
type authority struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	pem   []byte
	certs map[string]tls.Certificate
}

var testCA = sync.OnceValue(newAuthority)

func newAuthority() *authority {
	a := &authority{certs: make(map[string]tls.Certificate)}
	var der []byte
	a.key, der = a.issue("Test CA", nil, true, time.Date(2090, 1, 1, 0, 0, 0, 0, time.UTC))
	a.cert, _ = x509.ParseCertificate(der)
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	far := a.cert.NotAfter
	for name, names := range map[string][]string{"good": {"mx1.dest.test", "mx.dest.test"}, "domain": {"dest.test"},
		"wild": {"*.dest.test"}, "other": {"other.test"},
		"international": {"xn--bcher-kva.firm.test"}} {
		key, der := a.issue(name, names, false, far)
		a.certs[name] = tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}
	}
	key, der := a.issue("old", []string{"mx1.dest.test"}, false, time.Date(1995, 1, 1, 0, 0, 0, 0, time.UTC))
	a.certs["old"] = tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}
	ca := a.cert
	a.cert = nil
	key, der = a.issue("self", []string{"mx1.dest.test"}, false, far)
	a.certs["self"] = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	a.cert = ca
	return a
}

// issue makes a certificate, signed by itself while there is no CA.
func (a *authority) issue(cn string, names []string, ca bool, until time.Time) (*ecdsa.PrivateKey, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn}, DNSNames: names,
		NotBefore: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: until, IsCA: ca, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	parent, signer := t, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, signer)
	if err != nil {
		panic(err)
	}
	return key, der
}

// digest is the SHA-256 digest of a certificate, or of its key.
func (a *authority) digest(name string, key bool) string {
	c := a.cert
	if name != "ca" {
		c, _ = x509.ParseCertificate(a.certs[name].Certificate[0])
	}
	b := c.Raw
	if key {
		b = c.RawSubjectPublicKeyInfo
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// fill puts what only this run knows into the text of a dialogue.
func (a *authority) fill(t *testing.T, text string) string {
	if !strings.Contains(text, "%") {
		return text
	}
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	cert, key := a.files(t, "other")
	chain, chainKey := a.files(t, "domain")
	return strings.NewReplacer("%CA%", write("ca.pem", a.pem), "%CERT%", write("cert.pem", cert), "%KEY%", write("key.pem", key),
		"%CHAIN%", write("chain.pem", append(chainKey, chain...)), "%GOOD%", a.digest("good", false), "%GOODKEY%", a.digest("good", true),
		"%SELFKEY%", a.digest("self", true), "%OTHER%", a.digest("other", false), "%OTHERKEY%", a.digest("other", true),
		"%OLDKEY%", a.digest("old", true), "%CADIGEST%", a.digest("ca", false)).Replace(text)
}

// files are a certificate and its key as they are in files.
func (a *authority) files(t *testing.T, name string) (cert, key []byte) {
	c := a.certs[name]
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// pumped is a connection that is read by a pump.
type pumped struct {
	net.Conn
	s *scripted
}

func (p pumped) Read(b []byte) (int, error) {
	for len(p.s.rest) == 0 {
		more, ok := <-p.s.come
		if !ok {
			return 0, net.ErrClosed
		}
		p.s.rest = more
	}
	n := copy(b, p.s.rest)
	p.s.rest = p.s.rest[n:]
	return n, nil
}

var tlsVersions = map[string]uint16{"TLS1.0": tls.VersionTLS10, "TLS1.1": tls.VersionTLS11, "TLS1.2": tls.VersionTLS12}

// startTLS switches a scripted server to TLS with one of the certificates.
// What is after its name is what the server can do (max=VERSION, suite=NAME,
// tickets: resume what any server of the dialogue that says so has begun) and
// what must have come of the handshake: version=, sni=, client=, the common name
// of the client's certificate, resumed=true or false; "-" is none.
func (s *scripted) startTLS(pump *sync.WaitGroup, text string) bool {
	words := strings.Fields(text)
	conf := &tls.Config{Certificates: []tls.Certificate{testCA().certs[words[0]]}, ClientAuth: tls.RequestClientCert}
	want := make(map[string]string)
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "max":
			conf.MaxVersion = tlsVersions[value]
		case "suite":
			for _, c := range tls.CipherSuites() {
				if c.Name == value {
					conf.CipherSuites = []uint16{c.ID}
				}
			}
		case "tickets":
			conf.SetSessionTicketKeys([][32]byte{{1}})
		default:
			want[key] = value
		}
	}
	under := *s
	conn := tls.Server(pumped{s.conn, &under}, conf)
	if err := conn.Handshake(); err != nil {
		return false
	}
	st := conn.ConnectionState()
	got := map[string]string{"version": tls.VersionName(st.Version), "sni": cmp.Or(st.ServerName, "-"), "client": "-",
		"resumed": strconv.FormatBool(st.DidResume)}
	if len(st.PeerCertificates) > 0 {
		got["client"] = st.PeerCertificates[0].Subject.CommonName
	}
	for key, value := range want {
		if strings.ReplaceAll(got[key], " ", "") != value {
			s.t.Errorf("%s: TLS has %s=%q, want %q", s.addr, key, got[key], value)
		}
	}
	come := make(chan []byte, 10000)
	s.conn, s.come, s.rest = conn, come, nil
	pump.Go(func() { pumpInto(conn, come) })
	return true
}
