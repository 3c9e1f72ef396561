package qmgr

import (
	"testing"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/qmgr/sched"
)

// Every reason has words of its own, with what it knows in them.
func TestReasons(t *testing.T) {
	t.Parallel()
	s := &Server{book: newBook(), messages: make(map[sched.MsgID]*message)}
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.Local)
	s.book.add(7, at, queue.Ref{}, 1, false, nil)
	by := string(mail.MakeQueueID(at, 7))
	why := sched.Reason{Since: at, Until: at.Add(time.Hour), Limit: 3, By: 7, Status: dsn.S(4, 4, 1), Text: "timed out"}
	want := map[sched.Wait]string{
		sched.WaitNone:          "about to be taken up",
		sched.WaitDelivery:      "being delivered since 2026-11-21 12:00:00",
		sched.WaitWindow:        "waits since 2026-11-21 12:00:00 for one of the 3 deliveries to this destination to end: that of " + by,
		sched.WaitProcess:       "waits since 2026-11-21 12:00:00 for one of the transport's 3 deliveries to end",
		sched.WaitJob:           "waits since 2026-11-21 12:00:00 for its turn behind message " + by,
		sched.WaitPreempted:     "waits since 2026-11-21 12:00:00 while a smaller message passes: " + by,
		sched.WaitRate:          "waits for the destination's rate delay until 2026-11-21 13:00:00",
		sched.WaitTransportRate: "waits for the transport's rate delay until 2026-11-21 13:00:00",
		sched.WaitRead:          "are being read since 2026-11-21 12:00:00, or wait for room in memory",
		sched.WaitActive:        "waits for one of the 3 places in the active queue",
		sched.WaitRetry:         "next attempt at 2026-11-21 13:00:00",
		sched.WaitSite:          "the destination had failed; next attempt at 2026-11-21 13:00:00, sooner when it answers",
		sched.WaitHold:          "on hold: postsuper -H releases it",
		sched.WaitNotice:        "a notice to the sender is being made since 2026-11-21 12:00:00",
		sched.WaitPause:         "wait by somebody's choice that has just ended; looked at again at 2026-11-21 13:00:00",
		sched.WaitCommand:       "an operator's command waits for the deliveries under way to end",
	}
	for w := sched.WaitNone; w <= sched.WaitPause; w++ {
		why.Wait = w
		if got := s.reasonText(&why); got != want[w] {
			t.Errorf("reason %d: %q, not %q", w, got, want[w])
		}
	}
	why.Wait = sched.WaitTenant
	if got, want := s.reasonText(&why), "waits since 2026-11-21 12:00:00 while another tenant has its turn at the destination"; got != want {
		t.Errorf("another tenant: %q, not %q", got, want)
	}
	why.Wait, why.Dead = sched.WaitSite, at.Add(time.Minute)
	if got, want := s.reasonText(&why), "the destination is considered dead until 2026-11-21 12:01:00 (4.4.1 timed out); "+
		"next attempt at 2026-11-21 13:00:00, sooner when it answers"; got != want {
		t.Errorf("dead destination: %q, not %q", got, want)
	}
}
