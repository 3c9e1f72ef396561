// Package postscreen is postscreen's tests, which stand in front of a session
// of package smtpd and keep most spam robots from taking up a session at all.
//
// With Postfix they are a process that hands good clients over to smtpd. Here
// they are the beginning of the session that goes on: package smtpd has a Visit
// for each client, and asks it at the points where a test has a say. A client that
// passes is remembered, and is not tested again until its tests have expired.
//
// Before the greeting a client is looked up in postscreen_access_list, has to
// wait in silence for postscreen_greet_wait, and is asked for in DNS lists
// (postscreen_dnsbl_sites), which add up to a score.
//
// The tests after the greeting (pipelining, commands of other protocols, bare
// newlines) watch the session as it goes. A client has passed them when it
// comes to its first recipient: it does not have to come back, as it has to
// with Postfix, which answers 450 there because it cannot hand over a session
// that has begun. What limits such a session is postscreen's until then (gate.go,
// postscreen_command_count_limit, postscreen_command_time_limit); all else about it
// is smtpd's from the beginning, so that postscreen's copies of smtpd's parameters
// are not needed.
//
// A client that fails a test is handled as the test's _action parameter says:
// ignore has it tested again next time, enforce refuses each of its recipients,
// drop sends it away with 521.
//
// # Security
//
// A client costs one goroutine while it is tested. How many are tested, and how
// many have passed and wait for a session, is bounded, for each client and for all
// (postscreen_client_connection_count_limit, postscreen_pre_queue_limit,
// postscreen_post_queue_limit). The cache holds at most 200,000 addresses. It has
// no authority beyond the tests: who gets into it is spared them, and nothing else.
//
// # Parameters
//
// Those named postscreen_ but for postscreen_upstream_proxy_protocol and
// postscreen_upstream_proxy_timeout, which package smtpd reads; data_directory,
// respectful_logging.
//
// # Diagnostics
//
// Log lines are those of Postfix's postscreen(8): CONNECT, PASS NEW, PASS OLD,
// PREGREET, DNSBL rank, HANGUP and so on, under the name of postscreen. Their
// texts are in package maillog.
package postscreen

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"posthaste/internal/access"
	"posthaste/internal/dsn"
	"posthaste/internal/maillog"
	"posthaste/internal/smtpwire"
)

// A Visit is the screening of one client. The zero Visit is of a service
// without tests: it refuses nothing. A Visit is for one goroutine at a time.
type Visit struct {
	screen *Screen // nil: there are no tests
	client maillog.Endpoint
	addr   netip.Addr // of the client
	server string     // our address that the client has come to
	began  time.Time

	verdict  *smtpwire.Reply   // for every recipient, once a test is enforced; nil until then
	todo     [ntests]bool      // tests that are to be passed still
	expires  [ntests]time.Time // what the cache is to hold of tests that were passed, now or before
	failed   bool              // nothing is to be remembered
	known    bool              // the cache has the client, if only with results that have expired
	commands int               // how many the client has given while it was tested
	pass     pass              // what it occupies, until Leave
}

// Listen sends text, may be empty, and waits for as long as given for the client
// to speak. It returns all that has come without taking it away. The error of a
// client that was silent is os.ErrDeadlineExceeded.
type Listen func(text string, wait time.Duration) (data string, err error)

