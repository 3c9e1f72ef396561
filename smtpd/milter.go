// Mail filters (Sendmail's milter protocol): the session's end. The filters' sessions
// live in cleanup, which shows them the content as well; each event of SMTP is one
// request to it, and its reply is the verdict.

package smtpd

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mailfilter"
	"posthaste/internal/milter"
	"posthaste/internal/proto"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// milterSettings are what is to be known of filters. They do not change.
type milterSettings struct {
	client    *ipc.Client       // cleanup, where sessions with filters live; nil: no filters
	cfg       *config.Config    // for what smtpd_milter_maps brings
	specs     []mailfilter.Spec // smtpd_milters
	maps      *table.Maps       // smtpd_milter_maps: other filters for some clients, or none
	constants []string          // macros that are the same for all sessions: name, value, ...
}

// readMilters reads them. An error is in the list of filters.
func readMilters(cfg *config.Config, client *ipc.Client, o table.Options) (*milterSettings, error) {
	specs, err := milter.Read(cfg, "smtpd_milters")
	if err != nil {
		return nil, err
	}
	m := &milterSettings{client: client, cfg: cfg, specs: specs, maps: table.OpenMaps("smtpd_milter_maps", cfg.List("smtpd_milter_maps"), o)}
	if m.constants, err = milter.ParseMacros(cfg.List("milter_macro_defaults")); err != nil {
		return nil, err
	}
	m.constants = append(m.constants, "j", cfg.String("myhostname"), "v", cfg.String("milter_macro_v"),
		"{daemon_name}", cfg.String("milter_macro_daemon_name"))
	return m, nil
}

// milterState is a session's part with filters. They are told of events by way of
// cleanup, and get the content there. It begins with the SMTP session, or with
// XCLIENT, and ends with it.
type milterState struct {
	id    uint64            // the session's, chosen at random; 0: no filters
	specs []mailfilter.Spec // the filters, in their order
	limit time.Duration     // for one event, all filters together
	begun bool              // they have been told of a transaction, and not of its end
	// lost is what is said in the filters' place since cleanup could not be asked; nil:
	// it can be. milter_default_action decides.
	lost *mailfilter.Verdict
	// refusal is of the session: every MAIL, and some other commands, get it. Nil: none.
	refusal *smtpwire.Reply
	// sent is the macros as filters have been told of them: only changes are sent.
	sent map[string]string

	// What they have been told, for a cleanup that takes the session over
	// when the one that it began in goes: by parts, since HELO and MAIL may
	// come again.
	connect, helo, mail proto.MilterTold
}

// eventsTold is everything that filters have been told, for a cleanup process that
// does not know the session. A list of recipients that is too long for one request
// is not told again: cleanup then has the client send the message once more.
func (m *milterState) eventsTold() proto.MilterTold {
	if n := len(m.connect) + len(m.helo) + len(m.mail); n > proto.ListSize {
		return nil
	}
	return slices.Concat(m.connect, m.helo, m.mail)
}

// recordEvent records an event that filters have been told of, with all of its
// macros. CONNECT and HELO take the place of the last one.
func (m *milterState) recordEvent(e *proto.Milter, v mailfilter.Verdict) {
	switch e.Event {
	case proto.MilterConnect:
		m.connect, m.helo, m.mail = reuse.Truncated(m.connect).Add(e), nil, nil
	case proto.MilterHelo:
		m.helo, m.mail = reuse.Truncated(m.helo).Add(e), reuse.Truncated(m.mail)
	case proto.MilterMail, proto.MilterRcpt, proto.MilterData, proto.MilterRefused:
		if v.Action == mailfilter.Continue { // else the client has heard no, and it is no part of the transaction
			m.mail = m.mail.Add(e)
		}
	}
}

// recordMacros has sent be what filters know after told has been repeated to them.
func (m *milterState) recordMacros(told proto.MilterTold) {
	events, _ := told.Events() // our own
	clear(m.sent)
	for i := range events {
		for k := 0; k+1 < len(events[i].Macros); k += 2 {
			m.sent[events[i].Macros[k]] = events[i].Macros[k+1]
		}
	}
}

// milterSlack is added to the time that filters may take, for the round trip to
// cleanup. Cleanup must time out first, since it knows the name of the filter that
// was too slow.
const milterSlack = 10 * time.Second

