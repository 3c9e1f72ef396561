package qmgr

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueread"
	"posthaste/internal/rate"
	"posthaste/internal/selection"
	"posthaste/qmgr/sched"
)

func TestThreadText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d    sched.Dest
		want string
	}{
		{sched.Dest{Busy: 3}, ""},
		{sched.Dest{Thread: sched.ThreadState{On: true, Waits: true, Others: 2, Bound: 30}}, "; its thread waits for an agent, as 2 other(s) do, for at most 30 deliveries"},
		{sched.Dest{Busy: 1, Thread: sched.ThreadState{On: true, Waits: true}}, "; its thread waits for an agent, as 0 other(s) do"},
		{sched.Dest{Busy: 2, Thread: sched.ThreadState{On: true}}, "; its thread has 2 agent(s)"},
		{sched.Dest{Thread: sched.ThreadState{On: true, Others: 1}}, "; its thread needs no agent now"},
	} {
		if got := threadText(&c.d); got != c.want {
			t.Errorf("%+v: %q, want %q", c.d, got, c.want)
		}
	}
}

// A destination that has failed is one line of what is said, with the mail that waits for it: while it is considered dead, and when
// nothing is known of it any more but that.
func TestDestinationFailed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ main, want string }{
		{"", ": 0 deliveries under way, 0 wait; considered dead until "},
		{"minimal_backoff_time = 1s\nqueue_run_delay = 1s\n", ": had failed; 1 deferred message(s) go as soon as it answers"},
	} {
		st := newStage(t, "initial_destination_concurrency = 1\n"+c.main)
		m := deferredMail(queue.Deferred, time.Hour, "s@from.test", "450 wait", "x@to.test")
		m.Next = time.Now().Add(-time.Minute)
		id := st.fill(m)[0]
		smtp := st.agent("smtp", proto.Inventory{})
		st.run()
		o := smtp.next()
		o.answer("site")
		st.waitOp(id, "its deferral", inQueue(queue.Deferred))
		st.waitDest("to.test", "  smtp to to.test"+c.want)
		if text := st.explainDest("to.test"); strings.Count(text, "smtp to to.test: ") != 1 || !strings.Contains(text, "1 deferred message(s) go as soon as it answers") {
			t.Errorf("%s", text)
		}
	}
}

// A question about a domain is answered with the state of the relay host by which its mail goes, while a delivery is under way and when
// it has failed; a question about that host itself is answered once.
func TestDestinationRelays(t *testing.T) {
	t.Parallel()
	st := newStage(t, "initial_destination_concurrency = 1\n")
	st.routes["to.test"] = "smtp:[hub.test]"
	m := deferredMail(queue.Deferred, time.Hour, "s@from.test", "450 wait", "x@to.test")
	m.Next = time.Now().Add(-time.Minute)
	id := st.fill(m)[0]
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	o := smtp.next()
	st.waitDest("to.test", "\n  its mail goes by smtp to [hub.test]: 1 deliveries under way, 0 wait")
	if text := st.explainDest("to.test"); strings.Contains(text, "considered dead") {
		t.Error(text)
	}
	o.answer("site")
	st.waitOp(id, "its deferral", inQueue(queue.Deferred))
	st.waitDest("to.test", "\n  its mail goes by smtp to [hub.test]: 0 deliveries under way, 0 wait; considered dead until ")
	st.waitDest("[hub.test]", "  smtp to [hub.test]: 0 deliveries under way, 0 wait; considered dead until ")
	if text := st.explainDest("[hub.test]"); strings.Contains(text, "its mail goes by") {
		t.Error(text)
	}
}

