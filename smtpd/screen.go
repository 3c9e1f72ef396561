package smtpd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/smtpwire"
	"posthaste/internal/table"
)

// Postscreen's tests, in front of a session. With Postfix they are a process
// that hands good clients over; here they are the beginning of the session
// that goes on. A client that passes is remembered, and is not tested again
// until its tests have expired.
//
// The tests after the greeting (pipelining, commands of other protocols, bare
// newlines) watch the session as it goes. A client has passed them when it
// comes to its first recipient: it does not have to come back, as it has to
// with Postfix, which answers 450 there because it cannot hand over a session
// that has begun. What limits such a session is postscreen's until then
// (screengate.go); all else about it is smtpd's from the beginning, so that
// postscreen's copies of smtpd's parameters are not needed.

// screenAction is what to do with a client that fails a test.
type screenAction uint8

const (
	screenIgnore  screenAction = iota // note it, and test again next time
	screenEnforce                     // let it go on, and refuse every recipient
	screenDrop                        // send it away at once
)

// test is one of postscreen's.
type test uint8

const (
	testPregreet test = iota
	testDNSBL
	testPipelining
	testNonSMTP
	testBareLF
	ntests
)

// screenSettings are the postscreen_ parameters.
type screenSettings struct {
	log       *maillog.Logger
	dns       resolver.Resolver
	eval      *access.Evaluator
	access    []string
	lists     map[string]*table.Maps
	deny      screenAction
	teaser    string
	wait      time.Duration
	sites     []dnsblSite
	threshold int
	allow     int
	replyMap  *table.Maps
	timeout   time.Duration
	minTTL    time.Duration
	maxTTL    time.Duration
	enabled   [ntests]bool
	action    [ntests]screenAction
	ttl       [ntests]time.Duration
	allowWord string // ALLOWLISTED, or the old word
	vetoWord  string
	denyWord  string
	cache     *screenCache
	forbidden *table.List // words that are commands of other protocols
	gate      *screenGate
	// allowOn are our addresses where clients can pass; a client that comes
	// to another one first is tested and not remembered.
	allowOn      *table.List
	commandTime  time.Duration // for one command, of a client that is tested,
	commandCount int           // and how many it may give
}

type dnsblSite struct {
	*access.DNSList
	weight int
}