// Connect carries out the tests before the greeting, and waits for a session
// where there is none for a client that has passed. A reply ends the session, and is
// still to be said; an error is that of a client that went away. early says that
// the client spoke before it was greeted. Leave must follow in any case.
func (v *Visit) Connect(ctx context.Context, c *Screen, who *access.Client, listen Listen) (early bool, refusal *smtpwire.Reply, err error) {
	*v = Visit{screen: c, client: maillog.Endpoint{Addr: who.AddrText, Port: who.Port}, addr: who.Addr, server: who.ServerAddr, began: c.now()}
	c.log.Log(maillog.ScreenConnect{Client: v.client, Server: maillog.Endpoint{Addr: who.ServerAddr, Port: who.ServerPort}})
	if !c.gate.enter(&v.pass, v.addr) {
		return false, v.turnAway(dsn.S(4, 7, 0), "too many connections", "Error: too many connections"), nil
	}
	listed, err := c.listed(ctx, who)
	if err != nil {
		c.log.Warning("%v", err)
	}
	switch listed {
	case listPermit:
		v.logResult(c.allowWord)
		return false, v.admit(), nil
	case listReject:
		v.logResult(c.denyWord)
		if c.deny != actIgnore { // the other tests decide then
			if r := v.fail(c.deny, smtpwire.R(550, dsn.S(5, 3, 2), "Service currently unavailable")); r != nil {
				return false, r, nil
			}
		}
	}
	if !v.recall() && v.verdict == nil {
		v.logResult("PASS OLD")
		return false, v.admit(), nil
	}
	if !c.gate.test(&v.pass) {
		c.log.Log(maillog.ScreenTurnedAway{Client: v.client, Reason: "all screening ports busy", Untested: true})
		return false, v.goodbye(dsn.S(4, 3, 2), "All screening ports are busy"), nil
	}
	if early, refusal, err = v.beforeGreeting(ctx, listen); refusal != nil || err != nil {
		return early, refusal, err
	}
	v.veto(ctx)
	if v.rememberIfPassed(); v.verdict == nil && !slices.Contains(v.todo[:], true) {
		refusal = v.admit()
	}
	return early, refusal, nil
}

// recall fills in what the cache has of the client. It says whether a test is
// to be passed still.
func (v *Visit) recall() (needed bool) {
	c := v.screen
	known, found := c.cache.get(v.addr)
	v.known = found
	for t := range ntests {
		if c.enabled[t] && (!found || !v.began.Before(known[t])) {
			v.todo[t], needed = true, true
		} else {
			v.expires[t] = known[t]
		}
	}
	return needed
}

// beforeGreeting waits for the client to speak too early while the lists are
// asked about it. The results are as those of Connect.
func (v *Visit) beforeGreeting(ctx context.Context, listen Listen) (early bool, refusal *smtpwire.Reply, err error) {
	c := v.screen
	result := make(chan dnsblResult, 1)
	var asking sync.WaitGroup
	if v.todo[testDNSBL] {
		asking.Go(func() { result <- c.askLists(ctx, v.addr) })
	}
	defer asking.Wait()
	if v.todo[testPregreet] {
		if early, refusal, err = v.pregreet(listen); refusal != nil || err != nil {
			return early, refusal, err
		}
	}
	if !v.todo[testDNSBL] {
		return early, nil, nil
	}
	return early, v.judgeScore(ctx, <-result), nil
}

// judgeScore heeds what the DNS lists say.
func (v *Visit) judgeScore(ctx context.Context, r dnsblResult) *smtpwire.Reply {
	c := v.screen
	for _, e := range r.listed {
		c.log.Log(e)
	}
	if r.score >= c.threshold {
		c.log.Log(maillog.ScreenRank{Rank: r.score, Client: v.client})
		return v.fail(c.action[testDNSBL], smtpwire.R(550, dsn.S(5, 7, 1),
			"Service unavailable; client ["+v.client.Addr+"] blocked using "+c.siteName(ctx, r.by)))
	}
	v.passed(testDNSBL, r.ttl)
	if c.allow < 0 && r.score <= c.allow {
		for t := range ntests { // so good that no other test matters
			v.passed(t, r.ttl)
		}
		v.verdict, v.failed = nil, false
	}
	return nil
}

