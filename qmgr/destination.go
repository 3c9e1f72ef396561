// "posthaste explain" for a destination: what the scheduler has of it, what keeps its
// mail waiting, how much there is, and what its last replies were. It reads much and is
// asked for seldom, so it works in turns of bounded length and reads the spool in a task.

package qmgr

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queueread"
	"posthaste/internal/rate"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

const (
	// destRows bounds how many destinations of the scheduler's one answer names.
	//
	// Enough for a domain with many mail hosts, and a page of text for the operator.
	destRows = 50
	// destSample is how many messages are read for their last replies.
	//
	// Reading them takes a fraction of a second; what most of a long backlog was told is
	// among them.
	destSample = 500
	// routePatience is how long the resolver may take to say where mail for the domain goes:
	// who asks for the destination has the rest without it.
	routePatience = 2 * time.Second
	// destReplies is how many different replies are told.
	destReplies = 10
)

// A portrait is what is known of a destination: what the scheduler has of it,
// what keeps its mail waiting, how much there is, and what was said of it.
type portrait struct {
	dest selection.Destination
	r    *ipc.Request
	// What is to be said below the head line. rows counts the destinations among them,
	// shown or not.
	lines []string
	rows  int
	// The same destinations in numbers, and what their hosts answer.
	dests []proto.DestInfo
	// How they have fared is to be said as well. Who does not show it does not want as many octets as that.
	course bool
	// The count of the queue, while it is under way; now is the time of the question, which
	// all ages refer to.
	sweep *sweep
	means func(nameID) bool // whether a domain is meant
	now   time.Time

	// Mail for the domain in any queue.
	messages, recipients int // deferred, incoming and held mail for the domain
	// Messages that are not counted because their domains are not known: not read yet, or
	// not in memory.
	unread, away int // messages whose domains are not known, yet or at all
	oldest, next time.Time
	// to be tried within an hour
	due int
	// The first destSample messages, whose recorded replies are read.
	sample []listed
}

// explainDestination answers a request for a destination, in any form that "posthaste
// queue list --nexthop" takes. A text that is none is answered with what is wrong about
// it.
func (s *Server) explainDestination(r *ipc.Request, q *proto.Explain) {
	if name, ok := strings.CutPrefix(q.Destination, tenantPrefix); ok {
		s.explainTenant(r, name)
		return
	}
	dest, err := selection.ParseDestination(q.Destination)
	if err != nil {
		r.Reply(&proto.ExplainReply{Lines: []string{err.Error()}})
		return
	}
	p := &portrait{dest: dest, r: r, course: q.Course}
	// One turn of the loop sees rules and scheduler as of the same moment; the count of
	// the queue goes on in later turns.
	s.ask(r, func() {
		p.now = s.now
		s.portrayRules(p)
		s.portrayActive(p)
		p.dests = s.destInfos(s.now, func(transport, nexthop string) bool { return p.dest.Match(transport, nexthop, "") })
		for i := range p.dests {
			p.lines = append(p.lines, repliesText(&p.dests[i])...)
		}
		s.portrayQueue(p)
	})
}

