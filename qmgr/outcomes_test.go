package qmgr

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/qmgr/sched"
)

// What becomes of a recipient by what its agent has said, and by who wants to hear of it: it is done, or to be tried again, or its sender is
// to be told first. What must not be forgotten till then is recorded.
func TestOutcomesSorted(t *testing.T) {
	t.Parallel()
	const success, never = dsn.NotifySuccess, dsn.NotifyNever
	good := mail.Outcome{Action: dsn.Delivered, Status: dsn.S(2, 0, 0), Reason: "250 ok"}
	passed := mail.Outcome{Action: dsn.Relayed, Status: dsn.S(2, 0, 0), Passed: true}
	later := mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: "450 later"}
	fails := mail.Outcome{Action: dsn.Failed, Status: dsn.S(5, 1, 1), Reason: "550 no"}
	halfGood := mail.Outcome{Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: "450 later", Parts: []mail.Part{{Address: "x", Action: dsn.Delivered, Status: dsn.S(2, 0, 0)}, {Address: "y", Action: dsn.Deferred, Status: dsn.S(4, 2, 0)}}}
	partFails := mail.Outcome{Action: dsn.Failed, Status: dsn.S(5, 1, 1), Parts: []mail.Part{{Address: "x", Action: dsn.Failed, Status: dsn.S(5, 1, 1)}}}
	told := mail.Outcome{Action: dsn.Failed, Status: dsn.S(5, 1, 1), Parts: []mail.Part{{Address: "x", Action: dsn.Failed, Status: dsn.S(5, 1, 1), Told: true}}}
	for name, c := range map[string]struct {
		out            mail.Outcome
		notify         dsn.Notify
		trace          mail.Trace
		warned, again  bool
		sender         string
		done, deferred bool // the recipient
		success, fails bool // the sender is to be told
		recorded       bool // the outcome
	}{
		"delivered":                      {out: good, sender: "s@x", done: true},
		"passed on":                      {out: passed, sender: "s@x", done: true},
		"asked for":                      {out: good, notify: success, sender: "s@x", success: true, recorded: true},
		"asked for, of the next system":  {out: passed, notify: success, sender: "s@x", done: true},
		"the delay is over":              {out: good, warned: true, sender: "s@x", success: true, recorded: true},
		"the delay is over, for nobody":  {out: good, warned: true, done: true},
		"the delay is nobody's business": {out: good, notify: never, warned: true, sender: "s@x", done: true},
		"a report":                       {out: passed, trace: mail.TraceReport, sender: "s@x", success: true, recorded: true},
		"a report of the second attempt": {out: good, trace: mail.TraceReport, again: true, sender: "s@x", done: true},
		"deferred":                       {out: later, sender: "s@x", deferred: true},
		"deferred, a report":             {out: later, trace: mail.TraceReport, sender: "s@x", deferred: true, success: true},
		"deferred, asked for success":    {out: later, notify: success, sender: "s@x", deferred: true},
		"an alias in part":               {out: halfGood, notify: success, sender: "s@x", deferred: true, success: true},
		"an alias in part, not asked":    {out: halfGood, sender: "s@x", deferred: true},
		"an alias in part, traced":       {out: halfGood, notify: success, trace: mail.TraceReport, again: true, sender: "s@x", deferred: true},
		"failed":                         {out: fails, sender: "s@x", fails: true},
		"failed, a member":               {out: partFails, sender: "s@x", fails: true, recorded: true},
		"failed, all told":               {out: told, sender: "s@x", done: true},
	} {
		s, _ := still(t)
		s.opt.Settings.ConfirmCleared = true
		m := s.aMessage(3)
		d := &delivery{entry: 1, num: m.num, rcpts: []int{1, 2}, index: []int{1, 2}, sent: true}
		a := m.active
		a.env.Sender, a.env.Trace, a.warned, a.again = c.sender, c.trace, c.warned, c.again
		a.rcpts[1].Notify, a.rcpts[1].order, a.rcpts[2].order = c.notify, d, d
		out := c.out
		out.Rcpt, out.Parts = 1, slices.Clone(out.Parts)
		other := good
		other.Rcpt = 0 // whom nobody has ordered
		var res sched.Result
		s.sortOutcomes(m, d, &proto.DeliverReply{Outcomes: []mail.Outcome{other, out, out}}, &res)
		var recorded, done bool
		for i := range s.log.ops {
			done = done || slices.Contains(s.log.ops[i].Done, 1)
			for _, o := range s.log.ops[i].Outcomes {
				recorded = recorded || o.Rcpt == 1 && o.Action == c.out.Action
			}
			if slices.Contains(s.log.ops[i].Done, 0) || slices.Contains(s.log.ops[i].Done, 2) {
				t.Errorf("%s: recorded %+v", name, s.log.ops[i])
			}
		}
		if done != c.done || slices.Contains(res.Deferred, 1) != c.deferred || res.Success != c.success || res.Failed != c.fails || recorded != c.recorded || s.log.urgent != (c.recorded && c.fails) {
			t.Errorf("%s: done %v, recorded %v, urgent %v, %+v", name, done, recorded, s.log.urgent, res)
		}
		if tells := len(a.success) == 1 && a.success[0].Rcpt == 1; tells != c.success || len(a.success) > 1 {
			t.Errorf("%s: the sender is to be told %+v", name, a.success)
		}
		// Who is neither pending nor done has his outcome kept, and who has been left out by the agent is tried again.
		if kept := a.outcomes[1].Action == c.out.Action; kept != (c.deferred || c.fails) {
			t.Errorf("%s: kept %+v", name, a.outcomes[1])
		}
		if a.outcomes[2].Reason != noAccount || !slices.Contains(res.Deferred, 2) || slices.Contains(res.Deferred, 0) || m.isDone(0) || a.rcpts[1] != nil && a.rcpts[1].order != nil || a.rcpts[2].order != nil {
			t.Errorf("%s: of the others: %+v, %+v", name, a.outcomes, res)
		}
		if m.isDone(1) != (c.done || c.success && !c.deferred) {
			t.Errorf("%s: nothing is left to be done for it: %v", name, m.isDone(1))
		}
	}
}

