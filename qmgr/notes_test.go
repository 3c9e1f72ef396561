package qmgr

import (
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/dsn"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
)

// still is a queue manager whose loop does not run: a test calls what the loop would. lines are what it has logged.
func still(t *testing.T) (s *Server, lines func() []string) {
	t.Helper()
	cfg, err := config.LoadString("")
	if err != nil {
		t.Fatal(err)
	}
	settings, err := Load(cfg, nil, table.Options{}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	log := new(lockedLog)
	s = New(Options{Settings: settings, Log: maillog.New("postfix/qmgr", maillog.NewWriter(log, maillog.Classic))})
	s.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return s, func() (list []string) {
		s.opt.Log.Flush()
		for line := range strings.Lines(log.String()) {
			_, text, _ := strings.Cut(line, "]: ")
			list = append(list, strings.TrimSuffix(text, "\n"))
		}
		return list
	}
}

// aMessage makes a message with n recipients known, in the active queue.
func (s *Server) aMessage(n int) *message {
	num := sched.MsgID(len(s.messages) + 1)
	m := &message{id: mail.MakeQueueID(s.now, uint64(num)), num: num, nrcpt: int32(n)}
	m.active = &active{since: s.now, complete: true, env: mail.Envelope{Sender: "s@from.test"}}
	for i := range n {
		m.active.rcpts = append(m.active.rcpts, &rcpt{Recipient: mail.Recipient{Address: string(rune('a'+i)) + "@to.test"}})
	}
	s.messages[num] = m
	return m
}

// What the scheduler finds worth a line is logged in these words, which other programs look for.
func TestNotes(t *testing.T) {
	t.Parallel()
	s, lines := still(t)
	m := s.aMessage(1)
	rest := &message{id: "3xyz", num: 9}
	until := time.Date(2026, 3, 1, 12, 34, 56, 0, time.UTC)
	for _, x := range []struct {
		m    *message
		note sched.Note
	}{
		{m, sched.Note{Kind: sched.NoteExpired}},
		{m, sched.Note{Kind: sched.NoteForceExpired}},
		{rest, sched.Note{Kind: sched.NoteExpired}},
		{nil, sched.Note{Kind: sched.NoteExpired}},
		{nil, sched.Note{Kind: sched.NoteClog, Transport: "smtp", Queue: "to.test", Count: 5, Total: 9}},
		{nil, sched.Note{Kind: sched.NoteFeedback, Queue: "to.test", Limit: 20, Window: 7, Success: .5, Failure: .25, FailCohorts: 2, Feedback: 3}},
		{nil, sched.Note{Kind: sched.NoteFeedback, Queue: "to.test", Limit: 20, Window: 7, Positive: true}},
		{nil, sched.Note{Kind: sched.NoteTransportDown, Transport: "smtp", Until: until, Reason: "no answer"}},
		{m, sched.Note{Kind: sched.NoteBadCount, Count: -1}},
		{nil, sched.Note{Kind: sched.NoteBadCount, Count: -1}},
		{nil, sched.Note{Kind: sched.NoteHint, Transport: "smtp", Queue: "to.test", Until: until, Reason: "node b: refused"}},
		{nil, sched.Note{Kind: sched.NoteDead, Transport: "smtp", Queue: "to.test", Until: until}},
		{nil, sched.Note{Kind: sched.NoteAlive, Transport: "smtp", Queue: "to.test"}},
	} {
		s.logNote(x.m, &x.note)
	}
	id := string(m.id)
	want := []string{
		id + ": from=<s@from.test>, status=expired, returned to sender",
		id + ": from=<s@from.test>, status=force-expired, returned to sender",
		"3xyz: from=<>, status=expired, returned to sender",
		"warning: mail for to.test is using up 5 of 9 active queue entries",
		"warning: you may need to reduce smtp connect and helo timeouts so that Posthaste quickly skips unavailable hosts",
		"warning: you may need to increase the master.cf smtp process limit",
		"warning: please avoid flushing the whole queue when you have lots of deferred mail, that is bad for performance",
		"warning: to turn off these warnings specify: qmgr_clog_warn_time = 0",
		"concurrency feedback type negative destination to.test limit 20 window 7 success 0.5 failure 0.25 fail_cohorts 2 feedback 3",
		"concurrency feedback type positive destination to.test limit 20 window 7 success 0 failure 0 fail_cohorts 0 feedback 0",
		"warning: transport smtp is not available until 12:34:56: no answer",
		"warning: " + id + ": rcpt count mismatch (-1)",
		"to.test is not tried by smtp until 12:34:56: node b: refused",
	}
	got := lines()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("line %d of\n%s\nis not that of\n%s", i, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// A command applies to what it changes, counted as postsuper counts.
func TestApplies(t *testing.T) {
	t.Parallel()
	in := func(q sched.Queue, f sched.Flags) sched.Info { return sched.Info{Queue: q, Flags: f} }
	for _, x := range []struct {
		verb proto.Verb
		info sched.Info
		want bool
	}{
		{proto.VerbHold, in(sched.QueueDeferred, 0), true}, {proto.VerbHold, in(sched.QueueHold, 0), false}, {proto.VerbHold, in(sched.QueueActive, 0), true},
		{proto.VerbRelease, in(sched.QueueHold, 0), true}, {proto.VerbRelease, in(sched.QueueDeferred, 0), false},
		{proto.VerbExpire, in(sched.QueueDeferred, 0), true}, {proto.VerbExpire, in(sched.QueueHold, sched.FlagWarned), true},
		{proto.VerbExpire, in(sched.QueueDeferred, sched.FlagExpire), false}, {proto.VerbExpire, in(sched.QueueHold, sched.FlagExpire|sched.FlagWarned), false},
		{proto.VerbDelete, in(sched.QueueHold, sched.FlagExpire), true}, {proto.VerbRequeue, in(sched.QueueHold, sched.FlagExpire), true},
	} {
		if got := applies(x.verb, x.info); got != x.want {
			t.Errorf("verb %d of a message in %v with flags %v: %v", x.verb, x.info.Queue, x.info.Flags, got)
		}
	}
	l := &listed{item: proto.Item{Queue: "deferred", Attempts: 2}, pending: 3}
	for _, x := range []struct {
		queue             sched.Queue
		attempts, pending int
		want              bool
	}{{sched.QueueDeferred, 2, 3, false}, {sched.QueueHold, 2, 3, true}, {sched.QueueDeferred, 3, 3, true}, {sched.QueueDeferred, 2, 2, true}} {
		if got := changed(l, &sched.Info{Queue: x.queue, Attempts: x.attempts, Pending: x.pending}); got != x.want {
			t.Errorf("in %v after %d attempts with %d pending it has changed: %v", x.queue, x.attempts, x.pending, got)
		}
	}
}

// A hold or a removal of mail that is being delivered is on record at once, and of other mail when it takes effect. Mail
// that is queued again waits for former deliveries.
func TestOperate(t *testing.T) {
	t.Parallel()
	for kind, aside := range map[sched.EventKind]bool{sched.EventHold: true, sched.EventRemove: true, sched.EventRequeue: false, sched.EventExpire: false, sched.EventRelease: false} {
		s, _ := still(t)
		m := s.aMessage(1)
		s.operate(sched.Event{Kind: kind, ID: m.num})
		if m.active.aside != aside || (len(s.log.ops) == 1) != aside || len(s.queue) != 1 {
			t.Errorf("%v: aside %v, recorded %+v, %d events", kind, m.active.aside, s.log.ops, len(s.queue))
		}
		if aside && (s.log.ops[0].Set != queue.SetQueue || s.log.ops[0].Queue != queue.Hold) {
			t.Errorf("%v: recorded %+v", kind, s.log.ops)
		}
		s, _ = still(t)
		s.messages[7] = &message{id: "a", num: 7}
		s.formers[7] = []*former{{id: "a", rcpts: []int{0}, release: func() {}}}
		s.operate(sched.Event{Kind: kind, ID: 7})
		if wait := kind == sched.EventRequeue; (len(s.queue) == 0) != wait || (len(s.formers[7][0].after) == 1) != wait || len(s.log.ops) != 0 {
			t.Errorf("%v of mail that is not worked on, with a former delivery: %d events, %d behind the delivery, recorded %+v", kind, len(s.queue), len(s.formers[7][0].after), s.log.ops)
		}
		if s.over(7, 0); len(s.queue) != 1 || len(s.formers) != 0 {
			t.Errorf("%v: the former delivery is over: %d events, %d former deliveries", kind, len(s.queue), len(s.formers))
		}
	}
}

// What a former delivery has come to: who has the message is done, and the bounce service hears of him unless another agent
// has him; who was expanded and failed keeps his verdict; all others are tried again, as are those whom an agent has.
func TestFormerOutcomes(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(8)
	s.entries[1] = &delivery{entry: 1, num: m.num, sent: true, rcpts: []int{5}}
	s.entries[2] = &delivery{entry: 2, num: m.num, rcpts: []int{6}}
	s.entries[3] = &delivery{entry: 3, num: m.num + 1, sent: true, rcpts: []int{7}}
	m.setDone(4)
	f := &proto.Finished{ID: m.id}
	for i, o := range []mail.Outcome{{Action: dsn.Delivered}, {Action: dsn.Relayed, Passed: true}, {Action: dsn.Failed}, {Action: dsn.Failed, Parts: []mail.Part{{Address: "x"}}},
		{Action: dsn.Delivered}, {Action: dsn.Delivered}, {Action: dsn.Expanded}, {Action: dsn.Deferred}, {Action: dsn.Delivered}} {
		o.Rcpt = i
		f.Reply.Outcomes = append(f.Reply.Outcomes, o)
	}
	s.finished(f)
	var done []int
	for i := range 9 {
		if m.isDone(i) {
			done = append(done, i)
		}
	}
	if !slices.Equal(done, []int{0, 1, 4, 6}) {
		t.Errorf("done: %v", done)
	}
	if len(s.log.ops) != 1 || !slices.Equal(s.log.ops[0].Done, []int{1}) || len(s.log.ops[0].Outcomes) != 2 || s.log.ops[0].Outcomes[0].Rcpt != 0 || s.log.ops[0].Outcomes[1].Rcpt != 6 {
		t.Errorf("recorded: %+v", s.log.ops)
	}
	if len(m.active.success) != 2 || m.active.success[0].Rcpt != 0 || m.active.success[1].Rcpt != 6 {
		t.Errorf("to be told: %+v", m.active.success)
	}
	if v := s.verdicts[m.num]; len(v) != 1 || v[0].Rcpt != 3 {
		t.Errorf("verdicts: %+v", v)
	}
	// Orders get the verdicts on their recipients, and nobody else's.
	other := &delivery{num: m.num, rcpts: []int{2}}
	if s.applyVerdicts(other); len(other.reply.Outcomes) != 0 || len(s.verdicts[m.num]) != 1 {
		t.Errorf("another order gets %+v, and %d verdicts are left", other.reply.Outcomes, len(s.verdicts[m.num]))
	}
	mine := &delivery{num: m.num, rcpts: []int{2, 3}}
	if s.applyVerdicts(mine); len(mine.reply.Outcomes) != 1 || mine.reply.Outcomes[0].Rcpt != 3 || len(s.verdicts) != 0 {
		t.Errorf("the order gets %+v, and %d messages have verdicts", mine.reply.Outcomes, len(s.verdicts))
	}
	s.verdicts[m.num] = []mail.Outcome{{Rcpt: 3}, {Rcpt: 0}}
	if s.applyVerdicts(mine); len(mine.reply.Outcomes) != 1 || len(s.verdicts[m.num]) != 1 || s.verdicts[m.num][0].Rcpt != 0 {
		t.Errorf("it has one already, and gets %+v; left are %+v", mine.reply.Outcomes, s.verdicts)
	}
	// What is kept of a message goes with it.
	if s.forget(m); len(s.verdicts) != 0 || len(s.messages) != 0 {
		t.Errorf("the message has left, and kept are %v, %v", s.verdicts, s.messages)
	}
}

// An order that waited for a former delivery gets what is said of its own recipients and of the destination, once; the rest
// is for whoever takes in what nobody has waited for.
func TestFormerEnds(t *testing.T) {
	t.Parallel()
	s, lines := still(t)
	m := s.aMessage(4)
	d := &delivery{entry: 1, num: m.num, rcpts: []int{0, 1}, transport: "smtp"}
	later := &delivery{entry: 2, num: m.num, rcpts: []int{2}, transport: "smtp"}
	s.entries[1], s.entries[2] = d, later
	s.agents["smtp"] = &agentConn{s: s, transport: "smtp", dialing: true}
	was := s.now.Add(-time.Minute)
	s.formers[m.num] = []*former{{id: m.id, rcpts: []int{0, 2}, active: was, release: func() {}}, {id: m.id, rcpts: []int{1}, active: was, release: func() {}}}
	if s.await(m, later); !s.await(m, d) || d.awaits != 2 || later.awaits != 1 {
		t.Fatalf("orders wait for %d and %d former deliveries", d.awaits, later.awaits)
	}
	if s.await(m, &delivery{rcpts: []int{3}}) {
		t.Error("an order waits for deliveries to others")
	}
	say := func(active time.Time, outcomes ...mail.Outcome) {
		s.heardOf(nil, &proto.Inventory{Finished: []proto.Finished{{ID: m.id, Active: active, Reply: proto.DeliverReply{Outcomes: outcomes,
			SiteStatus: dsn.S(4, 4, 1), SiteReason: "refused", SitePartly: true}}}}, false)
	}
	// Of an earlier attempt, which must not end this one.
	say(was.Add(-time.Hour), mail.Outcome{Rcpt: 1, Action: dsn.Delivered})
	if len(s.formers[m.num]) != 2 || d.awaits != 2 {
		t.Errorf("an earlier attempt has ended it: %d are left", len(s.formers[m.num]))
	}
	if got := lines(); len(got) != 1 || got[0] != "warning: "+string(m.id)+": a delivery agent reports a delivery that is not known" {
		t.Errorf("logged: %q", got)
	}
	say(was, mail.Outcome{Rcpt: 0, Action: dsn.Delivered, Reason: "first"}, mail.Outcome{Rcpt: 2, Action: dsn.Deferred}, mail.Outcome{Rcpt: 3, Action: dsn.Delivered})
	if len(s.formers[m.num]) != 1 || d.awaits != 1 || later.awaits != 0 {
		t.Errorf("%d are left, orders wait for %d and %d", len(s.formers[m.num]), d.awaits, later.awaits)
	}
	if len(d.reply.Outcomes) != 1 || d.reply.Outcomes[0].Rcpt != 0 || len(later.reply.Outcomes) != 1 || later.reply.Outcomes[0].Rcpt != 2 {
		t.Errorf("told: %+v and %+v", d.reply.Outcomes, later.reply.Outcomes)
	}
	if d.reply.SiteStatus != dsn.S(4, 4, 1) || d.reply.SiteReason != "refused" || !d.reply.SitePartly {
		t.Errorf("of the destination: %+v", d.reply)
	}
	if m.isDone(0) || m.isDone(3) {
		t.Error("what an order waits for is taken in beside it, or what the delivery was not for")
	}
	if a := s.agents["smtp"]; len(a.waiting) != 1 || a.waiting[0] != later {
		t.Errorf("%d orders go on to the agent", len(a.waiting))
	}
	d.reply.SiteReason = "what came first"
	say(was, mail.Outcome{Rcpt: 1, Action: dsn.Delivered})
	if len(s.formers) != 0 || d.awaits != 0 || len(d.reply.Outcomes) != 2 || d.reply.SiteReason != "what came first" || len(s.agents["smtp"].waiting) != 2 {
		t.Errorf("left %d, waits for %d, told %+v", len(s.formers), d.awaits, d.reply)
	}
}

// What is on record as in hand is a former delivery, but for recipients of whom a handover has spoken, and for what is no
// message. The agents have callTime to call.
func TestHandsExpected(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	id, other := mail.MakeQueueID(s.now, 5), mail.MakeQueueID(s.now, 6)
	s.formers[5] = []*former{{id: id, rcpts: []int{1}, release: func() {}}}
	s.expectHands([]proto.Hand{{ID: id, Index: []int{0, 1, 2}, Relay: "hop", At: s.now}, {ID: "?", Index: []int{0}}, {ID: other, Index: nil}, {ID: id, Index: []int{1}}})
	if len(s.formers) != 1 || len(s.formers[5]) != 2 {
		t.Fatalf("former deliveries: %v", s.formers)
	}
	f := s.formers[5][1]
	if f.id != id || !slices.Equal(f.rcpts, []int{0, 2}) || f.nexthop != "hop" || !f.onRecord || !f.recorded.Equal(s.now) {
		t.Errorf("%+v", f)
	}
	if want := s.now.Add(agentPatience); !s.expectAt.Equal(want) || !s.lookAgain {
		t.Errorf("agents are waited for until %v, not %v; it is looked again: %v", s.expectAt, want, s.lookAgain)
	}
	// Several records of one delivery become one, with all who wait, when an agent speaks of it.
	wait := &delivery{awaits: 2}
	g := &former{id: id, rcpts: []int{3}, onRecord: true, recorded: s.now, waiting: []*delivery{wait, {awaits: 1}}, after: []sched.Event{{}}, release: func() {}}
	f.waiting = []*delivery{wait}
	s.formers[5] = append(s.formers[5], g)
	s.recognise(id, []int{2, 3}, s.now.Add(-recordLag-1))
	if len(s.formers[5]) != 3 || !f.onRecord {
		t.Errorf("an earlier attempt is taken for it: %d", len(s.formers[5]))
	}
	s.recognise(id, []int{2, 3}, s.now.Add(-recordLag))
	if len(s.formers[5]) != 2 || s.formers[5][1] != f || f.onRecord || !slices.Equal(f.rcpts, []int{2, 3}) {
		t.Errorf("%d former deliveries, %+v", len(s.formers[5]), f)
	}
	if len(f.waiting) != 2 || wait.awaits != 1 || len(f.after) != 1 {
		t.Errorf("%d wait for it, one of them for %d; %d commands do", len(f.waiting), wait.awaits, len(f.after))
	}
	// A recipient is not in doubt if this process has ordered the delivery, if the log has named it, or if a former delivery goes on.
	s.entries[1] = &delivery{num: 6, index: []int{0}}
	left := s.unclaimed([]proto.Hand{{ID: other, Index: []int{0, 1, 2}}, {ID: id, Index: []int{1, 2, 9}}}, map[handKey]bool{{6, 1}: true})
	if len(left) != 2 || left[handKey{6, 2}] == nil || left[handKey{5, 9}] == nil {
		t.Errorf("nobody speaks for %v", left)
	}
}

// Agents that have orders are parted from once, and none of them is forgotten; the successor hears of what they go on with,
// and which transports were used lately.
func TestGoingOn(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	m := s.aMessage(3)
	good, bad := new(ipc.Conn), new(ipc.Conn)
	s.entries[1] = &delivery{num: m.num, sent: true, conn: good, index: []int{0}}
	s.entries[2] = &delivery{num: m.num, sent: true, conn: bad, index: []int{1}}
	s.entries[3] = &delivery{num: m.num, conn: good, index: []int{2}}
	s.entries[4] = &delivery{num: 99, sent: true, conn: good, index: []int{0}}
	s.parted = map[*ipc.Conn]bool{good: true, bad: false}
	s.formers[8] = []*former{{id: "f", rcpts: []int{4}, active: s.now}}
	list := s.goingOn()
	if len(list) != 2 || list[0].ID != m.id || !slices.Equal(list[0].Index, []int{0}) || !list[0].Active.Equal(m.active.since) || list[1].ID != "f" || !slices.Equal(list[1].Index, []int{4}) || !list[1].Active.Equal(s.now) {
		t.Errorf("%+v", list)
	}
	for name, idle := range map[mail.Transport]time.Duration{"smtp": agentIdle - 1, "local": 0, "old": agentIdle} {
		s.agents[name] = &agentConn{used: s.now.Add(-idle)}
	}
	if got := s.inUse(); !slices.Equal(got, []mail.Transport{"local", "smtp"}) {
		t.Errorf("in use: %v", got)
	}
	if !s.underWay() {
		t.Error("nothing is under way")
	}
	for _, d := range s.entries {
		d.sent = false
	}
	if s.underWay() {
		t.Error("an order that waits is under way")
	}
}
