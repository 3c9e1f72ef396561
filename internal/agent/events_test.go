package agent

import (
	"context"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/dsn"
	"posthaste/internal/event/eventtest"
	"posthaste/internal/testwait"
)

// An outcome is not reported before the journal has its event.
func TestEventBeforeOutcome(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	journal, events := eventtest.New(t, "smtp", nil)
	journal.Shut()
	serve(t, dir, "smtp", Options{Events: events, Deliverer: deliverer(func(_ context.Context, r *Request) {
		r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{})
		r.Bounce(1, dsn.S(5, 1, 1), "never", Detail{})
	})})
	m := dial(t, dir, "smtp")
	m.attach()
	answers := m.order(1, "a@to.test", "b@to.test")
	testwait.Until(t, "the events are told", func() bool { return len(journal.Told()) == 2 })
	select {
	case a := <-answers:
		t.Fatalf("it is reported before the journal has its events: %+v", a)
	default:
	}
	journal.Open()
	if a := await(t, "the answer", answers); a.err != nil || !slices.Equal(outcomes(&a.reply), []string{"sent 2.0.0", "failed 5.1.1"}) {
		t.Errorf("reported %+v", a)
	}
	told := journal.Told()
	if !strings.HasPrefix(told[0], "delivered ") || !strings.HasPrefix(told[1], "bounced ") {
		t.Errorf("told: %q", told)
	}
}
