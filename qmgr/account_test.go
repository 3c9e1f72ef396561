package qmgr

import (
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
)

// What holds whatever a test has happen. Of each answer of an agent the stage takes note, and compares with it
// what is ordered later, what is recorded, and what senders are told.

// A saying is what an agent has answered of one recipient.
type saying struct {
	id     mail.QueueID
	rcpt   int
	null   bool // there is no sender
	notify bool // who wants to hear of success
	trace  bool // or of what comes of it, whatever that is
	out    mail.Outcome
}

// note takes note of what an agent answers.
func (st *stage) note(o *order, outcomes []mail.Outcome) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, out := range outcomes {
		x := saying{id: o.Envelope.ID, rcpt: out.Rcpt, null: o.Envelope.Sender == "", out: out, trace: o.Envelope.Trace != 0}
		if i := slices.Index(o.Index, out.Rcpt); i >= 0 {
			x.notify = o.Envelope.Recipients[i].Notify.Success()
		}
		st.said = append(st.said, x)
	}
}

// examine looks at an order: it has each recipient once, and nobody who has the message.
func (st *stage) examine(o *order) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if len(o.Index) == 0 || len(o.Index) != len(o.Envelope.Recipients) {
		st.t.Errorf("an order for %d recipients names %d", len(o.Envelope.Recipients), len(o.Index))
	}
	if o.Active.IsZero() {
		st.t.Errorf("an order does not say since when its message is active: %+v", o.Deliver)
	}
	seen := make(map[int]bool)
	for _, i := range o.Index {
		if seen[i] {
			st.t.Errorf("an order names recipient %d twice: %v", i, o.Index)
		}
		seen[i] = true
		if slices.ContainsFunc(st.said, func(x saying) bool { return x.id == o.Envelope.ID && x.rcpt == i && good(&x.out) }) {
			st.t.Errorf("%s is ordered again for recipient %d, who has it", o.Envelope.ID, i)
		}
	}
}

// good says that the recipient has the message.
func good(o *mail.Outcome) bool { return o.Action.Final() && o.Action != dsn.Failed }

// remains says what the queue manager still keeps of work that is over; "" is nothing. It is called by the loop.
func (s *Server) remains() string {
	var list []string
	for name, n := range map[string]int{
		"loads of new mail have their turn": s.turns, "recipients are prepared": int(s.aheadRcpts.Load()), "batches take room": len(s.room),
		"verdicts of former deliveries are kept": len(s.verdicts), "removals are remembered": len(s.log.gone) + len(s.log.late),
		"messages may be told twice": len(s.log.spoken), "deliveries are to be recorded": len(s.log.handed),
		"removals are not logged": len(s.log.leaving), "requests are not answered": len(s.log.unacked),
		"pages are wanted": len(s.away.reads), "messages are wanted back": len(s.away.recalls),
		"former deliveries go on": len(s.formers), "messages are prepared": len(s.readied),
	} {
		if n != 0 {
			list = append(list, fmt.Sprintf("%d %s", n, name))
		}
	}
	for t, a := range s.agents {
		if a.pending != 0 || len(a.waiting) != 0 {
			list = append(list, fmt.Sprintf("of agent %s %d orders are out, and %d wait", t, a.pending, len(a.waiting)))
		}
		if a.conn != nil && s.reap.IsZero() {
			list = append(list, fmt.Sprintf("the connection to agent %s is never closed", t))
		}
	}
	if len(s.entries) > 0 && s.watchAt.IsZero() && s.opt.Settings.DeliveryTime > 0 {
		list = append(list, "nobody looks for deliveries that hang")
	}
	slices.Sort(list)
	return strings.Join(list, "; ")
}

// accounts says what agents have answered that is not recorded, or not told the sender, or told twice; "" is nothing.
func (st *stage) accounts() string {
	st.mu.Lock()
	defer st.mu.Unlock()
	var list []string
	for i := range st.said {
		x := &st.said[i]
		if why := st.account(x, st.said[i+1:]); why != "" {
			list = append(list, fmt.Sprintf("%s, recipient %d, %q: %s", x.id, x.rcpt, x.out.Reason, why))
		}
	}
	return strings.Join(list, "\n")
}

// account says what is wrong with what was made of an answer, behind which others came.
func (st *stage) account(x *saying, later []saying) string {
	done, outcome := st.recorded(x)
	again := slices.ContainsFunc(later, func(y saying) bool { return y.id == x.id && y.rcpt == x.rcpt })
	switch {
	case x.id == st.contra || x.id == st.kept || x.id == st.vanished || again || x.trace:
		return ""
	case x.out.Action == dsn.Deferred:
		if !done && outcome != x.out.Reason {
			return fmt.Sprintf("recorded is %q", outcome)
		}
		return ""
	case !done && (!x.notify || outcome != x.out.Reason):
		return "it is not recorded that nothing is to be done for it"
	}
	want := 0
	if x.out.Action == dsn.Failed || x.notify && good(&x.out) {
		want = 1
	}
	if n := st.told(x); n != want && !x.null {
		return fmt.Sprintf("the sender is told %d times, not %d", n, want)
	}
	return ""
}

// recorded is what is on record of who is meant: that it is done, or why it is not.
func (st *stage) recorded(x *saying) (done bool, outcome string) {
	for i := range st.ops {
		op := &st.ops[i]
		if op.ID != x.id {
			continue
		}
		done = done || op.Remove || slices.Contains(op.Done, x.rcpt)
		for j := range op.Outcomes {
			if op.Outcomes[j].Rcpt == x.rcpt {
				outcome = op.Outcomes[j].Reason
			}
		}
	}
	return done, outcome
}

// told is how many notices that were made say this of the recipient.
func (st *stage) told(x *saying) (n int) {
	for i := range st.notices {
		if m := &st.notices[i]; m.ID == x.id && m.Notice != proto.NoticeDelay && !slices.Contains(st.failed, i) {
			for j := range m.Outcomes {
				if o := &m.Outcomes[j]; o.Rcpt == x.rcpt && o.Action == x.out.Action {
					n++
				}
			}
		}
	}
	return n
}
