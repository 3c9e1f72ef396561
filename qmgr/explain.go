// "posthaste explain" for a message: why it is still here. The scheduler knows what
// recipients wait for, the spool knows what earlier attempts came to; this puts the two
// together, in words that an operator can act on.

package qmgr

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queueread"
	"posthaste/internal/rfc5322"
	"posthaste/qmgr/sched"
)

// explainRcpts bounds how many recipients of a message are named one by one.
const explainRcpts = 1000

// An explanation says why a message is still here: for groups of recipients
// what they wait for, and for each what was last said about it.
type explanation struct {
	head string
	// What each group of recipients waits for, one line for each, and the recipients of
	// the group by number; nil: all that no other group has.
	groups  []string
	members [][]int // of each group; nil: all that no other group has
	// A copy of what is needed of the message, for use outside the loop.
	m     *message
	rcpts map[int]string // addresses and outcomes in memory
	last  map[int]mail.Outcome
	// The queue that it was in when it was asked about.
	queue sched.Queue
	tried int      // how often
	rules *ruleset // in force; nil when none needs to be looked for
	named []*rule  // those that a group names already
	// further lines about rules that no group names, and about diversions
	paused []string
	at     time.Time
	starts time.Time // when it is to be tried first; zero: at once, or it was tried
}

// explain answers a request for a message. The loop collects what is in memory; what is
// on disk is read in a task.
func (s *Server) explain(r *ipc.Request, id mail.QueueID) {
	m := s.message(msgID(id))
	info, ok := s.sched.Lookup(msgID(id))
	// An empty answer says that the message is not in the queue: the tool words that.
	if m == nil || !ok {
		r.Reply(&proto.ExplainReply{})
		return
	}
	// m is cloned because the loop goes on to change it while the task reads.
	e := &explanation{m: &message{id: m.id, ref: m.ref, nrcpt: m.nrcpt, done: slices.Clone(m.done)}, queue: info.Queue, tried: info.Attempts,
		rcpts: make(map[int]string), last: make(map[int]mail.Outcome)}
	e.head = fmt.Sprintf("%s: %s queue since %s, %d octets, %d of %d recipients pending, tried %d times", m.id, info.Queue,
		info.Created.Format(time.DateTime), info.Size, info.Pending, m.nrcpt, info.Attempts)
	// A contradiction between queue manager and spool: after a restart the message may be
	// in another state than it seems.
	if why, ok := s.log.refused[m.id]; ok {
		e.head += "\n  a change of it is not recorded, and would not outlive a restart: " + why
	}
	for _, why := range s.sched.Explain(m.num) {
		line := fmt.Sprintf("  %d recipient(s)", why.Count)
		if why.Transport != "" {
			line += fmt.Sprintf(" via %s to %s", why.Transport, cmp.Or(string(why.Nexthop), why.Queue))
		}
		e.groups = append(e.groups, line+": "+s.reasonText(&why))
		e.members = append(e.members, why.Rcpts)
		if why.Wait == sched.WaitPause {
			e.named = append(e.named, s.ruleOf(why.Pause))
		}
	}
	// On hold, or being delivered, no rule is what keeps it.
	if info.Queue == sched.QueueDeferred || info.Queue == sched.QueueIncoming {
		e.rules, e.at = s.rules.set, s.now
	}
	// What came of this stay in the active queue is in memory only, until the message leaves
	// it. Recipients that have not been read yet have neither address nor outcome here.
	if a := m.active; a != nil {
		for i, o := range a.outcomes {
			e.last[i] = o
		}
		for i, rc := range a.rcpts {
			if rc != nil {
				e.rcpts[i] = rc.Address
			}
		}
	}
	s.tasks.Go(func() {
		s.lookUp(e)
		r.Reply(&proto.ExplainReply{Lines: e.lines()})
	})
}

// lookUp adds what is recorded with the message: addresses, and what came of earlier
// attempts. A message that has left meanwhile, or cannot be read, is explained without.
func (s *Server) lookUp(e *explanation) {
	st, err := s.opt.Open(s.ctx, e.m.ref, e.m.id)
	if err != nil {
		return
	}
	if env, err := st.Envelope(); err == nil && e.tried == 0 && env.SendAt.After(time.Now()) {
		e.starts = env.SendAt
	}
	// What cannot be read is left out; the log has it, since whoever delivers the message cannot
	// read it either.
	if outcomes, err := st.Outcomes(); err == nil {
		for _, o := range outcomes {
			// The loop's outcomes are of this stay in the active queue, the recorded ones
			// of earlier ones.
			if _, newer := e.last[o.Rcpt]; !newer && !e.m.isDone(o.Rcpt) {
				e.last[o.Rcpt] = o
			}
		}
	}
	if rcpts, err := st.Recipients(0, -1); err == nil {
		s.lookForRules(e, st, rcpts)
		s.lookForDiversions(e, st, rcpts)
		for i := range rcpts {
			if _, known := e.rcpts[i]; !known && !e.m.isDone(i) {
				e.rcpts[i] = rcpts[i].Address
			}
		}
	}
}

