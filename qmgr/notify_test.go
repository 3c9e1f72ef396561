package qmgr

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// rcptsOf are the recipients of outcomes.
func rcptsOf(list []mail.Outcome) (rcpts []int) {
	for _, o := range list {
		rcpts = append(rcpts, o.Rcpt)
	}
	return rcpts
}

// A notice of failure reports the recipients that failed, also in part, and were not reported yet; a notice of delay those that wait; and the
// notice of expiry all that have not got the message. No notice reports a recipient that is done.
func TestNoticeLists(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(7)
	part := mail.Part{Address: "x", Action: dsn.Failed}
	told := part
	told.Told = true
	for i, o := range []mail.Outcome{{Action: dsn.Failed}, {Action: dsn.Deferred}, {Action: dsn.Deferred, Parts: []mail.Part{part}}, {Action: dsn.Deferred, Parts: []mail.Part{told}},
		{Action: dsn.Failed}, {Action: dsn.Deferred}} {
		o.Rcpt = i
		m.active.noted(&o)
	}
	m.setDone(4)
	m.setDone(5)
	unknown := mail.Outcome{Action: dsn.Deferred, Reason: "expired"}
	for what, x := range map[string]struct {
		list func() ([]mail.Outcome, int)
		want []int
	}{
		"failed":          {func() ([]mail.Outcome, int) { return m.failed(dsn.Failed, 0) }, []int{0, 2}},
		"delayed":         {func() ([]mail.Outcome, int) { return m.failed(dsn.Deferred, 0) }, []int{1, 2, 3}},
		"delayed, second": {func() ([]mail.Outcome, int) { return m.failed(dsn.Deferred, 2) }, []int{2, 3}},
		"expired":         {func() ([]mail.Outcome, int) { return m.expired(unknown) }, []int{1, 2, 3, 6}},
	} {
		list, next := x.list()
		if got := rcptsOf(list); !slices.Equal(got, x.want) || next != 0 {
			t.Errorf("%s: %v and then %d, want %v", what, got, next, x.want)
		}
	}
	list, _ := m.expired(unknown)
	if last := list[len(list)-1]; last.Reason != "expired" {
		t.Errorf("of whom nothing is known it is said %+v", last)
	}
	// As many as a notice has, and one more.
	for _, n := range []int{noticeRcpts, noticeRcpts + 1} {
		big := &message{nrcpt: int32(n), active: &active{}}
		for i := range n {
			big.active.noted(&mail.Outcome{Rcpt: i, Action: dsn.Failed})
		}
		list, next := big.failed(dsn.Failed, 0)
		if want := (n - noticeRcpts) * noticeRcpts; len(list) != noticeRcpts || next != want {
			t.Errorf("of %d recipients %d are reported, and the next notice begins with %d, not %d", n, len(list), next, want)
		}
	}
	// The next notice begins with a recipient, and not with a place in a list: the first ones have the message.
	const had = 7
	late := &message{nrcpt: had + 2*noticeRcpts + 1, active: &active{}}
	for i := had; i < int(late.nrcpt); i++ {
		late.active.noted(&mail.Outcome{Rcpt: i, Action: dsn.Deferred})
	}
	named, from := 0, 0
	for range 3 {
		list, next := late.failed(dsn.Deferred, from)
		for _, o := range list {
			if o.Rcpt != had+named {
				t.Fatalf("recipient %d is told of where it is %d's turn", o.Rcpt, had+named)
			}
			named++
		}
		from = next
	}
	if named != 2*noticeRcpts+1 || from != 0 {
		t.Errorf("%d recipients are told of, and then comes %d", named, from)
	}
}

