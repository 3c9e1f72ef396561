package postsuper

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/internal/spooltool/faketest"
)

// What is only ordered keeps nothing from what else is asked for: the other groups of a long list of IDs, and the other options. A message that
// is named is meant whatever its node's clock said. What could not be looked at is not taken for ordered: a message is not released that
// should have been expired first.
func TestLater(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "spool_type = postgresql\nspool_postgresql_url = postgres://x@127.0.0.1:1/x\ncluster_node_name = a\n")
	var mu sync.Mutex
	var asked []string
	missed := false
	s.Serve("qmgr", func(r *ipc.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.Kind {
		case proto.KindNodes:
			r.Reply(&proto.NodesReply{Parts: []proto.NodePart{{ID: 1, Node: "a", Own: true}, {ID: 2, Node: "a", Own: true, Unread: true}}})
		case proto.KindSelect:
			q := faketest.Decode[proto.Select](t, r)
			asked = append(asked, fmt.Sprintf("%d of %d", q.Verb, len(q.IDs)))
			where, err := selection.Decode(q.Where)
			if err != nil || len(q.IDs) > 0 && !where.Aged(time.Now().Add(time.Hour)) {
				t.Errorf("%d of %d: %v, %q", q.Verb, len(q.IDs), err, q.Where)
			}
			reply := &proto.SelectReply{IDs: q.IDs, Unread: proto.Unread{Ordered: "ordered"}}
			if missed {
				reply = &proto.SelectReply{Missed: 1}
			}
			r.Reply(reply)
		default:
			r.Fail("what is %d?", r.Kind)
		}
	})
	expect := func(status, wantStatus int, out string, want ...string) {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if status != wantStatus || !slices.Equal(asked, want) {
			t.Errorf("status %d, asked %q, want %q\n%s", status, asked, want, out[max(0, len(out)-500):])
		}
		asked = nil
	}
	var ids []string
	for i := range proto.SelectIDs + 1 {
		ids = append(ids, string(mail.MakeQueueID(time.Unix(1800000000, 0), uint64(i+1))))
	}
	out, status := run(s, strings.Join(ids, "\n"), "-d", "-")
	expect(status, 75, out, fmt.Sprint(proto.VerbDelete, " of ", proto.SelectIDs), fmt.Sprint(proto.VerbDelete, " of 1"))
	out, status = run(s, "", "-d", ids[0], "-h", ids[1])
	expect(status, 75, out, fmt.Sprint(proto.VerbDelete, " of 1"), fmt.Sprint(proto.VerbHold, " of 1"))
	mu.Lock()
	missed = true
	mu.Unlock()
	out, status = run(s, "", "-f", ids[0])
	expect(status, 75, out, fmt.Sprint(proto.VerbExpire, " of 1"))
}