// lookForRules says which rules will keep a message waiting when it is next tried. The
// scheduler does not know of them yet, because the message was last looked at before the
// rule was made.
func (s *Server) lookForRules(e *explanation, st queueread.Stored, rcpts []mail.Recipient) {
	env, err := st.Envelope()
	if err != nil || e.rules == nil {
		return
	}
	counts := make(map[*rule]int)
	// A list of a hundred thousand recipients is explained by its first ones: where each goes must be
	// asked for.
	for i := range rcpts[:min(len(rcpts), explainRcpts)] {
		if e.m.isDone(i) {
			continue
		}
		transport, nexthop := s.whereTo(&env, rcpts[i].Address)
		m := mailOf(&env, transport, nexthop, rcpts[i].Address)
		if r := e.rules.find(&m, e.at); r != nil {
			counts[r]++
		}
	}
	for _, r := range e.rules.all() {
		if n := counts[r]; n > 0 && !slices.Contains(e.named, r) {
			e.paused = append(e.paused, fmt.Sprintf("  %d recipient(s) are not going to be tried: %s", n, r.text()))
		}
	}
}

// lookForDiversions says which recipients go, or are going to be tried, by another next hop than
// the configuration has, for now.
func (s *Server) lookForDiversions(e *explanation, st queueread.Stored, rcpts []mail.Recipient) {
	if s.rules.diversions.Load() == nil {
		return
	}
	// Without the envelope it is not known whose mail it is, and nothing is said of
	// diversions: the rest of the explanation does not depend on it.
	env, err := st.Envelope()
	if err != nil {
		return
	}
	counts := make(map[*rule]int)
	var order []*rule // that in which they were found
	for i := range rcpts[:min(len(rcpts), explainRcpts)] {
		if r := s.diversionFor(&env, rcpts[i].Address); r != nil && !e.m.isDone(i) {
			if counts[r]++; counts[r] == 1 {
				order = append(order, r)
			}
		}
	}
	for _, r := range order {
		e.paused = append(e.paused, fmt.Sprintf("  %d recipient(s) go another way: %s", counts[r], r.diversionText()))
	}
}

// lines is the whole answer: the head, rules, and each group with its recipients.
func (e *explanation) lines() []string {
	lines := append([]string{e.head}, e.paused...)
	// rest becomes what no group has named.
	rest := maps.Clone(e.rcpts)
	for _, list := range e.members {
		for _, i := range list {
			delete(rest, i)
		}
	}
	// Recipients that no group names are those of the group without members.
	left := slices.Sorted(maps.Keys(rest))
	for g, line := range e.groups {
		lines = append(lines, line)
		// One group has no members of its own: it stands for all that are left, which are
		// shown once, though a second such group should come.
		members := e.members[g]
		if members == nil {
			members, left = left, nil
		}
		for n, i := range members {
			if n == explainRcpts {
				lines = append(lines, fmt.Sprintf("    and %d more", len(members)-n))
				break
			}
			lines = append(lines, "    "+e.recipient(i))
		}
	}
	return lines
}

// recipient is one line about recipient i: its address and its last reply. Replies come
// from other systems, and are cleaned of control characters.
func (e *explanation) recipient(i int) string {
	addr, ok := e.rcpts[i]
	if !ok { // it has not been read, and the spool could not be asked
		addr = fmt.Sprintf("recipient %d", i)
	} else {
		addr = rfc5322.Quote(addr)
	}
	o, ok := e.last[i]
	// No reply means that it was not tried, whatever the message has gone through: a
	// recipient that was kept back by a limit or a suspension has none either.
	if !ok {
		if !e.starts.IsZero() {
			return addr + ": " + startsText(e.starts)
		}
		return addr + ": not tried yet"
	}
	text := fmt.Sprintf("%s: at %s %s: %s %s", addr, o.When.Format(time.DateTime), cmp.Or(o.Relay, "none"), o.Status,
		maillog.AppendClean(nil, []byte(o.Why())))
	var told []string
	for i := range o.Parts {
		// Members of an alias that have failed are not tried again, although the
		// recipient as a whole is.
		if p := &o.Parts[i]; p.Action == dsn.Failed && p.Told && p.More == 0 {
			told = append(told, rfc5322.Quote(p.Address))
		}
	}
	if len(told) > 0 {
		slices.Sort(told)
		text += fmt.Sprintf("; failed for good, and reported: %s", maillog.AppendClean(nil, []byte(strings.Join(slices.Compact(told), ", "))))
	}
	return text
}

