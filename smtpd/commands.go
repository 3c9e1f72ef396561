// The commands that are not part of a transaction: HELO and EHLO, RSET, VRFY, ETRN,
// and the filter that may replace a command line.

package smtpd

import (
	"fmt"
	"strconv"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/smtpwire"
)

// helo is HELO and EHLO, RFC 5321 section 4.1.1.1. A nil reply means that the
// engine is to see it. Any name is taken, as that section demands; what to think of
// it is for smtpd_helo_restrictions.
//
// Both commands end a transaction, as RSET does (section 4.1.4).
func (s *session) helo(v verb) *smtpwire.Reply {
	name := smtpwire.Printable(clip(strings.Join(strings.Fields(s.cmd.Args), " "), 255))
	if name == "" {
		return smtpwire.R(501, dsn.Status{}, "Syntax: "+strings.ToUpper(commands[v].name)+" hostname")
	}
	s.endMail()
	s.flushHistory()
	// After EHLO the client may pipeline. HELO does not take that away, but
	// ResetHelo would.
	proto := s.a.Proto
	if v == vEhlo {
		proto = "ESMTP"
	}
	s.a.ResetHelo()
	s.a.Helo = neutered(name)
	s.a.Proto = proto
	if r := s.asPolicy(s.srv.access.Helo(s.ctx(), &s.a)); r != nil {
		s.a.ResetHelo()
		return r
	}
	if r := s.asPolicy(s.milterHelo(name)); r != nil {
		s.a.ResetHelo()
		return r
	}
	return nil
}

// neutered replaces in what a client says of itself all that has a meaning in
// Received: fields or log lines: a name must not look like a comment with somebody
// else's address, nor like one more field. Controls are gone already
// (smtpwire.Printable).
func neutered(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(" <>()\\\";@", r) {
			return '?'
		}
		return r
	}, s)
}

// maxLimitValue is the largest limit that LIMITS can announce, RFC 9422 section 4.
// A larger limit is not announced; neither are MAILMAX and RCPTDOMAINMAX, which
// this server does not have.
const maxLimitValue = 999999

// appendEhlo appends the reply to EHLO: the list of extensions, in Postfix's order.
// What hiddenKeywords names is left out; a few such commands are still accepted
// when they come, as with Postfix. The first line is our name, RFC 5321 section
// 4.1.1.1.
func (s *session) appendEhlo(b []byte) []byte {
	hidden := s.hiddenKeywords()
	lines := make([]string, 1, 16)
	lines[0] = s.set.myhostname
	add := func(keyword, line string) {
		if !hidden[keyword] {
			lines = append(lines, line)
		}
	}
	add("pipelining", "PIPELINING")
	if s.set.messageLimit > 0 {
		add("size", "SIZE "+strconv.FormatInt(s.set.messageLimit, 10))
	} else {
		add("size", "SIZE")
	}
	if !s.set.vrfyDisabled {
		add("vrfy", "VRFY")
	}
	if s.srv.flush != nil {
		add("etrn", "ETRN")
	}
	if s.offersTLS() {
		add("starttls", "STARTTLS")
	}
	if mechs := s.offeredMechanisms(); mechs != "" {
		add("auth", "AUTH "+mechs)
		// Old Microsoft clients look for this form, which comes from a draft
		// (broken_sasl_auth_clients).
		if s.srv.sasl.broken {
			add("auth", "AUTH="+mechs)
		}
	}
	if s.mayVERP() {
		add("verp", "XVERP")
	}
	if s.mayXclient() {
		add("xclient", "XCLIENT "+xclientNames)
	}
	if s.mayXforward() {
		add("xforward", "XFORWARD "+xforwardNames)
	}
	add("enhancedstatuscodes", "ENHANCEDSTATUSCODES")
	add("8bitmime", "8BITMIME")
	add("dsn", "DSN")
	if s.set.smtputf8 {
		add("smtputf8", "SMTPUTF8")
	}
	add("chunking", "CHUNKING")
	if s.offersRequireTLS() {
		add("requiretls", "REQUIRETLS")
	}
	if n := s.set.rcptLimit; s.set.announceLimits && n > 0 && n <= maxLimitValue {
		add("limits", "LIMITS RCPTMAX="+strconv.Itoa(n))
	}
	return appendLines(b, lines)
}

// appendLines appends a reply of 250 with these lines, all but the last continued
// with "-" (RFC 5321 section 4.2.1).
func appendLines(b []byte, lines []string) []byte {
	for i, l := range lines {
		sep := byte('-')
		if i == len(lines)-1 {
			sep = ' '
		}
		b = append(append(append(append(b, "250"...), sep), l...), "\r\n"...)
	}
	return b
}

