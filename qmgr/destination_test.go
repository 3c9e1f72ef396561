package qmgr

import (
	"testing"

	"posthaste/qmgr/sched"
)

func TestThreadText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		d    sched.Dest
		want string
	}{
		{sched.Dest{Busy: 3}, ""},
		{sched.Dest{Thread: sched.ThreadState{On: true, Waits: true, Others: 2, Bound: 30}}, "; its thread waits for an agent, as 2 other(s) do, for at most 30 deliveries"},
		{sched.Dest{Busy: 1, Thread: sched.ThreadState{On: true, Waits: true}}, "; its thread waits for an agent, as 0 other(s) do"},
		{sched.Dest{Busy: 2, Thread: sched.ThreadState{On: true}}, "; its thread has 2 agent(s)"},
		{sched.Dest{Thread: sched.ThreadState{On: true, Others: 1}}, "; its thread needs no agent now"},
	} {
		if got := threadText(&c.d); got != c.want {
			t.Errorf("%+v: %q, want %q", c.d, got, c.want)
		}
	}
}
