// The Received: field that each message gets.

package smtpd

import (
	"crypto/tls"
	"fmt"
	"strings"

	"posthaste/internal/rfc5322"
	"posthaste/internal/tlspolicy"
)

// received appends the Received: field to b, RFC 5321 section 4.4, in the form that
// mail readers and filters know from Postfix. Clients can put into it only what has
// passed neutered or headerSafe, or an address that was quoted.
//
// "for" is there with one recipient only: with more it would tell each of the
// others (RFC 5321 sections 4.4 and 7.2).
func (s *session) received(b []byte) []byte {
	if s.set.hideClient {
		b = append(b, "Received: by "...)
	} else {
		b = s.appendFrom(append(b, "Received: "...))
		b = append(b, "\tby "...)
	}
	b = append(append(b, s.set.myhostname...), " ("...)
	b = append(append(b, s.set.mailName...), ')')
	if !s.set.hideClient {
		b = append(append(b, " with "...), s.withProtocol()...)
	}
	if s.a.QueueID != "" {
		b = append(append(b, " id "...), s.a.QueueID...)
	}
	if len(s.tx.rcpts) == 1 {
		b = append(b, "\r\n\tfor <"...)
		b = rfc5322.AppendQuoted(b, s.tx.rcpts[0].Address)
		b = append(b, ">; "...)
	} else {
		b = append(b, ";\r\n\t"...)
	}
	b = rfc5322.AppendDate(b, s.srv.now())
	return append(b, '\r', '\n')
}

// appendFrom appends who the message came from: the name that the client gives
// itself, and behind it in parentheses what we know, its verified name and its
// address (RFC 5321 section 4.1.3 has the tag IPv6: for literals). With
// smtpd_hide_client_session it is not called.
func (s *session) appendFrom(b []byte) []byte {
	c := &s.a.Client
	helo := s.a.Helo
	if helo == "" {
		helo = c.Name
	}
	b = append(append(b, "from "...), helo...)
	b = append(append(b, " ("...), c.Name...)
	b = append(b, " ["...)
	if strings.Contains(c.AddrText, ":") {
		b = append(b, "IPv6:"...)
	}
	b = append(append(b, c.AddrText...), "])\r\n"...)
	if s.set.tlsReceived && s.a.TLS != nil {
		b = s.appendTLS(b)
	}
	if s.set.saslReceived && s.a.SASL.Username != "" {
		b = append(append(b, "\t(Authenticated sender: "...), headerSafe(s.a.SASL.Username)...)
		b = append(b, ")\r\n"...)
	}
	return b
}

// withProtocol is the name of the protocol as RFC 3848 and RFC 6531 section 4.3
// have it: S stands for TLS, A for authentication.
func (s *session) withProtocol() string {
	p := s.a.Proto
	if s.tx.mail.SMTPUTF8 && p == "ESMTP" {
		p = "UTF8SMTP"
	}
	if p != "SMTP" {
		if s.a.TLS != nil {
			p += "S"
		}
		if s.a.SASL.Username != "" {
			p += "A"
		}
	}
	return p
}

// tlsMeans are the key exchange, the signature algorithm and the digest, which TLS
// 1.3 does not say by the name of the cipher. They are empty for older versions,
// and sign and digest for a resumed session, which has no signature.
func (s *session) tlsMeans() (exchange, sign, digest string) {
	t := s.a.TLS
	if t.State.Version != tls.VersionTLS13 {
		return "", "", ""
	}
	if s.tls.cert != nil {
		sign, digest = tlspolicy.Signature(s.tls.cert.Leaf.PublicKey, s.tls.under.schemes)
	}
	return tlspolicy.KeyExchange(t.State.CurveID), sign, digest
}

// appendTLS is the part of Received: that tells of encryption
// (smtpd_tls_received_header), on lines of its own. Bits appear twice since Postfix
// tells those used from those of the algorithm; there are no ciphers left for which
// these differ.
func (s *session) appendTLS(b []byte) []byte {
	t := s.a.TLS
	b = fmt.Appendf(b, "\t(using %s with cipher %s (%d/%d bits)", t.Protocol, t.Cipher, t.Bits, t.Bits)
	exchange, sign, digest := s.tlsMeans()
	if exchange != "" {
		b = append(append(b, "\r\n\t key-exchange "...), exchange...)
	}
	if sign != "" {
		b = append(append(b, " server-signature "...), sign...)
	}
	if digest != "" {
		b = append(append(b, " server-digest "...), digest...)
	}
	b = append(b, ")\r\n"...)
	switch {
	case t.Fingerprint != "":
		verdict := "not verified"
		if t.Trusted {
			verdict = "verified OK"
		}
		b = fmt.Appendf(b, "\t(Client CN \"%s\", Issuer \"%s\" (%s))\r\n", headerSafe(clip(t.Subject, 100)), headerSafe(clip(t.Issuer, 100)), verdict)
	case s.srv.tlsSet.askCert:
		b = append(b, "\t(Client did not present a certificate)\r\n"...)
	default:
		b = append(b, "\t(No client certificate requested)\r\n"...)
	}
	return b
}

// headerSafe replaces what would end a comment in a header, or a line, and what is
// not ASCII: names from certificates and of users are somebody else's text.
func headerSafe(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || strings.ContainsRune(`()<>"\`, r) {
			return '?'
		}
		return r
	}, s)
}
