// What the shell knows of a message, and its way in and out: arrive when cleanup tells of
// it, work when it is taken up, rest when it is deferred, forget when it has left the
// queue. The scheduler decides; here are the facts that its decisions are carried out
// with.

package qmgr

import (
	"slices"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// A message is what the shell knows of one message that is worked on, or, for
// a moment, of one that lies in the book (Server.message).
type message struct {
	// The queue ID, the number in it that the scheduler uses, and where the record lies.
	// cleanup moves records when it cleans segments, and says so (located).
	id  mail.QueueID
	num sched.MsgID
	ref queue.Ref
	// Of the envelope as it was queued. It does not shrink as recipients are done.
	nrcpt int32
	// The sender is empty: no report may be sent, whatever happens (RFC 5321 section 4.5.5).
	null bool
	// Recipients that need nothing more, as a bitmap like that of queue.Entry: what
	// cleanup has on disk, and what has been decided since. A recipient in it is never
	// ordered again.
	done []byte // bitmap of recipients that need nothing more, as in queue.Entry
	// The envelope as it came with the arrival, while it is not decoded; empty once all
	// recipients are in memory, and for mail that is read from the spool.
	inline inline
	// What was found out of it before it came, until it is taken up, or the next input is: see prepare.
	ready *loading
	// What only a message that is being worked on needs. nil before it is loaded for the
	// first time, so that a message that waits for its turn costs less.
	active *active
	// The scheduler has done with the message, and a last notice is being made (finish).
	finishing bool
	// cleanup does not have it any more, and nobody here has ordered that.
	vanished bool
	// It is not on stable storage; nil: it is.
	provision *provision
}

// active is what a message needs while it is in the active queue.
type active struct {
	env mail.Envelope // without recipients
	// When this stay in the active queue began: the delay before the queue manager in
	// delays=a/b/c/d ends here.
	since time.Time
	// Recipients by number; nil for one that is not read yet, or done.
	rcpts    []*rcpt // by number; nil: not read, or done
	complete bool    // all recipients have been read
	again    bool    // this is not the first attempt
	old      bool    // it is not from the incoming queue
	warned   bool    // the sender was told that the message is late
	aside    bool    // an operator holds or removes it: on record it is on hold
	// The latest failure of each recipient, deferred or bounced; nil: there are none. A
	// bounced recipient stays until the report to the sender is queued, a deferred one
	// until the message is deferred as a whole. An outcome replaces that of an earlier
	// attempt.
	outcomes map[int]mail.Outcome // latest failures: deferred and bounced, by recipient; nil: there are none
	// Outcomes that are good and that the sender is to be told of: NOTIFY=SUCCESS (RFC
	// 3461), or a report was asked for.
	success []mail.Outcome
	// Storage for the recipient of a message that has one, as most do.
	only [1]rcpt
	slot [1]*rcpt
}

// rcpt is recipient i, nil when it is not in memory.
func (a *active) rcpt(i int) *rcpt {
	if i < 0 || i >= len(a.rcpts) {
		return nil
	}
	return a.rcpts[i]
}

// noted keeps an outcome for the report, the record and "posthaste explain". The last one
// counts.
func (a *active) noted(o *mail.Outcome) {
	if a.outcomes == nil {
		a.outcomes = make(map[int]mail.Outcome)
	}
	a.outcomes[o.Rcpt] = *o
}

// A rcpt is a recipient in memory, with its address as resolved.
type rcpt struct {
	mail.Recipient
	// The address that trivial-rewrite has delivered to; Recipient.Address is what
	// cleanup made of the envelope.
	resolved string
	// The sender is rewritten on the way to it (SRS).
	rewrite bool
	// The delivery that it is part of, until its outcome is known; nil otherwise. It is
	// how an agent's outcome for a recipient that it was not given is recognized.
	order *delivery
}

// inline are the stored envelope and recipients of a message that came with
// its arrival, so that nothing needs to be read.
type inline struct{ envelope, recipients []byte }

func (in *inline) size() int { return len(in.envelope) + len(in.recipients) }

// msgID is the number by which the scheduler knows a message.
func msgID(id mail.QueueID) sched.MsgID { return sched.MsgID(id.Number()) }

// isDone says whether recipient i needs nothing more. The bitmap may be shorter than the
// recipients: those beyond it are pending.
func (m *message) isDone(i int) bool {
	return i/8 < len(m.done) && m.done[i/8]&(1<<(i%8)) != 0
}

// setDone notes that recipient i needs nothing more. It is not recorded by that
// (recorder.done).
func (m *message) setDone(i int) {
	for i/8 >= len(m.done) {
		m.done = append(m.done, 0)
	}
	m.done[i/8] |= 1 << (i % 8)
}

// through is setDone for a recipient whose outcome need not be kept either.
func (m *message) through(i int) {
	m.setDone(i)
	if m.active != nil {
		delete(m.active.outcomes, i)
		if i < len(m.active.rcpts) {
			m.active.rcpts[i] = nil
		}
	}
}

// message is what is known of a message; nil when nothing is. A message that is not
// worked on is described by a copy made of its slip. Changes to that are lost unless
// work, rest or located puts them back.
func (s *Server) message(num sched.MsgID) *message {
	if m := s.messages[num]; m != nil {
		return m
	}
	if p := s.book.find(num); p != nil {
		return s.book.message(p)
	}
	return nil
}

// knows says whether the message is in memory.
func (s *Server) knows(num sched.MsgID) bool {
	return s.messages[num] != nil || s.book.find(num) != nil
}

// work moves m from the book to the messages that are worked on, unless it is there.
func (s *Server) work(m *message) {
	if s.messages[m.num] == nil {
		s.book.drop(m.num)
		s.messages[m.num] = m
	}
}

// rest puts m into the book when nothing more is to be done with it for now. Its domains
// are still in memory at this point, so that qshape need not read them again.
func (s *Server) rest(m *message) {
	if s.messages[m.num] == nil {
		if p := s.book.find(m.num); p != nil {
			s.book.forgetDomains(p)
			s.book.setDone(p, m.done)
		}
		return
	}
	sender, domains := m.domains()
	campaign, aliased := m.campaign(), m.aliased()
	s.dropInline(m)
	m.active = nil
	delete(s.messages, m.num)
	created, _, _ := m.id.Parse()
	p := s.book.add(m.num, created, m.ref, int(m.nrcpt), m.null, m.done)
	if domains != nil {
		s.book.setDomains(p, sender, domains)
		s.book.setAliased(p, aliased)
		s.book.setCampaign(m.num, campaign)
	}
}

// campaignOf is how a campaign is named where there may be several tenants; "": it is none.
func campaignOf(env *mail.Envelope) string {
	if env.Campaign == "" {
		return ""
	}
	return env.Tenant + "/" + env.Campaign
}

// campaign is that of a message that is worked on, as far as it was read.
func (m *message) campaign() string {
	if m.active == nil {
		return ""
	}
	return campaignOf(&m.active.env)
}

// forget drops a message that has left the queue, or that need not be in memory.
func (s *Server) forget(m *message) {
	s.dropInline(m)
	delete(s.messages, m.num)
	delete(s.verdicts, m.num)
	s.book.drop(m.num)
}

// vanish drops a message that cleanup does not have any more, and nobody here has ordered that.
func (s *Server) vanish(m *message) {
	s.work(m) // what rests forgets the mark
	m.vanished = true
	s.then(sched.Event{Kind: sched.EventRemove, Scope: sched.ScopeMessage, ID: m.num})
}

// located notes where a message lies now.
func (s *Server) located(num sched.MsgID, ref queue.Ref) {
	if m := s.messages[num]; m != nil {
		m.ref = ref
	} else if p := s.book.find(num); p != nil {
		p.setRef(ref)
	}
}

// domains are the domains of m's pending recipients, and how many are in each;
// nil when not all recipients are in memory.
func (m *message) domains() (sender string, list map[string]int) {
	switch a := m.active; {
	case a != nil && a.complete:
		list = make(map[string]int, 1)
		for i, r := range a.rcpts {
			if r != nil && !m.isDone(i) {
				list[domainOf(r.Address)]++
			}
		}
		return a.env.Sender, list
	case m.inline.envelope != nil:
		var env mail.Envelope
		rcpts, err := mail.DecodeRecipients(nil, m.inline.recipients, 0, -1)
		if err != nil || env.Decode(m.inline.envelope) != nil {
			return "", nil
		}
		return env.Sender, m.count(rcpts)
	}
	return "", nil
}

// aliased says whether a recipient's address was in another domain before aliases, as far as recipients are in memory.
func (m *message) aliased() bool {
	if m.active != nil && m.active.complete {
		return slices.ContainsFunc(m.active.rcpts, func(r *rcpt) bool { return r != nil && movedDomain(&r.Recipient) })
	}
	rcpts, err := mail.DecodeRecipients(nil, m.inline.recipients, 0, -1)
	return err == nil && anyAliased(rcpts)
}

func anyAliased(rcpts []mail.Recipient) bool {
	return slices.ContainsFunc(rcpts, func(r mail.Recipient) bool { return movedDomain(&r) })
}

// movedDomain says whether a recipient's address was in another domain before aliases.
func movedDomain(r *mail.Recipient) bool {
	return r.Original != "" && domainOf(r.Original) != domainOf(r.Address)
}

// count counts pending recipients by domain, given all.
func (m *message) count(rcpts []mail.Recipient) map[string]int {
	list := make(map[string]int, 1)
	for i := range rcpts {
		if !m.isDone(i) {
			list[domainOf(rcpts[i].Address)]++
		}
	}
	return list
}

// maxInline bounds the octets of envelopes that are kept for messages that
// wait to be taken up. Others are read from the spool when they are.
const maxInline = 16 << 20

// dropInline makes room for the envelopes of other messages.
func (s *Server) dropInline(m *message) {
	s.inlined -= m.inline.size()
	m.inline = inline{}
}

// arrive makes a message known that cleanup has told of. One that is known already is
// only told where it lies now: cleanup tells again after a restart, and when a page names
// the message.
//
// conn is where it was told, and l what was found out of it on the way; nil: nothing.
func (s *Server) arrive(e *proto.Entry, conn *ipc.Conn, l *loading) {
	// Whoever does not take it gives it back.
	defer func() {
		if l != nil {
			s.release(l)
		}
	}()
	created, n, err := e.ID.Parse()
	num := sched.MsgID(n)
	// An entry may have been sent before cleanup knew of a removal that has been decided
	// here.
	fresh := num > s.highest // as nearly always: then nothing needs to be looked for
	if err != nil || num == 0 || e.Queue == queue.Corrupt || !fresh && s.log.departs(num, e.ID) {
		return
	}
	s.highest = max(s.highest, num)
	if !fresh && s.knows(num) {
		s.located(num, e.Ref)
		if !e.Provisional {
			s.kept(num)
		}
		return
	}
	// What was in the incoming queue at the start came to a former queue manager.
	if e.Queue == queue.Incoming && !created.Before(s.seen.totals.Since) {
		s.seen.totals.In++
	}
	in := inline{e.Envelope, e.Recipients}
	if len(e.Envelope) > 0 && s.inlined+in.size() <= maxInline {
		s.inlined += in.size()
		m := &message{id: e.ID, num: num, ref: e.Ref, nrcpt: int32(e.NRcpt), null: e.Null, done: e.Done, inline: in}
		s.messages[num] = m
		if e.Provisional {
			s.provisional(m, conn)
		}
		if l != nil {
			m.ready, l = l, nil
			s.readied = append(s.readied, m)
		}
	} else {
		s.book.add(num, created, e.Ref, e.NRcpt, e.Null, e.Done)
		if e.Provisional { // there is no room for the envelope: it will take a while
			s.log.keep(num, e.ID)
		}
	}
	s.then(sched.Event{Kind: sched.EventQueued, ID: num, Arrival: arrivalOf(e, created)})
	// Behind EventQueued, which is only queued: the scheduler gets the message with these
	// recipients still pending, and counts again when it is loaded.
	if len(s.early) > 0 {
		for _, f := range s.early[num] {
			s.finished(f)
		}
		delete(s.early, num)
	}
}

// arrivalOf is what the scheduler is told of a message that cleanup has told of.
func arrivalOf(e *proto.Entry, created time.Time) sched.Arrival {
	a := sched.Arrival{Queue: sched.QueueIncoming, Created: created, Next: e.NextAttempt, Size: e.Size,
		Rcpts: e.NPending, Attempts: e.Attempts, Tenant: e.Tenant}
	switch e.Queue {
	case queue.Deferred:
		a.Queue = sched.QueueDeferred
	case queue.Hold:
		a.Queue = sched.QueueHold
	}
	a.Flags = flagIf(e.Null, sched.FlagNullSender) | flagIf(e.Warned, sched.FlagWarned) |
		flagIf(e.Expire, sched.FlagExpire) | flagIf(e.Trace != 0, sched.FlagNoDelayNotice) |
		// The report is one of the first attempt.
		flagIf(e.Trace&(mail.TraceReport|mail.TraceRecord) != 0 && e.Attempts == 0, sched.FlagTrace)
	return a
}

// flagIf is f when on, else no flag.
func flagIf(on bool, f sched.Flags) sched.Flags {
	if on {
		return f
	}
	return 0
}

// deferRcpts records and logs a reason that no agent was needed to find out. It stands in
// for the retry service.
func (s *Server) deferRcpts(m *message, e *sched.Effect) {
	for _, i := range e.Rcpts {
		o := mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: e.Status, Reason: e.Reason, Relay: "none", When: s.now}
		m.active.heed(&o)
		if r := m.active.rcpt(i); r != nil {
			s.logDelivery(m.id, r.Recipient, &m.active.env, m.active.since, o)
		}
	}
}