// milterSpecs are the filters for this client: those of smtpd_milter_maps, DISABLE
// being none, or smtpd_milters. There are none where receive_override_options has
// no_milters.
func (s *session) milterSpecs(ctx context.Context) ([]mailfilter.Spec, error) {
	set := s.srv.milters
	if set == nil || set.client == nil || s.set.withheld&proto.SubmitMilter != 0 {
		return nil, nil
	}
	value, found, err := set.maps.LookupClientAddr(ctx, s.a.AddrText)
	switch {
	case err != nil:
		return nil, err
	case !found:
		return set.specs, nil
	case strings.EqualFold(strings.TrimSpace(value), "DISABLE"):
		return nil, nil
	}
	list, err := config.SplitList(value)
	if err != nil {
		return nil, err
	}
	return milter.Parse(set.cfg, "smtpd_milter_maps", list)
}

// milterConnect begins the session with filters. A reply ends the SMTP session; a
// filter that only rejects is heeded at MAIL, as with Sendmail, so that the client
// hears it where it expects to.
//
// An identifier must not be one that another process, or this one before, has given
// to cleanup: it is random, and not 0.
func (s *session) milterConnect(ctx context.Context) *smtpwire.Reply {
	s.milterClose()
	specs, err := s.milterSpecs(ctx)
	if err != nil {
		s.srv.log.Warning("smtpd_milter_maps: %v", err)
		v := mailfilter.Default(s.srv.milters.cfg.String("milter_default_action"))
		s.milter = milterState{id: 1, lost: &v}
		return s.milterSession(v)
	}
	if len(specs) == 0 {
		return nil
	}
	s.milter = milterState{id: rand.Uint64() | 1, specs: specs, limit: milterSlack, sent: make(map[string]string, 24)}
	for i := range specs {
		s.milter.limit += specs[i].Connect + 3*specs[i].Command
	}
	c := &s.a.Client
	name := c.Name
	if name == "unknown" {
		name = "[" + c.AddrText + "]" // as Sendmail has it
	}
	return s.milterSession(s.milterTell(proto.MilterConnect, s.connectMacros(), name, c.Addr.String(), c.Port))
}

// connectMacros are the macros of CONNECT, which are good for the whole session.
// The full slice expression keeps append from writing into what all sessions share.
func (s *session) connectMacros() []string {
	c := &s.a.Client
	return append(s.srv.milters.constants[:len(s.srv.milters.constants):len(s.srv.milters.constants)],
		"_", c.ReverseName+" ["+c.AddrText+"]", "{client_name}", c.Name, "{client_addr}", c.AddrText, "{client_ptr}", c.ReverseName,
		"{client_port}", c.Port, "{client_connections}", strconv.Itoa(s.srv.limits.connections(s)), "{daemon_addr}", c.ServerAddr, "{daemon_port}", c.ServerPort)
}

// milterHelo tells of HELO and EHLO, with the name as the client gave it. The
// macros of TLS come with it, since STARTTLS is followed by another EHLO; without
// TLS they are empty, not absent, so that filters forget those of before.
func (s *session) milterHelo(name string) *smtpwire.Reply {
	if s.milter.id == 0 {
		return nil
	}
	macros := []string{"{tls_version}", "", "{cipher}", "", "{cipher_bits}", "", "{cert_subject}", "", "{cert_issuer}", ""}
	if t := s.a.TLS; t != nil {
		macros[1], macros[3], macros[5] = t.Protocol, t.Cipher, strconv.Itoa(t.Bits)
		if t.Trusted {
			macros[7], macros[9] = t.Subject, t.Issuer
		}
	}
	s.milter.begun = false
	return s.milterSession(s.milterTell(proto.MilterHelo, macros, name))
}

// milterSession heeds a verdict on the session: what ends it is said at once, and a
// rejection is kept for MAIL.
func (s *session) milterSession(v mailfilter.Verdict) *smtpwire.Reply {
	r := s.milterVerdict(v)
	if r != nil && v.Action == mailfilter.Reject {
		s.milter.refusal = r
		return nil
	}
	return r
}

