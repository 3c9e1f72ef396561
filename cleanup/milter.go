// Filters (milters): sessions with them, the events that smtpd passes on, and what they
// may do to a message. The protocol is in package milter. Sessions are kept in this
// process because filters want to see, and to change, the message as it will be queued.

package cleanup

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/mailfilter"
	"posthaste/internal/maillog"
	"posthaste/internal/milter"
	"posthaste/internal/proto"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// milters are the filters that see mail: those of SMTP sessions, which tell of
// themselves over ipc, and those for all other mail (non_smtpd_milters). Why
// sessions live here and not where SMTP is spoken is said in package milter.
// Its methods may be called concurrently.
type milters struct {
	log *maillog.Logger
	// non_smtpd_milters: filters of mail that did not come by SMTP, and the macros that
	// they are told.
	specs     []mailfilter.Spec
	macros    []string    // of that mail
	checks    *table.Maps // milter_header_checks
	sizeLimit int64
	// Idle connections to filters, for the next session.
	pool milter.Pool

	// mu guards sessions: those of SMTP clients, by smtpd's number for them. A session
	// ends when its smtpd says so, or its connection closes. nil after Close.
	mu       sync.Mutex
	sessions map[uint64]*milterSession
}

// A milterSession is one SMTP client's session with the filters.
type milterSession struct {
	// The connection of the smtpd that the client is connected to. nil for a session that
	// was begun for one message.
	owner *ipc.Conn
	// mu is held while an event is with the filters: a filter must see the events of a
	// session one after the other.
	mu sync.Mutex
	m  *milter.Session
	// The session has ended, perhaps while an event waited for mu. Nothing more is said
	// to the filters.
	over bool
	// What filters said when they were told of the transaction again, against what was
	// let pass before. It counts for the rest of the transaction.
	second mailfilter.Verdict
}

// newMilters reads the parameters for filters. Close it when the server has ended.
func newMilters(cfg *config.Config, log *maillog.Logger, o table.Options) (*milters, error) {
	specs, err := milter.Read(cfg, "non_smtpd_milters")
	if err != nil {
		return nil, err
	}
	macros, err := milter.ParseMacros(cfg.List("milter_macro_defaults"))
	if err != nil {
		return nil, err
	}
	// The macros that Postfix gives filters of local mail; filters log them.
	macros = append(macros, "j", cfg.String("myhostname"), "v", cfg.String("milter_macro_v"),
		"{daemon_name}", cfg.String("milter_macro_daemon_name"))
	return &milters{log: log, specs: specs, macros: macros, sizeLimit: cfg.Bytes("message_size_limit"),
		checks:   table.OpenMaps("milter_header_checks", cfg.List("milter_header_checks"), o),
		sessions: make(map[uint64]*milterSession)}, nil
}

// Close ends all sessions. Events that come later are errors.
func (ms *milters) Close() error {
	ms.mu.Lock()
	open := ms.sessions
	// begin finds nil, and makes no more of them.
	ms.sessions = nil
	ms.mu.Unlock()
	for _, s := range open {
		s.close()
	}
	ms.pool.Close()
	return ms.checks.Close()
}

// close ends a session once; it waits for an event that is with the filters.
func (s *milterSession) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.over = true
		s.m.Close()
	}
}

// gone ends the sessions of a connection that has closed: that smtpd has died or retired.
func (ms *milters) gone(c *ipc.Conn) {
	ms.mu.Lock()
	var list []*milterSession
	for id, s := range ms.sessions {
		if s.owner == c {
			list = append(list, s)
			delete(ms.sessions, id)
		}
	}
	ms.mu.Unlock()
	for _, s := range list {
		s.close()
	}
}

// session finds a session; nil when there is none.
func (ms *milters) session(id uint64) *milterSession {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.sessions[id]
}

// milterEvent tells the filters of an event, in a goroutine of its own since they may
// take long, and answers with their verdict.
func (s *server) milterEvent(c *ipc.Conn, r *ipc.Request) {
	q := new(proto.Milter)
	if err := r.Decode(q); err != nil {
		r.Fail("%v", err)
		return
	}
	// nil only where a test has none.
	ms := s.opt.Milters
	if ms == nil {
		r.Fail("cleanup: filters are not served here")
		return
	}
	s.wg.Go(func() {
		v, err := ms.event(s.ctx, c, q)
		if err != nil {
			r.Fail("%v", err)
			return
		}
		r.Reply(&proto.MilterReply{Verdict: v})
	})
}

