// The Evaluator: what it is made of, and the stages of a session at which it is asked.
// What a list is, and how it is gone through, is in list.go; what one restriction
// says, in the files behind it.

package access

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/mailauth"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
	"posthaste/internal/returnpath"
	"posthaste/internal/reuse"
	"posthaste/internal/rfc5322"
	"posthaste/internal/smtpwire"
	"posthaste/internal/srs"
	"posthaste/internal/srs/srsconf"
	"posthaste/internal/suppress/suppressclient"
	"posthaste/internal/table"
	"posthaste/internal/tenancy"
	"posthaste/internal/verify/probesender"
)

// A Router knows where mail goes: the trivial-rewrite service. It is called by many
// sessions at a time, and bounds its own time.
type Router interface {
	// Rewrite gives an address its standard form. context is local or remote.
	Rewrite(ctx context.Context, context, addr string) (string, error)
	// Resolve says where mail for an address in standard form goes. A reply
	// with proto.ResolveFail is not an error.
	Resolve(ctx context.Context, sender, addr string) (proto.ResolveReply, error)
}

// A Prober finds out whether mail to an address could be delivered: the verify
// service. It is called by many sessions at a time.
type Prober interface {
	// Probe returns what is known of addr now. It starts a probe when nothing
	// is, and answers proto.ProbeTodo until the probe has come back.
	Probe(ctx context.Context, addr string) (status proto.ProbeStatus, text string, err error)
}

// Deps are what an Evaluator asks. They belong to the caller, who closes them after
// the Evaluator.
type Deps struct {
	Log    *maillog.Logger
	Router Router
	DNS    resolver.Resolver
	Verify Prober // nil: the address verification restrictions are a configuration error
	// Suppress is for reject_suppressed_recipient; nil: the restriction is a configuration error.
	Suppress Suppressor
	// Tables is how tables are opened.
	Tables table.Options
}

// An Evaluator judges sessions by one configuration. All methods may be
// called concurrently, for different Sessions.
type Evaluator struct {
	// All of it is made by New and not changed, so that any number of sessions may use it at
	// once. Tables, resolver and policy clients take care of themselves.
	log    *maillog.Logger
	router Router // trivial-rewrite: where an address leads
	dns    resolver.Resolver
	names  resolver.Names    // the rule that dns converts names by
	verify Prober            // for reject_unverified_*; nil: addresses cannot be probed
	spf    *mailauth.Checker // for reject_spf_fail
	tables table.Options     // how every table is opened
	// For reject_suppressed_recipient: which mail is under the list, and who is on it.
	lists    *suppressclient.Lists
	tenants  *table.Maps // tenant_maps, where suppress_tenants makes it matter whose mail it is
	suppress Suppressor
	cfg      *config.Config // for parameters that only some restrictions read

	// The restriction lists, compiled.
	client, helo, sender, relay, rcpt, data, eod, etrn *list
	// smtpd_restriction_classes. While they are being compiled a class may name another one
	// that has no list yet, so that they may stand in any order.
	classes map[string]*list
	// The restrictions by name: those without an argument, and those that compile one.
	simple       map[string]check
	withArgument map[string]func(e *Evaluator, arg string) (check, error)
	// smtpd_relay_before_recipient_restrictions and smtpd_delay_reject.
	relayFirst, delayReject bool
	// smtpd_log_access_permit_actions: empty, nothing that is permitted is logged.
	logPermits []string

	// Lists and tables that say whose mail this host takes. permitMXNetworks is
	// permit_mx_backup_networks; empty, any backup is served.
	myNetworks, relayDomains *table.List
	permitMXNetworks         *table.List
	local                    *table.Local  // which has proxy_interfaces, too
	srs                      *srs.Rewriter // nil without srs_domain
	// paths is nil without return_path_domain.
	paths         *returnpath.Coder
	relayCerts    *table.Maps  // relay_clientcerts, by fingerprint; empty: no certificate permits
	search        table.Search // how an address becomes the keys of a table
	accessParents bool         // smtpd_access_maps is in parent_domain_matches_subdomains

	// Settings that change a verdict on its way out: soft_bounce makes every 5xx a 4xx.
	softBounce, untrustedRouting bool
	// reject_code, defer_code: those of restrictions without a code of their own.
	rejectCode, deferCode int
	// smtpd_reject_unlisted_recipient and _sender: asked after all lists, unless a list has asked.
	rejectUnlistedRcptAtEnd, rejectUnlistedSenderAtEnd bool
	showTable                                          bool // show_user_unknown_table_name
	proxyFilter                                        bool // smtpd_proxy_filter is set: most access actions cannot be carried out
	sasl, smtputf8                                     bool // smtpd_sasl_auth_enable, smtputf8_enable
	// The sender of notices and that of probes, which are exempt: two hosts could probe each
	// other's probes for ever.
	doubleBounce string
	verifySender probesender.Sender
	// Whether an address exists depends on what cleanup would make of it: these are its
	// tables, looked up in its order.
	canonical, rcptCanonical    *table.Maps
	sndrCanonical, virtualAlias *table.Maps
	localRcpt, virtualMailbox   *table.Maps
	relayRcpt                   *table.Maps
	nullKey                     string      // smtpd_null_access_lookup_key, for <>
	loginMaps                   *table.Maps // smtpd_sender_login_maps: who owns a sender's address
	rblReplies                  *table.Maps // rbl_reply_maps, by the list's name
	// Tables that are named twice are opened once.
	accessTables map[string]*table.Maps // by type:name
	// By the server's name: all sessions share the connections to one.
	policies  map[string]*policyClient
	localMaps map[string]*table.Maps // of local_header_rewrite_clients
	// How often, and how far apart, a session asks for the outcome of a probe
	// (address_verify_poll_count) before it says 450.
	pollCount int
	pollDelay time.Duration
	// The actions of the *_tempfail_action parameters.
	tempfail struct{ address, helo, sender, rcpt string }
	// unverified_sender_reject_reason and the recipients' one; empty: what the probe said.
	senderReason, rcptReason string
	expansion                *[256]bool // smtpd_expansion_filter
}

