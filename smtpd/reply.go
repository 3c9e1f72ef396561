// Replies: how one is sent, what is done to it on the way (filters, footers, soft
// bounces, the delay of those who make mistakes), and how it counts.

package smtpd

import (
	"fmt"
	"strings"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/notice"
	"posthaste/internal/reuse"
	"posthaste/internal/smtpwire"
)

// errRefused ends a session whose client has been told why already.
var errRefused = fmt.Errorf("client refused")

// reply sends r, or rather adds it to what the next flush sends. Once the session
// has ended it does nothing. A reply of 421 or 521 ends the session, whoever asked
// for it: this is how restrictions and filters hang up.
//
// A client with smtpd_soft_error_limit errors waits for each reply, good or bad: a
// program that tries passwords or addresses is slowed down by it.
func (s *session) reply(r *smtpwire.Reply) {
	if s.ended {
		return
	}
	// The HANGUP action: not even what has gathered is sent.
	if r == access.Hangup {
		s.wire.out = reuse.Truncated(s.wire.out)
		s.leave()
		return
	}
	if s.errors >= s.set.softErrors && s.set.errorSleep > 0 {
		s.wire.flush()
		s.pause(s.set.errorSleep)
	}
	if r.Code >= 400 {
		r = s.filterReject(r)
	}
	// Soft bounces are for an administrator who tries out a configuration: the mail
	// stays with the sender. What cleanup and filters say is softened as well.
	if r.Code >= 500 && s.set.softBounce { // of whatever kind, also what cleanup and filters say
		r = smtpwire.R(r.Code-100, r.Status, r.Text)
		if !r.Status.IsZero() {
			r.Status = r.Status.WithClass(4)
		}
	}
	s.wire.kept()
	from := len(s.wire.out)
	s.wire.out = r.Append(s.wire.out)
	s.recordReply(r, s.wire.out[from:])
	// 354 is sent at once, or the client would wait for it before it sends what we
	// wait for.
	if len(s.wire.out) > maxOut || r.Code == 354 {
		s.wire.flush()
	}
	if r.Code == 421 || r.Code == 521 {
		s.leave()
	}
}

// pause has a client wait that has given reason to. A service that is to end does
// not wait.
func (s *session) pause(d time.Duration) {
	if !s.srv.draining.Load() {
		time.Sleep(d)
	}
}

// leave ends the session in order: what has gathered is sent, and the log has no
// "lost connection".
func (s *session) leave() {
	s.wire.flush()
	s.ended, s.quiet = true, true
}

// lost ends the session because reading or writing failed. Draining and timeouts
// are told the client; after a timeout with one second to take the reply, since it
// may not be there any more.
func (s *session) lost(err error) {
	if s.ended {
		return
	}
	switch {
	case err == errDraining:
		s.reply(smtpwire.R(421, dsn.S(4, 3, 2), s.set.myhostname+" Service shutting down"))
	case isTimeout(err):
		s.reason = "timeout"
		s.ended = true
		s.screened.OverLimit("TIME", s.a.Stage)
		s.wire.nc.SetWriteDeadline(time.Now().Add(time.Second))
		r := smtpwire.R(421, dsn.S(4, 4, 2), s.set.myhostname+" Error: timeout exceeded")
		text := r.Append(nil)
		s.wire.nc.Write(text)
		s.traceReply(text)
	default:
		s.ended = true
	}
}

// withoutPasswords is what a client has sent ahead, for the log: without what
// belongs to AUTH. auth says that the line before data was an AUTH command, so that
// data may begin with a response. What follows AUTH is hidden up to the next line
// that is a command.
func withoutPasswords(data string, auth bool) string {
	var b strings.Builder
	for line := range strings.Lines(data) {
		text := strings.TrimRight(line, "\r\n")
		v, known := verbs[smtpwire.ParseCommand(text).Verb]
		switch {
		case known:
			auth = v == vAuth
			b.Write(notice.Redact([]byte(text)))
		case auth:
			b.WriteString(notice.Secret)
		default:
			b.WriteString(text)
		}
		b.WriteString(line[len(text):])
	}
	return b.String()
}

// pipelined logs what a client has sent before it should have, once for a session,
// and ends the session with smtpd_forbid_unauth_pipelining. It returns true if the
// session is over. The reply is one for all that is pending: the client's idea of
// which reply belongs to which command is lost.
func (s *session) pipelined(data string) bool {
	s.a.Pipelined = true
	s.srv.log.Log(maillog.Pipelining{After: s.a.Stage, Name: s.a.Name, Addr: s.a.AddrText, Port: s.a.LogPort,
		Data: withoutPasswords(data, s.verb == vAuth)})
	if !s.set.pipelining {
		return false
	}
	s.reply(smtpwire.R(554, dsn.S(5, 5, 0), "Error: SMTP protocol synchronization"))
	s.leave()
	return true
}

