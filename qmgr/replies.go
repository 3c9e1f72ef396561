// What the hosts of destinations answer, as shares of the sessions of the last minutes
// (package replyshare), and how much has come in and gone out. Both are made of what agents
// report, are in memory only, and are for those who look: nothing is decided by them.

package qmgr

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"posthaste/internal/course"
	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/pace"
	"posthaste/internal/proto"
	"posthaste/internal/replyshare"
	"posthaste/qmgr/sched"
)

// explainedReplies is how many groups of replies of a destination "posthaste explain" tells.
const explainedReplies = 3

// seen is what the loop has seen of deliveries.
type seen struct {
	// What the hosts of each next hop answer, by hopName. It is bounded, however many next hops
	// there are.
	replies replyshare.Book
	// How they take mail, by the same names: forecasts are made of it.
	pace pace.Book
	// How they have fared by the minute, which operators look at.
	course course.Book
	// How much has come and gone since the start; the start is in it.
	totals proto.Totals
}

// hopName names a next hop of a transport in the book of replies. Next hops are compared
// without letter case, as destinations are.
func hopName(transport mail.Transport, nexthop mail.Nexthop) string {
	return string(transport) + ":" + strings.ToLower(string(nexthop))
}

// replied is what a report of an agent says of where the delivery went: by which name that is in the books, and the answer
// that most recipients got. To read it out of a reply needs nothing of the loop's.
type replied struct {
	name    string // empty: nothing has been read
	answer  replyshare.Answer
	example string
}

// read reads it. A delivery is not changed, in what this looks at, once it is ordered.
func (r *replied) read(d *delivery, reply *proto.DeliverReply) {
	// What these two transports report was never said by a host now.
	if d.transport == sched.RetryTransport || d.transport == sched.ErrorTransport || len(reply.Outcomes) == 0 {
		return
	}
	r.name = hopName(d.transport, d.nexthop)
	r.answer, r.example = answerOf(reply.Outcomes)
}

// note counts what came of a delivery. It is called once for each order that ends with a report,
// also for one whose message has left the queue meanwhile: the host has answered all the same.
// read is what replied.read has found; nil: it was not called.
func (s *Server) note(d *delivery, reply *proto.DeliverReply, read *replied) {
	for i := range reply.Outcomes {
		switch reply.Outcomes[i].Action {
		case dsn.Deferred:
			s.seen.totals.Deferred++
		case dsn.Failed:
			s.seen.totals.Bounced++
		default:
			s.seen.totals.Sent++
		}
	}
	s.countStanding(d, reply)
	if read == nil {
		read = new(replied)
		read.read(d, reply)
	}
	if read.name == "" {
		return
	}
	s.watchReplies(d, reply)
	s.measurePace(d, reply, read.name)
	s.follow(d, reply, read.name)
	s.seen.replies.Add(s.now, read.name, read.answer, read.example)
}

// turnedAway says whether the destination took no part in a delivery, or wanted less.
func turnedAway(reply *proto.DeliverReply) bool {
	return !reply.SiteStatus.IsZero() && !reply.SitePartly
}

// follow adds a delivery that has ended to the course of its destination. What the scheduler has of that is
// looked at once a minute: between two looks the window makes many small steps, which nobody wants to see.
func (s *Server) follow(d *delivery, reply *proto.DeliverReply, name string) {
	st := s.seen.course.Add(s.now, name, course.Session{Took: s.now.Sub(d.since), Away: turnedAway(reply), Opened: reply.Opened, Security: reply.Security})
	if st == nil {
		return
	}
	// A delivery whose order was given by an earlier queue manager has an entry as well. One that has none is of no
	// window, and the minute has zeros.
	if x, ok := s.sched.To(d.entry); ok {
		*st = course.State{Window: int32(x.Window), Limit: int32(x.Limit), Busy: int32(x.Busy), Todo: int32(x.Todo), Positive: int32(100 * x.Success), Negative: int32(100 * x.Failure)}
	}
}

// addCourse adds how a destination has fared.
func (s *Server) addCourse(d *proto.DestInfo, now time.Time) {
	c := s.seen.course.Of(hopName(mail.Transport(d.Transport), mail.Nexthop(d.Nexthop)))
	// The last sessions of a destination may be long ago: its chart would end there, and say nothing of now.
	if c == nil {
		return
	}
	for _, m := range c.Minutes(now.Add(-course.MaxMinutes * time.Minute)) {
		d.Course = append(d.Course, proto.CourseMinute{At: m.Begin(), Window: int(m.Window), Limit: int(m.Limit), Busy: int(m.Busy), Todo: int(m.Todo), Positive: int(m.Positive), Negative: int(m.Negative),
			Sessions: int(m.Sessions), Away: int(m.Away), Opened: int(m.Opened), Took: m.Took})
	}
	for _, x := range c.Securities() {
		// A server may write anything into what it calls itself, but not into these words: they are ours.
		d.Securities = append(d.Securities, proto.Security{Text: x.Text, Connections: x.Connections, Last: x.Last})
	}
}

// measurePace counts how long a delivery took that has ended, while how many went on.
func (s *Server) measurePace(d *delivery, reply *proto.DeliverReply, name string) {
	p := pace.Delivery{Took: s.now.Sub(d.since), Busy: s.sched.Under(d.entry), Away: turnedAway(reply), Rcpts: len(reply.Outcomes)}
	if m := s.messages[d.num]; m != nil && m.active != nil {
		p.Again = m.active.again
	}
	for i := range reply.Outcomes {
		switch reply.Outcomes[i].Action {
		case dsn.Deferred:
			p.Later++
		case dsn.Failed:
			p.Failed++
		}
	}
	s.seen.pace.Add(s.now, name, p)
}

