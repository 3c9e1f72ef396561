package console

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/selection"
	"posthaste/internal/spooltool/faketest"
)

// A list shows what it has found after a while, and where it goes on, when the queue has few of what it looks for.
func TestLongSearch(t *testing.T) {
	t.Parallel()
	site := faketest.New(t, "")
	var asked atomic.Int32
	site.Serve("qmgr", func(r *ipc.Request) {
		q := faketest.Decode[proto.Select](t, r)
		asked.Add(1)
		time.Sleep(listTime / 10) // a queue that takes its time
		next := q.Cursor + 1
		if next > 100 {
			next = 0
		}
		r.Reply(&proto.SelectReply{Next: next})
	})
	manager := ipc.NewClient(ipc.Unix(filepath.Join(site.Queue, "public", "qmgr")), nil)
	defer manager.Close()
	where := selection.New(time.Now())
	if err := where.Set("domain", "few.test"); err != nil {
		t.Fatal(err)
	}
	m := &mta{manager: manager}
	list, err := m.list(t.Context(), where, 0)
	if list == nil {
		t.Fatal(err)
	}
	items, next := list.items, list.next
	if err != nil || len(items) != 0 || next == 0 || asked.Load() > 50 {
		t.Errorf("%d messages, next %d after %d questions, %v", len(items), next, asked.Load(), err)
	}
	if link := nextLink(map[string][]string{"domain": {"few.test"}}, next); !strings.Contains(link, "cursor=") {
		t.Error(link)
	}
}