// New reads the restriction parameters, and opens the tables that they name. It
// fails when nothing would keep strangers from relaying mail, and when a match list
// is malformed. ctx bounds the opening. Mistakes in single restrictions are
// warnings: see compile.
func New(ctx context.Context, cfg *config.Config, d Deps) (*Evaluator, error) {
	names := resolver.NamesOf(cfg)
	e := &Evaluator{log: d.Log, router: d.Router, dns: d.DNS, names: names, verify: d.Verify, suppress: d.Suppress, spf: mailauth.New(d.DNS, names, ""), tables: d.Tables, cfg: cfg,
		classes: map[string]*list{}, withArgument: argumentChecks(), simple: simpleChecks(), accessTables: map[string]*table.Maps{}, policies: map[string]*policyClient{}}
	if e.tables.Warn == nil {
		e.tables.Warn = func(text string) { d.Log.Warning("%s", text) }
	}
	if err := e.openLists(ctx); err != nil {
		return nil, err
	}
	var err error
	if e.srs, err = srsconf.Load(cfg); err != nil {
		return nil, err
	}
	// Without the secrets mail to return paths is taken, and the comeback transport finds out what is forged.
	if e.paths, err = suppressclient.ReadPaths(cfg); err != nil {
		d.Log.Warning("%v; forged return paths are not refused", err)
	}
	e.readSettings()
	e.openTables()
	e.compileAll()
	// Postfix refuses to run such a configuration as well: an open relay is found
	// within hours, and its address stays in block lists for long.
	if !e.relay.protects() && !e.rcpt.protects() {
		return nil, errors.New("in parameter smtpd_relay_restrictions or smtpd_recipient_restrictions, " +
			"specify at least one working instance of: reject_unauth_destination, defer_unauth_destination, reject, defer or defer_if_permit")
	}
	return e, nil
}

// openLists opens the lists of clients and domains. The error names all that are
// malformed.
func (e *Evaluator) openLists(ctx context.Context) (err error) {
	cfg := e.cfg
	parents := map[string]bool{}
	for _, name := range cfg.List("parent_domain_matches_subdomains") {
		parents[name] = true
	}
	e.accessParents = parents["smtpd_access_maps"]
	var errs []error
	open := func(name string, kind table.Kind) *table.List {
		l, err := table.NewList(name, cfg.List(name), table.ListOptions{Kind: kind, Parent: parents[name], Table: e.tables})
		if err != nil {
			errs = append(errs, err)
		}
		return l
	}
	e.myNetworks = open("mynetworks", table.Clients)
	e.relayDomains = open("relay_domains", table.Domains)
	e.permitMXNetworks = open("permit_mx_backup_networks", table.Clients)
	// What is local is decided in one place for all services: mydestination, and
	// the addresses of this host.
	local, err := table.OpenLocal(ctx, cfg, e.tables)
	errs = append(errs, err)
	e.lists, err = suppressclient.OpenLists(cfg, e.tables)
	errs = append(errs, err)
	e.local = local
	e.search = table.Search{Delimiters: cfg.String("recipient_delimiter"), OwnerRequest: cfg.Bool("owner_request_special"),
		DoubleBounce: cfg.String("double_bounce_sender"), Local: e.local.IsLocal}
	return errors.Join(errs...)
}