// A line about a destination has all that is known of it.
func TestDestText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	base := sched.Dest{Transport: "smtp", Queue: "to.test", Nexthop: "hop.test", Busy: 1, Todo: 2, Window: 3, Success: 0.25, Failure: 0.5}
	for _, c := range []struct {
		change  func(*sched.Dest)
		waiting int
		set     bool
		want    string
	}{
		{nil, 0, false, "window 3 (no limit), feedback +0.25 -0.50"},
		{func(d *sched.Dest) { d.Limit, d.Cohorts = 9, 1.5 }, 0, false, "window 3 (at most 9), feedback +0.25 -0.50, 1.50 cohorts failed in a row"},
		{func(d *sched.Dest) { d.Limit = 1 }, 4, true, "window 3 (at most 1, by \"posthaste limit\"), feedback +0.25 -0.50; 4 deferred message(s) go as soon as it answers"},
		{func(d *sched.Dest) {
			d.State, d.Until, d.Status, d.Text = sched.DestDead, at, dsn.S(4, 4, 1), "timed\x1b out"
		}, 1, false, "considered dead until 2026-11-21 12:00:00 (4.4.1 timed? out); 1 deferred message(s) go as soon as it answers"},
		{func(d *sched.Dest) { d.State, d.Until = sched.DestSuspended, at }, 0, false, "rate delay until 2026-11-21 12:00:00"},
		{func(d *sched.Dest) { d.Gate = "provider big" }, 0, false, "window 3 (no limit), feedback +0.25 -0.50; waits for a delivery under the limit of provider big to end"},
		{func(d *sched.Dest) { d.Gate, d.GateUntil = "provider big", at }, 0, false, "window 3 (no limit), feedback +0.25 -0.50; waits for the limit of provider big until 2026-11-21 12:00:00"},
		{func(d *sched.Dest) { d.Thread.On, d.Learnt = true, new(sched.Learnt) }, 0, false, "window 3 (no limit), feedback +0.25 -0.50; its thread has 1 agent(s)" + learntText(new(sched.Learnt))},
	} {
		d := base
		if c.change != nil {
			c.change(&d)
		}
		if got, want := destText(&d, c.waiting, c.set), "smtp to to.test: 1 deliveries under way, 2 wait; "+c.want; got != want {
			t.Errorf("%q, not\n%q", got, want)
		}
	}
}