// portrayRules says which suspensions and queue-only destinations keep mail for it from
// being tried, and which limits have been set for it.
func (s *Server) portrayRules(p *portrait) {
	text := p.dest.String()
	// "smtp:example.com" names a transport; a host with a port, or in brackets, does not.
	transport, name, ok := strings.Cut(text, ":")
	if !ok || strings.ContainsAny(transport, ".[]") {
		transport, name = "", text
	}
	m := &selection.Mail{Transport: transport, Nexthop: name, Domain: name, Site: s.terms.unitOf(name)}
	for _, r := range s.rules.set.all() {
		// A suspended sender says nothing about a destination.
		part := r.target.IsGroup() || r.target.Source() != "" // of the mail, and said here if it is for this site
		if r.over(s.now) || r.target.IsSender() || part && (r.target.Site() == "" || r.target.Site() != m.Site) {
			continue
		}
		_, value := r.target.Condition()
		if strings.EqualFold(value, text) || r.target.Match(m) || part || p.dest.Match("", value, "") {
			p.lines = append(p.lines, "  "+r.text())
		}
	}
	// What rules of shaping_files have set holds for a site, or for a domain of it. The resolver said at the last
	// delivery which site that is; of a destination that had none, only settings by name are known.
	if set := s.auto.settings.Load(); set != nil {
		for _, r := range set.list {
			if unit := s.terms.unitOf(name); !r.over(s.now) && (unit != "" && r.target.Site() == unit || r.target.Match(m)) {
				p.lines = append(p.lines, "  "+r.settingText())
			}
		}
	}
	// Of returns, those of the domain: all of it, or of a tenant. Those of a sender, or of a tenant wherever to, say nothing
	// about it.
	for _, r := range s.rules.returns.Load().all() {
		if _, value := r.target.Condition(); !r.over(s.now) && (strings.EqualFold(value, name) || !r.target.IsSender() && r.target.Match(m) || r.target.IsGroup() && strings.EqualFold(r.target.Site(), name)) {
			p.lines = append(p.lines, "  "+r.returnText())
		}
	}
	// A diversion is shown for both of its ends: the mail that is missing at one is at the other.
	for _, r := range s.rules.diversions.Load().all() {
		_, value := r.target.Condition()
		if !r.over(s.now) && (strings.EqualFold(value, text) || r.target.Match(m) || p.dest.Match("", value, "") || p.dest.Match(string(r.to.transport), string(r.to.nexthop), "")) {
			p.lines = append(p.lines, "  "+r.diversionText())
		}
	}
	// The same as for suspensions, but that a limit is of a transport's destination.
	for _, r := range s.rules.limits.all() {
		if _, value := r.target.Condition(); !r.over(s.now) && (strings.EqualFold(value, text) || r.target.Match(m) || p.dest.Match(transport, value, "")) {
			p.lines = append(p.lines, "  "+r.limitText())
		}
	}
}

// portrayActive says what the scheduler has: destinations in core with their windows, and
// those that are only remembered because mail waits for their next answer.
func (s *Server) portrayActive(p *portrait) {
	waits := make(map[string]int)
	// Deferred mail waits by the name of the queue, which is that of a site where limits are a site's.
	s.sched.Sites(func(i sched.SiteInfo) bool {
		if name := nexthopOf(i.Queue); p.dest.Match(string(i.Transport), name, "") && i.Failed {
			waits[string(i.Transport)+" to "+i.Queue] += i.Waiting
		}
		return true
	})
	site := sitePrefix + s.terms.siteOf(p.dest.String())
	shown := make(map[string]bool)
	s.sched.Dests(func(d sched.Dest) bool {
		if d.Transport == sched.RetryTransport || d.Transport == sched.ErrorTransport || d.Queue != sched.SourceQueue(site, d.Source) && !p.dest.Match(string(d.Transport), string(d.Nexthop), "") {
			return true
		}
		s.portrayLimits(p, &d, shown)
		name := string(d.Transport) + " to " + d.Queue
		n := waits[name]
		// What is left in waits has no destination in core.
		delete(waits, name)
		p.row(destText(&d, n, limitOf(s.rules.limits, d.Transport, d.Nexthop) != nil))
		return true
	})
	names := make([]string, 0, len(waits))
	for name := range waits {
		names = append(names, name)
	}
	// The order of a map would change with each call.
	slices.Sort(names)
	for _, name := range names {
		p.row(fmt.Sprintf("%s: had failed; %d deferred message(s) go as soon as it answers", name, waits[name]))
	}
	if p.rows > destRows {
		p.lines = append(p.lines, fmt.Sprintf("  and %d more destinations", p.rows-destRows))
	}
}

// portrayLimits says what limits hold for a destination besides its window, each once.
func (s *Server) portrayLimits(p *portrait, d *sched.Dest, shown map[string]bool) {
	show := func(l sched.SharedLimit) bool {
		// Destinations of several transports have the same ones.
		name := l.String()
		if !shown[name] && len(shown) < destRows {
			shown[name] = true
			p.lines = append(p.lines, "  limit of "+name+": "+limitText(&l))
		}
		return len(shown) < destRows // thousands of tenants may have mail there
	}
	s.sched.Sharing(d, show)
	s.sched.QuotasAt(d, show)
}

