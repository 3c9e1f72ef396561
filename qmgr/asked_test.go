package qmgr

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/proto"
	"posthaste/internal/rate"
	"posthaste/internal/testwait"
	"posthaste/qmgr/sched"
)

func TestLearntText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 28, 12, 28, 40, 0, time.Local)
	for _, c := range []struct {
		l    *sched.Learnt
		want string
	}{
		{nil, ""},
		{&sched.Learnt{}, "; it follows the answers, which ask for nothing"},
		{&sched.Learnt{Why: adaptive.Fewer, Text: "421 no", At: at, Bad: 10}, "; it follows the answers: 10 at once were refused (too many at once, at 2026-11-28 12:28:40: 421 no)"},
		{&sched.Learnt{Why: adaptive.Slower, Text: "421 no", At: at, Pace: rate.Rate{N: 100, Per: time.Minute}, Rests: at.Add(time.Minute)},
			"; it follows the answers: pace 100/min, rests until 2026-11-28 12:29:40 (too much in a time, at 2026-11-28 12:28:40: 421 no)"},
		{&sched.Learnt{Why: adaptive.Latency, At: at}, "; it follows the answers: (deliveries take long, at 2026-11-28 12:28:40)"},
	} {
		if got := learntText(c.l); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// A reply that asks for less has the destination rest, where the transport is to follow replies, and mail waits
// there without an attempt; the reply is in what explain says, without what it could do to a terminal.
func TestAsked(t *testing.T) {
	t.Parallel()
	st := newStage(t, "smtp_destination_adaptive = yes\ninitial_destination_concurrency = 1\n")
	st.routes["to.test"] = "smtp:[hub.test]"
	smtp := st.agent("smtp", proto.Inventory{})
	st.run()
	st.waitAttached(1)
	st.arrive("s@from.test", "a@to.test")
	o := smtp.next()
	o.answer("slower")
	st.arrive("s@from.test", "b@to.test")
	testwait.For(t, func() string {
		text := st.explainDest("[hub.test]")
		if !strings.Contains(text, "rests until") || !strings.Contains(text, "too much in a time") || !strings.Contains(text, "0 deliveries under way, 1 wait") || strings.Contains(text, "\x1b") {
			return text
		}
		return ""
	})
}