// reasonText is a reason in words. Each Wait of the scheduler has a text here; those that
// are over as soon as they are seen share the last one.
func (s *Server) reasonText(why *sched.Reason) string {
	since := ""
	if !why.Since.IsZero() {
		since = " since " + why.Since.Format(time.DateTime)
	}
	until := why.Until.Format(time.DateTime)
	switch why.Wait {
	case sched.WaitDelivery:
		return "being delivered" + since
	case sched.WaitWindow:
		return fmt.Sprintf("waits%s for one of the %d deliveries to this destination to end%s", since, why.Limit, s.holder(why.By, ": that of ")) + s.limitedText(why)
	case sched.WaitProcess:
		return fmt.Sprintf("waits%s for one of the transport's %d deliveries to end", since, why.Limit)
	case sched.WaitJob:
		return "waits" + since + " for its turn" + s.holder(why.By, " behind message ")
	case sched.WaitPreempted:
		return "waits" + since + " while a smaller message passes" + s.holder(why.By, ": ")
	case sched.WaitRate:
		return "waits for the destination's rate delay until " + until
	case sched.WaitTransportRate:
		if why.Until.IsZero() {
			return "waits for the transport's rate delay: another delivery has its turn"
		}
		return "waits for the transport's rate delay until " + until
	case sched.WaitRead:
		return "are being read" + since + ", or wait for room in memory"
	case sched.WaitActive:
		return fmt.Sprintf("waits for one of the %d places in the active queue", why.Limit)
	case sched.WaitRetry:
		return "next attempt at " + until
	case sched.WaitSite:
		return siteText(why, until)
	case sched.WaitHold:
		return "on hold: postsuper -H releases it"
	case sched.WaitNotice:
		return "a notice to the sender is being made" + since
	case sched.WaitPause:
		text := "wait by somebody's choice that has just ended"
		if r := s.ruleOf(why.Pause); r != nil {
			text = "wait and are not tried: " + r.text()
		}
		if !why.Until.IsZero() {
			text += "; looked at again at " + until
		}
		return text
	case sched.WaitShared:
		return sharedText(why, since, until)
	case sched.WaitTenant:
		return "waits" + since + " while another tenant has its turn at the destination"
	case sched.WaitNode:
		if why.Gate != "" {
			return "wait for a share of the limit of " + why.Gate + ", which other nodes of the cluster have" + since
		}
		return "wait for a share of the destination's concurrency limit, which other nodes of the cluster have" + since
	case sched.WaitBeyond:
		text := "wait outside the active queue for the limit of " + why.Gate
		if !why.Until.IsZero() {
			text += "; next attempt at " + until + ", sooner when there is room"
		}
		return text
	case sched.WaitCommand:
		return "an operator's command waits for the deliveries under way to end"
	}
	return "about to be taken up"
}

// limitedText names the limit that an operator has set of the window that is waited for;
// "" when there is none.
func (s *Server) limitedText(why *sched.Reason) string {
	if r := limitOf(s.rules.limits, why.Transport, why.Nexthop); r != nil {
		return "; " + r.limitText()
	}
	return ""
}

// sharedText is reasonText for mail that waits for a limit which its destination shares.
func sharedText(why *sched.Reason, since, until string) string {
	switch {
	case why.Gate == "":
		return "waits" + since + " for its turn among the destinations of a shared limit"
	case why.Until.IsZero():
		return fmt.Sprintf("waits%s for one of the %d deliveries under the limit of %s to end", since, why.Limit, why.Gate)
	}
	return "waits" + since + " for the limit of " + why.Gate + " until " + until
}

// siteText is reasonText for mail that waits on account of a destination that failed.
func siteText(why *sched.Reason, until string) string {
	if why.Dead.IsZero() {
		return fmt.Sprintf("the destination had failed; next attempt at %s, sooner when it answers", until)
	}
	return fmt.Sprintf("the destination is considered dead until %s (%s %s); next attempt at %s, sooner when it answers",
		why.Dead.Format(time.DateTime), why.Status, why.Text, until)
}

// holder names the message that is in the way, behind before; "" when it is not known.
func (s *Server) holder(num sched.MsgID, before string) string {
	if m := s.message(num); m != nil {
		return before + string(m.id)
	}
	return ""
}