// limitText is a shared limit in words: what it bounds, how much of that is used, and who
// waits for it.
func limitText(l *sched.SharedLimit) string {
	var items []string
	// The order is that of the documentation.
	if n := l.Limits.Concurrency; n > 0 {
		items = append(items, fmt.Sprintf("%d of %d deliveries at once", l.Busy, n))
	}
	for _, r := range []struct {
		name  string
		rate  rate.Rate
		today int64
	}{{"connections", l.Limits.Connections, l.Connections}, {"messages", l.Limits.Messages, l.Messages}, {"recipients", l.Limits.Recipients, l.Recipients}, {"recipients of its warm-up", l.Limits.Warmup, l.Warmup}} {
		switch {
		case r.rate.IsZero():
		case r.rate.Per == rate.Day:
			items = append(items, fmt.Sprintf("%d of %d %s today", r.today, r.rate.N, r.name))
		default:
			items = append(items, fmt.Sprintf("%s %s", r.name, r.rate))
		}
	}
	if len(items) == 0 {
		items = append(items, "none any more")
	}
	text := strings.Join(items, ", ")
	if l.Held > 0 {
		text += fmt.Sprintf("; %d about to begin", l.Held)
	}
	if l.Waiting > 0 {
		text += fmt.Sprintf("; %d destination(s) wait", l.Waiting)
	}
	if l.Parked > 0 {
		text += fmt.Sprintf("; %d message(s) wait outside the active queue", l.Parked)
	}
	if !l.Until.IsZero() {
		text += "; shut until " + l.Until.Format(time.DateTime)
	}
	return text
}

// nexthopOf is the next hop in the name of a destination, which is user@nexthop for a
// transport that delivers to one recipient at a time, and has the name of a source behind it
// for one of several. A next hop has no blank but in a list, of which the first counts.
func nexthopOf(queue string) string {
	queue = queue[strings.LastIndexByte(queue, '@')+1:]
	hop, _, _ := strings.Cut(queue, " ")
	return hop
}

// divert says that mail goes another way for now, once for each diversion; nil: it does not.
func (p *portrait) divert(r *rule) {
	if r == nil {
		return
	}
	if line := "  " + r.diversionText(); !slices.Contains(p.lines, line) {
		p.lines = append(p.lines, line)
	}
}

// row adds a line for a destination, and counts those that are one too many.
func (p *portrait) row(text string) {
	if p.rows++; p.rows <= destRows {
		p.lines = append(p.lines, "  "+text)
	}
}

// destText is one line about a destination. waiting is how many deferred messages its
// next answer releases, and set says that an operator has set its limit.
func destText(d *sched.Dest, waiting int, set bool) string {
	limit := "no limit"
	if d.Limit > 0 {
		limit = fmt.Sprintf("at most %d", d.Limit)
	}
	if set {
		limit += ", by \"posthaste limit\""
	}
	text := fmt.Sprintf("%s to %s: %d deliveries under way, %d wait; ", d.Transport, d.Queue, d.Busy, d.Todo)
	switch d.State {
	case sched.DestDead:
		text += fmt.Sprintf("considered dead until %s (%s %s)", d.Until.Format(time.DateTime), d.Status, maillog.AppendClean(nil, []byte(d.Text)))
	case sched.DestSuspended:
		text += "rate delay until " + d.Until.Format(time.DateTime)
	default:
		text += fmt.Sprintf("window %d (%s), feedback +%.2f -%.2f", d.Window, limit, d.Success, d.Failure)
		if d.Cohorts > 0 {
			text += fmt.Sprintf(", %.2f cohorts failed in a row", d.Cohorts)
		}
	}
	switch {
	case d.Gate != "" && !d.GateUntil.IsZero():
		text += "; waits for the limit of " + d.Gate + " until " + d.GateUntil.Format(time.DateTime)
	case d.Gate != "":
		text += "; waits for a delivery under the limit of " + d.Gate + " to end"
	}
	text += threadText(d)
	text += learntText(d.Learnt)
	if waiting > 0 {
		text += fmt.Sprintf("; %d deferred message(s) go as soon as it answers", waiting)
	}
	return text
}

// threadText is what there is to say of a destination with TRANSPORT_scheduler = thread;
// "" in other modes.
func threadText(d *sched.Dest) string {
	switch th := d.Thread; {
	case !th.On:
		return ""
	case th.Waits && th.Bound > 0:
		return fmt.Sprintf("; its thread waits for an agent, as %d other(s) do, for at most %d deliveries", th.Others, th.Bound)
	case th.Waits:
		return fmt.Sprintf("; its thread waits for an agent, as %d other(s) do", th.Others)
	case d.Busy > 0:
		return fmt.Sprintf("; its thread has %d agent(s)", d.Busy)
	}
	return "; its thread needs no agent now"
}