// What follows from a notice: who failed is done, of whom a part failed it is recorded that the sender was told, and who has the
// message is done when that was reported. Nothing follows from a notice that was not made, or from one of a delay; and nothing is to
// be recorded that the bounce service has recorded.
func TestNotified(t *testing.T) {
	t.Parallel()
	bad := []mail.Part{{Address: "x", Action: dsn.Failed}}
	good := []mail.Part{{Address: "x", Action: dsn.Expanded}}
	for name, x := range map[string]struct {
		kind     proto.NoticeKind
		outcomes []mail.Outcome
		settled  bool
		err      error
		done     []int // as is known here
		recorded []int
		told     []int
		success  int // that are left to be reported
	}{
		"failure": {kind: proto.NoticeFailure, outcomes: []mail.Outcome{{Rcpt: 0, Action: dsn.Failed}, {Rcpt: 1, Action: dsn.Deferred, Parts: bad}},
			done: []int{0, 3}, recorded: []int{0}, told: []int{1}, success: 3},
		"expiry":     {kind: proto.NoticeExpired, outcomes: []mail.Outcome{{Rcpt: 0, Action: dsn.Deferred}, {Rcpt: 1, Action: dsn.Deferred}}, done: []int{0, 1, 3}, recorded: []int{0, 1}, success: 3},
		"settled":    {kind: proto.NoticeFailure, outcomes: []mail.Outcome{{Rcpt: 0, Action: dsn.Failed}}, settled: true, done: []int{0, 3}, success: 3},
		"not made":   {kind: proto.NoticeFailure, outcomes: []mail.Outcome{{Rcpt: 0, Action: dsn.Failed}}, err: errors.New("no"), done: []int{3}, success: 3},
		"delay":      {kind: proto.NoticeDelay, outcomes: []mail.Outcome{{Rcpt: 0, Action: dsn.Deferred}}, done: []int{3}, success: 3},
		"success":    {kind: proto.NoticeSuccess, outcomes: []mail.Outcome{{Rcpt: 3, Action: dsn.Delivered}, {Rcpt: 2, Action: dsn.Deferred, Parts: good}}, done: []int{3}, recorded: []int{3}, told: []int{2}, success: 1},
		"a report":   {kind: proto.NoticeTrace, outcomes: []mail.Outcome{{Rcpt: 3, Action: dsn.Delivered}, {Rcpt: 2, Action: dsn.Deferred, Parts: good}}, done: []int{3}, recorded: []int{3}, success: 1},
		"all of all": {kind: proto.NoticeTrace, outcomes: make([]mail.Outcome, 5), done: []int{3}, success: 0},
	} {
		s, lines := still(t)
		m := s.aMessage(4)
		for i := range x.outcomes {
			if o := x.outcomes[i]; o.Action == dsn.Failed || o.Action == dsn.Deferred {
				m.active.noted(&o)
			}
		}
		m.setDone(3)
		m.active.success = make([]mail.Outcome, 3)
		s.notified(m, &proto.Notify{ID: m.id, Notice: x.kind, Outcomes: x.outcomes}, &proto.NotifyReply{Settled: x.settled}, x.err)
		var done, recorded, told []int
		for i := range 4 {
			if m.isDone(i) {
				done = append(done, i)
			}
		}
		for _, op := range s.log.ops {
			recorded = append(recorded, op.Done...)
			for _, o := range op.Outcomes {
				if told = append(told, o.Rcpt); !o.Parts[0].Told {
					t.Errorf("%s: it is not recorded that the sender was told: %+v", name, o)
				}
				if m.active.outcomes[o.Rcpt].Parts[0].Told != true {
					t.Errorf("%s: it is recorded and not known here that the sender was told", name)
				}
			}
		}
		if !slices.Equal(done, x.done) || !slices.Equal(recorded, x.recorded) || !slices.Equal(told, x.told) || len(m.active.success) != x.success {
			t.Errorf("%s: done %v, recorded %v, told %v, %d to be reported; want %+v", name, done, recorded, told, len(m.active.success), x)
		}
		if x.kind != proto.NoticeDelay && x.err == nil && slices.Contains(done, 0) {
			if _, kept := m.active.outcomes[0]; kept || m.active.rcpt(0) != nil {
				t.Errorf("%s: of a recipient that is done something is kept", name)
			}
		}
		if text := strings.Join(lines(), "\n"); (text != "") != (x.err != nil) || x.err != nil && !strings.Contains(text, string(m.id)+": the bounce service has made no notice: no; trying again later") {
			t.Errorf("%s: logged %q", name, text)
		}
	}
}