// milterMail tells of MAIL, with its parameters. From here on an end of the
// transaction has to be told as well.
func (s *session) milterMail() *smtpwire.Reply {
	if s.milter.id == 0 {
		return nil
	}
	s.milter.begun = true
	macros := []string{"i", string(s.a.QueueID), "{auth_type}", s.a.SASL.Method, "{auth_authen}", s.a.SASL.Username,
		"{auth_author}", s.a.SASL.Sender}
	macros = s.appendRoute(macros, "mail", s.a.Sender)
	return s.milterVerdict(s.milterTell(proto.MilterMail, macros, s.milterArgs(&s.tx.mail.From)...))
}

// milterRcpt tells of a recipient that nothing else is wrong with.
func (s *session) milterRcpt(to *smtpwire.Path) *smtpwire.Reply {
	if s.milter.id == 0 {
		return nil
	}
	macros := s.appendRoute([]string{"i", string(s.a.QueueID)}, "rcpt", to.Address)
	s.a.HasRcpt, s.a.Recipient = true, to.Address // for the log
	defer s.hideRecipient()
	return s.milterVerdict(s.milterTell(proto.MilterRcpt, macros, s.milterArgs(to)...))
}

// milterRefused tells of a recipient that has been refused, with the reply in place
// of the macros that say where it goes. Filters that asked for such recipients
// count them; their answer is not heeded.
func (s *session) milterRefused(to *smtpwire.Path, r *smtpwire.Reply) {
	if s.milter.id == 0 || s.milter.refusal != nil {
		return
	}
	text := r.Text
	if strings.HasPrefix(text, "<") {
		_, text, _ = strings.Cut(text, " ")
	}
	macros := []string{"i", string(s.a.QueueID), "{rcpt_addr}", text, "{rcpt_host}", r.Status.String(), "{rcpt_mailer}", "error"}
	s.milterTell(proto.MilterRefused, macros, s.milterArgs(to)...)
}

// milterArgs are the address and the parameters of the present command, as the
// protocol has them: the address in angle brackets, the parameters as the client
// wrote them.
func (s *session) milterArgs(p *smtpwire.Path) []string {
	_, rest, _ := strings.Cut(s.cmd.Args, ":")
	rest = strings.TrimPrefix(strings.TrimLeft(rest, " \t"), "<")
	if i := strings.Index(rest, p.Raw); i >= 0 {
		rest = rest[i+len(p.Raw):]
	}
	return append([]string{"<" + rfc5322.Quote(p.Address) + ">"}, strings.Fields(strings.TrimPrefix(rest, ">"))...)
}

// milterContent is the session whose filters are to see the content, 0 if none.
func (s *session) milterContent() uint64 {
	if s.milter.lost != nil {
		return 0 // what is said in their place has been heeded
	}
	return s.milter.id
}

// appendRoute appends the macros that say what an address is and where mail for it
// goes: kind_addr, kind_host and kind_mailer, with kind mail or rcpt. They are
// empty when trivial-rewrite cannot be asked: a macro is not worth a refusal.
func (s *session) appendRoute(macros []string, kind, addr string) []string {
	host, mailer := "", ""
	resolved := addr
	if addr != "" {
		sender := s.a.Sender
		if kind == "mail" {
			sender = ""
		}
		full := addr
		if strings.IndexByte(addr, '@') < 0 {
			if a, err := s.srv.router.Rewrite(s.ctx(), "local", addr); err == nil {
				full = a
			}
		}
		r, err := s.srv.router.Resolve(s.ctx(), sender, full)
		if err == nil && r.Flags&proto.ResolveFail == 0 {
			host, mailer, resolved = r.Nexthop, r.Transport, r.Recipient
		}
	}
	return append(macros, "{"+kind+"_addr}", rfc5322.Quote(resolved), "{"+kind+"_host}", host, "{"+kind+"_mailer}", mailer)
}

// milterData tells that content comes, before the client is told 354.
func (s *session) milterData() *smtpwire.Reply {
	if s.milter.id == 0 {
		return nil
	}
	return s.milterVerdict(s.milterTell(proto.MilterData, []string{"i", string(s.a.QueueID)}))
}

// milterUnknown tells of a line that is no command: of its first word, as
// Postfix does.
func (s *session) milterUnknown() *smtpwire.Reply {
	if s.milter.id == 0 {
		return nil
	}
	return s.milterVerdict(s.milterTell(proto.MilterUnknown, nil, s.cmd.Word()))
}