// pregreet sends the teaser and sees whether the client takes it for the
// greeting, or does not wait for any.
func (v *Visit) pregreet(listen Listen) (early bool, refusal *smtpwire.Reply, err error) {
	c := v.screen
	data, err := listen(c.teaser, c.wait)
	after := c.now().Sub(v.began)
	switch {
	case err == nil:
		c.log.Log(maillog.ScreenPregreet{Client: v.client, After: after, Data: data})
		return true, v.fail(c.action[testPregreet], smtpwire.R(550, dsn.S(5, 5, 1), "Protocol error")), nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		v.passed(testPregreet, c.ttl[testPregreet])
		return false, nil, nil
	}
	c.log.Log(maillog.ScreenHangup{Client: v.client, After: after})
	return false, nil, err
}

// veto sees to it that a client that has come to an address where nobody
// can pass is tested for what it does there, and not remembered: mail for
// real comes to the first address first (postscreen_allowlist_interfaces).
func (v *Visit) veto(ctx context.Context) {
	c := v.screen
	allowed, err := c.allowOn.MatchClient(ctx, "", v.server)
	if err != nil {
		c.log.Warning("%v", err)
	}
	if !allowed {
		v.logResult(c.vetoWord)
		v.fail(actEnforce, smtpwire.R(450, dsn.S(4, 3, 2), "Service currently unavailable"))
	}
}

// passed notes that a test has been passed.
func (v *Visit) passed(t test, ttl time.Duration) {
	v.todo[t] = false
	v.expires[t] = v.screen.now().Add(ttl)
}

// fail does what is to be done with a client that has failed a test. A reply
// ends the session. The first failure that is enforced words all refusals.
func (v *Visit) fail(a action, reply *smtpwire.Reply) *smtpwire.Reply {
	v.failed = true
	switch a {
	case actEnforce:
		if v.verdict == nil {
			v.verdict = reply
		}
	case actDrop:
		drop := *reply
		drop.Code = 521 // RFC 7504 section 3: the host accepts no mail
		v.logResult("DISCONNECT")
		return &drop
	}
	return nil
}

// rememberIfPassed puts a client into the cache that has passed all tests there were.
func (v *Visit) rememberIfPassed() {
	if v.failed || slices.Contains(v.todo[:], true) {
		return
	}
	if v.known {
		v.logResult("PASS OLD")
	} else {
		v.logResult("PASS NEW")
	}
	if err := v.screen.cache.put(v.addr, v.expires); err != nil {
		v.screen.log.Warning("postscreen cache: %v", err)
	}
}

// A Command is what the tests after the greeting look at.
type Command struct {
	Line  string // as the client sent it, without its end
	Name  string // in capitals; UNKNOWN if it is none of ours
	Word  string // the line's first word
	After string // the command before
	// Unread is what the client has sent behind the command, if that must wait for
	// the reply; empty otherwise.
	Unread  string
	Unknown bool // no command of ours
	BareLF  bool // it ended in LF alone
}

// Command watches a command for the tests after the greeting. A reply ends the
// session. early says that the client has sent more than it may: that has been
// judged, and is not to be judged again.
func (v *Visit) Command(ctx context.Context, cmd *Command) (early bool, refusal *smtpwire.Reply) {
	if v.screen == nil {
		return false, nil
	}
	if cmd.BareLF {
		if r := v.violation(testBareLF, maillog.ScreenViolation{Test: "BARE NEWLINE", After: cmd.After}); r != nil {
			return false, r
		}
	}
	if v.todo[testPipelining] && cmd.Unread != "" {
		e := maillog.ScreenViolation{Test: "COMMAND PIPELINING", After: cmd.Name, Data: cmd.Unread, HasData: true}
		if early, refusal = true, v.violation(testPipelining, e); refusal != nil {
			return early, refusal
		}
	}
	if cmd.Unknown && (smtpwire.LooksLikeHeader(cmd.Word) || v.forbidden(ctx, cmd.Word)) {
		refusal = v.violation(testNonSMTP, maillog.ScreenViolation{Test: "NON-SMTP COMMAND", After: cmd.After, Data: cmd.Line, HasData: true})
	}
	return early, refusal
}

// Pipelines says whether a command's Unread is of interest.
func (v *Visit) Pipelines() bool { return v.todo[testPipelining] }