// deferMessage records what is left of a message and when it is due, and lets go of what
// only an active message needs. Outcomes go with it: they are what mailq shows and what
// the next stay begins with.
func (s *Server) deferMessage(m *message, e *sched.Effect) {
	op := proto.Op{Change: queue.Change{Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts,
		Queue: queue.Deferred, NextAttempt: e.Next, Attempts: e.Attempts}}
	if e.Warned {
		op.Set |= queue.SetWarned
		op.Warned = true
	}
	if m.active != nil {
		op.Outcomes = m.active.pendingOutcomes(m)
	}
	s.log.update(m, op)
	s.rest(m)
}

// out says whether an agent has recipient i in hand. What was said of it is then of an
// earlier attempt, and is on stable storage already.
func (a *active) out(i int) bool {
	r := a.rcpt(i)
	return r != nil && r.order != nil && (r.order.sent || r.order.awaits > 0)
}

// pendingOutcomes are the last failures of recipients that still are to get the message
// and that no agent has in hand, in the order of the recipients.
func (a *active) pendingOutcomes(m *message) []mail.Outcome {
	var out []mail.Outcome
	for i := 0; i < int(m.nrcpt) && len(out) < len(a.outcomes); i++ {
		if o, ok := a.outcomes[i]; ok && !m.isDone(i) && !a.out(i) {
			out = append(out, o)
		}
	}
	return out
}

// moveTo records that a message is in another queue: on hold, deferred again, or set
// aside as corrupt. next is when it is due; zero: never, or at once.
func (s *Server) moveTo(m *message, q queue.Name, next time.Time) {
	op := proto.Op{Change: queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: q, NextAttempt: next}}
	if m.active != nil {
		op.Outcomes = m.active.pendingOutcomes(m)
	}
	s.log.update(m, op)
	s.rest(m)
}
