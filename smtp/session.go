// A session with a server: its state, and how it begins and ends. The walk through the
// servers, which opens sessions, is in walk.go; what is said in between in
// transaction.go and body.go.

package smtp

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// feature is what a server offers in its reply to EHLO, as far as this client has a
// use for it.
type feature uint16

const (
	offersESMTP      feature = 1 << iota // EHLO or LHLO was accepted
	offersPipelining                     // RFC 2920
	offers8BitMIME                       // RFC 6152
	offersDSN                            // RFC 3461
	offersSize                           // RFC 1870
	offersUTF8                           // RFC 6531
	offersStartTLS                       // RFC 3207
	offersAuth                           // RFC 4954
	offersRequireTLS                     // RFC 8689
	offersXForward                       // Postfix's XFORWARD
)

// session is a connection to a server, from its greeting on. It belongs to one
// delivery at a time, or to the cache while it is kept, and goes from one to the
// next with what is known of the server.
type session struct {
	*wire
	host string     // as looked up
	addr string     // IP address, or path of a unix socket
	ip   netip.Addr // not valid for a unix socket
	// namaddr is host[addr], relay host[addr]:port, as in logs.
	namaddr, relay string
	throttle       *throttle // replies by which a server asks for less

	// What EHLO was answered with. It is read again after STARTTLS, since what was said in the
	// clear may be forged (RFC 3207 section 4.2).
	offers   feature
	size     int64 // SIZE limit; 0: none said
	limits   peerLimits
	domains  []string // of recipients so far, in lower case; empty unless the server limits them
	auth     string   // mechanisms of AUTH, in upper case, with blanks between; empty: none
	xforward []string // attributes of XFORWARD that the server takes, in upper case
	// tls is set once the handshake is over; nil: in the clear.
	tls     *tlsState
	flaw    *flaw  // what is wrong with its TLS, for reports
	greeted string // the name in the reply to EHLO

	// dirty: the server may be in the middle of a transaction, between MAIL and the reply to the
	// final dot or RSET. RSET goes ahead of the next transaction then, as the server may have
	// another sender in mind.
	dirty bool
	// bad: must not be used again. Commands and replies may be out of step, the content was cut
	// off, or QUIT has been sent with it.
	bad bool
	// broke is why the connection did not live; else nil. Transcripts for postmaster give it.
	broke   *failure
	odd     bool       // has given a reply that makes no sense: not to be kept
	uses    int        // deliveries, this one included; the log says conn_use from 2 on
	mails   int        // transactions begun, which a server may limit (RFC 9422)
	started time.Time  // when it was connected: smtp_connection_reuse_time_limit
	kept    *keptEntry // its place in the cache of sessions; nil: it has never been there
	// by is the delivery that uses it; nil while it is set up or kept. Only that delivery's
	// goroutine touches the session.
	by *delivery
	// cut ends its waiting. It is the only thing that another goroutine calls.
	cut func()
	// pending are commands that have been gathered, or sent and not answered, in the order in which
	// replies will come (RFC 2920). Empty between transactions.
	pending []command
	// budget is what smtp_reply_filter may cost in one delivery; nil without it.
	budget *table.Budget

	pixDelay bool // wait before the final dot: smtp_pix_workarounds
}

// newSession makes a session of a connection that has just been made. Nothing has
// been said on it.
func (a *Agent) newSession(conn net.Conn, t *target) *session {
	s := &session{wire: newWire(conn, a.set.replyLimit), host: t.host, started: time.Now(), throttle: &a.set.throttle}
	s.garbage = func(line []byte) {
		s.odd = true
		s.notes.Fault(notice.Protocol)
		if s.by != nil {
			s.by.garbage(s, line)
		}
	}
	base := s.conn // what is under TLS may be waiting itself
	s.cut = func() {
		s.stopping.Store(true)
		_ = base.SetDeadline(time.Unix(1, 0))
	}
	s.notes = a.notices.Transcript()
	if !a.tab.replies.Empty() {
		var ctx context.Context
		ctx, s.budget = table.NewBudget(context.Background(), table.MatchBudget)
		s.filter = func(line []byte) []byte { return a.filterReply(ctx, line) }
	}
	s.name(t)
	return s
}

// cutOff ends the session's waiting when ctx ends: reads and writes fail at once.
// The function that it returns takes that back, and says whether ctx had not ended.
// If it had, the session cannot be used any more.
func (s *session) cutOff(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, s.cut)
}

