package qmgr

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/proto"
	"posthaste/internal/queue"
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

// A destination that has failed is one line of what is said, with the mail that waits for it: while it is considered dead, and when
// nothing is known of it any more but that.
func TestDestinationFailed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ main, want string }{
		{"", ": 0 deliveries under way, 0 wait; considered dead until "},
		{"minimal_backoff_time = 1s\nqueue_run_delay = 1s\n", ": had failed; 1 deferred message(s) go as soon as it answers"},
	} {
		st := newStage(t, "initial_destination_concurrency = 1\n"+c.main)
		m := deferredMail(queue.Deferred, time.Hour, "s@from.test", "450 wait", "x@to.test")
		m.Next = time.Now().Add(-time.Minute)
		id := st.fill(m)[0]
		smtp := st.agent("smtp", proto.Inventory{})
		st.run()
		o := smtp.next()
		o.answer("site")
		st.waitOp(id, "its deferral", inQueue(queue.Deferred))
		st.waitDest("to.test", "  smtp to to.test"+c.want)
		if text := st.explainDest("to.test"); strings.Count(text, "smtp to to.test: ") != 1 || !strings.Contains(text, "1 deferred message(s) go as soon as it answers") {
			t.Errorf("%s", text)
		}
	}
}
