package qmgr

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/nodeshare"
	"posthaste/internal/proto"
	"posthaste/internal/table"
	"posthaste/qmgr/sched"
)

// What the scheduler is told of a destination's limit: this node's share of it, never more than what is configured or set;
// nothing may begin without a share, and the first one is asked for at once; a node that is alone has limits as they are.
func TestNodeShares(t *testing.T) {
	t.Parallel()
	s := &Server{nodes: newNodes(true), now: time.Unix(1800000000, 0)}
	s.opt.Settings.Sched.DefaultTransports = sched.TransportConfig{ConcurrencyLimit: 20}
	s.opt.Settings.Sched.Transport = func(name mail.Transport, t sched.TransportConfig) sched.TransportConfig {
		switch name {
		case "free":
			t.ConcurrencyLimit = 0
		case "slow":
			t.DestinationRateDelay = time.Second
		}
		return t
	}
	operator := func(_ mail.Transport, nexthop mail.Nexthop) (int, bool) {
		switch nexthop {
		case "few.test":
			return 3, false
		case "many.test":
			return 50, true
		}
		return 0, false
	}
	look := func(what string, set sched.SetLimits, transport mail.Transport, nexthop mail.Nexthop, most int, raises, hurried bool) {
		t.Helper()
		n, r := s.nodes.within(s, set)(transport, nexthop)
		asked := len(s.nodes.hurry) == 1
		if asked {
			<-s.nodes.hurry
		}
		if n != most || r != raises || asked != hurried {
			t.Errorf("%s: %s:%s: %d %v, asked for: %v", what, transport, nexthop, n, r, asked)
		}
	}
	look("at the start", nil, "smtp", "x.test", -1, false, true)
	look("at the start", nil, "free", "x.test", 0, false, false)
	look("at the start", nil, sched.RetryTransport, "x", 0, false, false)

	s.nodes.claimed = map[string]bool{"smtp:x.test": true}
	take := func(r nodeshare.Reply) {
		s.nodes.holder.Take(s.now, &r)
		s.applyShares()
	}
	take(nodeshare.Reply{Grants: []nodeshare.Grant{{Key: "smtp:x.test", Share: 0}, {Key: "smtp:few.test", Share: 5, Target: 5}, {Key: "smtp:many.test", Share: 30, Target: 25},
		{Key: "smtp:y.test", Share: 7, Target: 7}, {Key: "slow:y.test", Share: 7, Target: 7}}})
	if len(s.queue) != 2 || s.queue[0].event.Kind != sched.EventLimits {
		t.Errorf("the scheduler has not been told: %+v", s.queue)
	}
	look("refused", operator, "smtp", "X.test", -1, false, false)
	look("a share", operator, "smtp", "Y.test", 7, true, false)
	look("less is set", operator, "smtp", "few.test", 3, true, false)
	look("more is set", operator, "smtp", "many.test", 25, true, false)
	look("a rate delay", operator, "slow", "y.test", 1, true, false)
	take(nodeshare.Reply{Alone: true})
	look("alone", operator, "smtp", "x.test", 0, false, false)
	look("alone", operator, "smtp", "many.test", 50, true, false)
	s.applyShares()
	if len(s.queue) != 4 {
		t.Errorf("the scheduler is told of what it knows: %d events", len(s.queue))
	}
	s.now = s.now.Add(nodeshare.Lease)
	s.applyShares()
	look("cut off", operator, "smtp", "many.test", -1, false, true)
}

// A process that was stopped for longer than its shares are good begins nothing by them when it goes on: they are given
// up before what has come meanwhile is looked at.
func TestSharesAreOver(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	cfg, err := config.LoadString(st.main)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := Load(cfg, nil, table.Options{}, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	settings.Nodes = true
	s := New(Options{Settings: settings, Log: maillog.New("postfix/qmgr", maillog.NewWriter(st.log, maillog.Classic))})
	s.now = time.Now()
	s.nodes.holder.Take(s.now, &nodeshare.Reply{Grants: []nodeshare.Grant{{Key: "smtp:x.test", Share: 5, Target: 5}}})
	s.applyShares()
	s.now = s.now.Add(time.Second)
	has := func() int {
		n, _ := s.nodes.within(s, nil)("smtp", "x.test")
		return n
	}
	if got := has(); got != 5 {
		t.Fatalf("%d may be under way", got)
	}
	s.now = s.now.Add(time.Minute)
	found := 0
	s.post(func() { found = has() }, sched.Event{})
	s.turn(false)
	if found != -1 {
		t.Errorf("%d may be begun by shares that are over", found)
	}
}

// When there is more than an exchange has room for, what is in use comes first, and what only counts until midnight last: strangers
// decide to how many domains there was mail today.
func TestForemostUses(t *testing.T) {
	t.Parallel()
	var list []nodeshare.Use
	for i := range proto.SharesLimit + 1 {
		list = append(list, nodeshare.Use{Key: fmt.Sprintf("%s20000 recipients of domain %d", nodeshare.DayPrefix, i), Limit: 100, Busy: 1})
	}
	// Of this one more is wanted.
	list[7].Want = 1
	list = append(list, nodeshare.Use{Key: "smtp:waits.test", Limit: 5, Want: 1}, nodeshare.Use{Key: "smtp:busy.test", Limit: 5, Busy: 1})
	first, more := foremost(slices.Clone(list))
	if len(first) != proto.SharesLimit || !more {
		t.Errorf("%d, and more: %v", len(first), more)
	}
	for i, want := range []nodeshare.Use{list[7], list[len(list)-1], list[len(list)-2], list[0]} {
		if first[i] != want {
			t.Errorf("%d is %+v, want %+v", i, first[i], want)
		}
	}
	if first, more := foremost(list[:3]); len(first) != 3 || more {
		t.Errorf("%v, and more: %v", first, more)
	}
}

// A node that shares its destinations delivers as many messages at a time as it was granted, says what it uses and what it wants, and gives it
// back when nothing is left to be delivered.
func TestSharesExchanged(t *testing.T) {
	t.Parallel()
	st := newStage(t, "")
	st.shared, st.node = true, "a"
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	for range 4 {
		st.arrive("s@from.test", "x@TO.test")
	}
	claim := func() (c nodeshare.Claim) {
		last := &st.claimed[len(st.claimed)-1]
		i := slices.IndexFunc(last.Claims, func(c nodeshare.Claim) bool { return c.Key == "smtp:to.test" })
		if i >= 0 {
			c = last.Claims[i]
		}
		return c
	}
	st.until("all is wanted, and nothing is used", func() bool {
		return len(st.claimed) > 0 && claim() == nodeshare.Claim{Key: "smtp:to.test", Demand: 4, Limit: 20}
	})
	st.mu.Lock()
	st.grants = []nodeshare.Grant{{Key: "smtp:to.test", Share: 2, Target: 2}}
	st.mu.Unlock()
	orders := []order{smtp.next(), smtp.next()}
	st.until("so many are used", func() bool { return claim() == nodeshare.Claim{Key: "smtp:to.test", Hold: 2, Demand: 4, Limit: 20} })
	select {
	case <-smtp.orders:
		t.Error("more is delivered than was granted")
	default:
	}
	for i := range orders {
		orders[i].answer("ok")
	}
	for range 2 {
		o := smtp.next()
		o.answer("ok")
	}
	st.until("nothing is used", func() bool { return claim() == nodeshare.Claim{} })
}
