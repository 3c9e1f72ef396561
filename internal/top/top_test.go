package top

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/standing"
)

func run(s *faketest.Site, args ...string) (out, errs string, status int) {
	var o, e bytes.Buffer
	status = Run("posthaste top", append([]string{"-c", s.Config}, args...), &o, &e)
	return o.String(), e.String(), status
}

const want = `    incoming 0  active 0  deferred 4,311 (over 10 min)  hold 0

a.test: 4,310 recipients wait, the oldest for over 10 min
    smtp to a.test: window 2 ?[2J
    last reply: 421 busy
b.test: 2 recipients wait, the oldest for under 5 min

Tenants
    shop: 7 messages wait, the oldest for over 5 min
        7 message(s) in memory, 2 of them in the active queue; 1 deliveries under way; weight 1
        limit of tenant shop: 1 of 1 deliveries at once ?

Providers, in the last 24 hours
    what came back is not known: ?
    big?mail: delivered 1, deferred 0, bounced 0, bounced later 1, complaints 1 (1000.0 of a thousand)
        from mta1: delivered 1, deferred 0, bounced 0, bounced later 1, complaints 0
        from no source: delivered 0, deferred 0, bounced 0, bounced later 0, complaints 1

Limited
    slow.test to 2 at a time, by ann since 2026-11-24 08:00:00 until 2026-11-24 09:00:00; 2 under way, 4,308 wait: ticket ?

Diverted
    next hop [relay1.test] to [relay2.test]:587, by ann since 2026-11-24 08:00:00 until 2026-11-24 09:00:00: ticket ?

Suspended
    mail from <>, by ann since 2026-11-24 08:00:00, 3 messages wait: ticket ?
    slow.test, by ann since 2026-11-24 08:00:00 until 2026-11-24 09:00:00, 1 message wait
`