// readScreen reads the parameters. sessions is how many there may be behind
// the tests.
func readScreen(cfg *config.Config, log *maillog.Logger, dns resolver.Resolver, e *access.Evaluator, sessions int, o table.Options) (*screenSettings, error) {
	c := &screenSettings{log: log, dns: dns, eval: e, access: cfg.List("postscreen_access_list"), lists: map[string]*table.Maps{},
		wait: cfg.Duration("postscreen_greet_wait"), threshold: cfg.Int("postscreen_dnsbl_threshold"),
		allow: cfg.Int("postscreen_dnsbl_allowlist_threshold"), timeout: cfg.Duration("postscreen_dnsbl_timeout"),
		minTTL: cfg.Duration("postscreen_dnsbl_min_ttl"), maxTTL: cfg.Duration("postscreen_dnsbl_max_ttl"),
		replyMap:  table.OpenMaps("postscreen_dnsbl_reply_map", cfg.List("postscreen_dnsbl_reply_map"), o),
		allowWord: "ALLOWLISTED", denyWord: "DENYLISTED", vetoWord: "ALLOWLIST"}
	if !cfg.Bool("respectful_logging") {
		c.allowWord, c.denyWord, c.vetoWord = "WHITELISTED", "BLACKLISTED", "WHITELIST"
	}
	if banner := cfg.String("postscreen_greet_banner"); banner != "" {
		c.teaser = "220-" + banner + "\r\n"
	}
	var errs []error
	action := func(name string) screenAction {
		switch v := cfg.String(name); v {
		case "ignore":
			return screenIgnore
		case "enforce":
			return screenEnforce
		case "drop":
			return screenDrop
		default:
			errs = append(errs, fmt.Errorf("%s = %s: expected ignore, enforce or drop", name, v))
			return screenIgnore
		}
	}
	c.deny = action("postscreen_denylist_action")
	c.action = [ntests]screenAction{testPregreet: action("postscreen_greet_action"), testDNSBL: action("postscreen_dnsbl_action"),
		testPipelining: action("postscreen_pipelining_action"), testNonSMTP: action("postscreen_non_smtp_command_action"),
		testBareLF: action("postscreen_bare_newline_action")}
	c.enabled = [ntests]bool{testPregreet: c.wait > 0, testPipelining: cfg.Bool("postscreen_pipelining_enable"),
		testNonSMTP: cfg.Bool("postscreen_non_smtp_command_enable"), testBareLF: cfg.Bool("postscreen_bare_newline_enable")}
	c.ttl = [ntests]time.Duration{testPregreet: cfg.Duration("postscreen_greet_ttl"),
		testPipelining: cfg.Duration("postscreen_pipelining_ttl"), testNonSMTP: cfg.Duration("postscreen_non_smtp_command_ttl"),
		testBareLF: cfg.Duration("postscreen_bare_newline_ttl")}
	for _, w := range cfg.List("postscreen_dnsbl_sites") {
		site, err := parseSite(w)
		if err != nil {
			errs = append(errs, fmt.Errorf("postscreen_dnsbl_sites: %w", err))
			continue
		}
		c.sites = append(c.sites, site)
	}
	c.enabled[testDNSBL] = len(c.sites) > 0
	for _, w := range c.access {
		if table.IsSpec(w) {
			strict := o
			strict.Stops = func(result string) bool { return !strings.EqualFold(result, "permit") }
			c.lists[w] = table.OpenMaps("postscreen_access_list", []string{w}, strict)
		}
	}
	list := func(name string, kind table.Kind) *table.List {
		l, err := table.NewList(name, cfg.List(name), table.ListOptions{Kind: kind, Table: o})
		if err != nil {
			errs = append(errs, err)
		}
		return l
	}
	c.forbidden = list("postscreen_forbidden_commands", table.Strings)
	c.allowOn = list("postscreen_allowlist_interfaces", table.Clients)
	c.commandTime, c.commandCount = cfg.Duration("postscreen_command_time_limit"), cfg.Int("postscreen_command_count_limit")
	c.gate = &screenGate{preLimit: cfg.Int("postscreen_pre_queue_limit"), postLimit: cfg.Int("postscreen_post_queue_limit"),
		clientLimit: cfg.Int("postscreen_client_connection_count_limit"), sessions: make(chan struct{}, sessions),
		clients: map[netip.Addr]int{}}
	var err error
	c.cache, err = openScreenCache(screenCachePath(cfg), cfg.Duration("postscreen_cache_retention_time"), cfg.Duration("postscreen_cache_cleanup_interval"))
	return c, errors.Join(append(errs, err)...)
}

func screenCachePath(cfg *config.Config) string {
	if _, path, _ := strings.Cut(cfg.String("postscreen_cache_map"), ":"); path != "" {
		return path
	}
	return filepath.Join(cfg.String("data_directory"), "postscreen_cache")
}

// screenWrites is what postscreen writes to besides the usual places.
func screenWrites(cfg *config.Config) (writes []string, ok bool) {
	return []string{filepath.Dir(screenCachePath(cfg))}, true
}

// parseSite reads domain=filter*weight.
func parseSite(text string) (dnsblSite, error) {
	spec, weight, has := strings.Cut(text, "*")
	site := dnsblSite{weight: 1}
	var err error
	if has {
		if site.weight, err = strconv.Atoi(weight); err != nil {
			return site, fmt.Errorf("%q: the weight must be a number", text)
		}
	}
	site.DNSList, err = access.ParseDNSList(spec)
	return site, err
}

func (c *screenSettings) close() {
	c.replyMap.Close()
	for _, m := range c.lists {
		m.Close()
	}
	if err := c.cache.Close(); err != nil {
		c.log.Warning("%v", err)
	}
}

// screening is what the tests have found out about one client.
type screening struct {
	verdict *smtpwire.Reply // for every recipient, once a test is enforced
	todo    [ntests]bool    // tests after the greeting that are to be passed still
	expires [ntests]time.Time
	failed  bool // nothing is to be remembered
	pass    gatePass
	began   time.Time
}

// endpoint is the client as postscreen's log lines have it.
func (s *session) endpoint() string { return "[" + s.a.AddrText + "]:" + s.a.Port }

