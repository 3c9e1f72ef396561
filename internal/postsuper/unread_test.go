package postsuper

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// In a queue that nodes share the queue manager decides what is meant, also of what this node has not read yet: no ID is said not to be there,
// and each step is asked for though the one before it is only ordered.
func TestUnread(t *testing.T) {
	t.Parallel()
	s := faketest.New(t, "spool_type = postgresql\nspool_postgresql_url = postgres://x@127.0.0.1:1/x\ncluster_node_name = a\n")
	var mu sync.Mutex
	var asked []string
	s.Serve("qmgr", func(r *ipc.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.Kind {
		case proto.KindNodes:
			r.Reply(&proto.NodesReply{Parts: []proto.NodePart{{ID: 1, Node: "a", Own: true}, {ID: 2, Node: "a", Own: true, Unread: true}}})
		case proto.KindSelect:
			q := faketest.Decode[proto.Select](t, r)
			asked = append(asked, fmt.Sprintf("%d%s", q.Verb, q.IDs))
			r.Reply(&proto.SelectReply{IDs: []mail.QueueID{"4jWmK60rlcz1SCpX"}, Unread: proto.Unread{Ordered: fmt.Sprint("ordered ", q.Verb)}})
		default:
			r.Fail("what is %d?", r.Kind)
		}
	})
	for _, test := range []struct{ arg, id, want, out string }{
		{"-d", "ALL", fmt.Sprint(proto.VerbDelete, "[]"), "Deleted: 1 message"},
		{"-h", "4jWmK60rlcz1SCpY", fmt.Sprint(proto.VerbHold, "[4jWmK60rlcz1SCpY]"), "Placed on hold: 1 message"},
		{"-f", "4jWmK60rlcz1SCpY", fmt.Sprint(proto.VerbExpire, "[4jWmK60rlcz1SCpY]|", proto.VerbRelease, "[4jWmK60rlcz1SCpY]"), fmt.Sprint("ordered ", proto.VerbExpire, "; ordered ", proto.VerbRelease)},
	} {
		out, status := run(s, "", test.arg, test.id)
		mu.Lock()
		if got := strings.Join(asked, "|"); got != test.want || status != 75 || !strings.Contains(out, test.out) || !strings.Contains(out, "ordered ") {
			t.Errorf("%s %s: asked %q, want %q; status %d\n%s", test.arg, test.id, got, test.want, status, out)
		}
		asked = nil
		mu.Unlock()
	}
}