// milterOther is what filters have to say of commands that they are not told of:
// what they said of the session. nil for other commands.
func (s *session) milterOther(v verb) *smtpwire.Reply {
	if s.milter.refusal == nil || v != vVrfy && v != vEtrn && v != vAuth && v != vStartTLS {
		return nil
	}
	return s.milterVerdict(mailfilter.Verdict{Action: mailfilter.Reject, Reply: s.milter.refusal})
}

// milterTell tells filters of an event and returns what they say. It waits for all
// of them. macros are name, value, ...; of these the ones that have changed are
// sent.
//
// When cleanup does not answer, it may have been replaced, and its successor does
// not know the session: one more attempt repeats what was told before. After that
// the verdict is the strictest of what the filters' default actions say, for the
// rest of the session.
func (s *session) milterTell(e proto.MilterEvent, macros []string, args ...string) mailfilter.Verdict {
	if s.milter.lost != nil {
		return *s.milter.lost
	}
	m := &proto.Milter{Session: s.milter.id, Event: e, Args: args}
	if e == proto.MilterConnect {
		m.Specs = s.milter.specs
	}
	for i := 0; i+1 < len(macros); i += 2 {
		if s.milter.sent[macros[i]] != macros[i+1] {
			s.milter.sent[macros[i]] = macros[i+1]
			m.Macros = append(m.Macros, macros[i], macros[i+1])
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx(), s.milter.limit)
	defer cancel()
	var r proto.MilterReply
	err := s.srv.milters.client.Call(ctx, m, &r)
	switch {
	case e == proto.MilterAbort:
		return mailfilter.Verdict{} // a cleanup that has gone has done it
	case err != nil && ctx.Err() == nil:
		// Cleanup has been reloaded, or restarted: this one has not heard of the session.
		m.Told = s.milter.eventsTold()
		m.Macros = macros
		s.milter.recordMacros(m.Told.Add(m))
		r = proto.MilterReply{}
		err = s.srv.milters.client.Call(ctx, m, &r)
	}
	if err != nil {
		s.srv.log.Warning("milters: no answer from cleanup: %v", err)
		v := mailfilter.Strictest(s.milter.specs)
		s.milter.lost = &v
		return v
	}
	m.Macros, m.Told = macros, nil
	s.milter.recordEvent(m, r.Verdict)
	return r.Verdict
}

// milterVerdict carries out what filters say, and logs it. A reply is a refusal.
// DISCARD and HOLD apply to the present message.
func (s *session) milterVerdict(v mailfilter.Verdict) *smtpwire.Reply {
	switch v.Action {
	case mailfilter.Continue:
	case mailfilter.Discard:
		if !s.tx.discarded && !s.a.Effects.Discard {
			s.srv.access.LogAction(&s.a, "milter-discard", "milter triggers DISCARD action")
		}
		s.tx.discarded = true
		return nil
	default:
		s.srv.access.LogAction(&s.a, "milter-reject", v.Reply.String())
		return v.Reply
	}
	if v.Hold && s.a.HasSender && !s.a.Effects.Hold {
		s.srv.access.LogAction(&s.a, "milter-hold", "milter triggers HOLD action")
		s.a.Effects.Hold = true
	}
	return nil
}

// milterAbort tells filters that nothing comes of the transaction, if they have
// been told of it and have not seen its end. Whether they hear it does not matter
// to the client.
func (s *session) milterAbort() {
	s.milter.mail = reuse.Truncated(s.milter.mail)
	if s.milter.begun {
		s.milter.begun = false
		s.milterTell(proto.MilterAbort, []string{"i", "", "{auth_author}", ""})
	}
}

// milterClose ends the session with filters, without waiting for an answer. It must
// not hold up the end of a session for more than a second.
func (s *session) milterClose() {
	if s.milter.id != 0 && s.milter.specs != nil {
		ctx, cancel := context.WithTimeout(s.ctx(), time.Second)
		defer cancel()
		if c, err := s.srv.milters.client.Conn(ctx); err == nil {
			c.Push(&proto.Milter{Session: s.milter.id, Event: proto.MilterClose}) // cleanup that is gone has ended it
		}
	}
	s.milter = milterState{}
}
