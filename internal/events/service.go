// Package events is the events service: it keeps what becomes of mail in a journal, and sends it to files,
// webhooks and Kafka topics. It is off unless main.cf has event_sinks and master.cf has its line:
//
//	events    unix  -       -       n       60      1       events
//
// docs/events.md describes the events, and how they are received.
//
// # What is promised
//
// Services hand an event over and wait until it is on stable storage in the journal, before the queue records
// what it says (package event; package eventjournal). Each sink has a position in the journal, which is on
// stable storage. It gets the events from there on in the order of the journal, and all events of a message
// are there in the order in which they happened. An event is sent again until the sink has taken it: a sink
// that cannot be reached, or says that it cannot take events now, is tried again with growing pauses of 1
// second to 5 minutes, and gets nothing else meanwhile. So events come at least once, and in order. After a
// crash the last second's events come once more, with the same identifiers.
//
// A sink that refuses events for good (a webhook that answers 4xx, apart from 408 and 429; a record that Kafka
// finds too large) does not hold up the others: these events go to its file of dead letters, DIRECTORY/dead.NAME,
// with the reason. "posthaste events dead" shows them and "posthaste events resend" sends them again.
//
// A sink that is slow or dead costs disk up to event_journal_size_limit. When that is used up, the oldest events
// are removed, and are lost for that sink: the log and the metrics say so. Mail never waits for a sink.
//
// # Webhooks
//
// Requests have the headers of Standard Webhooks: webhook-id, webhook-timestamp, and, with secret_file,
// webhook-signature, an HMAC-SHA256 of identifier, time and body. Certificates are verified. Redirections are
// not followed, and no proxy is used. A reply is read up to 64 KB; one of the class 2xx means that all events
// of the request were taken.
//
// # Kafka
//
// The producer is idempotent and waits for all replicas in sync. The key of a record is the queue ID, so that
// all events of a message are in one partition, in order. The header "id" is the event's identifier, "kind" its
// kind.
//
// # Security
//
// The service runs as mail_owner without privileges, and listens on a socket that only the mail system can
// reach. It writes to event_directory and to the directories of files in event_sinks, which must belong to
// mail_owner, or be writable for it, and to nothing else. Secrets are read from files before it gives up the
// rights of root, and are in no log. What a sink answers is bounded, and cleaned before it is logged.
//
// # Standards
//
// Standard Webhooks (https://www.standardwebhooks.com), RFC 2104 (HMAC), RFC 8259 (JSON), RFC 9110 (HTTP).
//
// # Parameters
//
// event_dead_letter_limit, event_directory, event_journal_size_limit, event_keep_time, event_service_name,
// event_sinks, event_timeout.
//
// # Diagnostics
//
// "sink NAME: REASON; trying again": the sink has not taken events. It is said once, and again when the reason
// changes. "sink NAME takes events again": that is over. "sink NAME: N events are lost: ..." is said when the
// journal was full. "sink NAME: N events go to dead letters: REASON": it has refused them.
//
// # Bugs
//
// The service cannot run in a chroot.
package events

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"posthaste/internal/event"
	"posthaste/internal/eventjournal"
	"posthaste/internal/ipc"
	"posthaste/internal/metrics"
	"posthaste/internal/service"
	"posthaste/internal/statedir"
	"posthaste/internal/vfs"
)

const (
	// restTime is how long the journal waits for more events for each that it had before, and maxRest the most of it.
	// Messages that are delivered wait that long for the record of it, and new ones for their first attempt, while
	// there are many.
	restTime = time.Millisecond
	maxRest  = 3 * time.Millisecond
	// drainTime is how long those that hand events over may take to go away.
	drainTime = 10 * time.Second
	// saveTime is how often positions are made durable.
	saveTime = time.Second
	// trimTime is how often it is looked whether events are kept for too long.
	trimTime = time.Minute
)

// Spec declares the service.
func Spec() service.Spec { return service.EventsSpec(run) }

