package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"
)

// What TLS is measured with: what most of the world's mail systems agree on. Go would offer a key exchange that
// OpenSSL does not have yet in all of Debian's releases, which costs more.
func measuredTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, CurvePreferences: []tls.CurveID{tls.X25519}}
}

// secured is how the sessions of the load begin TLS, and what came of it.
type secured struct {
	config *tls.Config

	mu                  sync.Mutex
	handshakes, resumed int
	states              map[suite]int
}

// newSecured makes sessions that do not verify who the mail system is, as mail systems mostly do not. With resume
// those that have been can be resumed.
func newSecured(resume bool) *secured {
	c := measuredTLS()
	c.InsecureSkipVerify, c.ServerName = true, "mta.test"
	if resume {
		c.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	return &secured{config: c, states: map[suite]int{}}
}

// begin forgets what came of earlier sessions, but not how to resume them.
func (s *secured) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handshakes, s.resumed, s.states = 0, 0, map[suite]int{}
}

// secure begins TLS.
func (k *client) secure(s *secured) {
	k.say("STARTTLS\r\n", "220")
	if k.err != nil {
		return
	}
	c := tls.Client(k.c, s.config)
	if k.err = c.Handshake(); k.err != nil {
		return
	}
	state := c.ConnectionState()
	s.mu.Lock()
	s.handshakes++
	if state.DidResume {
		s.resumed++
	}
	s.states[suiteOf(state)]++
	s.mu.Unlock()
	k.c, k.r = c, bufio.NewReader(c)
	k.say("EHLO load.test\r\n", "250")
}

// secure begins TLS at the next hop.
func (h *hop) secure() error {
	conf := h.s.asked.Load().tls
	if conf == nil {
		h.w.WriteString("502 5.5.1 no\r\n")
		return nil
	}
	h.w.WriteString("220 2.0.0 go on\r\n")
	if err := h.w.Flush(); err != nil {
		return err
	}
	c := tls.Server(h.c, conf)
	if err := c.Handshake(); err != nil {
		return err
	}
	h.s.handshake(c.ConnectionState())
	h.c, h.r, h.w = c, bufio.NewReaderSize(c, 64<<10), bufio.NewWriter(c)
	return nil
}

// makeCertificate makes a key on the curve P-256 and a certificate that signs itself: as crypto/tls has them, and as
// smtpd_tls_chain_files does.
func makeCertificate() (pair tls.Certificate, text []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, nil, err
	}
	now := time.Now()
	about := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mta.test"}, DNSNames: []string{"mta.test"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(7 * 24 * time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, &about, &about, key.Public(), key)
	if err != nil {
		return pair, nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return pair, nil, err
	}
	text = append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})...)
	pair, err = tls.X509KeyPair(text, text)
	return pair, text, err
}

// mostAtOnce is smtp_destination_concurrency_limit: kept connections are as many, at least when few messages wait.
const mostAtOnce = 100

// A tlsUse is how a contest uses TLS, in and out.
type tlsUse struct {
	resume bool // sessions are resumed; otherwise none is
	keep   bool // a connection has many messages; otherwise each has one
}

// lines are those of main.cf.
func (u tlsUse) lines() string {
	lines := `smtpd_tls_security_level = may
smtpd_tls_chain_files = {dir}/etc/tls.pem
smtp_tls_security_level = encrypt
tls_eecdh_auto_curves = X25519
`
	if u.resume {
		lines += "smtp_tls_session_cache_database = btree:{dir}/data/smtp_scache\n"
	}
	if u.keep {
		return lines + "smtp_tls_connection_reuse = yes\n"
	}
	return lines + "smtp_connection_cache_on_demand = no\n"
}

// check says what is not as it should be in a round: the load's sessions, and the sink's.
func (u tlsUse) check(load *secured, t tally) error {
	load.mu.Lock()
	defer load.mu.Unlock()
	if t.plain > 0 {
		return fmt.Errorf("%d messages came to the next hop without TLS", t.plain)
	}
	if err := u.checkEnd("in", load.handshakes, load.resumed, t.messages, load.states); err != nil {
		return err
	}
	return u.checkEnd("out", t.handshakes, t.resumed, t.messages, t.states)
}

// checkEnd does so for one end.
func (u tlsUse) checkEnd(end string, handshakes, resumed, messages int, states map[suite]int) error {
	for s := range states {
		if s.version != tls.VersionTLS13 || s.curve != tls.X25519 || s.cipher != tls.TLS_AES_128_GCM_SHA256 {
			return fmt.Errorf("TLS %s: %s, %s, %v", end, tls.VersionName(s.version), tls.CipherSuiteName(s.cipher), s.curve)
		}
	}
	words := fmt.Sprintf("TLS %s: %d handshakes, %d of them resumed, for %d messages", end, handshakes, resumed, messages)
	switch {
	case !u.keep && handshakes < messages, u.keep && handshakes > mostAtOnce+messages/10:
		return errors.New(words)
	case !u.resume && !u.keep && resumed > 0, u.resume && resumed < handshakes*4/5:
		return errors.New(words)
	}
	return nil
}
