package overview

import (
	"fmt"
	"testing"
	"time"

	"posthaste/internal/history"
)

// The sums hold whatever has a row of its own, and queues that are not asked for do not count.
func TestTable(t *testing.T) {
	t.Parallel()
	s := &history.Sample{At: time.Now()}
	deferred := history.Table{Queue: "deferred", Others: history.Counts{9: 5}, Names: 2}
	for i := range 10 {
		deferred.Rows = append(deferred.Rows, history.Row{Domain: fmt.Sprintf("d%d.test", i), Counts: history.Counts{int64(i + 1)}})
	}
	s.Tables = []history.Table{deferred, {Queue: "active", Rows: []history.Row{{Domain: "d0.test", Counts: history.Counts{1: 100}}, {Domain: "D.test.", Counts: history.Counts{1}}}},
		{Queue: "hold", Rows: []history.Row{{Domain: "h.test", Counts: history.Counts{1000}}}}, {Queue: "active", Senders: true, Rows: []history.Row{{Domain: "", Counts: history.Counts{7}}}}}
	for top, want := range map[int]string{
		1:   "161 d0.test:101 (others):60 12",
		3:   "161 d0.test:101 d9.test:10 d8.test:9 (others):41 10",
		150: "161 d0.test:101 d9.test:10 d8.test:9 d7.test:8 d6.test:7 d5.test:6 d4.test:5 d3.test:4 d2.test:3 d1.test:2 D.test:1 (others):5 2",
	} {
		shape := Table(s, []string{"deferred", "active"}, ByRecipient, top)
		got := fmt.Sprint(shape.Total.Total)
		for _, r := range shape.Rows {
			got += fmt.Sprintf(" %s:%d", r.Domain, r.Total)
		}
		if got += fmt.Sprintf(" %d", shape.Others); got != want {
			t.Errorf("%d rows: %s, want %s", top, got, want)
		}
	}
	if shape := Table(s, history.Queues, BySender, 9); len(shape.Rows) != 1 || shape.Rows[0].Domain != "" || shape.Total.Total != 7 || shape.Others != 0 {
		t.Errorf("%+v", shape)
	}
	if n := Glance(s); len(n.Hurts) != worst || n.Hurts[0].Domain != "d0.test" || n.Hurts[0].Oldest != "over 5 min" || n.Queues[1] != (QueueState{"active", 7, "under 5 min"}) {
		t.Errorf("%+v", n)
	}
	for n, want := range map[int64]string{0: "0", 999: "999", 4310: "4,310", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := Number(n); got != want {
			t.Errorf("%d is %s", n, got)
		}
	}
	for d, want := range map[time.Duration]string{time.Second: "1 s", 119 * time.Minute: "119 min", 2 * time.Hour: "2 h", 48 * time.Hour: "2 d"} {
		if got := Span(d); got != want {
			t.Errorf("%v is %s", d, got)
		}
	}
	for i, want := range []string{"under 5 min", "over 5 min", "over 10 min", "over 20 min", "over 40 min", "over 80 min", "over 2 h", "over 5 h", "over 10 h", "over 21 h"} {
		c := history.Counts{}
		if c[i] = 1; Oldest(&c) != want {
			t.Errorf("column %d: %s, want %s", i, Oldest(&c), want)
		}
	}
}

// The domain whose mail has waited longest, all together, hurts most, whatever comes and goes meanwhile.
func TestWorstFirst(t *testing.T) {
	t.Parallel()
	s := &history.Sample{At: time.Now(), Tables: []history.Table{{Queue: "active", Rows: []history.Row{{Domain: "busy.test", Counts: history.Counts{100000}}}},
		{Queue: "deferred", Rows: []history.Row{{Domain: "dead.test", Counts: history.Counts{9: 10}}, {Domain: "slow.test", Counts: history.Counts{1: 300}}}}}}
	n := Glance(s)
	got := ""
	for _, h := range n.Hurts {
		got += h.Domain + " "
	}
	if got != "dead.test slow.test busy.test " {
		t.Errorf("%s", got)
	}
}

// Next hops have rows of their own, and transports those of all their next hops; recipients and senders do not count there.
func TestHops(t *testing.T) {
	t.Parallel()
	s := &history.Sample{Tables: []history.Table{{Queue: "deferred", Rows: []history.Row{{Domain: "d.test", Counts: history.Counts{100}}}}, {Queue: "deferred", Senders: true, Rows: []history.Row{{Domain: "s.test", Counts: history.Counts{100}}}},
		{Queue: "deferred", Hops: true, Others: history.Counts{3}, Names: 1, Rows: []history.Row{{Domain: "smtp:[hub.test]:25", Counts: history.Counts{5}}, {Domain: "smtp:a.test", Counts: history.Counts{1}}, {Domain: "lmtp:a.test", Counts: history.Counts{2}}}},
		{Queue: "deferred", Tenants: true, Rows: []history.Row{{Domain: "acme", Counts: history.Counts{7}}}}, {Queue: "deferred", Sources: true, Rows: []history.Row{{Domain: "m1", Counts: history.Counts{8}}}},
		{Queue: "deferred", Campaigns: true, Rows: []history.Row{{Domain: "acme/Spring", Counts: history.Counts{6}}}}}}
	for side, want := range map[Side]string{ByNexthop: "smtp:[hub.test]:25=5 lmtp:a.test=2 smtp:a.test=1 (others)=3 11", ByTransport: "smtp=6 lmtp=2 (others)=3 11", ByRecipient: "d.test=100 100", BySender: "s.test=100 100", ByTenant: "acme=7 7", BySource: "m1=8 8", ByCampaign: "acme/Spring=6 6"} {
		shape, got := Table(s, []string{"deferred"}, side, 9), ""
		for _, r := range shape.Rows {
			got += fmt.Sprintf("%s=%d ", r.Domain, r.Total)
		}
		if got += fmt.Sprint(shape.Total.Total); got != want || shape.Side != side {
			t.Errorf("%s: %s, want %s", side, got, want)
		}
	}
}