// portrayQueue counts the mail for the domain, a part of the book in a turn of the loop: that
// looks at most messages only as long as it takes to see that they are for others.
// After the last turn a task reads the sample and answers.
func (s *Server) portrayQueue(p *portrait) {
	if p.sweep == nil {
		p.sweep = s.book.sweep()
		p.means = s.book.names.asked(func(domain string) bool { return p.dest.Match("", "", domain) })
	}
	if p.sweep.step(sweepSlips, func(b *slip) { s.portraySlip(p, b) }) {
		s.post(func() { s.portrayQueue(p) }, sched.Event{})
		return
	}
	// In the order of their numbers: which of them are in the sample does not depend on chance.
	var rest []sched.MsgID
	p.sweep.end(s.messages, func(num sched.MsgID) { rest = append(rest, num) })
	slices.Sort(rest)
	for _, num := range rest {
		if b := s.book.find(num); b != nil {
			s.portraySlip(p, b)
		} else {
			s.portrayWorked(p, s.messages[num])
		}
	}
	// What is not in memory is only counted, and the head line says so.
	p.away = s.away.deferred + s.away.hold
	// The relay hosts are known when the sample has been read. What the scheduler has of them is
	// the loop's to say.
	s.tasks.Go(func() {
		last, hops := s.portrayReplies(p)
		s.post(func() { s.portrayRelays(p, hops, last) }, sched.Event{})
	})
}

// portraySlip counts a message of the book.
func (s *Server) portraySlip(p *portrait, b *slip) {
	if b.sender == 0 {
		p.unread++
		return
	}
	n := 0
	s.book.eachDomain(b, 1, func(id nameID, k int) {
		if p.means(id) {
			n += k
		}
	})
	if n == 0 {
		return
	}
	// Only now, since a search costs more than all that was done for the slip so far.
	info, ok := s.sched.Lookup(b.num)
	if b.domain != 0 {
		n = info.Pending // all are in one domain
	}
	if ok {
		p.count(s, s.book.message(b), &info, n)
	}
}

// portrayWorked counts a message that is worked on: the recipients are at hand, if all have been
// read.
func (s *Server) portrayWorked(p *portrait, m *message) {
	_, domains := m.domains()
	n := 0
	for d, k := range domains {
		if p.dest.Match("", "", d) {
			n += k
		}
	}
	if info, ok := s.sched.Lookup(m.num); ok && n > 0 {
		p.count(s, m, &info, n)
	}
}

// portrayRelays says how things are with the relay hosts by which mail for the domain goes, and
// answers. An operator asks for the domain, and does not think of the host whose window is full.
func (s *Server) portrayRelays(p *portrait, hops map[string]bool, last []string) {
	// Those that the question means have been told of.
	maps.DeleteFunc(hops, func(name string, _ bool) bool {
		transport, nexthop, _ := strings.Cut(name, ":")
		return p.dest.Match(transport, nexthop, "")
	})
	var relays []proto.DestInfo
	if len(hops) > 0 {
		relays = s.destInfos(s.now, func(transport, nexthop string) bool {
			return hops[hopName(mail.Transport(transport), mail.Nexthop(nexthop))]
		})
	}
	for _, d := range relays {
		text := fmt.Sprintf("  its mail goes by %s to %s", d.Transport, d.Nexthop)
		if d.State != "" {
			text += fmt.Sprintf(": %d deliveries under way, %d wait", d.Busy, d.Todo)
		}
		if d.State == "dead" {
			text += fmt.Sprintf("; considered dead until %s (%s)", d.Until.Format(time.DateTime), d.Why)
		}
		p.dests = append(p.dests, d)
		p.lines = append(append(p.lines, text), repliesText(&d)...)
	}
	for i := range p.dests {
		if p.course {
			s.addCourse(&p.dests[i], p.now)
		}
	}
	p.r.Reply(&proto.ExplainReply{Lines: append([]string{p.head()}, append(p.lines, last...)...), Dests: p.dests, Oldest: p.oldest})
}

// count adds a message with n recipients in the domain.
func (p *portrait) count(s *Server, m *message, info *sched.Info, n int) {
	if n == 0 {
		return
	}
	p.messages++
	p.recipients += n
	if p.oldest.IsZero() || info.Created.Before(p.oldest) {
		p.oldest = info.Created
	}
	if info.Queue == sched.QueueDeferred && !info.Next.IsZero() {
		if p.next.IsZero() || info.Next.Before(p.next) {
			p.next = info.Next
		}
		// An hour is what somebody who looks at this is willing to wait.
		if info.Next.Before(p.now.Add(time.Hour)) {
			p.due++
		}
	}
	if len(p.sample) < destSample {
		p.sample = append(p.sample, s.listed(m, *info, false))
	}
}

