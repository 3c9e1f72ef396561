package qmgr

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queueread"
	"posthaste/internal/rfc5322"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

const (
	// destRows bounds how many destinations of the scheduler's one answer names.
	destRows = 50
	// destSample is how many messages are read for their last replies.
	destSample = 500
	// destReplies is how many different replies are told.
	destReplies = 10
)

// A portrait is what is known of a destination: what the scheduler has of it,
// what keeps its mail waiting, how much there is, and what was said of it.
type portrait struct {
	dest   selection.Destination
	r      *ipc.Request
	lines  []string
	rows   int
	cursor int
	now    time.Time

	messages, recipients int // deferred, incoming and held mail for the domain
	unread, away         int // messages whose domains are not known, yet or at all
	oldest, next         time.Time
	due                  int
	sample               []listed
}

// explainDestination answers with it.
func (s *Server) explainDestination(r *ipc.Request, text string) {
	dest, err := selection.ParseDestination(text)
	if err != nil {
		r.Reply(&proto.ExplainReply{Lines: []string{err.Error()}})
		return
	}
	p := &portrait{dest: dest, r: r}
	s.ask(r, func() {
		p.now = s.now
		s.portrayRules(p)
		s.portrayActive(p)
		s.portrayQueue(p)
	})
}

// portrayRules says what keeps mail from being tried.
func (s *Server) portrayRules(p *portrait) {
	text := p.dest.String()
	transport, name, ok := strings.Cut(text, ":")
	if !ok || strings.ContainsAny(transport, ".[]") {
		transport, name = "", text
	}
	m := &selection.Mail{Transport: transport, Nexthop: name, Domain: name}
	for _, r := range s.rules.set.all() {
		if r.over(s.now) || r.target.IsSender() {
			continue
		}
		_, value := r.target.Condition()
		if strings.EqualFold(value, text) || r.target.Match(m) || p.dest.Match("", value, "") {
			p.lines = append(p.lines, "  "+r.text())
		}
	}
}

// portrayActive says what the scheduler has.
func (s *Server) portrayActive(p *portrait) {
	waits := make(map[string]int)
	s.sched.Sites(func(i sched.SiteInfo) bool {
		if name := nexthopOf(i.Queue); p.dest.Match(string(i.Transport), name, "") && i.Failed {
			waits[string(i.Transport)+" to "+i.Queue] += i.Waiting
		}
		return true
	})
	s.sched.Dests(func(d sched.Dest) bool {
		if d.Transport == sched.RetryTransport || d.Transport == sched.ErrorTransport || !p.dest.Match(string(d.Transport), string(d.Nexthop), "") {
			return true
		}
		name := string(d.Transport) + " to " + d.Queue
		n := waits[name]
		delete(waits, name)
		p.row(destText(&d, n))
		return true
	})
	names := make([]string, 0, len(waits))
	for name := range waits {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p.row(fmt.Sprintf("%s: had failed; %d deferred message(s) go as soon as it answers", name, waits[name]))
	}
	if p.rows > destRows {
		p.lines = append(p.lines, fmt.Sprintf("  and %d more destinations", p.rows-destRows))
	}
}

// nexthopOf is the next hop in a destination's name, which may be that of one mailbox.
func nexthopOf(queue string) string { return queue[strings.LastIndexByte(queue, '@')+1:] }

func (p *portrait) row(text string) {
	if p.rows++; p.rows <= destRows {
		p.lines = append(p.lines, "  "+text)
	}
}

// destText is one destination in words.
func destText(d *sched.Dest, waiting int) string {
	limit := "no limit"
	if d.Limit > 0 {
		limit = fmt.Sprintf("at most %d", d.Limit)
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
	text += threadText(d)
	if waiting > 0 {
		text += fmt.Sprintf("; %d deferred message(s) go as soon as it answers", waiting)
	}
	return text
}

// threadText is what there is to say of a destination with TRANSPORT_scheduler = thread.
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

// portrayQueue counts the mail for the domain, over several turns of the loop.
func (s *Server) portrayQueue(p *portrait) {
	p.cursor = s.sched.Scan(p.cursor, censusTurn, func(info sched.Info) bool {
		b := s.book.find(info.ID)
		switch {
		case b == nil:
			if m := s.messages[info.ID]; m != nil {
				if _, domains := m.domains(); domains != nil {
					n := 0
					for d, k := range domains {
						if p.dest.Match("", "", d) {
							n += k
						}
					}
					p.count(s, m, &info, n)
				}
			}
		case b.sender == 0:
			p.unread++
		default:
			n := 0
			s.book.eachDomain(b, info.Pending, func(id nameID, k int) {
				if p.dest.Match("", "", s.book.names.list[id].text) {
					n += k
				}
			})
			if n > 0 {
				p.count(s, s.book.message(b), &info, n)
			}
		}
		return true
	})
	if p.cursor != 0 {
		s.post(func() { s.portrayQueue(p) }, sched.Event{})
		return
	}
	p.away = s.away.deferred + s.away.hold
	s.tasks.Go(func() {
		p.r.Reply(&proto.ExplainReply{Lines: append([]string{p.head()}, append(p.lines, s.portrayReplies(p)...)...)})
	})
}

// count takes a message with n recipients in the domain in.
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
		if info.Next.Before(p.now.Add(time.Hour)) {
			p.due++
		}
	}
	if len(p.sample) < destSample {
		p.sample = append(p.sample, s.listed(m, *info, false))
	}
}

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

// portrayReplies says what the last attempts came to, of a sample. It reads the
// spool, and so is not for the loop.
func (s *Server) portrayReplies(p *portrait) (lines []string) {
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
		for text, at := range p.replies(l, st) {
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
	slices.SortFunc(texts, func(a, b string) int { return cmp.Or(found[b].n-found[a].n, strings.Compare(a, b)) })
	for _, text := range texts[:min(len(texts), destReplies)] {
		lines = append(lines, fmt.Sprintf("  last reply to %d of the first %d messages, at %s: %s", found[text].n, len(p.sample),
			found[text].last.Local().Format(time.DateTime), maillog.AppendClean(nil, []byte(text))))
	}
	if n := len(texts) - destReplies; n > 0 {
		lines = append(lines, fmt.Sprintf("  and %d other replies", n))
	}
	return lines
}

// replies are the different things that were last said of a message's
// recipients in the domain, and when.
func (p *portrait) replies(l *listed, st queueread.Stored) map[string]time.Time {
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
	for i, o := range l.last(outcomes) {
		if i >= len(rcpts) || m.isDone(i) || !p.dest.Match("", "", rfc5322.Domain(rcpts[i].Address)) {
			continue
		}
		text := o.Status.String() + " " + o.Why()
		if o.When.After(list[text]) {
			list[text] = o.When
		}
	}
	return list
}