// What is said of who has no outcome when the time is over: that it is, or that an operator has ended it.
func TestExpiryWords(t *testing.T) {
	t.Parallel()
	for _, forced := range []bool{false, true} {
		s, _ := still(t)
		m := s.aMessage(1)
		a := sched.Arrival{Queue: sched.QueueDeferred, Created: s.now, Next: s.now.Add(time.Hour), Rcpts: 1, Flags: flagIf(forced, sched.FlagExpire)}
		s.sched.Take(s.now, &sched.Event{Kind: sched.EventQueued, ID: m.num, Arrival: a}, nil)
		want := "4.4.7 delivery time expired"
		if forced {
			want = "4.7.0 message is administratively expired"
		}
		if o := s.expiry(m); fmt.Sprint(o.Status, " ", o.Reason) != want || o.Relay != "none" || o.Action != dsn.Deferred || !o.When.Equal(s.now) {
			t.Errorf("forced %v: %+v", forced, o)
		}
	}
}

// What is left behind for a while when there is nobody to hand it over to: messages with a delivery under way, with what is known of
// their other recipients, and on hold if an operator wants that.
func TestLeaveBehind(t *testing.T) {
	t.Parallel()
	conn := new(ipc.Conn)
	for name, x := range map[string]struct {
		delivery delivery
		parted   bool // the agent will speak to the successor
		handed   bool // the successor knows
		failed   bool // another recipient has an outcome
		untried  bool // another has had no turn
		behind   bool // another waits for a former delivery
		aside    bool
		want     bool
	}{
		"nobody knows":                     {delivery: delivery{sent: true, conn: conn}, parted: true, want: true},
		"on hold":                          {delivery: delivery{sent: true, conn: conn}, aside: true, want: true},
		"it is not sent":                   {delivery: delivery{conn: conn}},
		"it waits for a former":            {delivery: delivery{awaits: 1}, want: true},
		"handed over":                      {delivery: delivery{sent: true, conn: conn}, parted: true, handed: true},
		"handed over, the agent is silent": {delivery: delivery{sent: true, conn: conn}, handed: true, want: true},
		"it waits, and is handed over":     {delivery: delivery{awaits: 1}, handed: true},
		"others failed":                    {delivery: delivery{sent: true, conn: conn}, parted: true, handed: true, failed: true, want: true},
		"others failed, others are behind": {delivery: delivery{sent: true, conn: conn}, parted: true, handed: true, failed: true, behind: true, want: true},
		"others failed, others wait":       {delivery: delivery{sent: true, conn: conn}, parted: true, handed: true, failed: true, untried: true},
	} {
		s, _ := still(t)
		n := 2
		if x.untried || x.behind {
			n = 3
		}
		m := s.aMessage(n)
		if x.behind {
			m.active.rcpts[2].order = &delivery{awaits: 1}
		}
		m.active.aside = x.aside
		d := x.delivery
		d.num, d.entry, d.rcpts, d.index = m.num, 1, []int{0}, []int{0}
		s.entries[1] = &d
		m.active.rcpts[0].order = &d
		if x.failed {
			m.active.noted(&mail.Outcome{Rcpt: 1, Action: dsn.Deferred, Reason: "later"})
		} else if n == 2 {
			m.through(1)
		}
		s.parted = map[*ipc.Conn]bool{conn: x.parted}
		s.leaveBehind(x.handed)
		if (len(s.log.ops) == 1) != x.want {
			t.Errorf("%s: recorded %+v", name, s.log.ops)
			continue
		}
		if !x.want {
			continue
		}
		q, outcomes := queue.Deferred, []int(nil)
		if x.aside {
			q = queue.Hold
		}
		if x.failed {
			outcomes = []int{1}
		}
		op := s.log.ops[0]
		if op.Set != queue.SetQueue|queue.SetNextAttempt || op.Queue != q || !op.NextAttempt.Equal(s.now.Add(s.opt.Settings.Sched.MinimalBackoff)) || !slices.Equal(rcptsOf(op.Outcomes), outcomes) {
			t.Errorf("%s: recorded %+v", name, op)
		}
	}
}

