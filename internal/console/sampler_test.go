package console

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/spooltool/faketest"
)

// memory keeps samples, or fails.
type memory struct {
	samples []*history.Sample
	err     error
}

func (m *memory) Append(s *history.Sample) error {
	if m.err == nil {
		m.samples = append(m.samples, s)
	}
	return m.err
}

// A sample is taken each time, but not when the one before took more than its share; a failure is
// told once.
func TestSampler(t *testing.T) {
	t.Parallel()
	site := faketest.New(t, "")
	site.Serve("qmgr", func(r *ipc.Request) {
		if q := faketest.Decode[proto.Shape](t, r); !q.Split {
			t.Errorf("%+v", q)
		}
		r.Reply(&proto.ShapeReply{Rows: []proto.ShapeRow{{Domain: "a.test", Queue: "deferred", Counts: []int{1}}}})
	})
	manager := ipc.NewClient(ipc.Unix(filepath.Join(site.Queue, "public", "qmgr")), nil)
	defer manager.Close()
	store := new(memory)
	var told []string
	s := &sampler{manager: manager, store: store, warn: func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }}
	now := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
	take := func(cost time.Duration) {
		begun := false
		s.take(t.Context(), func() time.Time {
			if begun {
				return now.Add(cost)
			}
			begun = true
			return now
		})
		now = now.Add(time.Minute)
	}
	for i, c := range []struct {
		cost time.Duration
		want int
	}{{0, 1}, {600 * time.Millisecond, 2}, {601 * time.Millisecond, 3}, {0, 3}, {0, 4}} {
		if take(c.cost); len(store.samples) != c.want {
			t.Errorf("%d: %d samples, want %d", i, len(store.samples), c.want)
		}
	}
	if tables := store.samples[3].Tables; len(tables) != 1 || tables[0].Rows[0].Domain != "a.test" {
		t.Errorf("%+v", tables)
	}
	store.err = errors.New("no room")
	take(0)
	take(0)
	store.err = nil
	take(0)
	store.err = errors.New("no room")
	take(0)
	if len(told) != 2 || told[0] != "the history of the queue lacks a sample: no room" {
		t.Errorf("told %q", told)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	s.next = time.Time{}
	s.take(ended, time.Now) // does not wait for a queue manager
}