// event has the session of q tell its filters. An error means that the request makes no
// sense; what filters do wrong is in the verdict, by milter_default_action.
func (ms *milters) event(ctx context.Context, c *ipc.Conn, q *proto.Milter) (mailfilter.Verdict, error) {
	ses := ms.session(q.Session)
	// Without the session's lock: a filter that hangs must not keep its session from
	// ending.
	if q.Event == proto.MilterClose {
		ms.mu.Lock()
		delete(ms.sessions, q.Session)
		ms.mu.Unlock()
		if ses != nil {
			ses.close()
		}
		return mailfilter.Verdict{}, nil
	}
	// smtpd has used a number twice.
	if ses != nil && q.Event == proto.MilterConnect {
		return mailfilter.Verdict{}, fmt.Errorf("cleanup: session %d with filters exists", q.Session)
	}
	if ses != nil {
		ses.mu.Lock()
	} else {
		var err error
		if ses, err = ms.begin(ctx, c, q); err != nil {
			return mailfilter.Verdict{}, err
		}
	}
	defer ses.mu.Unlock()
	if ses.over {
		return mailfilter.Verdict{}, fmt.Errorf("cleanup: session %d with filters is over", q.Session)
	}
	return ses.tell(ctx, q), nil
}

// begin makes a session, at its first event, or from what smtpd says has gone before if
// the session began in a cleanup that is gone. It returns with the session locked.
func (ms *milters) begin(ctx context.Context, c *ipc.Conn, q *proto.Milter) (*milterSession, error) {
	specs := q.Specs
	told, err := q.Told.Events()
	switch {
	case err != nil:
		return nil, err
	// A session that goes on has the filters it began with, whatever smtpd_milters says
	// now.
	case len(told) > 0:
		specs = told[0].Specs
	case q.Event != proto.MilterConnect:
		return nil, fmt.Errorf("cleanup: no session %d with filters", q.Session)
	}
	ses := &milterSession{owner: c, m: milter.Open(specs, &ms.pool, ms.log.Warning)}
	ses.mu.Lock()
	ms.mu.Lock()
	// Two requests may have tried at the same time.
	if ms.sessions == nil || ms.sessions[q.Session] != nil {
		err = fmt.Errorf("cleanup: session %d with filters cannot begin", q.Session)
	} else {
		ms.sessions[q.Session] = ses
	}
	ms.mu.Unlock()
	if err != nil {
		ses.mu.Unlock()
		return nil, err
	}
	ses.again(ctx, told)
	return ses, nil
}

// again tells the filters what they, or those before them, have been told and have let
// pass. If they object to the session now, they will do so again with the next event. If
// they object to the transaction, that stands until it ends: the client has had its
// replies.
func (s *milterSession) again(ctx context.Context, told []proto.Milter) {
	for i := range told {
		v := s.tell(ctx, &told[i])
		if v.Action == mailfilter.Continue || told[i].Event == proto.MilterConnect || told[i].Event == proto.MilterHelo {
			continue
		}
		if told[i].Event == proto.MilterRcpt && v.Action == mailfilter.Reject {
			v = mailfilter.Default("tempfail") // the client has been told that this one is fine, and may have others
		}
		s.second = v
		return
	}
}

// tell passes one event on. s.mu is held.
func (s *milterSession) tell(ctx context.Context, q *proto.Milter) mailfilter.Verdict {
	s.m.SetMacros(q.Macros)
	arg := func(i int) string {
		if i < len(q.Args) {
			return q.Args[i]
		}
		return ""
	}
	switch q.Event {
	case proto.MilterRcpt, proto.MilterData:
		if s.second.Action != mailfilter.Continue {
			return s.second
		}
	case proto.MilterHelo, proto.MilterMail, proto.MilterAbort:
		s.second = mailfilter.Verdict{}
	}
	switch q.Event {
	case proto.MilterConnect:
		addr, _ := netip.ParseAddr(arg(1)) // the zero Addr for an unknown one
		var port uint16
		fmt.Sscan(arg(2), &port)
		return s.m.Connect(ctx, arg(0), addr, port)
	case proto.MilterHelo:
		return s.m.Helo(arg(0))
	case proto.MilterMail:
		return s.m.Mail(q.Args...)
	case proto.MilterRcpt:
		return s.m.Rcpt(q.Args...)
	case proto.MilterRefused:
		s.m.Refused(q.Args...)
	case proto.MilterData:
		return s.m.Data()
	case proto.MilterUnknown:
		return s.m.Unknown(arg(0))
	case proto.MilterAbort:
		s.m.Abort()
	}
	return mailfilter.Verdict{}
}

