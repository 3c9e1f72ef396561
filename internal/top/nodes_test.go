package top

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/overview"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

const shared = "spool_type = postgresql\nspool_postgresql_url = postgres://mail@localhost/mail\ncluster_node_name = a\n"

// count answers what a glance asks for, with so many deferred messages for to.test.
func count(kind uint16, messages int) ipc.Message {
	switch kind {
	case proto.KindShape:
		row := proto.ShapeRow{Domain: "to.test", Queue: "deferred", Counts: []int{messages}}
		from := proto.ShapeRow{Domain: "from.test", Senders: true, Queue: "deferred", Counts: []int{messages}}
		return &proto.ShapeReply{Rows: []proto.ShapeRow{row, from}}
	case proto.KindExplain:
		return &proto.ExplainReply{Lines: []string{"to.test: some", "it waits"}}
	case proto.KindStanding:
		return &proto.StandingReply{}
	}
	return &proto.OverrideReply{}
}

// Of a queue that nodes share all mail is counted, and the nodes are named: also those whose mail is missing. One of them can be
// looked at by itself.
func TestNodes(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, shared)
	var parts atomic.Pointer[[]proto.NodePart]
	parts.Store(&[]proto.NodePart{{ID: 2, Node: "a", Own: true}, {ID: 1, Node: "b"}, {ID: 5, Node: "b"}, {ID: 3, Node: "c"}, {ID: 4, Node: "d", Down: true}})
	s.Serve("qmgr", func(r *ipc.Request) {
		switch r.Kind {
		case proto.KindNodes:
			r.Reply(&proto.NodesReply{Parts: *parts.Load()})
		case proto.KindForward:
			q := faketest.Decode[proto.Forward](t, r)
			if q.Node != "b" {
				r.Reply(&proto.ForwardReply{Failed: "it does not answer"})
				return
			}
			r.Reply(&proto.ForwardReply{Payload: count(q.Asked, 4000).Append(nil)})
		default:
			r.Reply(count(r.Kind, 300))
		}
	})
	for _, c := range []struct {
		args, want string
		status     int
	}{
		{"-1", "deferred 4,300 (under 5 min)  hold 0\non a, b\nnot counted, as they are down or do not answer: c, d\n\nto.test: 4,300 ", 0},
		{"-1", "    it waits\n    node b: it waits\n", 0},
		{"-1 -n a", "deferred 300 (under 5 min)  hold 0\non a\n\n", 0},
		{"-1 -n b", "deferred 4,000 (under 5 min)  hold 0\non b\n\n", 0},
		{"-1 -n c", "node c: it does not answer", 69},
		{"-1 -n d", "node d is down", 69},
		{"-1 -n e", "no node e has a part of the queue", 69},
		{"-j", `"nodes":["a","b"],"missing_nodes":["c","d"]`, 0},
	} {
		out, errs, status := run(s, strings.Fields(c.args)...)
		if status != c.status || !strings.Contains(out+errs, c.want) {
			t.Errorf("%s: exit status %d, want %q\n%s%s", c.args, status, c.want, out, errs)
		}
	}
	down := (*parts.Load())[4:]
	parts.Store(&down)
	if out, errs, status := run(s); status != 69 || !strings.Contains(errs, "all nodes that have something of the queue are down") {
		t.Errorf("nobody: exit status %d\n%s%s", status, out, errs)
	}
	alone := faketest.New(t, "")
	alone.Serve("qmgr", func(r *ipc.Request) { r.Reply(count(r.Kind, 300)) })
	if _, errs, status := run(alone, "-n", "a"); status != 69 || !strings.Contains(errs, "no node a") {
		t.Errorf("a queue that is not shared: exit status %d, %s", status, errs)
	}
}

// The rates are those of all nodes together, and are not known as long as one has been counted once.
func TestRatesOfNodes(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
	of := func(node string, seconds, in int) overview.Sampled {
		return overview.Sampled{Node: node, Sample: &history.Sample{At: begin.Add(time.Duration(seconds) * time.Second), Totals: proto.Totals{Since: begin.Add(-time.Hour), In: int64(in)}}}
	}
	before := []overview.Sampled{of("a", 0, 10), of("b", 0, 100)}
	if r := overview.RatesOfAll(before, []overview.Sampled{of("b", 60, 140), of("a", 60, 12)}); r == nil || r.In != 42 || r.Seconds != 60 {
		t.Errorf("%+v", r)
	}
	if r := overview.RatesOfAll(before[:1], []overview.Sampled{of("b", 60, 140), of("a", 60, 12)}); r != nil {
		t.Errorf("of a node that has been counted once: %+v", r)
	}
}