// Once, where the output is no terminal: queues, the worst domains with what the queue manager
// says of them, suspensions; in text and as JSON.
func TestOnce(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "")
	if _, errs, status := run(s); status != 69 || !strings.Contains(errs, "down") {
		t.Errorf("down: exit status %d, %q", status, errs)
	}
	since := time.Date(2026, 11, 24, 8, 0, 0, 0, time.Local)
	var refused atomic.Value
	refused.Store("")
	s.Serve("qmgr", func(r *ipc.Request) {
		switch r.Kind {
		case proto.KindShape:
			r.Reply(&proto.ShapeReply{Rows: []proto.ShapeRow{{Domain: "b.test", Queue: "active", Counts: []int{2}}, {Domain: "a.test", Queue: "deferred", Counts: []int{0, 10, 4300}},
				{Domain: "x.test", Queue: "incoming", Counts: []int{9}}, {Domain: "shop", Tenants: true, Queue: "deferred", Counts: []int{1, 4}}, {Domain: "shop", Tenants: true, Queue: "active", Counts: []int{2}},
				{Domain: "shop", Tenants: true, Queue: "hold", Counts: []int{9}}, {Domain: "(none)", Tenants: true, Queue: "active", Counts: []int{200}}, {Domain: "s.test", Senders: true, Queue: "deferred", Counts: []int{1, 0, 4310}}}})
		case proto.KindExplain:
			q := faketest.Decode[proto.Explain](t, r)
			lines := []string{q.Destination + ": 3 messages"}
			if q.Destination == "a.test" {
				lines = append(lines, "  smtp to a.test: window 2 \x1b[2J", "  last reply: 421 busy")
			}
			if q.Destination == "tenant=shop" {
				lines = []string{"tenant shop: 7 message(s) in memory, 2 of them in the active queue; 1 deliveries under way; weight 1", "  limit of tenant shop: 1 of 1 deliveries at once \x1b"}
			}
			r.Reply(&proto.ExplainReply{Lines: lines})
		case proto.KindStanding:
			book := new(standing.Book)
			book.Count(time.Now(), "big\x1bmail", "mta1", standing.Sent)
			book.Count(time.Now(), "big\x1bmail", "mta1", standing.Later)
			book.Count(time.Now(), "big\x1bmail", "", standing.Complaint)
			r.Reply(&proto.StandingReply{Book: book.Encode(), Problem: "what came back is not known: \x1b"})
		case proto.KindOverride:
			r.Reply(&proto.OverrideReply{Refused: refused.Load().(string), Waiting: []int{3, 1, 1, 0, 0}, Uses: []proto.OverrideUse{{}, {}, {}, {Destinations: 1, Busy: 2, Todo: 4308}}, Entries: []proto.OverrideEntry{{Of: "suspension", Target: "sender=<>", By: "ann", Since: since, Reason: "ticket \x1b"},
				{Of: "suspension", Target: "slow.test", By: "ann", Since: since, Until: since.Add(time.Hour)}, {Of: "other", Target: "x", By: "ann"},
				{Of: "limit", Target: "slow.test", Most: 2, By: "ann", Since: since, Until: since.Add(time.Hour), Reason: "ticket \x1b"},
				{Of: "diversion", Target: "nexthop=[relay1.test]", Nexthop: "[relay2.test]:587", By: "ann", Since: since, Until: since.Add(time.Hour), Reason: "ticket \x1b"}}})
		}
	})
	for _, args := range [][]string{nil, {"-1"}, {"-i", "7"}} {
		out, errs, status := run(s, args...)
		if _, rest, _ := strings.Cut(out, ":"); status != 0 || errs != "" || len(rest) < 6 || rest[5:] != want {
			t.Errorf("%q: exit status %d, %q\n%s", args, status, errs, out)
		}
	}
	var n overview.Now
	out, errs, status := run(s, "-j")
	if err := json.Unmarshal([]byte(out), &n); err != nil || status != 0 || len(n.Hurts) != 2 || n.Hurts[0].Why[1] != "last reply: 421 busy" || len(n.Suspensions) != 2 || len(n.Tenants) != 1 || n.Tenants[0].Waiting != 7 || len(n.Tenants[0].Why) != 2 || len(n.Limits) != 1 || len(n.Providers) != 1 || n.Providers[0].Complaints != 1 || len(n.Providers[0].Sources) != 2 || n.Limits[0].Todo != 4308 {
		t.Errorf("exit status %d, %q, %v\n%s", status, errs, err, out)
	}
	refused.Store("no room")
	if _, errs, status := run(s); status != 69 || !strings.Contains(errs, "no room") {
		t.Errorf("refused: exit status %d, %q", status, errs)
	}
	refused.Store("")
	if status := Run("posthaste top", []string{"-c", s.Config}, broken{}, new(bytes.Buffer)); status != 74 {
		t.Errorf("output that cannot be written: exit status %d", status)
	}
	for _, args := range []string{"-x", "-i", "-i 0", "-i x", "more"} {
		if _, errs, status := run(s, strings.Fields(args)...); status != 64 || errs == "" {
			t.Errorf("%s: exit status %d, %q", args, status, errs)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no room") }

// What a terminal has no room for is cut off, in characters.
func TestFit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text          string
		width, height int
		want          string
	}{{"abc\nde\nf\n", 2, 10, "ab\nde\nf\n"}, {"äöü\n", 2, 10, "äö\n"}, {"a\nb\nc\n", 5, 3, "a\nb\n"}, {"abc\n", 0, 0, "abc\n"}, {"", 5, 5, ""}} {
		if got := string(fit([]byte(c.text), c.width, c.height)); got != c.want {
			t.Errorf("%q in %d x %d: %q", c.text, c.width, c.height, got)
		}
	}
}

// From the second time on there are rates.
func TestRates(t *testing.T) {
	t.Parallel()
	n := &overview.Now{At: time.Now(), Rates: &overview.Rates{Rates: history.Rates{In: 1200, Sent: 1100.4, Deferred: 3, Bounced: 0.2}}}
	if text := string(Text(n)); !strings.Contains(text, "\nby the minute  in 1200  delivered to 1100  deferred 3  bounced 0\n\nNo mail waits.") {
		t.Errorf("%s", text)
	}
}