// A queue manager that leaves begins nothing, and does what has been decided.
func TestNothingIsBegun(t *testing.T) {
	t.Parallel()
	for _, kind := range []sched.EffectKind{sched.EffectLoad, sched.EffectDeliver, sched.EffectNotify} {
		s, _ := still(t)
		m := s.aMessage(1)
		m.active = nil
		s.carry(&sched.Effect{Kind: kind, ID: m.num, Entry: 1, Rcpts: []int{0}, Notice: sched.NoticeDelay, First: true, Max: 1}, true)
		if m.active != nil || len(s.entries) != 0 || len(s.queue) != 0 || s.turns != 0 {
			t.Errorf("%v is begun: %d deliveries, %d events", kind, len(s.entries), len(s.queue))
		}
	}
	s, lines := still(t)
	for i, x := range []struct {
		effect sched.Effect
		want   proto.Op
		left   bool // it is in memory
	}{
		{sched.Effect{Kind: sched.EffectDefer, Next: s.now.Add(time.Hour), Attempts: 4, Warned: true}, proto.Op{Change: queue.Change{Queue: queue.Deferred, NextAttempt: s.now.Add(time.Hour), Attempts: 4, Warned: true,
			Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts | queue.SetWarned}}, true},
		{sched.Effect{Kind: sched.EffectDefer, Next: s.now.Add(time.Hour)}, proto.Op{Change: queue.Change{Queue: queue.Deferred, NextAttempt: s.now.Add(time.Hour),
			Set: queue.SetQueue | queue.SetNextAttempt | queue.SetAttempts}}, true},
		{sched.Effect{Kind: sched.EffectHold, Next: s.now}, proto.Op{Change: queue.Change{Queue: queue.Hold, Set: queue.SetQueue | queue.SetNextAttempt}}, true},
		{sched.Effect{Kind: sched.EffectRelease, Next: s.now}, proto.Op{Change: queue.Change{Queue: queue.Deferred, NextAttempt: s.now, Set: queue.SetQueue | queue.SetNextAttempt}}, true},
		{sched.Effect{Kind: sched.EffectRemove}, proto.Op{Remove: true}, false},
		{sched.Effect{Kind: sched.EffectFinish}, proto.Op{Remove: true, Finished: true}, false},
		{sched.Effect{Kind: sched.EffectCorrupt}, proto.Op{Change: queue.Change{Queue: queue.Corrupt, Set: queue.SetQueue | queue.SetNextAttempt}}, false},
	} {
		s.messages, s.log, s.book = map[sched.MsgID]*message{}, newRecorder(s), newBook()
		m := s.aMessage(1)
		x.effect.ID = m.num
		s.carry(&x.effect, true)
		if len(s.log.ops) != 1 {
			t.Fatalf("%d: recorded %+v", i, s.log.ops)
		}
		op := s.log.ops[0]
		if op.ID != m.id || op.Remove != x.want.Remove || op.Finished != x.want.Finished || op.Set != x.want.Set || op.Queue != x.want.Queue || !op.NextAttempt.Equal(x.want.NextAttempt) ||
			op.Attempts != x.want.Attempts || op.Warned != x.want.Warned {
			t.Errorf("%d: recorded %+v, not %+v", i, op, x.want)
		}
		if len(s.messages) != 0 || s.knows(m.num) != x.left {
			t.Errorf("%d: %d messages are worked on, it is known: %v", i, len(s.messages), s.knows(m.num))
		}
		if got := lines(); x.effect.Kind == sched.EffectCorrupt && (len(got) != 1 || got[0] != fmt.Sprintf("warning: saving corrupt message \"%s\" from queue \"active\" to queue \"corrupt\"", m.id)) {
			t.Errorf("logged: %q", got)
		}
	}
}
