package qmgr

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rate"
	"posthaste/internal/replyshare"
	"posthaste/qmgr/sched"
)

// A listing has all that is known of a message and of those recipients that are left, each field from where it belongs.
func TestItemInFull(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.opt.Resolver, s.opt.Settings.Node = &stage{routes: map[string]string{"slow.test": "smtp:hub.test", "few.test": "smtp:few.test", "moved.test": "smtp:moved.test"}}, "a"
	s.ctx = t.Context()
	at := s.now.Add(-time.Hour)
	m := &message{id: mail.MakeQueueID(at, 5), num: 5, nrcpt: 7, ref: queue.Ref{Segno: 3, Length: 4}}
	m.setDone(0)
	m.active = &active{outcomes: map[int]mail.Outcome{2: {Rcpt: 2, Reason: "450 now", Status: dsn.S(4, 3, 0)}}}
	info := sched.Info{ID: 5, Queue: sched.QueueDeferred, Created: at, Next: s.now, Size: 9, Attempts: 2, Pending: 6, Flags: sched.FlagExpire}
	brief := s.listed(m, info, true)
	want := proto.Item{ID: m.id, Queue: "deferred", Arrival: at, Next: s.now, Size: 9, Attempts: 2, ForcedExpire: true, Ref: m.ref, Done: m.done, Node: "a"}
	if !reflect.DeepEqual(brief.item, want) {
		t.Errorf("%+v, want\n%+v", brief.item, want)
	}
	order := override.Entry{By: "ann", Reason: "asked", Most: 2}
	s.rules.set = newRuleset([]*rule{aRule(t, 1, "domain=slow.test", order), {target: aRule(t, 2, "domain=few.test", order).target, queueOnly: true}})
	s.rules.limits = newRuleset([]*rule{aRule(t, 3, "few.test", order)})
	diverted := aRule(t, 4, "moved.test", order)
	diverted.to = hop{"smtp", "other.test"}
	s.rules.diversions.Store(newRuleset([]*rule{diverted}))
	l := s.listed(m, info, false)
	if l.ref != m.ref || l.pending != 6 || !slices.Equal(l.done, m.done) || l.rules != s.rules.set || l.limits != s.rules.limits || !l.at.Equal(s.now) {
		t.Errorf("%+v", l)
	}
	l.shut([]int{3}, "provider big", s.now)
	l.shut([]int{6}, "tenant x", time.Time{})
	env := mail.Envelope{Sender: "s@from.test", Arrival: at.Add(time.Second), Client: mail.Client{Name: "c.test", Addr: "192.0.2.9"}, SASL: mail.SASL{Username: "joe"}, Tenant: "acme", Campaign: "spring"}
	var rcpts []mail.Recipient
	for i, domain := range []string{"done.test", "one.test", "two.test", "three.test", "slow.test", "few.test", "moved.test"} {
		rcpts = append(rcpts, mail.Recipient{Address: fmt.Sprintf("%d@%s", i+10, domain), Original: fmt.Sprintf("o%d", i)})
	}
	if !s.complete(&l, &env, rcpts, []mail.Outcome{{Rcpt: 0, Reason: "250"}, {Rcpt: 1, Reason: "450 before", Status: dsn.S(4, 2, 0)}, {Rcpt: 2, Reason: "450 old"}}) {
		t.Error("nobody is left")
	}
	want = proto.Item{ID: m.id, Queue: "deferred", Arrival: env.Arrival, Next: s.now, Size: 9, Attempts: 2, ForcedExpire: true, Node: "a", Sender: "s@from.test", Client: "c.test", ClientAddr: "192.0.2.9", SASLUser: "joe", Tenant: "acme", Campaign: "spring",
		Recipients: []proto.ItemRcpt{{Address: "11@one.test", Orig: "o1", Reason: "450 before", Status: dsn.S(4, 2, 0)}, {Address: "12@two.test", Orig: "o2", Reason: "450 now", Status: dsn.S(4, 3, 0)},
			{Address: "13@three.test", Orig: "o3", Waits: "waits for the limit of provider big until " + s.now.Format(time.DateTime)},
			{Address: "14@slow.test", Orig: "o4", Suspended: "domain=slow.test", Waits: "delivery to domain slow.test is suspended: asked"},
			{Address: "15@few.test", Orig: "o5", Limited: "few.test", Waits: s.rules.limits.list[0].limitReason()},
			{Address: "16@moved.test", Orig: "o6", Diverted: "moved.test", Waits: "waits for the limit of tenant x"}}}
	if !reflect.DeepEqual(l.item, want) {
		t.Errorf("%+v, want\n%+v", l.item, want)
	}
	// Mail on hold waits for no rule, and mail that is all done is not listed.
	info.Queue = sched.QueueHold
	if l := s.listed(m, info, false); l.rules != nil || l.limits != nil {
		t.Errorf("%+v", l)
	}
	for i := range rcpts {
		m.setDone(i)
	}
	l = s.listed(m, info, false)
	if s.complete(&l, &env, rcpts, nil) {
		t.Errorf("%+v", l.item)
	}
	// Mail for later has not been forgotten, if it was not tried.
	env.SendAt = time.Now().Add(time.Hour)
	for attempts, waits := range map[int]string{0: startsText(env.SendAt), 1: ""} {
		l := listed{item: proto.Item{Attempts: attempts}}
		if s.complete(&l, &env, rcpts[:2], nil); len(l.item.Recipients) != 2 || l.item.Recipients[1].Waits != waits {
			t.Errorf("%d attempts: %+v", attempts, l.item.Recipients)
		}
	}
}

