// What this client is offered, and may use: extensions, and commands that need an
// authorization. The reply to EHLO and the judgement of commands both ask here, so
// that what is not announced is not accepted either, where Postfix does so.

package smtpd

import (
	"maps"
	"slices"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// clip cuts s after n octets, for what a client says that goes into a log line or a
// reply. It may cut a UTF-8 sequence in two.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// hiddenKeywords are the extensions, in lower case, that this client is not told
// of: smtpd_discard_ehlo_keyword_address_maps for its address, or else
// smtpd_discard_ehlo_keywords. The answer is kept for the session, and logged once.
// Nobody changes the map: clients share it.
func (s *session) hiddenKeywords() map[string]bool {
	if s.discard != nil {
		return s.discard
	}
	s.discard = s.set.discard
	if !s.set.discardMaps.Empty() {
		value, found, err := s.set.discardMaps.LookupClientAddr(s.ctx(), s.a.AddrText)
		if err != nil {
			s.srv.log.Warning("%v", err)
		} else if found {
			s.discard = lowerSet(table.SplitList(value))
			// Not nil, which would be "not looked up yet".
		}
	}
	if s.discard == nil {
		s.discard = map[string]bool{}
	}
	if len(s.discard) > 0 && !s.discard["silent-discard"] {
		names := smtpwire.KnownKeywords(slices.Collect(maps.Keys(s.discard)))
		s.srv.log.Log(maillog.KeywordsDiscarded{Keywords: strings.Join(names, " ")})
	}
	return s.discard
}

// extensions are the extensions that bring parameters to MAIL and RCPT. A parameter
// of any other is refused with 555, also one that the client has seen announced
// elsewhere.
func (s *session) extensions() smtpwire.Ext {
	hidden := s.hiddenKeywords()
	var e smtpwire.Ext
	if !hidden["dsn"] {
		e |= smtpwire.ExtDSN
	}
	if s.set.smtputf8 && !hidden["smtputf8"] {
		e |= smtpwire.ExtSMTPUTF8
	}
	if s.mayVERP() {
		e |= smtpwire.ExtVERP
	}
	if s.offersRequireTLS() && !hidden["requiretls"] {
		e |= smtpwire.ExtRequireTLS
	}
	return e
}

// offersRequireTLS says whether the client may ask that its message goes on
// over verified TLS only: it may where it came over TLS itself (RFC 8689
// section 4.2).
func (s *session) offersRequireTLS() bool { return s.set.requireTLS && s.a.TLS != nil }

// mayVERP says whether the client may use XVERP (smtpd_authorized_verp_clients). A
// message with VERP is delivered once for each recipient, which a stranger must not
// ask of us.
func (s *session) mayVERP() bool {
	if s.set.verpClients.Empty() {
		return false
	}
	yes, err := s.set.verpClients.MatchClient(s.ctx(), s.a.Name, s.a.AddrText)
	if err != nil {
		s.srv.log.Warning("%v", err)
	}
	return yes
}

// heloFirst refuses what must not come before HELO where smtpd_helo_required asks
// for that. RFC 5321 section 4.1.4 has clients send EHLO first, but a server need
// not insist.
func (s *session) heloFirst() *smtpwire.Reply {
	if s.set.heloRequired && s.a.Helo == "" {
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: send HELO/EHLO first")
	}
	return nil
}

// listed says whether the client is in a list of trusted ones. Where the list
// cannot be asked it is not: what such lists grant is not given away because a
// server is down.
func (s *session) listed(l *table.List) bool {
	if l.Empty() {
		return false
	}
	yes, err := l.MatchClient(s.ctx(), s.a.Name, s.a.AddrText)
	if err != nil {
		s.srv.log.Warning("%v", err)
	}
	return yes
}

// mayXclient says whether the client may speak for others
// (smtpd_authorized_xclient_hosts). It is worked out once, as such a client has no
// limits either; after XCLIENT it is asked of the new one.
func (s *session) mayXclient() bool { return s.privileged }

// mayXforward says whether the client may tell whose message it passes on
// (smtpd_authorized_xforward_hosts).
func (s *session) mayXforward() bool { return s.listed(s.srv.proxies.xforward) }

// offersTLS says whether STARTTLS makes sense: not where TLS is off, nor under TLS
// (RFC 3207 section 4.2).
func (s *session) offersTLS() bool {
	t := s.srv.tlsSet
	return t.level > tlsNone && !t.wrapper && s.a.TLS == nil
}