// rset is RSET, RFC 5321 section 4.1.1.5. A nil reply means that the engine is to
// see it. What the client said with HELO and AUTH stays.
func (s *session) rset() *smtpwire.Reply {
	if s.cmd.Args != "" {
		return smtpwire.R(501, dsn.S(5, 5, 4), "Syntax: RSET")
	}
	s.endMail()
	s.flushHistory()
	return nil
}

// vrfy is VRFY, RFC 5321 section 4.1.1.6. It only says whether the address would be
// refused as a recipient (252, RFC 5321 section 3.5.3). Each VRFY counts as a
// recipient for smtpd_client_recipient_rate_limit, or it would be the cheaper way
// to guess addresses.
func (s *session) vrfy() *smtpwire.Reply {
	switch {
	case s.set.vrfyDisabled:
		return smtpwire.R(502, dsn.S(5, 5, 1), "VRFY command is disabled")
	case s.cmd.Args == "":
		return smtpwire.R(501, dsn.S(5, 5, 4), "Syntax: VRFY address [SMTPUTF8]")
	}
	arg := s.cmd.Args
	if f := strings.Fields(arg); len(f) == 2 && strings.EqualFold(f[1], "SMTPUTF8") && s.set.smtputf8 {
		arg = f[0]
	}
	if r := s.heloFirst(); r != nil {
		return r
	}
	p, refusal := smtpwire.ParseRcpt("TO:"+bracketed(arg), 0, false)
	if refusal != nil {
		s.illegalAddress("VRFY")
		return refusal
	}
	if r := s.asPolicy(s.srv.limits.recipient(s)); r != nil {
		return r
	}
	s.a.HasRcpt, s.a.Recipient = true, p.To.Address
	defer s.hideRecipient()
	if r := s.asPolicy(s.srv.access.Vrfy(s.ctx(), &s.a)); r != nil {
		return r
	}
	return smtpwire.R(252, dsn.S(2, 0, 0), arg)
}

// bracketed is an address in the form that RCPT has: VRFY may come without the
// brackets.
func bracketed(s string) string {
	if strings.HasPrefix(s, "<") {
		return s
	}
	return "<" + s + ">"
}

// etrn is ETRN, RFC 1985. "@domain" means all subdomains there and is taken for the
// domain itself; "#queue" names a queue of the server, and this server has none.
func (s *session) etrn() *smtpwire.Reply {
	if r := s.heloFirst(); r != nil {
		return r
	}
	if s.srv.flush == nil {
		return smtpwire.R(502, dsn.S(5, 5, 1), "Error: ETRN command is disabled")
	}
	if s.a.HasSender {
		return smtpwire.R(503, dsn.Status{}, "Error: MAIL transaction in progress")
	}
	f := strings.Fields(s.cmd.Args)
	if len(f) != 1 {
		return smtpwire.R(500, dsn.Status{}, "Syntax: ETRN domain")
	}
	domain := strings.TrimPrefix(f[0], "@")
	if domain == "" || domain[0] == '#' || !validSite(domain) {
		return smtpwire.R(501, dsn.Status{}, "Error: invalid parameter syntax")
	}
	if r := s.asPolicy(s.srv.access.Etrn(s.ctx(), &s.a, domain)); r != nil {
		return r
	}
	return s.srv.flushSite(s.ctx(), domain)
}

// validSite says whether a domain has the form of one: that of a host's name, or of an address in
// brackets. It is parsed as part of an address, so that what qmgr gets has passed the same
// checks as any recipient's domain; the suffix must have come through unchanged.
func validSite(domain string) bool {
	p, r := smtpwire.ParseRcpt("TO:<x@"+domain+">", 0, false)
	return r == nil && strings.HasSuffix(p.To.Address, domain) && (domain[0] == '[' || !smtpwire.IsASCII(domain) || resolver.ValidHostname(domain))
}

// filterCommand lets smtpd_command_filter replace a command line, which is how an
// administrator gets along with a broken client. Where the table cannot be asked,
// the line stays as it is.
func (s *session) filterCommand(line string) string {
	if s.set.commandFilter.Empty() {
		return line
	}
	// untraced: the line may be AUTH with a password.
	value, found, err := s.set.commandFilter.Lookup(s.untraced(), line, false)
	if err != nil {
		s.srv.log.Warning("%v", err)
		return line
	}
	if found {
		return value
	}
	return line
}

// flushSiteReply words what the queue manager has answered to ETRN, with the codes
// of RFC 1985.
func (s *Server) flushSiteReply(domain string, queued bool, err error) *smtpwire.Reply {
	switch {
	case err != nil:
		s.log.LogWarning(maillog.FlushRefused{Domain: domain, Reason: err.Error()})
		return smtpwire.R(458, dsn.Status{}, "Unable to queue messages")
	case !queued:
		return smtpwire.R(459, dsn.Status{}, fmt.Sprintf("<%s>: service unavailable", domain))
	}
	return smtpwire.R(250, dsn.Status{}, "Queuing started")
}
