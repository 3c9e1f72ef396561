package whatif

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// Where nodes share the queue a forecast is of this node's mail, and says so, with what others have as far as they say it.
func TestBeside(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "spool_type = postgresql\nspool_postgresql_url = postgres://mail@localhost/mail\ncluster_node_name = a\n")
	if err := os.WriteFile(filepath.Join(s.Config, "master.cf"), []byte("smtp unix - - n - - smtp\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var parts atomic.Pointer[[]proto.NodePart]
	parts.Store(&[]proto.NodePart{{ID: 1, Node: "a", Own: true}, {ID: 2, Node: "b"}, {ID: 3, Node: "c"}, {ID: 4, Node: "d", Down: true}})
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
			row := func(queue string, n int) proto.ShapeRow {
				return proto.ShapeRow{Domain: "from.test", Senders: true, Queue: queue, Counts: []int{n}}
			}
			reply := proto.ShapeReply{Rows: []proto.ShapeRow{row("deferred", 1200), row("active", 34), row("hold", 5)}}
			r.Reply(&proto.ForwardReply{Payload: reply.Append(nil)})
		case proto.KindBacklog:
			now := time.Now()
			r.Reply(&proto.BacklogReply{Dests: []proto.BacklogDest{{Transport: "smtp", Queue: "to.test", Nexthop: "to.test"}},
				Rows: []proto.BacklogRow{{Transport: "smtp", Queue: "to.test", Count: 3, Rcpts: 1, Created: now, Deferred: true, Due: now}}})
		}
	})
	run := func() string {
		var out, errs bytes.Buffer
		if status := Command("posthaste whatif", []string{"-c", s.Config}, &out, &errs); status != 0 {
			t.Fatalf("exit status %d: %s", status, errs.String())
		}
		return out.String()
	}
	out := run()
	want := "This is the mail of node a. Not in the forecast are messages of other nodes: 1,234 on node b. It is not known how many these have: d, c.\n"
	if !strings.Contains(out, want) || !strings.Contains(out, "3 messages are in the forecast") {
		t.Errorf("%s", out)
	}
	own := (*parts.Load())[:1]
	parts.Store(&own)
	if out := run(); strings.Contains(out, "of node") {
		t.Errorf("this node has all of it: %s", out)
	}
}
