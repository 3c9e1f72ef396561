package qmgr

import (
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spool"
	"posthaste/qmgr/sched"
)

// A message is what the shell knows of one message in the queue. There may be
// a million of them, so what is only needed while the message is active hangs
// off one pointer.
type message struct {
	id     mail.QueueID
	ref    spool.Ref
	nrcpt  int32
	null   bool
	done   []byte // bitmap of recipients that need nothing more, as in spool.Entry
	active *active
	// finishing: the scheduler has done with the message, and a last notice is
	// being made.
	finishing bool
}

// active is what a message needs while it is in the active queue.
type active struct {
	env      mail.Envelope // without recipients
	since    time.Time
	rcpts    map[int]*rcpt
	outcomes map[int]mail.Outcome // latest failures: deferred and bounced, by recipient
	success  []mail.Outcome       // to be reported: NOTIFY=SUCCESS, or a report was asked for
	inline   *inline
}

// A rcpt is a recipient in memory, with its address as resolved.
type rcpt struct {
	mail.Recipient
	resolved string
}

// inline are the stored envelope and recipients of a message that came with
// its arrival, so that nothing needs to be read.
type inline struct{ envelope, recipients []byte }

func msgID(id mail.QueueID) sched.MsgID { return sched.MsgID(id.Number()) }

func (m *message) num() sched.MsgID { return msgID(m.id) }

func (m *message) isDone(i int) bool {
	return i/8 < len(m.done) && m.done[i/8]&(1<<(i%8)) != 0
}

func (m *message) setDone(i int) {
	for i/8 >= len(m.done) {
		m.done = append(m.done, 0)
	}
	m.done[i/8] |= 1 << (i % 8)
}

// arrive makes a message known. It is the loop's answer to an entry pushed by
// cleanup; one that is known already is only told where it lies now.
func (s *Server) arrive(e *proto.Entry) {
	num := msgID(e.ID)
	if num == 0 || e.Queue == spool.Corrupt || s.log.removing(e.ID) {
		return
	}
	if m := s.messages[num]; m != nil {
		m.ref = e.Ref
		return
	}
	created, _, err := e.ID.Parse()
	if err != nil {
		return
	}
	m := &message{id: e.ID, ref: e.Ref, nrcpt: int32(e.NRcpt), null: e.Null, done: e.Done}
	if len(e.Envelope) > 0 {
		m.active = &active{inline: &inline{e.Envelope, e.Recipients}}
	}
	s.messages[num] = m
	a := sched.Arrival{Queue: sched.QueueIncoming, Created: created, Next: e.NextAttempt, Size: e.Size,
		Rcpts: e.NPending, Attempts: e.Attempts}
	switch e.Queue {
	case spool.Deferred:
		a.Queue = sched.QueueDeferred
	case spool.Hold:
		a.Queue = sched.QueueHold
	}
	a.Flags = flagIf(e.Null, sched.FlagNullSender) | flagIf(e.Warned, sched.FlagWarned) |
		flagIf(e.Expire, sched.FlagExpire) | flagIf(e.Trace != 0, sched.FlagNoDelayNotice) |
		flagIf(e.Trace&(mail.TraceReport|mail.TraceRecord) != 0, sched.FlagTrace)
	s.then(sched.Event{Kind: sched.EventQueued, ID: num, Arrival: a})
}

func flagIf(on bool, f sched.Flags) sched.Flags {
	if on {
		return f
	}
	return 0
}

// deferRcpts records a reason that needs no agent to find out.
func (s *Server) deferRcpts(m *message, e *sched.Effect) {
	for _, i := range e.Rcpts {
		o := mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: e.Status, Reason: e.Reason, Relay: "none", When: s.now}
		m.active.outcomes[i] = o
		if r := m.active.rcpts[i]; r != nil {
			s.logDelivery(m.id, r.Recipient, &m.active.env, m.active.since, o)
		}
	}
}

// deferMessage records what is left of a message and when it is due, and lets
// go of what only an active message needs.
func (s *Server) deferMessage(m *message, e *sched.Effect) {
	op := proto.Op{Set: spool.SetQueue | spool.SetNextAttempt | spool.SetAttempts,
		Queue: spool.Deferred, NextAttempt: e.Next, Attempts: e.Attempts}
	if e.Warned {
		op.Set |= spool.SetWarned
		op.Warned = true
	}
	if m.active != nil {
		op.Outcomes = m.active.pendingOutcomes(m)
		m.active = nil
	}
	s.log.update(m, op)
}

// pendingOutcomes are the last failures of recipients that are still to get
// the message, in order.
func (a *active) pendingOutcomes(m *message) []mail.Outcome {
	var out []mail.Outcome
	for i := 0; i < int(m.nrcpt) && len(out) < len(a.outcomes); i++ {
		if o, ok := a.outcomes[i]; ok && !m.isDone(i) {
			out = append(out, o)
		}
	}
	return out
}

// moveTo records that a message is in another queue.
func (s *Server) moveTo(m *message, q spool.Queue, next time.Time) {
	op := proto.Op{Set: spool.SetQueue | spool.SetNextAttempt, Queue: q, NextAttempt: next}
	if m.active != nil {
		op.Outcomes = m.active.pendingOutcomes(m)
		m.active = nil
	}
	s.log.update(m, op)
}
