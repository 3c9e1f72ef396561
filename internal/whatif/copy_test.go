package whatif

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"posthaste/internal/proto"
)

// Mail of which it is not known where it goes is shared out, or the copy is refused: it never leaves
// the forecast without a word.
func TestUnknown(t *testing.T) {
	t.Parallel()
	dests := []proto.BacklogDest{{Transport: "smtp", Queue: "a.test", Nexthop: "A.test"}, {Transport: "smtp", Queue: "b.test", Nexthop: "b.test"}}
	at := func(queue string, n int) proto.BacklogRow {
		return proto.BacklogRow{Transport: "smtp", Queue: queue, Count: n, Rcpts: 1}
	}
	to := func(domain string, n int) proto.BacklogRow {
		return proto.BacklogRow{Domain: domain, Count: n, Rcpts: 1}
	}
	for _, c := range []struct {
		name    string
		reply   proto.BacklogReply
		a, b    int // messages
		unknown int
		err     error
	}{
		{name: "nothing"},
		{name: "no destination at all", reply: proto.BacklogReply{Rows: []proto.BacklogRow{to("a.test", 5), to("", 2)}}, err: ErrUnknown},
		{name: "destinations without mail", reply: proto.BacklogReply{Dests: dests, Rows: []proto.BacklogRow{to("c.test", 5)}}, err: ErrUnknown},
		{name: "by domain", reply: proto.BacklogReply{Dests: dests, Rows: []proto.BacklogRow{to("a.test", 5)}}, a: 5},
		{name: "the rest goes where those by domain go", reply: proto.BacklogReply{Dests: dests, Rows: []proto.BacklogRow{to("", 2), to("a.test", 5)}}, a: 7, unknown: 2},
		{name: "by share", reply: proto.BacklogReply{Dests: dests, Rows: []proto.BacklogRow{at("a.test", 30), at("b.test", 10), to("c.test", 8)}}, a: 36, b: 12, unknown: 8},
		{name: "one alone", reply: proto.BacklogReply{Dests: dests, Rows: []proto.BacklogRow{at("a.test", 1), at("b.test", 1), to("", 1)}}, a: 2, b: 1, unknown: 1},
		{name: "one by one", reply: proto.BacklogReply{Dests: dests, Rows: []proto.BacklogRow{at("a.test", 3), at("b.test", 1), to("", 1), to("", 1), to("", 1), to("", 1)}}, a: 6, b: 2, unknown: 4},
	} {
		g := taking{index: make(map[destKey]int)}
		if err := g.part(&c.reply); err != nil {
			t.Fatal(c.name, err)
		}
		err := g.share(t.Context())
		var n [2]int
		for _, row := range g.Rows {
			n[row.Dest] += row.Count
		}
		if !errors.Is(err, c.err) || err == nil && (n != [2]int{c.a, c.b} || g.Unknown != c.unknown) {
			t.Errorf("%s: %v, %d of them unknown, error %v", c.name, n, g.Unknown, err)
		}
	}
}

// Rows of one domain are shared out together, however few messages each has; and who does not wait for it any more has it
// end.
func TestSharedByDomain(t *testing.T) {
	t.Parallel()
	take := func() *taking {
		g := &taking{index: make(map[destKey]int)}
		var reply proto.BacklogReply
		for i := range 4 { // mailboxes of one next hop
			queue := fmt.Sprintf("u%d@a.test", i)
			reply.Dests = append(reply.Dests, proto.BacklogDest{Transport: "smtp", Queue: queue, Nexthop: "A.test"})
			reply.Rows = append(reply.Rows, proto.BacklogRow{Transport: "smtp", Queue: queue, Count: 10, Rcpts: 1})
		}
		for range 8 {
			reply.Rows = append(reply.Rows, proto.BacklogRow{Domain: "a.test", Count: 1, Rcpts: 1})
		}
		if err := g.part(&reply); err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := take()
	if err := g.share(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n [4]int
	for _, row := range g.Rows {
		n[row.Dest] += row.Count
	}
	if n != [4]int{12, 12, 12, 12} || g.Unknown != 0 {
		t.Errorf("%v, %d unknown", n, g.Unknown)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := take().share(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody waits any more: %v", err)
	}
}