// readSettings reads the parameters that are values.
func (e *Evaluator) readSettings() {
	cfg := e.cfg
	e.softBounce = cfg.Bool("soft_bounce")
	e.untrustedRouting = cfg.Bool("allow_untrusted_routing")
	e.rejectCode = cfg.Int("reject_code")
	e.deferCode = cfg.Int("defer_code")
	e.delayReject = cfg.Bool("smtpd_delay_reject")
	e.relayFirst = cfg.Bool("smtpd_relay_before_recipient_restrictions")
	e.logPermits = cfg.List("smtpd_log_access_permit_actions")
	e.rejectUnlistedRcptAtEnd = cfg.Bool("smtpd_reject_unlisted_recipient")
	e.rejectUnlistedSenderAtEnd = cfg.Bool("smtpd_reject_unlisted_sender")
	e.showTable = cfg.Bool("show_user_unknown_table_name")
	e.doubleBounce = cfg.String("double_bounce_sender")
	e.verifySender = probesender.Of(cfg)
	e.proxyFilter = cfg.String("smtpd_proxy_filter") != ""
	e.smtputf8 = cfg.Bool("smtputf8_enable")
	e.sasl = cfg.Bool("smtpd_sasl_auth_enable")
	e.nullKey = cfg.String("smtpd_null_access_lookup_key")
	e.pollCount = cfg.Int("address_verify_poll_count")
	e.pollDelay = cfg.Duration("address_verify_poll_delay")
	e.tempfail.address = cfg.String("unknown_address_tempfail_action")
	e.tempfail.helo = cfg.String("unknown_helo_hostname_tempfail_action")
	e.tempfail.sender = cfg.String("unverified_sender_tempfail_action")
	e.tempfail.rcpt = cfg.String("unverified_recipient_tempfail_action")
	e.senderReason = cfg.String("unverified_sender_reject_reason")
	e.rcptReason = cfg.String("unverified_recipient_reject_reason")
	e.expansion = charset(cfg.Raw("smtpd_expansion_filter"))
}

// openTables opens the tables of addresses. One that cannot be opened is an error
// of its lookups, so that it is missed only by the mail that needs it.
func (e *Evaluator) openTables() {
	open := func(name string) *table.Maps { return table.OpenMaps(name, e.cfg.List(name), e.tables) }
	e.canonical, e.rcptCanonical, e.sndrCanonical = open("canonical_maps"), open("recipient_canonical_maps"), open("sender_canonical_maps")
	e.virtualAlias = open("virtual_alias_maps")
	e.localRcpt, e.virtualMailbox, e.relayRcpt = open("local_recipient_maps"), open("virtual_mailbox_maps"), open("relay_recipient_maps")
	e.relayCerts = open("relay_clientcerts")
	e.loginMaps = open("smtpd_sender_login_maps")
	e.rblReplies = open("rbl_reply_maps")
	if len(e.cfg.List("suppress_tenants")) > 0 {
		e.tenants = tenancy.Open(e.cfg, e.tables)
	}
	e.localMaps = map[string]*table.Maps{}
	for _, w := range e.cfg.List("local_header_rewrite_clients") {
		if table.IsSpec(w) {
			e.localMaps[w] = table.OpenMaps("local_header_rewrite_clients", []string{w}, e.tables)
		}
	}
}