// head is the first line: how much mail there is for the domain. Deferred mail is not
// indexed by next hop, so a destination with brackets or a port has no number.
func (p *portrait) head() string {
	if text := p.dest.String(); strings.ContainsAny(text, "[:") {
		return text + ": deferred mail is not kept by next hop; \"posthaste queue list --nexthop='" + text + "'\" looks for it"
	}
	text := fmt.Sprintf("%s: %d message(s) with %d recipient(s) in this domain are queued", p.dest, p.messages, p.recipients)
	if p.messages > 0 {
		text += ", the oldest since " + p.oldest.Format(time.DateTime)
	}
	if !p.next.IsZero() {
		text += fmt.Sprintf("; next attempt at %s, %d within an hour", p.next.Format(time.DateTime), p.due)
	}
	if p.unread > 0 {
		text += fmt.Sprintf("; %d message(s) of the queue have not been looked at yet", p.unread)
	}
	if p.away > 0 {
		text += fmt.Sprintf("; %d message(s) of the queue, on hold or not due soon, are not looked at for this", p.away)
	}
	return text
}

// portrayReplies says what the last attempts came to, of the sample, the most frequent
// first, and by which next hops its mail goes, as far as that is known. It
// reads the spool, and so is never called by the loop.
func (s *Server) portrayReplies(p *portrait) (lines []string, hops map[string]bool) {
	hops = make(map[string]bool)
	type reply struct {
		n    int
		last time.Time
	}
	found := make(map[string]reply)
	for i := range p.sample {
		l := &p.sample[i]
		st, err := s.opt.Open(s.ctx, l.ref, l.item.ID)
		if err != nil {
			continue
		}
		for text, at := range s.lastReplies(p, l, st, hops) {
			r := found[text]
			r.n++
			if at.After(r.last) {
				r.last = at
			}
			found[text] = r
		}
	}
	texts := make([]string, 0, len(found))
	for text := range found {
		texts = append(texts, text)
	}
	// The reason that most messages share comes first.
	slices.SortFunc(texts, func(a, b string) int { return cmp.Or(found[b].n-found[a].n, strings.Compare(a, b)) })
	for _, text := range texts[:min(len(texts), destReplies)] {
		lines = append(lines, fmt.Sprintf("  last reply to %d of the first %d messages, at %s: %s", found[text].n, len(p.sample),
			found[text].last.Local().Format(time.DateTime), maillog.AppendClean(nil, []byte(text))))
	}
	if n := len(texts) - destReplies; n > 0 {
		lines = append(lines, fmt.Sprintf("  and %d other replies", n))
	}
	return lines, hops
}

// lastReplies are the different replies that a message's pending recipients in the domain got
// last, with the time of each; the next hops by which these go are added to hops. A message that
// cannot be read has none.
func (s *Server) lastReplies(p *portrait, l *listed, st queueread.Stored, hops map[string]bool) map[string]time.Time {
	rcpts, err := st.Recipients(0, -1)
	if err != nil {
		return nil
	}
	outcomes, err := st.Outcomes()
	if err != nil {
		return nil
	}
	list := make(map[string]time.Time)
	m := message{done: l.done}
	means := func(i int) bool {
		return i < len(rcpts) && !m.isDone(i) && p.dest.Match("", "", rfc5322.Domain(rcpts[i].Address))
	}
	// All recipients in a domain go the same way, but for exceptions in tables: the resolver is
	// asked once, and for the others what is known is enough.
	one := slices.IndexFunc(rcpts, func(r mail.Recipient) bool { return p.dest.Match("", "", rfc5322.Domain(r.Address)) })
	if env, err := st.Envelope(); err == nil && one >= 0 && len(hops) < destRows {
		transport, nexthop, _, known := s.routeKnown(&env, rcpts[one].Address)
		if !known && len(hops) == 0 {
			transport, nexthop = s.whereToWithin(&env, rcpts[one].Address, min(routePatience, s.opt.ResolveTime))
		}
		if transport != "" {
			hops[hopName(transport, nexthop)] = true
		}
		p.divert(s.diversionFor(&env, rcpts[one].Address))
	}
	for i, o := range l.last(outcomes) {
		if !means(i) {
			continue
		}
		text := o.Status.String() + " " + o.Why()
		if o.When.After(list[text]) {
			list[text] = o.When
		}
	}
	return list
}
