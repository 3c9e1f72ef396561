package simtest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"posthaste/internal/eventjournal"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/service"
	"posthaste/internal/vfs"
)

// eventsDir is where the journal of events is on the disk of a run.
const eventsDir = "events"

// withEvents are settings that have services tell of events, to a journal that they wait for.
const withEvents = "event_sinks = file:/events.json\nevent_timeout = 300s\n"

// NewEventWorld is NewWorld for runs in which services tell of events. Of the events service there is the journal:
// sinks are not part of this world.
func NewEventWorld(t testing.TB, dir string) *World {
	t.Helper()
	return newWorld(t, dir, withEvents, variants)
}

// strikeEvents adds deaths of the events service to a plan.
func (p *Plan) strikeEvents() {
	r := seed(p.Seed).source("events")
	if len(p.Clock) > 0 {
		return // without faults
	}
	for range r.IntN(3) {
		p.Faults = append(p.Faults, Fault{Kind: kill, On: service.EventsName, Step: 1 + r.IntN(pick(r, 200, 600, 2000)), For: pick(r, time.Millisecond, time.Second, time.Minute)})
	}
}

// eventsSpec is the events service of such a run.
func eventsSpec() service.Spec { return service.EventsSpec(keepEvents) }

// keepEvents is the service's function.
func keepEvents(ctx context.Context, env *service.Env) error {
	if err := env.Confine(); err != nil {
		return err
	}
	j, err := eventjournal.Open(eventOptions(env.Files(), env.Log.Warning))
	if err != nil {
		return err
	}
	defer j.Close()
	env.Used()
	return env.ServeIPC(ctx, &ipc.Server{Handler: func(c *ipc.Conn, r *ipc.Request) {
		var q proto.Events
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		j.Append(q.List, func(_ uint64, err error) {
			if err != nil { // the next process takes them
				c.Close()
				env.Retire()
				return
			}
			r.Reply(&proto.EventsReply{})
		})
	}}, time.Second)
}

// eventOptions has all of the journal kept, however far the clock leaps.
func eventOptions(fs vfs.FS, warn func(string, ...any)) eventjournal.Options {
	return eventjournal.Options{FS: fs, Dir: eventsDir, Limit: 1 << 30, SegmentSize: 64 << 10, Keep: 500 * 24 * time.Hour,
		Rest: time.Millisecond, MaxRest: 3 * time.Millisecond, Now: time.Now, Warn: warn}
}

var removedLine = regexp.MustCompile(`^(\w+): removed$`)

// told are the kinds of events of each message, in the order of the journal.
func (b *books) told() (map[string][]string, error) {
	j, err := eventjournal.Open(eventOptions(b.site.disk, func(f string, a ...any) { b.fail("journal of events: "+f, a...) }))
	if err != nil {
		return nil, err
	}
	defer j.Close()
	kinds := map[string][]string{}
	_, next, _ := j.Bounds()
	r := j.Reader(1)
	defer r.Close()
	for r.Position() < next {
		list, lost, err := r.Next(context.Background(), 1000, 1<<20)
		if err != nil || lost > 0 {
			return nil, fmt.Errorf("%d lost: %v", lost, err)
		}
		for _, e := range list {
			kinds[e.Key] = append(kinds[e.Key], e.Kind)
		}
	}
	return kinds, nil
}

// announced: each message that has left the queue was told of: first that it came, and at the end what has become of
// it, whichever process was killed, and whenever power failed. That does not hold while the journal cannot be written;
// and a requeue is told of when it is done.
func (b *books) announced(log []line) {
	if slices.ContainsFunc(b.faults, func(f blow) bool { return f.Kind == fullDisk || f.Kind == badSyncs }) {
		return
	}
	kinds, err := b.told()
	if err != nil {
		b.fail("the journal of events cannot be read: %v", err)
		return
	}
	requeues := slices.ContainsFunc(b.faults, func(f blow) bool { return f.Kind == requeue })
	ends := []string{"delivered", "bounced", "expired", "deleted", "requeued"}
	for _, l := range log {
		f := removedLine.FindStringSubmatch(l.Text)
		if f == nil {
			continue
		}
		b.counts.Told++
		id := f[1]
		k := kinds[id]
		switch {
		case len(k) == 0 || k[0] != "received":
			b.fail("%s has left the queue, and its events are %q", id, k)
		case !requeues && !slices.ContainsFunc(k, func(kind string) bool { return slices.Contains(ends, kind) }):
			b.fail("%s has left the queue, and no event says why: %q", id, k)
		}
	}
}