// screen carries out the tests before the greeting. An error ends the
// session, which has been told why.
func (s *session) screen(ctx context.Context) error {
	c := s.srv.screenSet
	now := s.srv.now()
	s.screened.began = now
	c.log.Info("CONNECT from %s to [%s]:%s", s.endpoint(), s.a.ServerAddr, s.a.ServerPort)
	if !c.gate.enter(&s.screened.pass, s.a.Addr) {
		c.log.Info("NOQUEUE: reject: CONNECT from %s: too many connections", s.endpoint())
		return s.turnAway(dsn.S(4, 7, 0), "Error: too many connections")
	}
	listed, err := c.listed(ctx, &s.a.Client)
	if err != nil {
		c.log.Warning("%v", err)
	}
	switch listed {
	case listPermit:
		c.log.Info("%s %s", c.allowWord, s.endpoint())
		return s.admitted()
	case listReject:
		c.log.Info("%s %s", c.denyWord, s.endpoint())
		if c.deny != screenIgnore { // the other tests decide then
			if err := s.failedTest(c.deny, smtpwire.R(550, dsn.S(5, 3, 2), "Service currently unavailable")); err != nil {
				return err
			}
		}
	}
	known, found := c.cache.get(s.a.Addr)
	need := false
	for t := range ntests {
		if c.enabled[t] && (!found || !now.Before(known[t])) {
			s.screened.todo[t], need = true, true
		} else {
			s.screened.expires[t] = known[t]
		}
	}
	if !need && s.screened.verdict == nil {
		c.log.Info("PASS OLD %s", s.endpoint())
		return s.admitted()
	}
	if !c.gate.test(&s.screened.pass) {
		c.log.Info("reject: connect from %s: all screening ports busy", s.endpoint())
		return s.turnAway(dsn.S(4, 3, 2), "All screening ports are busy")
	}
	if s.screened.todo[testPregreet] || s.screened.todo[testDNSBL] {
		if err := s.beforeGreeting(ctx); err != nil {
			return err
		}
	}
	s.veto(ctx)
	if s.passedTests(); s.screened.verdict == nil && !s.watched() {
		return s.admitted()
	}
	return nil
}

// watched says whether there are tests still that watch the session.
func (s *session) watched() bool { return slices.Contains(s.screened.todo[:], true) }

// veto sees to it that a client that has come to an address where nobody
// can pass is tested for what it does there, and not remembered: mail for
// real comes to the first address first.
func (s *session) veto(ctx context.Context) {
	c := s.srv.screenSet
	allowed, err := c.allowOn.MatchClient(ctx, "", s.a.ServerAddr)
	if err != nil {
		c.log.Warning("%v", err)
	}
	if !allowed {
		c.log.Info("%s VETO %s", c.vetoWord, s.endpoint())
		s.failedTest(screenEnforce, smtpwire.R(450, dsn.S(4, 3, 2), "Service currently unavailable"))
	}
}

// beforeGreeting waits for the client to speak too early while the lists are
// asked about it.
func (s *session) beforeGreeting(ctx context.Context) error {
	c := s.srv.screenSet
	result := make(chan dnsblResult, 1)
	var asking sync.WaitGroup
	if s.screened.todo[testDNSBL] {
		asking.Go(func() { result <- c.askLists(ctx, s.a.Addr) })
	}
	defer asking.Wait()
	if s.screened.todo[testPregreet] {
		if err := s.waitForPregreet(); err != nil {
			return err
		}
	}
	if !s.screened.todo[testDNSBL] {
		return nil
	}
	r := <-result
	for _, line := range r.lines {
		c.log.Info("%s", line)
	}
	if r.score < c.threshold {
		s.pass(testDNSBL, r.ttl)
		if c.allow < 0 && r.score <= c.allow {
			for t := range ntests { // so good that no other test matters
				s.pass(t, r.ttl)
			}
			s.screened.verdict, s.screened.failed = nil, false
		}
		return nil
	}
	c.log.Info("DNSBL rank %d for %s", r.score, s.endpoint())
	return s.failedTest(c.action[testDNSBL], smtpwire.R(550, dsn.S(5, 7, 1),
		"Service unavailable; client ["+s.a.AddrText+"] blocked using "+c.siteName(ctx, r.by)))
}