// compileAll compiles the restriction lists, the classes first.
func (e *Evaluator) compileAll() {
	// Classes may use one another, in whatever order they are declared.
	for _, name := range e.cfg.List("smtpd_restriction_classes") {
		// A class of the name of a restriction would change what other lists mean.
		if _, taken := e.simple[strings.ToLower(name)]; taken || e.withArgument[strings.ToLower(name)] != nil {
			e.log.Warning("smtpd_restriction_classes: %s is the name of a restriction already", name)
			continue
		}
		e.classes[name] = &list{param: name}
	}
	for _, name := range e.cfg.List("smtpd_restriction_classes") {
		l := e.classes[name]
		if l == nil {
			continue
		}
		// The parameter of a class is the administrator's own: it is in
		// no registry.
		text, err := e.cfg.Expand("${" + name + "}")
		words, err2 := config.SplitList(text)
		if err = errors.Join(err, err2); err != nil {
			e.log.Warning("restriction class %s: %v", name, err)
		}
		l.checks = e.report(e.compile(name, words, kindRcpt)).checks
	}
	lists := func(param string, kind listKind) *list { return e.report(e.compile(param, e.cfg.List(param), kind)) }
	e.client = lists("smtpd_client_restrictions", kindClient)
	e.helo = lists("smtpd_helo_restrictions", kindHelo)
	e.sender = lists("smtpd_sender_restrictions", kindSender)
	e.relay = lists("smtpd_relay_restrictions", kindRcpt)
	e.rcpt = lists("smtpd_recipient_restrictions", kindRcpt)
	e.data = lists("smtpd_data_restrictions", kindData)
	e.eod = lists("smtpd_end_of_data_restrictions", kindData)
	e.etrn = lists("smtpd_etrn_restrictions", kindEtrn)
}

// Close closes tables and connections. No session may be judged any more.
func (e *Evaluator) Close() {
	for _, m := range []*table.Maps{e.canonical, e.rcptCanonical, e.sndrCanonical, e.virtualAlias, e.localRcpt,
		e.virtualMailbox, e.relayRcpt, e.relayCerts, e.loginMaps, e.rblReplies, e.tenants} {
		m.Close()
	}
	e.lists.Close()
	for _, m := range e.accessTables {
		m.Close()
	}
	for _, m := range e.localMaps {
		m.Close()
	}
	for _, p := range e.policies {
		p.close()
	}
}

// MyNetworks says whether the client is in mynetworks.
func (e *Evaluator) MyNetworks(ctx context.Context, c *Client) (bool, error) {
	return e.clientIn(ctx, e.myNetworks, c)
}

// clientIn says whether a client is in a list, by its verified name or its address.
func (e *Evaluator) clientIn(ctx context.Context, l *table.List, c *Client) (bool, error) {
	return l.MatchClient(ctx, c.Name, c.AddrText)
}

// start makes the run of one list, in the place of the one before: what the list
// judges, and the words for it.
func (e *Evaluator) start(s *Session, l *list) *run {
	// The memory is the session's: a list is gone through for each recipient.
	r := &s.run
	*r = run{e: e, s: s}
	switch l {
	case e.client:
		r.name, r.cl, r.kind = s.NameAddr(), classClient, kindClient
	case e.helo:
		r.name, r.cl, r.kind = s.Helo, classHelo, kindHelo
	case e.sender:
		r.name, r.cl, r.kind = s.Sender, classSender, kindSender
	case e.data:
		r.name, r.cl, r.kind = "DATA", classData, kindData
	case e.eod:
		r.name, r.cl, r.kind = "END-OF-MESSAGE", classEOD, kindData
	case e.etrn:
		r.name, r.cl, r.kind = s.EtrnDomain, classEtrn, kindEtrn
	default:
		r.name, r.cl, r.kind = s.Recipient, classRcpt, kindRcpt
	}
	return r
}

// firstRefusal goes through the lists of a stage until one refuses. before is what the
// stages before it want to be put off. After DISCARD nothing is judged any more:
// the client must not learn of it by a refusal.
func (e *Evaluator) firstRefusal(ctx context.Context, s *Session, before *reason, lists ...*list) *smtpwire.Reply {
	s.deferPermit, s.deferReject = before, nil
	for _, l := range lists {
		// An empty list decides nothing, and is not worth a run.
		if len(l.checks) == 0 || s.Effects.Discard {
			continue
		}
		r := e.start(s, l)
		if r.eval(ctx, l) == refused {
			return r.reply
		}
	}
	return nil
}

// settle is the end of all lists: a refusal that was kept back for the case
// that everything says yes is pronounced now.
func (e *Evaluator) settle(s *Session, refusal *smtpwire.Reply) *smtpwire.Reply {
	// A refusal by another restriction is the better answer: it may be permanent.
	if refusal != nil || s.deferPermit == nil {
		return refusal
	}
	r := &run{e: e, s: s}
	r.pronounce(s.deferPermit)
	return r.reply
}

// connect, hello and mail are the stages that smtpd_delay_reject delays. What each
// finds is kept: when a later stage comes again, for the next recipient, it begins
// with that.

