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

// clip cuts s after n octets.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// hiddenKeywords are the extensions that this client is not told of.
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

// extensions is what brings parameters to MAIL and RCPT.
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

// heloFirst refuses what must not come before HELO where that is required.
func (s *session) heloFirst() *smtpwire.Reply {
	if s.set.heloRequired && s.a.Helo == "" {
		return smtpwire.R(503, dsn.S(5, 5, 1), "Error: send HELO/EHLO first")
	}
	return nil
}

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

func (s *session) mayXclient() bool  { return s.privileged }
func (s *session) mayXforward() bool { return s.listed(s.srv.proxies.xforward) }

func (s *session) offersTLS() bool {
	t := s.srv.tlsSet
	return t.level > tlsNone && !t.wrapper && s.a.TLS == nil
}
