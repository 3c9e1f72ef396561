package overview

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/standing"
)

// A fakeManager is the queue manager of a node with n messages for d.test, which have waited for some minutes. It fails at what it
// is asked of the kind fails.
type fakeManager struct {
	n, minutes int
	fails      uint16
	taken      *standing.Book
}

func (f fakeManager) Call(_ context.Context, req, reply ipc.Message) error {
	if req.Kind() == f.fails {
		return errors.New("it does not answer")
	}
	switch r := reply.(type) {
	case *proto.ShapeReply:
		counts := make([]int, history.Buckets)
		counts[history.Bucket(time.Duration(f.minutes)*time.Minute)] = f.n
		r.Rows = []proto.ShapeRow{{Domain: "d.test", Queue: "deferred", Counts: counts}, {Domain: "d.test", Queue: "deferred", Senders: true, Counts: counts}}
		r.Totals = proto.Totals{Since: time.Unix(1, 0), In: int64(f.n)}
	case *proto.OverrideReply:
		r.Entries, r.Waiting = []proto.OverrideEntry{{Of: "suspension", Target: "d.test", By: "ann"}}, []int{f.n}
	case *proto.ExplainReply:
		r.Lines = []string{"title"}
		for i := range 4 {
			r.Lines = append(r.Lines, fmt.Sprintf("  %d says %d", f.n, i))
		}
		r.Oldest = time.Unix(1e9, 0).Add(-time.Duration(f.minutes) * time.Minute)
		r.Dests = []proto.DestInfo{{Transport: "smtp", Nexthop: "d.test", State: "ready", Todo: f.n}}
	case *proto.StandingReply:
		if f.taken != nil {
			r.Book = f.taken.Encode()
		}
	}
	return nil
}

// What all nodes have is added up, what each says has its name, and one that fails at any time is left out whole, and named.
func TestSeeAll(t *testing.T) {
	t.Parallel()
	seen, err := SeeAll(t.Context(), []Manager{{"a", fakeManager{n: 2, minutes: 30}}, {"b", fakeManager{n: 3, minutes: 90}}, {"c", fakeManager{n: 100, fails: proto.KindShape}},
		{"d", fakeManager{n: 1000, fails: proto.KindExplain}}}, time.Unix(1e9, 0))
	if err != nil {
		t.Fatal(err)
	}
	n := seen.Now
	if strings.Join(n.Nodes, " ") != "a b" || strings.Join(n.Missing, " ") != "c d" || len(seen.Of) != 2 || seen.Of[1].Sample.Totals.In != 3 {
		t.Errorf("%+v", seen)
	}
	if got := Table(seen.Sample, []string{"deferred"}, ByRecipient, 9).Total.Total; got != 5 {
		t.Errorf("%d recipients", got)
	}
	if len(n.Suspensions) != 1 || n.Suspensions[0].Waiting != 5 {
		t.Errorf("%+v", n.Suspensions)
	}
	h := n.Hurts[0]
	if n.Queues[2].Messages != 5 || h.Waiting != 5 {
		t.Errorf("what a node has that failed later is counted: %+v", n)
	}
	if want := "2 says 0|2 says 1|2 says 2|2 says 3|node b: 3 says 0|node b: 3 says 1"; strings.Join(h.Why, "|") != want {
		t.Errorf("%q", h.Why)
	}
	if h.Oldest != "90 min" || len(h.Destinations) != 2 || h.Destinations[1].Node != "b" || !strings.Contains(h.Reason, "suspended by ann") {
		t.Errorf("%+v", h)
	}
	if _, err := SeeAll(t.Context(), []Manager{{"a", fakeManager{fails: proto.KindShape}}, {"b", fakeManager{n: 3}}}, time.Unix(1e9, 0)); err == nil {
		t.Error("the own queue manager was not missed")
	}
}