// connect judges the client.
func (e *Evaluator) connect(ctx context.Context, s *Session) *smtpwire.Reply {
	refusal := e.firstRefusal(ctx, s, nil, e.client)
	s.found.connect = s.deferPermit
	return refusal
}

// hello judges the name of HELO or EHLO.
func (e *Evaluator) hello(ctx context.Context, s *Session) *smtpwire.Reply {
	refusal := e.firstRefusal(ctx, s, s.found.connect, e.helo)
	s.found.helo = s.deferPermit
	return refusal
}

// mail judges the sender. smtpd_reject_unlisted_sender is an implicit restriction
// at its end.
func (e *Evaluator) mail(ctx context.Context, s *Session) *smtpwire.Reply {
	s.sndrChecked = false
	refusal := e.firstRefusal(ctx, s, s.beforeMail(), e.sender)
	if refusal == nil && e.rejectUnlistedSenderAtEnd && !s.Effects.Discard {
		r := &run{e: e, s: s, name: s.Sender, cl: classSender}
		r.rejectUnlistedSender(ctx)
		refusal = r.reply
	}
	s.found.mail = s.deferPermit
	return refusal
}

// delayed is the stages of which there is something to judge by now, in their
// order. They are judged anew for each recipient: tables may say something else by
// then, and each refusal is logged with its recipient.
func (e *Evaluator) delayed(ctx context.Context, s *Session) *smtpwire.Reply {
	if !e.delayReject {
		return nil
	}
	refusal := e.connect(ctx, s)
	if refusal == nil && s.Helo != "" {
		refusal = e.hello(ctx, s)
	}
	if refusal == nil && s.HasSender && s.Stage != "ETRN" {
		refusal = e.mail(ctx, s)
	}
	return refusal
}

// Connect judges a client that has just connected: nil unless
// smtpd_delay_reject is off.
func (e *Evaluator) Connect(ctx context.Context, s *Session) *smtpwire.Reply {
	if e.delayReject {
		return nil
	}
	return e.connect(ctx, s)
}

// Helo judges a client that has said HELO or EHLO: nil unless smtpd_delay_reject is
// off.
func (e *Evaluator) Helo(ctx context.Context, s *Session) *smtpwire.Reply {
	if e.delayReject {
		return nil
	}
	return e.hello(ctx, s)
}

// Mail judges the sender: nil unless smtpd_delay_reject is off.
func (e *Evaluator) Mail(ctx context.Context, s *Session) *smtpwire.Reply {
	if e.delayReject {
		return nil
	}
	return e.mail(ctx, s)
}

// Rcpt judges the recipient, s.Recipient. With smtpd_delay_reject, the default, it
// judges client, HELO and sender as well, each time: some clients do not understand
// a refusal before RCPT, and the log has the recipient then. Relay restrictions
// come before the others where smtpd_relay_before_recipient_restrictions says so;
// both must agree. Whether the recipient exists is asked last
// (smtpd_reject_unlisted_recipient), so that nobody who may not send learns of it.
func (e *Evaluator) Rcpt(ctx context.Context, s *Session) *smtpwire.Reply {
	if _, ok := e.VerifySender(s.Recipient); ok {
		return nil
	}
	// RFC 5321 section 4.5.1: mail for postmaster, without a domain, must be taken.
	if strings.EqualFold(s.Recipient, "postmaster") {
		return nil
	}
	s.rcptChecked, s.sndrChecked = false, false
	if refusal := e.delayed(ctx, s); refusal != nil {
		return refusal
	}
	// Before compatibility level 3.6 Postfix asked the recipient restrictions
	// first.
	first, second := e.relay, e.rcpt
	if !e.relayFirst {
		first, second = second, first
	}
	refusal := e.settle(s, e.firstRefusal(ctx, s, cmp.Or(s.found.mail, s.beforeMail()), first, second))
	if refusal == nil && e.rejectUnlistedRcptAtEnd && !s.Effects.Discard {
		r := &run{e: e, s: s, name: s.Recipient, cl: classRcpt}
		r.rejectUnlistedRcpt(ctx)
		refusal = r.reply
	}
	return refusal
}

// Vrfy judges a VRFY command as if s.Recipient were a recipient: it must not say
// more than RCPT.
func (e *Evaluator) Vrfy(ctx context.Context, s *Session) *smtpwire.Reply { return e.Rcpt(ctx, s) }