// bareRefusal is the refusal of bare newlines (smtpd_forbid_bare_newline = reject).
// The class of the enhanced code follows smtpd_forbid_bare_newline_reject_code.
func (s *session) bareRefusal() *smtpwire.Reply {
	code := s.set.bareCode
	return smtpwire.R(code, dsn.S(uint8(code/100), 5, 2), s.set.myhostname+" Error: bare <LF> received")
}

// sendText sends a reply that has been written out already. It counts as a good
// one.
func (s *session) sendText(b []byte) {
	s.queueText(b)
	s.history.Out(b)
	s.traceReply(b)
}

// queueText is sendText for what is neither traced nor kept in the transcript:
// challenges of AUTH.
func (s *session) queueText(b []byte) {
	if s.errors >= s.set.softErrors && s.set.errorSleep > 0 {
		s.wire.flush()
		s.pause(s.set.errorSleep)
	}
	s.wire.kept()
	s.wire.out = append(s.wire.out, b...)
}

// replyAndCount answers the command under way and counts it: for the disconnect
// line, and as an error if it was refused. nil is a command that has been answered.
func (s *session) replyAndCount(r *smtpwire.Reply) {
	if r == nil {
		return
	}
	s.countCommand(r.Code < 400)
	s.reply(r)
	if s.a.Stage == "END-OF-MESSAGE" {
		s.flushHistory()
	}
}

// countCommand counts the command under way, which has succeeded or been refused.
func (s *session) countCommand(success bool) {
	if success {
		s.counts[s.verb].ok++
	} else {
		s.errors++
	}
	if commands[s.verb].traits&tJunk != 0 {
		s.countJunk()
	}
}

// countJunk counts a command that gets nothing done. Beyond
// smtpd_junk_command_limit each is an error, and thereby ends the session sooner or
// later.
func (s *session) countJunk() {
	// The limit plus one, as Postfix compares the count before this command.
	if s.junk++; s.junk > s.set.junkLimit+1 {
		s.errors++
	}
}

// Replies that are the same for all. They are shared: whoever changes a reply
// copies it.
var (
	senderOk    = smtpwire.R(250, dsn.S(2, 1, 0), "Ok")
	recipientOk = smtpwire.R(250, dsn.S(2, 1, 5), "Ok")
	ok200       = smtpwire.R(250, dsn.S(2, 0, 0), "Ok")
	bye         = smtpwire.R(221, dsn.S(2, 0, 0), "Bye")
	help        = smtpwire.R(214, dsn.S(2, 0, 0), "https://www.rfc-editor.org/rfc/rfc5321")
	reply354    = smtpwire.R(354, dsn.Status{}, "End data with <CR><LF>.<CR><LF>")
)

// filterReject has smtpd_reject_filter_maps change a refusal, and adds the footer.
// r itself stays as it is. What the table has must be a refusal again: a filter
// cannot accept mail.
func (s *session) filterReject(r *smtpwire.Reply) *smtpwire.Reply {
	if !s.set.rejectFilter.Empty() {
		value, found, err := s.set.rejectFilter.Lookup(s.ctx(), r.String(), false)
		if err != nil {
			s.srv.log.Warning("%v", err)
		} else if found {
			if n, valid := smtpwire.ParseReply(value); valid && n.Code >= 400 {
				r = &n
			} else {
				s.srv.log.Warning("smtpd_reject_filter_maps: malformed result %q", value)
			}
		}
	}
	footer := s.set.footer
	if !s.set.footerMaps.Empty() {
		value, found, err := s.set.footerMaps.Lookup(s.ctx(), r.String(), false)
		if err != nil {
			s.srv.log.Warning("%v", err)
		} else if found {
			footer = value
		}
	}
	if footer == "" {
		return r
	}
	out := *r
	out.Text = addFooter(r.Text, s.expandFooter(footer))
	return &out
}

// addFooter puts the footer on lines of its own, or, when it begins with "\c",
// behind the text on the last line.
func addFooter(text, footer string) string {
	footer = strings.ReplaceAll(footer, `\n`, "\n")
	if rest, same := strings.CutPrefix(footer, `\c`); same {
		return text + rest
	}
	return text + "\n" + footer
}

// expandFooter fills in the names that a footer may hold ($client, $recipient,
// ...), which are those of smtpd_reject_footer in postconf(5). A footer that cannot
// be expanded is sent as it stands.
func (s *session) expandFooter(text string) string {
	full, err := config.ExpandNames(text, func(name string) string {
		if name == "localtime" {
			return s.srv.now().Format("Jan _2 15:04:05")
		}
		return s.srv.access.Value(&s.a, name)
	})
	if err != nil {
		s.srv.log.Warning("reject footer: %v", err)
		return text
	}
	return full
}