func (s *session) waitForPregreet() error {
	c := s.srv.screenSet
	w := &s.wire
	w.out = append(w.out, c.teaser...)
	wait := w.timeout
	w.timeout = c.wait
	w.makeRoom(smallBuf)
	var err error
	if w.buffered() == 0 {
		err = w.fill(nil)
	}
	w.timeout = wait
	took := fmt.Sprintf("%.2g", s.srv.now().Sub(s.screened.began).Seconds())
	switch {
	case err == nil:
		s.a.Pipelined = true // and what is done about it is done here
		data := string(w.buf[w.r:w.w])
		c.log.Info("PREGREET %d after %s from %s: %s", len(data), took, s.endpoint(), escaped(data))
		return s.failedTest(c.action[testPregreet], smtpwire.R(550, dsn.S(5, 5, 1), "Protocol error"))
	case isTimeout(err):
		s.pass(testPregreet, c.ttl[testPregreet])
		return nil
	}
	c.log.Info("HANGUP after %s from %s in tests before SMTP handshake", took, s.endpoint())
	s.ended, s.quiet = true, true
	return err
}

// pass notes that a test has been passed.
func (s *session) pass(t test, ttl time.Duration) {
	s.screened.todo[t] = false
	s.screened.expires[t] = s.srv.now().Add(ttl)
}

// failedTest does what is to be done with a client that has failed a test.
func (s *session) failedTest(a screenAction, reply *smtpwire.Reply) error {
	s.screened.failed = true
	switch a {
	case screenEnforce:
		if s.screened.verdict == nil {
			s.screened.verdict = reply
		}
	case screenDrop:
		drop := *reply
		drop.Code = 521
		s.reply(&drop)
		s.srv.screenSet.log.Info("DISCONNECT %s", s.endpoint())
		return errRefused
	}
	return nil
}

// passedTests remembers a client that has passed all tests there were.
func (s *session) passedTests() {
	for _, todo := range s.screened.todo {
		if todo {
			return
		}
	}
	if s.screened.failed {
		return
	}
	c := s.srv.screenSet
	c.log.Info("PASS NEW %s", s.endpoint())
	if err := c.cache.put(s.a.Addr, s.screened.expires); err != nil {
		c.log.Warning("postscreen cache: %v", err)
	}
}

// violates is told what a client did after the greeting. It says whether the
// session is over.
func (s *session) violates(t test, format string, args ...any) bool {
	if s.srv.screenSet == nil || !s.screened.todo[t] {
		return false
	}
	s.screened.todo[t] = false
	c := s.srv.screenSet
	c.log.Info(format, args...)
	return s.failedTest(c.action[t], smtpwire.R(550, dsn.S(5, 5, 1), "Protocol error")) != nil
}

// watch looks at each command for the tests after the greeting.
func (s *session) watch(v verb, bareLF bool) (over bool) {
	after := s.a.Stage
	if bareLF && s.violates(testBareLF, "BARE NEWLINE from %s after %s", s.endpoint(), after) {
		return true
	}
	if s.screened.todo[testPipelining] && s.wire.buffered() > 0 && (s.a.Proto != "ESMTP" || commands[v].traits&tLast != 0) {
		s.a.Pipelined = true
		if s.violates(testPipelining, "COMMAND PIPELINING from %s after %s: %s", s.endpoint(), strings.ToUpper(commands[v].name),
			escaped(string(s.wire.buf[s.wire.r:s.wire.w]))) {
			return true
		}
	}
	if v == vUnknown && (smtpwire.LooksLikeHeader(s.cmd.Line) || s.forbiddenWord()) &&
		s.violates(testNonSMTP, "NON-SMTP COMMAND from %s after %s: %s", s.endpoint(), after, escaped(s.cmd.Line)) {
		return true
	}
	return false
}

// forbiddenWord says whether a command is one of postscreen_forbidden_commands.
func (s *session) forbiddenWord() bool {
	yes, err := s.srv.screenSet.forbidden.Match(s.ctx(), s.cmd.Word())
	if err != nil {
		s.srv.screenSet.log.Warning("%v", err)
	}
	return yes
}