// violation notes that the client has failed a test after the greeting, unless
// that test is over or was never on. A reply ends the session.
func (v *Visit) violation(t test, e maillog.ScreenViolation) *smtpwire.Reply {
	if !v.todo[t] {
		return nil
	}
	v.todo[t] = false
	e.Client = v.client
	v.screen.log.Log(e)
	return v.fail(v.screen.action[t], smtpwire.R(550, dsn.S(5, 5, 1), "Protocol error"))
}

// forbidden says whether a command is one of postscreen_forbidden_commands.
func (v *Visit) forbidden(ctx context.Context, word string) bool {
	yes, err := v.screen.forbidden.Match(ctx, word)
	if err != nil {
		v.screen.log.Warning("%v", err)
	}
	return yes
}

// Recipient is asked before a recipient is judged: a client that has come that
// far has passed the tests after the greeting. A reply is for the recipient.
func (v *Visit) Recipient(who *access.Session) *smtpwire.Reply {
	c := v.screen
	if c == nil {
		return nil
	}
	news := false
	for _, t := range deep {
		if v.todo[t] {
			v.passed(t, c.ttl[t])
			news = true
		}
	}
	if news {
		v.rememberIfPassed()
	}
	if v.verdict == nil {
		if v.UnderTest() {
			return v.admit()
		}
		return nil
	}
	c.log.Log(maillog.ScreenReject{Client: v.client, Reply: v.verdict.String(), From: c.log.Address(who.Sender),
		To: c.log.Address(who.Recipient), Proto: who.Proto, Helo: who.Helo})
	return v.verdict
}

// UnderTest says whether the client is still being tested, or has failed and may
// not send mail. Postscreen has limits of its own for those.
func (v *Visit) UnderTest() bool { return v.pass.testing }

// TooManyCommands counts a command of a client under test. It says whether that
// is one over postscreen_command_count_limit: the session is to end with 421.
func (v *Visit) TooManyCommands(after string) bool {
	if !v.UnderTest() {
		return false
	}
	limit := v.screen.commandCount
	if v.commands++; v.commands <= limit || limit <= 0 {
		return false
	}
	v.OverLimit("COUNT", after)
	return true
}

// OverLimit logs that a client under test went over a limit on its commands:
// COUNT, TIME or LENGTH. Of other clients smtpd says so in its own words.
func (v *Visit) OverLimit(limit, after string) {
	if v.UnderTest() {
		v.screen.log.Log(maillog.ScreenViolation{Test: "COMMAND " + limit + " LIMIT", Client: v.client, After: after})
	}
}

// CommandTime is how long the session waits for a command, where smtpd alone
// would wait for as long as given.
func (v *Visit) CommandTime(own time.Duration) time.Duration {
	if v.UnderTest() {
		return min(own, v.screen.commandTime)
	}
	return own
}

// admit has a client that has passed its tests wait for a session. A reply says
// that too many wait.
func (v *Visit) admit() *smtpwire.Reply {
	if v.screen.gate.admit(&v.pass) {
		return nil
	}
	return v.turnAway(dsn.S(4, 3, 2), "all server ports busy", "All server ports are busy")
}

// turnAway words the end of the session of a client that there is no room for.
func (v *Visit) turnAway(st dsn.Status, reason, text string) *smtpwire.Reply {
	v.screen.log.Log(maillog.ScreenTurnedAway{Client: v.client, Reason: reason})
	return v.goodbye(st, text)
}

func (v *Visit) goodbye(st dsn.Status, text string) *smtpwire.Reply {
	v.logResult("DISCONNECT")
	return smtpwire.R(421, st, text)
}

func (v *Visit) logResult(result string) {
	v.screen.log.Log(maillog.ScreenResult{Result: result, Client: v.client})
}

// Leave gives back what the client occupies. It may be called more than once.
func (v *Visit) Leave() {
	if v.screen != nil {
		v.screen.gate.leave(&v.pass)
	}
}
