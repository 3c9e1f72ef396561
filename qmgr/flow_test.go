package qmgr

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/service"
	"posthaste/internal/spooltool/faketest"
	"posthaste/internal/testwait"
)

// TestFlowTokens: a token for each message that has left the incoming queue while
// others wait there, as many as there may be when none waits, and never more.
func TestFlowTokens(t *testing.T) {
	t.Parallel()
	const limit = 10
	for name, test := range map[string]struct{ level, moved, incoming, want int }{
		"nothing waits":                {3, 0, 0, limit},
		"nothing waits, none is there": {0, 0, 0, limit},
		"nothing waits, all are there": {limit, 2, 0, limit},
		"some wait, none has moved":    {3, 0, 5, 3},
		"some wait, some have moved":   {3, 4, 5, 7},
		"some wait, many have moved":   {3, 40, 5, limit},
		"some wait, all are there":     {limit, 4, 5, limit},
		"too many, some wait":          {limit + 5, 4, 5, limit},
		"too many, none waits":         {limit + 5, 0, 0, limit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p [2]int
			if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(p[0])
			defer unix.Close(p[1])
			f := service.NewFlow(p[0], p[1])
			f.Put(test.level)
			flow(f, limit, true)(test.moved, test.incoming)
			if got := f.Level(); got != test.want {
				t.Errorf("%d tokens become %d, want %d", test.level, got, test.want)
			}
		})
	}
	if flow(nil, limit, false) != nil {
		t.Error("with in_flow_delay = 0 somebody makes tokens")
	}
}

// TestFlowIsTold: what makes tokens hears once of each message that leaves the
// incoming queue, of none that comes out of the deferred queue, and of how many
// wait.
func TestFlowIsTold(t *testing.T) {
	t.Parallel()
	st := newStage(t, "qmgr_message_active_limit = 2\n")
	st.fill(faketest.Mail{Queue: queue.Deferred, Attempts: 1, Next: time.Now().Add(-time.Minute), Content: "x\r\n",
		Envelope: mail.Envelope{Sender: "s@from.test", Recipients: []mail.Recipient{{Address: "a@a.test"}}}})
	var mu sync.Mutex
	moved, incoming, most := 0, 0, 0
	st.flow = func(m, i int) {
		mu.Lock()
		moved, incoming, most = moved+m, i, max(most, i)
		mu.Unlock()
	}
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	due := smtp.next()
	for range 6 {
		st.arrive("s@from.test", "a@a.test")
	}
	told := func(what string, wantMoved, wantIncoming int) {
		t.Helper()
		testwait.For(t, func() string {
			mu.Lock()
			defer mu.Unlock()
			if moved == wantMoved && incoming == wantIncoming {
				return ""
			}
			return fmt.Sprintf("%s: %d have left the incoming queue and %d wait, want %d and %d", what, moved, incoming, wantMoved, wantIncoming)
		})
	}
	told("one is active beside the one that was deferred", 1, 5)
	due.answer("ok")
	told("two are active", 2, 4)
	for range 6 {
		o := smtp.next()
		o.answer("ok")
	}
	told("all are delivered", 6, 0)
	mu.Lock()
	defer mu.Unlock()
	if most != 5 {
		t.Errorf("at most %d waited, want 5", most)
	}
}