// filters shows a complete message, with which nothing else is wrong, to the filters and
// does to it what they want. It comes after the checks and before the signature, so that
// a signature covers what filters have changed.
func (in *incoming) filters(res *Result) {
	ms := in.s.opt.Milters
	// Nothing would be asked, and the content need not be read again.
	if ms == nil || in.q.Flags&proto.SubmitMilter == 0 || in.q.Milter == 0 && len(ms.specs) == 0 {
		return
	}
	// The transaction must end for the filters all the same, or the next one would be
	// taken for a part of it.
	skip := res.Stop || res.Discard || res.Refused != nil || len(res.Envelope.Recipients) == 0
	f := &filtering{in: in, ms: ms, m: &in.msg, ctx: in.ctx, logged: len(in.msg.log)}
	if in.q.Milter == 0 {
		if !skip {
			f.local(res)
		}
		return
	}
	ses := ms.session(in.q.Milter)
	if ses == nil && !skip {
		// The session began in a cleanup that has gone. It is had again for this
		// message; what comes after it the SMTP server has to say.
		told, err := in.q.Told.Events()
		// An smtpd that does not say what went before: the message may be one that
		// filters refuse.
		if err != nil || len(told) == 0 {
			f.verdict("END-OF-MESSAGE", mailfilter.Default("tempfail"), res)
			return
		}
		ses = &milterSession{m: milter.Open(told[0].Specs, &ms.pool, ms.log.Warning)}
		defer ses.close()
		ses.again(f.ctx, told)
	}
	if ses == nil {
		return
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	switch {
	case skip:
		ses.m.Abort()
	case ses.over:
		f.verdict("END-OF-MESSAGE", mailfilter.Default("tempfail"), res)
	case ses.second.Action != mailfilter.Continue:
		f.verdict("END-OF-MESSAGE", ses.second, res)
		ses.m.Abort()
	default:
		ses.m.SetMacros([]string{"i", string(in.q.Envelope.ID)})
		f.content(ses.m, res)
	}
}

// A filtering is one message's way through the filters. It is the milter.Envelope that
// they change.
type filtering struct {
	in  *incoming
	ms  *milters
	m   *Message
	ctx context.Context
	// lines of m.log that have been written
	logged int
}

// client is whom the message is from. Local mail comes from localhost: filters expect an
// address.
func (f *filtering) client() mail.Client {
	c := f.m.env.Client
	if c.Addr == "" {
		c.Name, c.Addr, c.Port = "localhost", "127.0.0.1", "0"
	}
	return c
}

// local makes up a session for mail that did not come by SMTP, event by event. Addresses
// have no angle brackets, because that is how filters know such mail from Postfix.
func (f *filtering) local(res *Result) {
	s := milter.Open(f.ms.specs, &f.ms.pool, f.ms.log.Warning)
	defer s.Close()
	c, env := f.client(), &f.in.q.Envelope
	s.SetMacros(f.ms.macros)
	// Macros that sendmail's documentation names for these events; filters ask for them
	// by name.
	s.SetMacros([]string{"_", c.Name + " [" + c.Addr + "]", "{client_name}", c.Name, "{client_ptr}", c.Name, "{client_addr}", c.Addr,
		"{client_port}", c.Port, "{daemon_addr}", "127.0.0.1", "{daemon_port}", "0", "i", string(env.ID), "{auth_type}", env.SASL.Method, "{auth_authen}", env.SASL.Username,
		"{auth_author}", env.SASL.Sender, "{mail_addr}", rfc5322.Quote(f.m.env.Sender)})
	addr, _ := netip.ParseAddr(c.Addr)
	var port uint16
	fmt.Sscan(c.Port, &port)
	helo := c.Helo
	if helo == "" {
		helo = "localhost"
	}
	pass := func(stage string, v mailfilter.Verdict) bool {
		if v.Action == mailfilter.Continue {
			return true
		}
		f.verdict(stage, v, res)
		s.Abort()
		return false
	}
	if !pass("CONNECT", s.Connect(f.ctx, c.Name, addr, port)) || !pass("HELO", s.Helo(helo)) ||
		!pass("MAIL", s.Mail(rfc5322.Quote(f.m.env.Sender))) {
		return
	}
	// As the client gave them, before they were mapped: a filter judges the envelope that
	// came.
	for i := range env.Recipients {
		s.SetMacros([]string{"{rcpt_addr}", rfc5322.Quote(env.Recipients[i].Address)})
		if !pass("RCPT", s.Rcpt(rfc5322.Quote(env.Recipients[i].Address))) {
			return
		}
	}
	if pass("DATA", s.Data()) {
		f.content(s, res)
	}
}

// content shows the content to the filters, and takes over what they make of message and
// envelope.
func (f *filtering) content(s *milter.Session, res *Result) {
	c, err := f.in.content()
	if err != nil {
		f.in.fault = err
		return
	}
	defer c.Close()
	// A replacement body is bounded like a body that a client sends.
	c.BodyLimit = f.ms.sizeLimit
	// The filters may change the envelope through f while this runs.
	v := s.Message(f.ctx, c, f)
	f.m.unlink(c)
	// A message that is refused is not stored anew; a bounce then shows what the sender
	// wrote.
	if v.Action == mailfilter.Continue && (c.HeaderChanged || c.BodyChanged) {
		f.in.replace(c)
	}
	f.flushLog()
	// What a table said of an address that a filter added may refuse the message, too.
	f.m.setVerdict(res)
	if len(res.Envelope.Recipients) == 0 && v.Action == mailfilter.Continue {
		res.Discard = true // the filters want nobody to have it
	}
	f.verdict("END-OF-MESSAGE", v, res)
}

// flushLog writes the lines that came of filters so far, before the line about their
// verdict.
func (f *filtering) flushLog() {
	f.in.logLines(f.m.log[f.logged:])
	f.logged = len(f.m.log)
}

// verdict does what the filters say of the whole message, and logs it.
func (f *filtering) verdict(stage string, v mailfilter.Verdict, res *Result) {
	switch {
	case v.Action == mailfilter.Discard:
		f.logAction("milter-discard", stage, "milter triggers DISCARD action")
		res.Discard = true
	case v.Action != mailfilter.Continue:
		r := v.Reply
		text := r.Status.String() + " " + strings.ReplaceAll(r.Text, "\n", " ")
		f.logAction("milter-reject", stage, text)
		res.Refused = &refusal{Code: r.Code, Status: r.Status, Text: r.Text}
		// A bounce quotes one line.
		if f.m.flags&proto.SubmitBounce != 0 {
			res.Refused.Text = strings.ReplaceAll(r.Text, "\n", " ")
		}
		res.Bounce = f.m.flags&proto.SubmitBounce != 0 && r.Code/100 == 5
		// The content has just been found to be unwanted, and the sender may be forged.
		res.HeadersOnly = true
	case v.Hold && f.m.flags&proto.SubmitHold == 0:
		f.logAction("milter-hold", stage, "milter triggers HOLD action")
		res.Hold = true
	}
}

// logAction logs a verdict, in the words of Postfix.
func (f *filtering) logAction(action, stage, text string) {
	c := f.client()
	f.ms.log.Log(maillog.Reject{QueueID: f.m.id, Action: action, Stage: stage, Name: c.Name, Addr: c.Addr, Text: text,
		From: f.ms.log.Address(f.m.env.Sender), HasFrom: true, To: f.ms.log.Address(f.m.lastRcpt), HasTo: f.m.anyRcpt,
		Proto: c.Proto, Helo: c.Helo})
}

// parameters are those of args that have a meaning here, each after a space. Filters pass
// on what the client said, SIZE= and BODY= with it; such a parameter is warned of and
// must not keep the address from being changed.
func (f *filtering) parameters(args, warning string, names ...string) string {
	list := ""
	for _, word := range strings.Fields(args) {
		if !slices.ContainsFunc(names, func(n string) bool { return len(word) >= len(n) && strings.EqualFold(word[:len(n)], n) }) {
			f.m.log = append(f.m.log, logLine{Warning: true, Text: fmt.Sprintf(warning, printable(word))})
			continue
		}
		list += " " + word
	}
	return list
}

// ChangeSender implements milter.Envelope. The new sender is mapped like one that a
// client gives.
func (f *filtering) ChangeSender(addr, args string) {
	args = f.parameters(args, "Ignoring bad ESMTP parameter \"%.100s\" in SMFI_CHGFROM request", "RET=", "ENVID=")
	// By the grammar of SMTP, so that a filter cannot bring in what no client could.
	p, refusal := smtpwire.ParseMail("FROM:"+bracketed(addr)+args, smtpwire.ExtDSN, false)
	if refusal != nil {
		f.m.warnf("a milter wants to change the sender to an invalid address: %q %q: %s", addr, args, refusal.Text)
		return
	}
	f.m.env.Sender = p.From.Address
	// A filter that says nothing of it leaves the client's DSN parameters as they were.
	if p.EnvID != "" {
		f.m.env.EnvID = p.EnvID
	}
	if p.Ret != 0 {
		f.m.env.Ret = p.Ret
	}
	f.m.envelopeSender(f.ctx)
}

// AddRecipient implements milter.Envelope. The new recipient is mapped and expanded like
// one that a client gives.
func (f *filtering) AddRecipient(addr, args string) {
	args = f.parameters(args, f.m.id+": ignoring ESMTP argument from Milter or header/body_checks: \"%.100s\"", "NOTIFY=", "ORCPT=")
	p, refusal := smtpwire.ParseRcpt("TO:"+bracketed(addr)+args, smtpwire.ExtDSN, false)
	if refusal != nil {
		f.m.warnf("a milter wants to add an invalid recipient address: %q %q: %s", addr, args, refusal.Text)
		return
	}
	r := mail.Recipient{Address: p.To.Address, ORCPT: p.ORCPT, Notify: p.Notify}
	f.m.mapRecipient(f.ctx, &r)
	r.Original = r.Address
	f.m.expand(f.ctx, r)
}

// DeleteRecipient implements milter.Envelope. The address is one that the client gave;
// whatever it was expanded to is removed.
func (f *filtering) DeleteRecipient(addr string) {
	p, refusal := smtpwire.ParseRcpt("TO:"+bracketed(addr), 0, false)
	if refusal != nil {
		f.m.warnf("a milter wants to remove an invalid recipient address: %q: %s", addr, refusal.Text)
		return
	}
	// Filters may name the address as the client gave it, or in standard form.
	rewritten := f.m.rewrite(f.ctx, "local", p.To.Address)
	f.m.env.Recipients = slices.DeleteFunc(f.m.env.Recipients, func(r mail.Recipient) bool {
		orig := r.Orig()
		return strings.EqualFold(orig, p.To.Address) || strings.EqualFold(orig, rewritten)
	})
	// A recipient that is added again later is no duplicate of one that has been removed.
	kept := f.m.env.Recipients
	f.m.dups = duplicates{limit: f.m.dups.limit}
	for i := range kept {
		r := kept[i]
		r.Original = r.Orig()
		f.m.dups.seen(&r, f.m.c.originalRecipient)
	}
}

// CheckField implements milter.Envelope: it applies milter_header_checks to a field that
// a filter adds or changes, and returns what is to be stored; nil: nothing.
func (f *filtering) CheckField(raw []byte) []byte {
	m, maps := f.m, f.ms.checks
	if maps.Empty() || !m.ok() {
		return raw
	}
	fd, ok := rfc5322.ParseField(raw)
	if !ok {
		return nil
	}
	text := string(fd.Lines())
	value, found, err := maps.Lookup(f.ctx, text, false)
	if err != nil {
		m.tableFailed(maps.Title(), err)
		return raw
	}
	if !found {
		return raw
	}
	gauge, parts := m.gauge, m.parts // what PREPEND gives is stored only later, with the rest
	// act writes what it prepends to m.out by way of the gauge; here that is only
	// collected.
	defer func() { m.gauge, m.parts = gauge, parts }()
	m.parts = nil
	m.out = nil
	blind := len(m.contentBCC)
	replaced, keep := m.act(milterClass, maps.Title(), text, value)
	out := slices.Concat(m.out...) // PREPEND
	m.out = nil
	for _, addr := range m.contentBCC[blind:] { // those of the content have been added already
		f.AddRecipient(addr, "")
	}
	m.contentBCC = m.contentBCC[:blind]
	switch {
	case !keep:
		return out
	case replaced != text:
		return append(out, toLines(replaced)...)
	}
	return append(out, raw...)
}

// bracketed puts an address into angle brackets unless it is. Filters do either.
func bracketed(addr string) string {
	addr = strings.TrimSpace(addr)
	if strings.HasPrefix(addr, "<") {
		return addr
	}
	return "<" + addr + ">"
}