// name composes how logs call the server. For a Unix-domain socket there is no
// port.
func (s *session) name(t *target) {
	s.addr, s.ip = t.address(), t.ip
	s.namaddr = s.host + "[" + s.addr + "]"
	s.relay = s.namaddr
	if t.path == "" {
		s.relay += ":" + t.port
	}
}

// hello reads the greeting and introduces us. It sets the session's features.
//
// With smtp_skip_5xx_greeting a 5xx greeting is taken for a temporary one, since
// many servers refuse clients that way only for a while.
func (d *delivery) hello(s *session, t *target) *failure {
	r, err := s.readReply(d.set.time.hello, nil)
	if err != nil {
		return s.broken(stageGreeting, err)
	}
	if !r.ok() {
		f := s.refused(siteFailed, &r)
		if f.status.Class == 5 && r.code/100 == 5 && d.set.skip5xxGreeting {
			f.status.Class = 4
		}
		return f
	}
	banner := string(r.raw[bytes.LastIndexByte(r.raw, '\n')+1:])
	pix := d.pixWorkarounds(s, t, banner)
	if slices.Contains(pix, "delay_dotcrlf") && d.age() > d.set.pixThreshold {
		s.pixDelay = true
	}
	d.checkBanner(s, t, banner)
	if d.set.lmtp {
		return d.introduce(s, t, "LHLO", stageLHLO)
	}
	// RFC 5321 section 3.2 has a client say EHLO whatever the greeting is; the settings are for servers
	// that hang up over it.
	esmtp := d.set.alwaysEHLO || strings.Contains(strings.ToUpper(banner), "ESMTP")
	if esmtp && !d.set.neverEHLO && !slices.Contains(pix, "disable_esmtp") {
		f := d.introduce(s, t, "EHLO", stageEHLO)
		if f == nil || f != errNoEHLO {
			return f
		}
	}
	return d.introduce(s, t, "HELO", stageHELO)
}

// errNoEHLO says that EHLO was refused in a way that leaves HELO to try.
var errNoEHLO = &failure{text: "EHLO refused"}

// introduce sends EHLO, HELO or LHLO and takes in what the server offers. stage is
// what a broken connection is logged under. Called again after STARTTLS it begins
// with nothing, as RFC 3207 section 4.2 asks. It returns errNoEHLO where HELO is
// left to try, as RFC 5321 section 3.2 has it.
func (d *delivery) introduce(s *session, t *target, verb, stage string) *failure {
	s.offers, s.size, s.limits, s.auth, s.xforward = 0, 0, peerLimits{}, "", nil
	s.out = append(append(append(append(s.out, verb...), ' '), d.helloName()...), "\r\n"...)
	if err := s.flush(d.set.time.hello); err != nil {
		return s.broken(stage, err)
	}
	var each func([]byte)
	first := ""
	if verb != "HELO" {
		discard := d.discarded(t)
		n := 0
		each = func(line []byte) {
			if n++; n == 1 {
				name, _, _ := strings.Cut(string(line), " ")
				first = name
				return
			}
			s.offer(line, discard)
		}
	}
	r, err := s.readReply(d.set.time.hello, each)
	switch {
	case err != nil:
		return s.broken(stage, err)
	case r.ok():
	case verb == "EHLO" && r.code != 421:
		return errNoEHLO
	default:
		return s.refused(siteFailed, &r)
	}
	s.greeted = first
	if verb != "HELO" {
		s.offers |= offersESMTP
	}
	if s.offers&(offersUTF8|offers8BitMIME) == offersUTF8 { // RFC 6531 section 3.1 has one imply the other
		d.log.Log(maillog.SMTPUTF8Alone{Relay: s.namaddr})
		s.offers |= offers8BitMIME
	}
	// The server at the other end has our own name: it is us, by an MX record or a
	// port forwarding that leads back. Mail that is sent anyway would loop until it
	// exceeds the limit on hops.
	if t.port == smtpPort && t.path == "" && strings.EqualFold(first, d.set.myhostname) {
		f := &failure{kind: siteFailed, status: dsn.S(4, 4, 6), detail: s.detail(), loop: true,
			text: "mail for " + d.hop.host + " loops back to myself"}
		if t.best {
			f.status = dsn.S(5, 4, 6)
		}
		return f
	}
	return nil
}

