package agent

import (
	"context"
	"strings"
	"sync"
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
	const (
		daemonTimeout = 5 * time.Hour
		limit         = daemonTimeout + daemonTimeout/watchShare // of the first under a watch
	)
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
				s := NewServer(Options{Log: logger, TimeLimit: daemonTimeout, Overdue: overdue(logger.Fatal, note("retire"), note("exit")),
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
				run := newRunning(nil)
				run.order = proto.Deliver{Index: []int{0}, Envelope: mail.Envelope{ID: "4jWn4F1YhnzSshsm4", Recipients: []mail.Recipient{{Address: "a@to.test"}}}}
				reply := s.deliver(t.Context(), run)
				defer s.close()
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

// Deliveries that begin together are watched together: none gets less than the
// time limit, none much more, and nothing is left of a watch when all of its
// have ended.
func TestWatchTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, share = 5 * time.Hour, 5 * time.Hour / watchShare
		begun := time.Now()
		var mu sync.Mutex
		ended := make(map[string]time.Duration)
		contexts := make(map[context.Context]bool)
		s := NewServer(Options{TimeLimit: limit, Overdue: func(id mail.QueueID) { t.Errorf("%s is said to go on", id) },
			Deliverer: deliverer(func(ctx context.Context, r *Request) {
				if r.Nexthop != "long" {
					time.Sleep(time.Second)
				} else {
					<-ctx.Done()
				}
				r.Sent(0, dsn.S(2, 0, 0), "250 ok", Detail{})
				mu.Lock()
				defer mu.Unlock()
				contexts[ctx] = true
				ended[r.Envelope.Recipients[0].Address] = time.Since(begun)
			})})
		var wg sync.WaitGroup
		deliver := func(nexthop mail.Nexthop, to string) {
			run := newRunning(nil)
			run.order = proto.Deliver{Index: []int{0}, Nexthop: nexthop,
				Envelope: mail.Envelope{ID: "4jWn4F1YhnzSshsm4", Recipients: []mail.Recipient{{Address: to}}}}
			wg.Go(func() { s.deliver(t.Context(), run) })
		}
		deliver("long", "first")
		time.Sleep(share / 2)
		deliver("long", "second")
		time.Sleep(share)
		deliver("short", "third")
		deliver("long", "fourth")
		time.Sleep(2 * share)
		deliver("short", "fifth")
		time.Sleep(2 * share)
		deliver("short", "sixth")
		wg.Wait()
		s.close()
		for to, want := range map[string]time.Duration{"first": limit + share, "second": limit + share, "third": share*3/2 + time.Second,
			"fourth": limit + share*5/2, "fifth": share*7/2 + time.Second, "sixth": share*11/2 + time.Second} {
			if ended[to] != want {
				t.Errorf("the %s has ended after %v, want %v", to, ended[to], want)
			}
		}
		if len(contexts) != 4 {
			t.Errorf("%d contexts, want 4", len(contexts))
		}
		for ctx := range contexts {
			if ctx.Err() == nil {
				t.Errorf("a context goes on")
			}
		}
	})
}