// answerOf is the answer that most recipients of a delivery got, and the reply that was it. Of
// several that as many got it is the first.
func answerOf(outcomes []mail.Outcome) (replyshare.Answer, string) {
	// One recipient, or the same for all, is the rule.
	first, example := answerTo(&outcomes[0])
	if len(outcomes) == 1 {
		return first, example
	}
	counts := map[replyshare.Answer]int{first: 1}
	best, most := first, 1
	for i := range outcomes[1:] {
		a, text := answerTo(&outcomes[i+1])
		if counts[a]++; counts[a] > most {
			best, most, example = a, counts[a], text
		}
	}
	return best, example
}

// answerTo is what the host, or nobody, has said of a recipient.
func answerTo(o *mail.Outcome) (replyshare.Answer, string) {
	if o.Action != dsn.Deferred && o.Action != dsn.Failed {
		return replyshare.Accept(), ""
	}
	// What the log says around the reply is no part of it.
	text := o.Reason
	if o.DiagType == "smtp" && o.DiagText != "" {
		text = o.DiagText
	}
	return replyshare.Parse(text), text
}

// addReplies adds what the hosts of a destination answer.
func (s *Server) addReplies(d *proto.DestInfo, now time.Time) {
	shares := s.seen.replies.Of(now, hopName(mail.Transport(d.Transport), mail.Nexthop(d.Nexthop)))
	d.Span, d.Sessions, d.Others = replyshare.Span, shares.Sessions, shares.Others
	for i := range shares.Groups {
		g := &shares.Groups[i]
		d.Replies = append(d.Replies, proto.ReplyGroup{Sessions: g.Sessions, Accepted: g.Accepted, Code: g.Code, Status: g.Status, Text: g.Text, Example: g.Example, Last: g.Last})
	}
}

// destInfos are the destinations that a question means, each next hop once: those in memory, and
// then those of which only replies are remembered. It runs in the loop.
func (s *Server) destInfos(now time.Time, means func(transport, nexthop string) bool) (list []proto.DestInfo) {
	// Places in list, by hopName. A transport that delivers to one recipient at a time has a
	// destination for each mailbox of a next hop, and they are told together.
	known := make(map[string]int)
	s.sched.Dests(func(d sched.Dest) bool {
		if d.Transport == sched.RetryTransport || d.Transport == sched.ErrorTransport || !means(string(d.Transport), string(d.Nexthop)) {
			return true
		}
		name := hopName(d.Transport, d.Nexthop)
		if at, ok := known[name]; ok { // a mailbox of its own
			list[at].Busy += d.Busy
			list[at].Todo += d.Todo
			return true
		}
		if len(list) >= destRows {
			return true
		}
		known[name] = len(list)
		list = append(list, s.destInfo(&d))
		return true
	})
	// A destination is forgotten by the scheduler with its last delivery, but what its hosts have
	// said in the last minutes is of interest still.
	for name := range s.seen.replies.Names {
		transport, nexthop, _ := strings.Cut(name, ":")
		if _, ok := known[name]; !ok && len(list) < destRows && means(transport, nexthop) {
			list = append(list, proto.DestInfo{Transport: transport, Nexthop: nexthop})
		}
	}
	for i := range list {
		s.addReplies(&list[i], now)
	}
	return slices.DeleteFunc(list, func(d proto.DestInfo) bool { return d.State == "" && d.Sessions == 0 })
}

// destInfo is a destination of the scheduler's in numbers.
func (s *Server) destInfo(d *sched.Dest) proto.DestInfo {
	info := proto.DestInfo{Transport: string(d.Transport), Nexthop: string(d.Nexthop), State: destState(d.State), Window: d.Window, Limit: d.Limit, Busy: d.Busy, Todo: d.Todo,
		Set: limitOf(s.rules.limits, d.Transport, d.Nexthop) != nil}
	// A destination that is ready has no end of that, and its window says the rest.
	if d.State != sched.DestReady {
		info.Until = d.Until
	}
	if d.State == sched.DestDead {
		info.Why = string(maillog.AppendClean(nil, []byte(d.Status.String()+" "+d.Text)))
	}
	return info
}

// repliesText are lines about what the hosts of a destination answer, most frequent first.
func repliesText(d *proto.DestInfo) (lines []string) {
	shares, all := replyshare.Shares{Sessions: d.Sessions}, fmt.Sprint(d.Sessions, " sessions")
	if d.Sessions == 1 {
		all = "1 session"
	}
	for i := range d.Replies[:min(len(d.Replies), explainedReplies)] {
		g := &d.Replies[i]
		text := "accepted"
		if !g.Accepted {
			text = strings.TrimSpace(fmt.Sprintf("%s %s", g.Status, g.Text))
			if g.Code > 0 {
				text = fmt.Sprintf("%d %s", g.Code, text)
			}
		}
		lines = append(lines, fmt.Sprintf("  %s to %s, last %d min: %d %% of %s: %s", d.Transport, d.Nexthop, int(d.Span/time.Minute), shares.Percent(g.Sessions), all, text))
	}
	return lines
}