// screenRcpt is asked before a recipient is judged.
func (s *session) screenRcpt() *smtpwire.Reply {
	c := s.srv.screenSet
	if c == nil {
		return nil
	}
	done := false
	for _, t := range []test{testPipelining, testNonSMTP, testBareLF} {
		if s.screened.todo[t] {
			s.pass(t, c.ttl[t])
			done = true
		}
	}
	if done {
		s.passedTests()
	}
	if s.tested() && s.screened.verdict == nil && s.admitted() != nil {
		return access.Hangup // it has been told why
	}
	if v := s.screened.verdict; v != nil {
		c.log.Info("NOQUEUE: reject: RCPT from %s: %s; from=<%s>, to=<%s>, proto=%s, helo=<%s>", s.endpoint(), v,
			c.log.Address(s.a.Sender), c.log.Address(s.a.Recipient), s.a.Proto, s.a.Helo)
		return v
	}
	return nil
}

// escaped is what a client sent, for a log line.
func escaped(s string) string {
	text := strconv.QuoteToASCII(clip(s, 100))
	return strings.ReplaceAll(text[1:len(text)-1], `\"`, `"`)
}

type listing uint8

const (
	listDunno listing = iota
	listPermit
	listReject
)

// listed looks the client up in postscreen_access_list.
func (c *screenSettings) listed(ctx context.Context, who *access.Client) (listing, error) {
	for _, w := range c.access {
		switch strings.ToLower(w) {
		case "permit_mynetworks":
			in, err := c.eval.MyNetworks(ctx, who)
			if err != nil {
				return listDunno, err
			}
			if in {
				return listPermit, nil
			}
			continue
		case "permit":
			return listPermit, nil
		case "reject":
			return listReject, nil
		case "dunno":
			return listDunno, nil
		}
		m := c.lists[w]
		if m == nil {
			return listDunno, fmt.Errorf("postscreen_access_list: unknown element %q", w)
		}
		value, found, err := m.LookupClientAddr(ctx, who.AddrText)
		if err != nil {
			return listDunno, err
		}
		if !found {
			continue
		}
		switch strings.ToLower(strings.TrimSpace(value)) {
		case "permit":
			return listPermit, nil
		case "reject":
			return listReject, nil
		case "dunno":
			return listDunno, nil
		default:
			return listDunno, fmt.Errorf("postscreen_access_list: %s: unknown result %q for %s", w, value, who.AddrText)
		}
	}
	return listDunno, nil
}

type dnsblResult struct {
	score int
	by    string // domain that weighs most
	ttl   time.Duration
	lines []string
}

// askLists asks all lists at once. A list that does not answer in time counts
// for nothing.
func (c *screenSettings) askLists(ctx context.Context, a netip.Addr) dnsblResult {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	answers := make(map[string]resolver.Answer[netip.Addr])
	var mu sync.Mutex
	var wg sync.WaitGroup
	asked := map[string]bool{}
	for _, site := range c.sites {
		if asked[site.Domain] {
			continue
		}
		asked[site.Domain] = true
		wg.Go(func() {
			if ans, err := c.dns.Addrs(ctx, access.AddrQuery(a, site.Domain), resolver.IPv4); err == nil {
				mu.Lock()
				answers[site.Domain] = ans
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r := dnsblResult{ttl: c.maxTTL}
	most := 0
	said := map[string]bool{}
	for _, site := range c.sites {
		ans, hit := answers[site.Domain]
		if !hit {
			continue
		}
		if !said[site.Domain] {
			said[site.Domain] = true
			for _, addr := range ans.Records {
				r.lines = append(r.lines, fmt.Sprintf("addr %s listed by domain %s as %s", a, site.Domain, addr))
			}
		}
		r.ttl = min(r.ttl, ans.TTL)
		for _, addr := range ans.Records {
			if !site.Counts(addr) {
				continue
			}
			r.score += site.weight
			if site.weight > most {
				most, r.by = site.weight, site.Domain
			}
			break // once for each pattern
		}
	}
	r.ttl = max(r.ttl, c.minTTL)
	return r
}

// siteName is how a list is called towards clients: its name may be a secret.
func (c *screenSettings) siteName(ctx context.Context, domain string) string {
	if !c.replyMap.Empty() {
		value, found, err := c.replyMap.Lookup(ctx, domain, false)
		if err != nil {
			c.log.Warning("%v", err)
		} else if found {
			return value
		}
	}
	return domain
}