// offer takes in one keyword line of an EHLO reply. Keywords in any letter
// case; what is malformed does not count.
func (s *session) offer(line []byte, discard []string) {
	word, rest, _ := bytes.Cut(line, []byte(" "))
	keyword := strings.ToUpper(string(word))
	if name, value, ok := strings.Cut(keyword, "="); ok && name == "AUTH" {
		// An old form that some servers still send besides the right one.
		keyword, rest = "AUTH", []byte(value+" "+string(rest))
	}
	if slices.Contains(discard, keyword) {
		return
	}
	switch keyword {
	case "PIPELINING":
		s.offers |= offersPipelining
	case "8BITMIME":
		s.offers |= offers8BitMIME
	case "DSN":
		s.offers |= offersDSN
	case "SMTPUTF8":
		s.offers |= offersUTF8
	case "STARTTLS":
		s.offers |= offersStartTLS
	case "REQUIRETLS":
		s.offers |= offersRequireTLS
	case "AUTH":
		// Both forms may come: what either has counts.
		s.offers |= offersAuth
		s.auth = strings.TrimSpace(s.auth + " " + strings.ToUpper(string(rest)))
	case "XFORWARD":
		s.offers |= offersXForward
		s.xforward = strings.Fields(strings.ToUpper(string(rest)))
	case "LIMITS": // RFC 9422
		s.limits = parseLimits(string(rest))
	case "SIZE":
		s.offers |= offersSize
		// 0, or nothing, means that there is no fixed limit (RFC 1870 section 4).
		if n, err := strconv.ParseInt(strings.TrimSpace(string(rest)), 10, 64); err == nil && n > 0 {
			s.size = n
		}
	}
}

// discarded lists the keywords, in upper case, that are to be ignored of a server:
// the table's if it has the address, else the parameter's. It is how an
// administrator works around a server that offers what it cannot do. A table that
// cannot be read counts as empty, since a keyword too many seldom keeps mail from
// flowing.
func (d *delivery) discarded(t *target) []string {
	words := d.set.discard
	if !d.tab.discard.Empty() {
		value, found, err := d.tab.discard.Lookup(context.Background(), t.address(), false)
		if err != nil {
			d.log.Warning("%v", err)
		} else if found {
			words = strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = strings.ToUpper(w)
	}
	if len(out) > 0 && !slices.Contains(out, "SILENT-DISCARD") {
		d.log.Log(maillog.KeywordsDiscarded{Keywords: strings.Join(smtpwire.KnownKeywords(out), " ")})
	}
	return out
}

// checkBanner warns of a server that greets with our own name. It is only a
// warning: the reply to EHLO decides whether it is us, see introduce.
func (d *delivery) checkBanner(s *session, t *target, banner string) {
	f := strings.Fields(banner)
	if len(f) > 1 && t.port == smtpPort && strings.EqualFold(f[1], d.set.myhostname) {
		d.log.LogWarning(maillog.SMTPOwnGreeting{Relay: s.relay, Hostname: d.set.myhostname})
	}
}

// pixWorkarounds lists what is to be done about a certain kind of firewall (Cisco
// PIX), which shows itself by a greeting of nothing but "2", "0", blanks and stars.
// Some of them lose the final dot, some cannot do ESMTP (smtp_pix_workarounds).
func (d *delivery) pixWorkarounds(s *session, t *target, banner string) []string {
	if strings.Trim(banner, "20 *\t\n") != "" {
		return nil
	}
	words := d.set.pix
	if !d.tab.pix.Empty() {
		if value, found, err := d.tab.pix.Lookup(context.Background(), t.address(), false); err != nil {
			d.log.Warning("%v", err)
		} else if found {
			words = strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
		}
	}
	if len(words) > 0 {
		d.log.Log(maillog.SMTPWorkarounds{ID: d.id, Workarounds: strings.Join(words, " "), Relay: s.relay})
	}
	return words
}

// quit says goodbye and closes. The reply to QUIT tells nothing that is worth
// waiting for; wait is for servers that take a close without it for an error
// (smtp_skip_quit_response = no).
func (s *session) quit(limit time.Duration, wait bool) {
	s.out = append(s.out, "QUIT\r\n"...)
	if !wait {
		limit = min(limit, time.Second) // a buffer that is full is no reason to stay
	}
	if s.flush(limit) == nil && wait {
		_, _ = s.readReply(limit, nil) // whatever it says, we go
	}
	s.close()
}

// close closes the connection without QUIT, when it is out of step or broken.
func (s *session) close() { _ = s.conn.Close() } // no outcome depends on it any more