// An order that an agent has not begun waits for the next agent, or for the next queue manager when this one ends. If the agent ends in the middle,
// those who may have the message are named, in the log and on record, and are tried again.
func TestOrderAnswered(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reply          proto.DeliverReply
		err            error
		leaving, dials bool
		index          []int
		waits          bool
		event          sched.EventKind
		lines          int
	}{
		"stopped":             {reply: proto.DeliverReply{Stopped: true}, dials: true, index: []int{0}, waits: true},
		"not sent":            {err: ipc.ErrUnsent, dials: true, index: []int{0}, waits: true},
		"not sent, it leaves": {err: ipc.ErrUnsent, leaving: true, index: []int{0}, waits: true},
		"lost":                {err: ipc.ErrLost, index: []int{0}, event: sched.EventLost, lines: 2},
		"lost, to nobody":     {err: ipc.ErrLost, event: sched.EventLost, lines: 1},
		"lost, it leaves":     {err: errors.New("x"), leaving: true, index: []int{0}, event: sched.EventLost, lines: 2},
		"answered":            {reply: proto.DeliverReply{Kept: true, Opened: true, SiteStatus: dsn.S(4, 4, 1), SiteReason: "away", SitePartly: true}, index: []int{0}, event: sched.EventDone},
	} {
		s, lines := still(t)
		s.leaving = c.leaving
		m := s.aMessage(2)
		a := &agentConn{s: s, transport: "smtp", pending: 2, dialing: true} // it dials already, if it has to
		d := &delivery{entry: 4, num: m.num, nexthop: "to.test", rcpts: []int{0}, index: c.index, sent: true}
		s.entries[4], m.active.rcpts[0].order = d, d
		a.answered(d, &c.reply, nil, c.err)
		if a.pending != 1 || !a.used.Equal(s.now) || (len(a.waiting) == 1 && a.waiting[0] == d && !d.sent && s.entries[4] == d) != c.waits || len(a.waiting) > 1 {
			t.Errorf("%s: %d are out, %d wait, sent %v", name, a.pending, len(a.waiting), d.sent)
		}
		if c.event == 0 {
			if len(s.queue) != 0 || len(s.log.ops) != 0 {
				t.Errorf("%s: events %+v, recorded %+v", name, s.queue, s.log.ops)
			}
			continue
		}
		if len(s.queue) != 1 || s.queue[0].event.Kind != c.event || s.queue[0].event.Entry != 4 || len(s.entries) != 0 {
			t.Errorf("%s: events %+v", name, s.queue)
		}
		lost := len(s.log.ops) == 1 && s.log.ops[0].Lost && slices.Equal(s.log.ops[0].Handed, c.index) && s.log.ops[0].Nexthop == "to.test" && s.log.ops[0].ID == m.id
		if lost != (c.lines == 2) {
			t.Errorf("%s: recorded %+v", name, s.log.ops)
		}
		got := lines()
		if len(got) != c.lines || c.lines > 0 && !strings.HasPrefix(got[0], "warning: transport smtp: the delivery agent ended in the middle of a delivery: ") ||
			c.lines > 1 && got[1] != "warning: "+string(m.id)+": in doubt: it was being delivered to to.test when the delivery agent ended: recipients number 0 may have it, and may get it again" {
			t.Errorf("%s: the log: %q", name, got)
		}
		if r := s.queue[0].event.Result; c.event == sched.EventDone && (!r.Hungry || !r.Opened || !r.SiteFailed || r.Status != dsn.S(4, 4, 1) || r.Reason != "away" || !r.SitePartly || !reflect.DeepEqual(r.Deferred, []int{0})) {
			t.Errorf("%s: %+v", name, r)
		}
		if o := m.active.outcomes[0]; o.Action != dsn.Deferred || c.event == sched.EventLost && o.Reason != "the delivery agent ended in the middle of the delivery" {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// An agent that cannot be reached has all its orders taken back, and the transport is said to be away; not so when the process ends, or nobody
// wanted it.
func TestAgentDown(t *testing.T) {
	t.Parallel()
	for _, leaving := range []bool{false, true} {
		s, lines := still(t)
		s.leaving = leaving
		a := &agentConn{s: s, transport: "smtp", dialing: true}
		if a.down(errors.New("no")); a.dialing || len(s.queue) != 0 || len(lines()) != 0 {
			t.Errorf("nobody wanted it: %+v", s.queue)
		}
		s.entries[3], s.entries[5] = &delivery{entry: 3}, &delivery{entry: 5}
		a.waiting = []*delivery{s.entries[3], s.entries[5]}
		a.down(errors.New("no"))
		if leaving {
			if len(s.queue) != 0 || len(a.waiting) != 2 || len(s.entries) != 2 || len(lines()) != 0 {
				t.Errorf("the process ends: %+v", s.queue)
			}
			continue
		}
		if len(a.waiting) != 0 || len(s.entries) != 0 || len(s.queue) != 1 {
			t.Fatalf("%d wait, %d entries, %+v", len(a.waiting), len(s.entries), s.queue)
		}
		if ev := s.queue[0].event; ev.Kind != sched.EventAgentDown || ev.Transport != "smtp" || !slices.Equal(ev.Entries, []sched.EntryID{3, 5}) {
			t.Errorf("%+v", ev)
		}
		if got := lines(); len(got) != 1 || got[0] != "warning: connect to transport smtp: no" {
			t.Errorf("the log: %q", got)
		}
	}
}
