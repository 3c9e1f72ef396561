package smallnet

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"posthaste/internal/testcert"
	"posthaste/internal/testpeers"
	"posthaste/internal/testwait"
)

// refused is a name that the authority does not certify. It has two labels: pebble's list panics over names
// that have fewer labels than those in it.
const refused = "refused.net"

// An authority issues certificates by ACME, over HTTPS.
type authority struct {
	host *host
	url  string
	pem  string // by what its own server and its certificates are verified
}

// pebbleConf says where the authority listens, and what it finds on the machines of those who ask it.
const pebbleConf = `{"pebble": {"listenAddress": "0.0.0.0:443", "managementListenAddress": "127.0.0.1:15000",
"certificate": "/srv/cert.pem", "privateKey": "/srv/key.pem", "httpPort": 80, "tlsPort": 443,
"ocspResponderURL": "", "externalAccountBindingRequired": false, "domainBlocklist": ["` + refused + `"], "keyAlgorithm": "ecdsa",
"retryAfter": {"authz": 1, "order": 1},
"profiles": {"default": {"description": "of the test", "validityPeriod": 7776000}}}}
`

// newAuthority starts an authority.
func newAuthority(n *internet, d *tree) *authority {
	n.t.Helper()
	curl := testpeers.Program(n.t, "curl")
	a := &authority{host: n.host("acme.ca.net", "11.22.33.60", prefix6+"60"), url: "https://acme.ca.net/dir"}
	d.resolve(a.host)
	d.publish("ca.net", "acme A "+a.host.address)
	a.host.install("pebble", "usr/sbin/pebble")
	pair := testcert.Make(n.t, x509.Certificate{DNSNames: []string{"acme.ca.net"}, IsCA: true, BasicConstraintsValid: true}, nil)
	a.host.write("srv/cert.pem", string(pair.CertPEM()))
	a.host.write("srv/key.pem", string(pair.KeyPEM()))
	a.host.write("srv/pebble.json", pebbleConf)
	a.host.daemon("pebble", "env PEBBLE_VA_NOSLEEP=1 PEBBLE_WFE_NONCEREJECT=20 pebble -config /srv/pebble.json -dnsserver 127.0.0.1:53")
	testwait.Until(n.t, "the authority answers", func() bool {
		out, status := a.host.run(curl + " -sk https://127.0.0.1:15000/roots/0")
		a.pem = out + string(pair.CertPEM())
		return status == 0
	})
	return a
}

// trust has a host believe what the authority certifies.
func (a *authority) trust(h *host) {
	h.t.Helper()
	h.must("cp /etc/ssl/certs/ca-certificates.crt /tmp/roots")
	h.write("etc/ssl/certs/ca-certificates.crt", h.read("tmp/roots")+a.pem)
}

// install copies one of the programs that were built to a file of the host.
func (h *host) install(program, file string) {
	h.t.Helper()
	b, err := os.ReadFile(filepath.Join(binDir, program))
	if err == nil {
		err = os.MkdirAll(filepath.Dir(h.path(file)), 0o755)
	}
	if err == nil {
		err = os.WriteFile(h.path(file), b, 0o755)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// keyPair makes a certificate that is its own issuer, writes it to /etc/cert.pem and its key to
// /etc/key.pem, and returns the TLSA record by which DANE knows it.
func (h *host) keyPair(t testing.TB) (tlsa string) {
	t.Helper()
	pair := testcert.Make(t, x509.Certificate{DNSNames: []string{h.name}, IsCA: true, BasicConstraintsValid: true}, nil)
	h.write("etc/cert.pem", string(pair.CertPEM()))
	h.write("etc/key.pem", string(pair.KeyPEM()))
	return "_25._tcp." + h.name + ". TLSA 3 1 1 " + digest(pair.Cert.RawSubjectPublicKeyInfo)
}