// So has one about a limit that destinations share.
func TestLimitText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	perDay, perHour := rate.Rate{N: 50, Per: rate.Day}, rate.Rate{N: 7, Per: time.Hour}
	for want, l := range map[string]sched.SharedLimit{
		"none any more":             {},
		"2 of 3 deliveries at once": {Limits: sched.Limits{Concurrency: 3}, Busy: 2},
		"0 of 1 deliveries at once": {Limits: sched.Limits{Concurrency: 1}},
		"connections " + perHour.String() + ", messages 7/h, recipients 7/h": {Limits: sched.Limits{Connections: perHour, Messages: perHour, Recipients: perHour}},
		"1 of 50 connections today, 2 of 50 messages today, 3 of 50 recipients today, 4 of 50 recipients of its warm-up today; 5 destination(s) wait; 6 message(s) wait outside the active queue; shut until 2026-11-21 12:00:00": {
			Limits: sched.Limits{Connections: perDay, Messages: perDay, Recipients: perDay, Warmup: perDay}, Connections: 1, Messages: 2, Recipients: 3, Warmup: 4, Waiting: 5, Parked: 6, Until: at},
	} {
		if got := limitText(&l); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

func destination(t *testing.T, text string) selection.Destination {
	t.Helper()
	d, err := selection.ParseDestination(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The first line counts each message for the domain once, its recipients, the oldest, and what comes next: of deferred mail alone.
func TestPortraitCounts(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	at := s.now.Local().Truncate(time.Second)
	p := &portrait{dest: destination(t, "to.test"), now: s.now}
	m := s.aMessage(3)
	m.active = nil
	for _, x := range []struct {
		queue      sched.Queue
		rcpts      int
		since, due time.Duration
	}{
		{sched.QueueDeferred, 2, -2 * time.Hour, time.Hour},          // not within an hour, but at its end
		{sched.QueueDeferred, 1, -3 * time.Hour, 30 * time.Minute},   // the oldest, and the next
		{sched.QueueDeferred, 1, -time.Hour, 59 * time.Minute},       //
		{sched.QueueHold, 1, -time.Hour, time.Minute},                // is not tried
		{sched.QueueDeferred, 0, -9 * time.Hour, time.Minute},        // is not for the domain
		{sched.QueueActive, 4, -time.Minute, -time.Until(s.now) - 1}, // is tried now
	} {
		p.count(s, m, &sched.Info{ID: m.num, Queue: x.queue, Created: s.now.Add(x.since), Next: s.now.Add(x.due)}, x.rcpts)
	}
	// One that may go at once has no time.
	p.count(s, m, &sched.Info{ID: m.num, Queue: sched.QueueDeferred, Created: s.now}, 1)
	p.unread, p.away = 7, 8
	want := "to.test: 6 message(s) with 10 recipient(s) in this domain are queued, the oldest since " + at.Add(-3*time.Hour).UTC().Format(time.DateTime) + "; next attempt at " + at.Add(30*time.Minute).UTC().Format(time.DateTime) +
		", 2 within an hour; 7 message(s) of the queue have not been looked at yet; 8 message(s) of the queue, on hold or not due soon, are not looked at for this"
	if got := p.head(); got != want {
		t.Errorf("%q, not\n%q", got, want)
	}
	if len(p.sample) != 6 {
		t.Errorf("%d are in the sample", len(p.sample))
	}
	for range destSample {
		p.count(s, m, &sched.Info{ID: m.num, Queue: sched.QueueDeferred, Created: s.now}, 1)
	}
	if len(p.sample) != destSample {
		t.Errorf("%d are in the sample", len(p.sample))
	}
	for text, want := range map[string]string{"none.test": "none.test: 0 message(s) with 0 recipient(s) in this domain are queued",
		"[to.test]":    `[to.test]: deferred mail is not kept by next hop; "posthaste queue list --nexthop='[to.test]'" looks for it`,
		"smtp:to.test": `smtp:to.test: deferred mail is not kept by next hop; "posthaste queue list --nexthop='smtp:to.test'" looks for it`} {
		if got := (&portrait{dest: destination(t, text)}).head(); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	var rows portrait
	for range destRows + 3 {
		rows.row("x")
	}
	if len(rows.lines) != destRows || rows.rows != destRows+3 || rows.lines[0] != "  x" {
		t.Errorf("%d lines of %d: %q", len(rows.lines), rows.rows, rows.lines[0])
	}
}

// A storedMessage is a message as the spool has it.
type storedMessage struct {
	queueread.Stored
	env      mail.Envelope
	rcpts    []mail.Recipient
	outcomes []mail.Outcome
	fails    [5]error // what comes of reading: the envelope, the recipients, the outcomes, the content, and its octets
	open     int      // contents that are
}

func (m *storedMessage) Envelope() (mail.Envelope, error)              { return m.env, m.fails[0] }
func (m *storedMessage) Recipients(int, int) ([]mail.Recipient, error) { return m.rcpts, m.fails[1] }
func (m *storedMessage) Outcomes() ([]mail.Outcome, error)             { return m.outcomes, m.fails[2] }
func (m *storedMessage) Overlay([]byte)                                {}
func (m *storedMessage) Pending(int) bool                              { return true }
func (m *storedMessage) Content() (queueread.Content, error) {
	if m.fails[3] == nil {
		m.open++
	}
	return &storedContent{m: m}, m.fails[3]
}

// A storedContent is its content.
type storedContent struct {
	queueread.Content
	m *storedMessage
}

func (c *storedContent) Read([]byte) (int, error) { return 0, cmp.Or(c.m.fails[4], io.EOF) }
func (c *storedContent) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write([]byte("x\r\n"))
	return int64(n), cmp.Or(c.m.fails[4], err)
}
func (c *storedContent) Close() error {
	c.m.open--
	return nil
}

// Of the last replies those that most messages share come first, each message counts once for one, with the time of its last one; recipients
// that have the message, or are in other domains, do not count.
func TestPortraitReplies(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	st := &stage{mute: false, routes: map[string]string{"to.test": "smtp:[hub.test]"}}
	s.opt.Resolver, s.opt.ResolveTime, s.ctx = st, time.Second, t.Context()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	of := func(i int, text string, when time.Duration) mail.Outcome {
		return mail.Outcome{Rcpt: i, Action: dsn.Deferred, Status: dsn.S(4, 2, 0), Reason: text, When: at.Add(when)}
	}
	spool := map[mail.QueueID]*storedMessage{}
	p := &portrait{dest: destination(t, "to.test")}
	to := func(done []byte, now map[int]mail.Outcome, outcomes []mail.Outcome, rcpts ...string) {
		id := mail.MakeQueueID(at, uint64(len(spool)+1))
		m := &storedMessage{outcomes: outcomes}
		for _, a := range rcpts {
			m.rcpts = append(m.rcpts, mail.Recipient{Address: a})
		}
		spool[id] = m
		p.sample = append(p.sample, listed{item: proto.Item{ID: id}, done: done, now: now})
	}
	s.opt.Open = func(_ context.Context, _ queue.Ref, id mail.QueueID) (queueread.Stored, error) {
		if m := spool[id]; m != nil {
			return m, nil
		}
		return nil, errors.New("it has left")
	}
	to(nil, nil, []mail.Outcome{of(0, "450 rare", 0)}, "a@to.test")
	to(nil, nil, []mail.Outcome{of(0, "450 of\x1bten", 2*time.Minute), of(1, "450 of\x1bten", time.Minute)}, "a@to.test", "b@to.test")
	to(nil, nil, []mail.Outcome{of(0, "450 of\x1bten", 3*time.Minute), of(1, "450 elsewhere", 0)}, "a@TO.test", "b@other.test")
	done := message{}
	done.setDone(0)
	to(done.done, nil, []mail.Outcome{of(0, "450 done", 0)}, "a@to.test")
	to(nil, map[int]mail.Outcome{0: of(0, "450 now", 0)}, []mail.Outcome{of(0, "450 before", 0), of(9, "450 nobody", 0)}, "a@to.test")
	p.sample = slices.Insert(p.sample, 1, listed{item: proto.Item{ID: "gone"}}) // and those behind it are read all the same
	lines, hops := s.portrayReplies(p)
	want := []string{"  last reply to 2 of the first 6 messages, at 2026-11-21 12:03:00: 4.2.0 450 of?ten", "  last reply to 1 of the first 6 messages, at 2026-11-21 12:00:00: 4.2.0 450 now",
		"  last reply to 1 of the first 6 messages, at 2026-11-21 12:00:00: 4.2.0 450 rare"}
	if !slices.Equal(lines, want) || !reflect.DeepEqual(hops, map[string]bool{"smtp:[hub.test]": true, "smtp:to.test": true}) {
		t.Errorf("%s\n%v", strings.Join(lines, "\n"), hops)
	}
	// There are no more lines than a page has.
	for n, more := range map[int]string{destReplies: "", destReplies + 2: "  and 2 other replies"} {
		p.sample = nil
		for i := range n {
			to(nil, nil, []mail.Outcome{of(0, fmt.Sprintf("450 %02d", i), 0)}, "a@to.test")
		}
		lines, _ := s.portrayReplies(p)
		if last := lines[len(lines)-1]; more == "" && len(lines) != destReplies || more != "" && (len(lines) != destReplies+1 || last != more) {
			t.Errorf("%d replies: %d lines, the last %q", n, len(lines), last)
		}
	}
}

// Of all that operators and rules have ordered, that is told which is for the destination, in its words, and nothing that is over.
func TestPortraitRules(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	by := override.Entry{By: "ann", Since: at, Until: at.Add(time.Hour), Most: 2, Name: "k", Value: "v"}
	over := by
	over.Until = at
	const end = " by ann since 2026-11-21 12:00:00 until 2026-11-21 13:00:00"
	for _, c := range []struct{ kind, target, dest, want string }{
		{"suspension", "to.test", "to.test", "to.test is suspended" + end},
		{"suspension", "domain=to.test", "to.test", "domain to.test is suspended" + end},
		{"suspension", "nexthop=to.test", "TO.test", "next hop to.test is suspended" + end},
		{"suspension", "smtp:to.test", "smtp:to.test", "smtp:to.test is suspended" + end},
		{"suspension", "smtp:", "smtp:to.test", "smtp: is suspended" + end},
		{"suspension", "*", "to.test", "* is suspended" + end},
		{"suspension", "smtp:[to.test]:26", "smtp:[to.test]:26", "smtp:[to.test]:26 is suspended" + end},
		{"suspension", "other.test", "to.test", ""},
		{"suspension", "sender=@to.test", "to.test", ""},
		{"suspension", "tenant=acme", "to.test", ""},
		{"limit", "to.test", "to.test", "delivery to to.test is limited to 2 at a time" + end},
		{"limit", "smtp:to.test", "smtp:to.test", "delivery to smtp:to.test is limited to 2 at a time" + end},
		{"limit", "lmtp:to.test", "smtp:to.test", ""},
		{"limit", "other.test", "to.test", ""},
		{"return", "domain=to.test", "TO.test", "R"},
		{"return", "domain=other.test", "to.test", ""},
		{"diversion", "to.test", "to.test", "D"},
		{"diversion", "to.test", "[relay.test]", "D"},
		{"diversion", "to.test", "other.test", ""},
		{"setting", "domain=to.test", "to.test", "S"},
		{"setting", "domain=other.test", "to.test", ""},
	} {
		for _, order := range []override.Entry{by, over} {
			s, _ := still(t)
			s.now = at
			r := aRule(t, 1, c.target, order)
			r.to = hop{"smtp", "[relay.test]"}
			set, want := newRuleset([]*rule{r}), c.want
			switch c.kind {
			case "suspension":
				s.rules.set = set
			case "limit":
				s.rules.limits = set
			case "return":
				s.rules.returns.Store(set)
				want = strings.ReplaceAll(want, "R", r.returnText())
			case "diversion":
				s.rules.diversions.Store(set)
				want = strings.ReplaceAll(want, "D", r.diversionText())
			case "setting":
				s.auto.settings.Store(&settingSet{list: []*rule{r}})
				want = strings.ReplaceAll(want, "S", r.settingText())
			}
			var lines []string
			if want != "" && order == by {
				lines = []string{"  " + want}
			}
			p := &portrait{dest: destination(t, c.dest)}
			if s.portrayRules(p); !slices.Equal(p.lines, lines) {
				t.Errorf("%s of %s, for %s: %q, want %q", c.kind, c.target, c.dest, p.lines, lines)
			}
		}
	}
}
