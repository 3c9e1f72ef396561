package agent

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// A delivery that takes too long is cut off, and deferred; one that cannot be
// cut off ends the process, after its other deliveries have had time.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	const limit = 5 * time.Hour
	for name, tt := range map[string]struct {
		takes  time.Duration // until it ends by itself
		heeds  bool          // it ends when its context does
		want   dsn.Action
		events string
	}{
		"in time":       {limit - time.Second, false, dsn.Delivered, ""},
		"cut off":       {limit * 2, true, dsn.Deferred, ""},
		"within grace":  {limit + watchdogGrace - time.Second, false, dsn.Delivered, ""},
		"goes on":       {limit + watchdogGrace + time.Second, false, dsn.Delivered, "retire"},
		"goes on so on": {limit + watchdogGrace + lastTime + time.Second, false, dsn.Delivered, "retire exit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := new(logLines)
				var events []string
				note := func(what string) func() { return func() { events = append(events, what) } }
				logger := maillog.New("postfix/smtp", log)
				s := NewServer(Options{Log: logger, TimeLimit: limit, Overdue: overdue(logger.Fatal, note("retire"), note("exit")),
					Deliverer: deliverer(func(ctx context.Context, r *Request) {
						ended := ctx.Done()
						if !tt.heeds {
							ended = nil
						}
						select {
						case <-time.After(tt.takes):
							r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{})
						case <-ended:
							r.Defer(0, dsn.S(4, 4, 2), "cut off", Detail{})
						}
					})})
				d := &proto.Deliver{Index: []int{0}, Envelope: mail.Envelope{ID: "4jWn4F1YhnzSshsm4", Recipients: []mail.Recipient{{Address: "a@to.test"}}}}
				reply := s.deliver(t.Context(), d)
				if reply.Outcomes[0].Action != tt.want || reply.Stopped {
					t.Errorf("outcome %v, stopped %v; want %v", reply.Outcomes[0].Action, reply.Stopped, tt.want)
				}
				synctest.Wait()
				if got := strings.Join(events, " "); got != tt.events {
					t.Errorf("the process does %q, want %q", got, tt.events)
				}
				logger.Close()
				if said := strings.Contains(log.b.String(), "watchdog timeout"); said != (tt.takes > limit) {
					t.Errorf("it is logged: %v\n%s", said, log.b.String())
				}
			})
		})
	}
}