// Data judges the DATA or first BDAT command, after all recipients.
func (e *Evaluator) Data(ctx context.Context, s *Session) *smtpwire.Reply {
	return e.late(ctx, s, e.data)
}

// EndOfData judges the message when all of it has come. s.Size is then its
// size.
func (e *Evaluator) EndOfData(ctx context.Context, s *Session) *smtpwire.Reply {
	return e.late(ctx, s, e.eod)
}

// JudgesEndOfData says whether EndOfData may have effects on the message,
// so that its submission must not be final before.
func (e *Evaluator) JudgesEndOfData() bool { return len(e.eod.checks) > 0 }

// late judges what comes after the recipients, who have had their replies. What was
// put off for a recipient is settled, so that it begins with nothing.
func (e *Evaluator) late(ctx context.Context, s *Session, l *list) *smtpwire.Reply {
	return e.settle(s, e.firstRefusal(ctx, s, nil, l))
}

// Etrn judges an ETRN command for domain, a name without "@" or "#".
func (e *Evaluator) Etrn(ctx context.Context, s *Session, domain string) *smtpwire.Reply {
	s.EtrnDomain = domain
	defer func() { s.EtrnDomain = "" }()
	if refusal := e.delayed(ctx, s); refusal != nil {
		return refusal
	}
	return e.settle(s, e.firstRefusal(ctx, s, s.beforeMail(), e.etrn))
}

// VerifySender says whether addr is the sender of our address probes, and what
// its name is without what changes with time: mail to that is thrown away.
// Other hosts probe it in turn, and nothing may stand in their way; as a sender
// it has no privilege, since anybody can give it.
func (e *Evaluator) VerifySender(addr string) (fixed string, ok bool) {
	return e.verifySender.Is(addr, time.Now())
}

// resolve says where mail for addr goes, and remembers it for the transaction: each
// restriction asks again, and the service is another process. addr is rewritten to
// its standard form first, as cleanup will. Failures are not remembered.
func (r *run) resolve(ctx context.Context, addr string) (proto.ResolveReply, error) {
	s := r.s
	for i := range s.resolved {
		// The key is the address as it was asked for; a transaction has few of
		// them.
		if s.resolved[i].addr == addr {
			return s.resolved[i].answer, nil
		}
	}
	std, err := r.e.router.Rewrite(ctx, "local", addr)
	if err != nil {
		return proto.ResolveReply{}, err
	}
	a, err := r.e.router.Resolve(ctx, s.Sender, std)
	if err != nil {
		return proto.ResolveReply{}, err
	}
	if trace := table.TraceOf(ctx); trace != nil {
		trace.Sent("request", "rewrite", "rule", "local", "address", addr)
		trace.Received("flags", "0", "address", std)
		trace("rewrite_clnt: local: %s -> %s", addr, std)
		trace.Sent("request", "resolve", "sender", s.Sender, "address", std)
		trace.Received("flags", "0", "transport", a.Transport, "nexthop", a.Nexthop, "recipient", a.Recipient, "flags", flagNumber(a.Flags))
		trace("resolve_clnt: `%s' -> `%s' -> transp=`%s' host=`%s' rcpt=`%s' flags=%s class=%s",
			s.Sender, std, a.Transport, a.Nexthop, a.Recipient, flagText(a.Flags), classOf(a.Flags))
	}
	// A failure may be over by the next question.
	if a.Flags&proto.ResolveFail == 0 {
		if len(s.resolved) >= maxResolved {
			s.resolved = reuse.Truncated(s.resolved)
		}
		s.resolved = append(s.resolved, resolvedAddr{addr, a})
	}
	return a, nil
}

// resolvedOr is resolve with its failures pronounced: v is refused then, and dunno
// otherwise.
func (r *run) resolvedOr(ctx context.Context, addr string) (a proto.ResolveReply, v verdict) {
	a, err := r.resolve(ctx, addr)
	if err != nil {
		r.e.log.Warning("%v", err)
		return a, r.lookupFailed(addr)
	}
	if a.Flags&proto.ResolveFail != 0 {
		return a, r.lookupFailed(addr)
	}
	return a, dunno
}

// domainOf is the domain of an address in internal form.
func domainOf(addr string) string { return rfc5322.Domain(addr) }

// statusUserUnknown is the enhanced status of an address that does not exist.
var statusUserUnknown = map[class]dsn.Status{classRcpt: dsn.S(5, 1, 1), classSender: dsn.S(5, 1, 0)}