// A server is the service.
type server struct {
	env      *service.Env
	journal  *eventjournal.Journal
	couriers []*courier
	refused  counter // events that there was no room for
	wg       ipc.Workers
}

func run(ctx context.Context, env *service.Env) error {
	cfg := env.Config
	sinks, err := event.Sinks(cfg)
	if err != nil {
		return err
	}
	carriers := make([]carrier, len(sinks))
	for i := range sinks {
		if carriers[i], err = open(&sinks[i], cfg.String("mail_version"), env.Log.Warning); err != nil {
			return fmt.Errorf("event_sinks: %s: %w", sinks[i].Name, err)
		}
		defer carriers[i].close()
	}
	path := cfg.String("event_directory")
	dir, err := statedir.Open(path)
	if err != nil {
		return fmt.Errorf("event_directory: %w", err)
	}
	dir.Close()
	if err := env.Confine(); err != nil {
		return err
	}
	if env.Privileged {
		return errors.New("the service would write to files of others as root: make it unprivileged in master.cf")
	}
	journal, err := eventjournal.Open(eventjournal.Options{FS: vfs.OS{}, Dir: path, Limit: cfg.Bytes("event_journal_size_limit"),
		Keep: cfg.Duration("event_keep_time"), Rest: restTime, MaxRest: maxRest, Now: time.Now, Warn: env.Log.Warning})
	if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("%w (the service cannot run in a chroot)", err)
	}
	if err != nil {
		return fmt.Errorf("event_directory: %w", err)
	}
	s := &server{env: env, journal: journal}
	for i := range sinks {
		c, err := newCourier(&sinks[i], carriers[i], journal, env.Log,
			&deadLetters{path: deadPath(path, sinks[i].Name), limit: cfg.Bytes("event_dead_letter_limit")})
		if err != nil {
			return errors.Join(fmt.Errorf("event_directory: %w", err), journal.Close())
		}
		s.couriers = append(s.couriers, c)
	}
	env.Metrics.Offer(s.offer)
	env.Used()
	return s.serve(ctx)
}

// serve serves until ctx ends, and sends events meanwhile.
func (s *server) serve(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	for _, c := range s.couriers {
		wg.Go(func() { c.run(sending) })
		// Each has its own: a file that hangs must not keep the positions of the others.
		wg.Go(func() { s.keep(sending, c.save) })
	}
	wg.Go(func() { s.keep(sending, s.trim()) })
	err := s.env.ServeIPC(ctx, &ipc.Server{Handler: func(c *ipc.Conn, r *ipc.Request) { s.handle(ctx, c, r) }, OnTrigger: func([]byte) {}}, drainTime)
	s.wg.Wait()
	stop()
	wg.Wait()
	for _, c := range s.couriers {
		err = errors.Join(err, c.save())
	}
	return errors.Join(err, s.journal.Close())
}

// keep has something done each saveTime. If that fails, as when the journal breaks, the process ends, and the next
// one begins with what is on the disk.
func (s *server) keep(ctx context.Context, do func() error) {
	tick := time.NewTicker(saveTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := do(); err != nil {
			s.env.Log.Warning("event_directory: %v", err)
			s.env.Retire()
			return
		}
	}
}

// trim is what removes events that need not be kept, once in a trimTime.
func (s *server) trim() func() error {
	trimmed := time.Now()
	return func() error {
		if now := time.Now(); now.Sub(trimmed) >= trimTime {
			trimmed = now
			s.journal.Trim()
		}
		return s.journal.Broken()
	}
}

// offer publishes the service's numbers.
func (s *server) offer(o *metrics.Offer) {
	_, next, octets := s.journal.Bounds()
	o.Gauge(metrics.EventsJournal, float64(octets))
	o.Total(metrics.EventsRefused, float64(s.refused.get()))
	for _, c := range s.couriers {
		st := c.status()
		o.Total(metrics.EventsSent, float64(st.Sent), st.Name)
		o.Total(metrics.EventsDead, float64(c.died.get()), st.Name)
		o.Gauge(metrics.EventsLag, float64(next-min(st.Position, next)), st.Name)
	}
}