// What hosts answer is told with its share of the sessions, and no more kinds of it than have room.
func TestRepliesText(t *testing.T) {
	t.Parallel()
	d := proto.DestInfo{Transport: "smtp", Nexthop: "to.test", Span: replyshare.Span, Sessions: 10, Replies: []proto.ReplyGroup{{Sessions: 5, Accepted: true}, {Sessions: 3, Code: 421, Status: "4.7.0", Text: "slow"}, {Sessions: 1, Text: "timed out"}, {Sessions: 1, Text: "more"}}}
	const head = "  smtp to to.test, last 15 min: "
	if got, want := repliesText(&d), []string{head + "50 % of 10 sessions: accepted", head + "30 % of 10 sessions: 421 4.7.0 slow", head + "10 % of 10 sessions: timed out"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	d.Sessions, d.Replies = 1, d.Replies[3:]
	if got, want := repliesText(&d), []string{head + "100 % of 1 session: more"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Each part of a message is told in the row of what it is like, with its destination once; what is in no row is counted.
func TestBacklogRows(t *testing.T) {
	t.Parallel()
	s, _ := still(t)
	s.opt.Settings.limits = true
	s.rules.limits = newRuleset([]*rule{aRule(t, 1, "one.test", override.Entry{Most: 2, Raises: true})})
	at := s.now.Add(-100 * time.Second)
	b := &backlog{rows: map[backlogKey]int{}, dests: map[hop]bool{}, tenants: map[string]bool{}}
	due := s.now.Add(time.Hour)
	waiting := &sched.Info{Queue: sched.QueueActive, Created: at, Attempts: 1}
	deferred := &sched.Info{Queue: sched.QueueDeferred, Created: at, Next: due, Attempts: 1}
	one, two := sched.Part{Transport: "smtp", Queue: "one.test", Nexthop: "one.test", Rcpts: 1}, sched.Part{Transport: "lmtp", Queue: "joe@two.test", Rcpts: 3, Waits: true}
	for _, p := range []sched.Part{one, one, {Transport: sched.RetryTransport, Queue: "4.3.0 x"}, {Transport: sched.ErrorTransport, Queue: "5.3.0 x"}, {Transport: "smtp", Queue: "one.test", Paused: true}} {
		b.part(s, &p, waiting, "acme")
	}
	b.part(s, &two, deferred, "")
	beyond := one
	beyond.Beyond = true
	b.part(s, &beyond, deferred, "acme")
	untried := *deferred
	untried.Attempts = 0
	b.part(s, &beyond, &untried, "acme")
	rows := []proto.BacklogRow{{Transport: "smtp", Queue: "one.test", Tenant: "acme", Count: 3, Rcpts: 1, Created: at}, {Transport: "lmtp", Queue: "joe@two.test", Count: 1, Rcpts: 3, Created: at, Deferred: true, Due: due, Waits: true},
		{Transport: "smtp", Queue: "one.test", Tenant: "acme", Count: 1, Rcpts: 1, Created: at, Deferred: true, Due: s.now}}
	dests := []proto.BacklogDest{{Transport: "smtp", Queue: "one.test", Nexthop: "one.test", Most: 2, Raises: true, Untold: true}, {Transport: "lmtp", Queue: "joe@two.test", Nexthop: "two.test", Untold: true}}
	if b.reply.Suspended != 1 || !reflect.DeepEqual(b.reply.Rows, rows) || !reflect.DeepEqual(b.reply.Dests, dests) || len(b.reply.Members) != 0 {
		t.Errorf("%+v, want\n%+v\n%+v", b.reply, rows, dests)
	}
	// Numbers of recipients are exact where they are small, and ages go by powers of two.
	for n, want := range map[int]int{0: 1, 1: 1, 8: 8, 9: 9, 15: 15, 16: 16, 17: 16, 19: 18, 100: 96, 1000: 960} {
		b := &backlog{rows: map[backlogKey]int{}}
		if b.count(s, backlogKey{rcpts: n}, waiting); b.reply.Rows[0].Rcpts != want {
			t.Errorf("%d recipients: %d, want %d", n, b.reply.Rows[0].Rcpts, want)
		}
	}
	for age, own := range map[time.Duration]bool{64 * time.Second: false, 127 * time.Second: false, 63 * time.Second: true, 128 * time.Second: true, -time.Second: true} {
		b := &backlog{rows: map[backlogKey]int{}}
		b.count(s, backlogKey{}, waiting)
		if b.count(s, backlogKey{}, &sched.Info{Created: s.now.Add(-age)}); (len(b.reply.Rows) == 2) != own {
			t.Errorf("age %v: %+v", age, b.reply.Rows)
		}
	}
	for later, own := range map[time.Duration]bool{29 * time.Second: false, 30 * time.Second: true} {
		b := &backlog{rows: map[backlogKey]int{}}
		b.count(s, backlogKey{}, deferred)
		next := *deferred
		next.Next = due.Add(later)
		if b.count(s, backlogKey{}, &next); (len(b.reply.Rows) == 2) != own {
			t.Errorf("due %v later: %+v", later, b.reply.Rows)
		}
	}
	// A pool is told once for all its sources, with the terms that it has for those of which nothing is known.
	pool := &sched.Pool{Members: []sched.Member{{Source: "m1"}, {Source: "m2", Weight: 3, Wait: true, Terms: &sched.Terms{Source: "m2"}}}}
	pool.Members[1].Terms.Shares[sched.OwnLimit] = sched.Share{Name: "to.test", Limits: sched.Limits{Concurrency: 4, Messages: rate.Rate{N: 5, Per: rate.Day}}}
	from := func(source string) string { return sched.SourceQueue("to.test", source) }
	b = &backlog{rows: map[backlogKey]int{}, dests: map[hop]bool{}}
	for range 2 {
		b.part(s, &sched.Part{Transport: "smtp", Queue: from("m1"), Nexthop: "to.test", Rcpts: 1, Pool: pool}, waiting, "")
	}
	members := []proto.BacklogMember{{Transport: "smtp", Queue: from("m1"), Weight: 1}, {Transport: "smtp", Queue: from("m2"), Weight: 3, Wait: true}}
	dests = []proto.BacklogDest{{Transport: "smtp", Queue: from("m1"), Nexthop: "to.test", Untold: true},
		{Transport: "smtp", Queue: from("m2"), Nexthop: "to.test", Source: "m2", Shared: true, Limits: []proto.BacklogLimit{{Name: "to.test", Concurrency: 4, N: [4]int64{1: 5}, Per: [4]time.Duration{1: rate.Day}}}}}
	if !reflect.DeepEqual(b.reply.Members, members) || !reflect.DeepEqual(b.reply.Dests, dests) {
		t.Errorf("%+v\n%+v, want\n%+v\n%+v", b.reply.Members, b.reply.Dests, members, dests)
	}
}
