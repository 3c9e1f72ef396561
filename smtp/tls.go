package smtp

import (
	"context"
	"crypto/tls"
	"errors"
	"os"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
)

// level is a TLS security level, in increasing order.
type level uint8

const (
	levelNone level = iota
	levelMay
	levelEncrypt
	levelFingerprint
	levelDane
	levelDaneOnly
	levelVerify
	levelSecure
	levelInvalid
)

func parseLevel(text string) level {
	switch text {
	case "none":
		return levelNone
	case "may":
		return levelMay
	case "encrypt":
		return levelEncrypt
	case "fingerprint":
		return levelFingerprint
	case "dane":
		return levelDane
	case "dane-only":
		return levelDaneOnly
	case "verify":
		return levelVerify
	case "secure":
		return levelSecure
	}
	return levelInvalid
}

// policy is what one server's TLS must be like.
type policy struct {
	level  level
	config *tls.Config
}

// tlsState is TLS that has been set up.
type tlsState struct {
	tls.ConnectionState
}

// tlsClient is the part of the configuration that is about TLS.
type tlsClient struct {
	level    level
	reuse    bool
	loglevel int
	base     *tls.Config
}

func newTLSClient(cfg *config.Config, lmtp bool) (*tlsClient, error) {
	c := new(tlsClient)
	var text string
	var use, enforce, peername bool
	if lmtp {
		text = cfg.String("lmtp_tls_security_level")
		use, enforce, peername = cfg.Bool("lmtp_use_tls"), cfg.Bool("lmtp_enforce_tls"), cfg.Bool("lmtp_tls_enforce_peername")
		c.reuse, c.loglevel = cfg.Bool("lmtp_tls_connection_reuse"), logLevel(cfg.String("lmtp_tls_loglevel"))
	} else {
		text = cfg.String("smtp_tls_security_level")
		use, enforce, peername = cfg.Bool("smtp_use_tls"), cfg.Bool("smtp_enforce_tls"), cfg.Bool("smtp_tls_enforce_peername")
		c.reuse, c.loglevel = cfg.Bool("smtp_tls_connection_reuse"), logLevel(cfg.String("smtp_tls_loglevel"))
	}
	switch {
	case text != "":
		c.level = parseLevel(text)
	case enforce && peername:
		c.level = levelVerify
	case enforce:
		c.level = levelEncrypt
	case use:
		c.level = levelMay
	}
	c.base = &tls.Config{
		MinVersion:         tls.VersionTLS10,
		InsecureSkipVerify: true,
		ClientSessionCache: tls.NewLRUClientSessionCache(1000),
	}
	return c, nil
}

// logLevel reads smtp_tls_loglevel: a number, of which the digits above 4 mean 4.
func logLevel(text string) int {
	if len(text) == 1 && text[0] >= '0' && text[0] <= '9' {
		return int(text[0] - '0')
	}
	return 0
}

// policy says what TLS a server must have.
func (d *delivery) policy(_ context.Context, _ *target) (*policy, *failure) {
	p := &policy{level: d.a.tls.level, config: d.a.tls.base}
	if p.level > levelEncrypt {
		return nil, &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: "client TLS configuration problem"}
	}
	return p, nil
}

// handshake brings a new connection to where a transaction can begin.
func (d *delivery) handshake(ctx context.Context, s *session, t *target, p *policy) *failure {
	if f := d.hello(s, t); f != nil {
		return f
	}
	if p.level == levelNone {
		return nil
	}
	if s.offers&offersStartTLS == 0 {
		if p.level == levelMay {
			return nil
		}
		return &failure{kind: siteFailed, status: dsn.S(4, 7, 4), detail: s.detail(),
			text: "TLS is required, but was not offered by host " + s.namaddr}
	}
	return d.startTLS(ctx, s, t, p)
}

// startTLS switches to TLS, RFC 3207, and introduces us again.
func (d *delivery) startTLS(ctx context.Context, s *session, t *target, p *policy) *failure {
	s.out = append(s.out, "STARTTLS\r\n"...)
	if err := s.flush(d.set.time.starttls); err != nil {
		return s.broken(stageTLS, err)
	}
	r, err := s.readReply(d.set.time.starttls, nil)
	if err != nil {
		return s.broken(stageTLS, err)
	}
	if !r.ok() {
		if p.level == levelMay {
			return nil
		}
		f := s.refused(siteFailed, &r)
		f.text = "TLS is required, but host " + s.namaddr + " refused to start TLS: " + f.detail.DiagText
		return f
	}
	err = errors.New("the server sent something between its reply and the handshake")
	if s.r == s.w {
		err = d.shakeHands(ctx, s, p)
	}
	if err != nil {
		d.log.Info("SSL_connect error to %s: %v", s.relay, err)
		f := &failure{kind: siteFailed, status: dsn.S(4, 7, 5), text: "Cannot start TLS: handshake failure", detail: s.detail()}
		if p.level == levelMay {
			f.kind, f.retry = notCapable, true
		}
		return f
	}
	if d.set.lmtp {
		return d.introduce(s, t, "LHLO", stageLHLO)
	}
	f := d.introduce(s, t, "EHLO", stageEHLO)
	if f == errNoEHLO {
		f = d.introduce(s, t, "HELO", stageHELO)
	}
	return f
}

var errHandshakeTime = errors.New("the handshake took too long")

// shakeHands does the TLS handshake within smtp_starttls_timeout.
func (d *delivery) shakeHands(ctx context.Context, s *session, p *policy) error {
	if limit := d.set.time.starttls; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	if err := s.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	conn := tls.Client(s.conn, p.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return errHandshakeTime
		}
		return err
	}
	s.conn = conn
	s.tls = &tlsState{conn.ConnectionState()}
	if d.a.tls.loglevel > 0 {
		d.log.Log(&maillog.TLSEstablished{Trust: "Untrusted", Peer: s.relay,
			Proto: protoName(s.tls.Version), Cipher: tls.CipherSuiteName(s.tls.CipherSuite), Bits: cipherBits(s.tls.CipherSuite)})
	}
	return nil
}

// protoName names a protocol as logs do.
func protoName(version uint16) string {
	switch version {
	case tls.VersionTLS10:
		return "TLSv1"
	case tls.VersionTLS11:
		return "TLSv1.1"
	case tls.VersionTLS12:
		return "TLSv1.2"
	}
	return "TLSv1.3"
}

// cipherBits is the key length of a cipher suite.
func cipherBits(suite uint16) int {
	switch suite {
	case tls.TLS_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA, tls.TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA, tls.TLS_RSA_WITH_AES_128_CBC_SHA,
		tls.TLS_RSA_WITH_AES_128_GCM_SHA256:
		return 128
	}
	return 256
}

// plainAllowed says whether a server whose TLS does not work may be talked to
// without, where TLS is but a wish: when the message has waited for a while
// already, or nobody's message is at stake.
func (d *delivery) plainAllowed() bool {
	return d.env.Trace.DontDeliver() || d.age() >= d.set.minBackoff
}

// connectPlain connects to a server and leaves TLS out.
func (d *delivery) connectPlain(ctx context.Context, t *target) (*session, *failure) {
	return d.open(ctx, t, &policy{level: levelNone})
}
