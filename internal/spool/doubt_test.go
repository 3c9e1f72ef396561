package spool

import (
	"slices"
	"testing"

	"posthaste/internal/mail"
	"posthaste/internal/vfs"
)

// TestInDoubt tears a batch of dispositions: those whose records are seen,
// and do not count, are reported, and no others.
func TestInDoubt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(c *change, m *modelMsg)
		doubt  bool
	}{
		{"delivered", func(c *change, m *modelMsg) { c.done(m.id, 0, 1, 2) }, true},
		{"delivered in part", func(c *change, m *modelMsg) { c.done(m.id, 1) }, true},
		{"delivered in part, deferred", func(c *change, m *modelMsg) {
			c.update(m.id, Change{Set: SetQueue, Queue: Deferred, Done: []int{2}})
		}, true},
		{"deferred", func(c *change, m *modelMsg) { c.update(m.id, Change{Set: SetQueue, Queue: Deferred}) }, false},
		{"removed by an operator", func(c *change, m *modelMsg) { c.remove(m.id) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(1, 0) // sectors of 512 bytes
			var id mail.QueueID
			err := w.guard(func() {
				if err := w.open(); err != nil {
					fail("open: %v", err)
				}
				w.settle()
				msg, mm := w.newMessage(1000, 3)
				id = msg.ID
				c := &change{}
				c.add(msg, mm)
				w.commit(c)
				second, mm2 := w.newMessage(1000, 1)
				c = &change{}
				tt.change(c, mm)
				c.add(second, mm2)
				w.hook = func(op vfs.Op) error {
					if op.Kind == vfs.OpSync {
						return vfs.ErrCut
					}
					return nil
				}
				if w.commit(c) {
					fail("committed without power")
				}
				d, _ := w.mem.Dirty()
				if d < 2 {
					fail("%d sectors to tear", d)
				}
				w.mem, w.hook = w.mem.Cut(keepIf(func(i int) bool { return i == 0 })), nil
				if err := w.open(); err != nil {
					fail("open: %v", err)
				}
				w.settle()
			})
			if err != nil {
				t.Fatal(err)
			}
			var got, want []mail.QueueID
			for _, d := range w.rep.InDoubt {
				if d.Kind == DoubtTrace {
					got = append(got, d.ID)
				}
			}
			if tt.doubt {
				want = append(want, id)
			}
			if w.rep.Torn != 1 || !slices.Equal(got, want) {
				t.Errorf("in doubt: %v, want %v; %+v", got, want, w.rep)
			}
		})
	}
}
