package events

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"posthaste/internal/event"
	"posthaste/internal/eventjournal"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

const (
	// firstPause is how long a sink is left alone after it has failed; it doubles up to lastPause.
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// longestPause is how long a sink may ask to be left alone.
	longestPause = time.Hour
	// batchOctets bounds what is sent at once, in octets of JSON.
	batchOctets = 1 << 20
	// gatherTime is how long a file is left alone when it has all events: most of what an event in a file costs is to write
	// it, and one write is enough for many. An event that comes after a while is written at once.
	gatherTime = 50 * time.Millisecond
	// resendTime bounds how long dead letters are sent again by one order.
	resendTime = 10 * time.Minute
)

// A carrier is how events get to one sink.
type carrier interface {
	// send sends events, in order, and returns when the sink has taken them all; see settler. A *refusal says that it never
	// will; after any other error they are sent again. A *later also says when. It is not called concurrently.
	send(ctx context.Context, list []eventjournal.Entry) error
	close() error
}

// A settler is a carrier that has taken events for good only when settle has returned without an error. After an error
// all since the last settle come again. It is not called while send is.
type settler interface{ settle() error }

// A refusal says that a sink will never take some events.
type refusal struct{ reason string }

func (e *refusal) Error() string { return e.reason }

// A later says that a sink wants to be left alone for a while.
type later struct {
	reason string
	pause  time.Duration
}

func (e *later) Error() string { return e.reason }

// A courier brings the journal's events to one sink.
type courier struct {
	sink    *event.Sink
	carrier carrier
	journal *eventjournal.Journal
	log     *maillog.Logger
	dead    *deadLetters
	died    counter // events that became dead letters

	sending sync.Mutex // held while the carrier is in use
	given   bool       // of a settler: it was given something that it has not been asked to settle; guarded by sending

	mu       sync.Mutex
	position uint64    // of the event that is sent next
	saved    uint64    // what the disk has of it
	settled  uint64    // all before this one the sink has for good, or nobody wants it any more
	unstable int       // how often in a row it has failed to settle
	sent     uint64    // events
	lost     uint64    // events that the journal did not have any more
	problem  string    // why the last attempt failed; empty: it has not
	failing  time.Time // since when attempts fail; zero: they do not
	next     time.Time // when the next attempt is made; zero: none is due
	wanted   uint64    // from where on events are sent once more; 0: nobody wants that
	hurry    chan struct{}
	stop     context.CancelFunc // ends what the courier waits for; nil: it waits for nothing
}

// newCourier makes the courier of a sink. A sink that is new gets the events that come from now on.
func newCourier(sink *event.Sink, c carrier, j *eventjournal.Journal, log *maillog.Logger, dead *deadLetters) (*courier, error) {
	pos, ok, err := j.Position(sink.Name)
	if err != nil {
		return nil, err
	}
	if _, next, _ := j.Bounds(); !ok || pos > next {
		pos = next
		if err := j.SetPosition(sink.Name, pos); err != nil {
			return nil, err
		}
	}
	j.Hold(sink.Name, pos)
	return &courier{sink: sink, carrier: c, journal: j, log: log, dead: dead, position: pos, saved: pos, settled: pos, hurry: make(chan struct{}, 1)}, nil
}

// run sends events until ctx ends.
func (c *courier) run(ctx context.Context) {
	r := c.journal.Reader(c.position)
	defer func() { r.Close() }()
	for ctx.Err() == nil {
		turn, stop := context.WithCancel(ctx)
		from, rest := c.begin(stop)
		if from > 0 {
			r.Close()
			r = c.journal.Reader(from)
		}
		if rest > 0 && !c.pause(turn, rest) {
			stop()
			continue
		}
		list, lost, err := r.Next(turn, c.sink.Batch, batchOctets)
		c.missed(lost)
		switch {
		case err == nil:
			// Else it was interrupted: the service ends, or others are wanted.
			if wanted := c.choose(list); c.deliver(turn, wanted) {
				c.moved(r.Position(), len(wanted))
				c.gather(turn, r.Position())
			}
		case errors.Is(err, eventjournal.ErrClosed):
			stop()
			return
		case turn.Err() == nil: // the disk
			c.failed("read the journal: " + err.Error())
			c.pause(turn, lastPause)
		}
		stop()
	}
}

// gather lets more events come for a file, when it has all before an event and these are all that there are.
func (c *courier) gather(ctx context.Context, at uint64) {
	if _, next, _ := c.journal.Bounds(); c.sink.Type != event.File || at < next {
		return
	}
	t := time.NewTimer(gatherTime)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// begin notes how to interrupt what follows, and says from where on events are wanted once more, 0: they are
// not, and how long to wait before that, since the sink has not kept what it took.
func (c *courier) begin(stop context.CancelFunc) (from uint64, rest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, c.wanted, c.stop = c.wanted, 0, stop
	if from > 0 && c.unstable > 0 {
		rest = min(firstPause<<min(c.unstable-1, 16), lastPause)
	}
	return from, rest
}

// choose gives the events that the sink wants.
func (c *courier) choose(list []eventjournal.Entry) []eventjournal.Entry {
	wanted := list[:0]
	for i := range list {
		if c.sink.Wants(event.Kind(list[i].Kind)) {
			wanted = append(wanted, list[i])
		}
	}
	return wanted
}

// moved notes that all before an event is done with; but not when others are wanted by now, which come first, also
// when only the next life of the service sends them.
func (c *courier) moved(to uint64, sent int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sent += uint64(sent)
	if c.wanted > 0 {
		return
	}
	c.position = to
	// Of what is not settled yet the journal may be asked again.
	if _, ok := c.carrier.(settler); !ok {
		c.journal.Hold(c.sink.Name, to)
	}
}

// settle has the carrier take for good what it was given. at is the event before which all is then. If that fails, all
// since the last time is sent once more, whoever has asked.
func (c *courier) settle() (at uint64, err error) {
	k, ok := c.carrier.(settler)
	if ok {
		// The position is asked for while nothing is sent: what another call could not settle is not before it.
		c.sending.Lock()
		defer c.sending.Unlock()
	}
	c.mu.Lock()
	at = c.position
	if !ok || !c.given {
		c.settled = at
		c.mu.Unlock()
		return at, nil
	}
	c.mu.Unlock()
	c.given = false
	err = k.settle()
	c.mu.Lock()
	was, from := c.unstable, min(c.settled, c.position)
	if c.unstable = 0; err != nil {
		c.unstable = was + 1
	} else {
		c.settled = min(at, c.position) // others may be wanted by now
	}
	c.mu.Unlock()
	switch {
	case err != nil:
		c.failed(err.Error())
		c.replay(from)
	case was > 0:
		c.works()
	}
	return at, err
}

// save makes the position durable. What was given before is settled first, also where the position is the same because
// events were sent once more. If that fails, the sink has failed, and not the journal.
func (c *courier) save() error {
	at, err := c.settle()
	if err != nil {
		return nil
	}
	c.mu.Lock()
	same := at == c.saved
	c.mu.Unlock()
	if !same {
		if err := c.journal.SetPosition(c.sink.Name, at); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.saved = at
	c.journal.Hold(c.sink.Name, min(at, c.settled))
	return nil
}

// missed notes events that the journal did not have any more.
func (c *courier) missed(n uint64) {
	if n == 0 {
		return
	}
	c.mu.Lock()
	c.lost += n
	c.mu.Unlock()
	c.log.Warning("sink %s: %d events are lost: the journal was full before they could be sent (event_journal_size_limit)", c.sink.Name, n)
}

// deliver sends events until the sink has taken them, or has refused them for good. It is false when it was
// interrupted.
func (c *courier) deliver(ctx context.Context, list []eventjournal.Entry) bool {
	if len(list) == 0 {
		return true
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := c.send(ctx, list)
		if ctx.Err() != nil && err != nil {
			return false
		}
		var no *refusal
		var wait *later
		switch {
		case err == nil:
			c.took()
			return true
		case errors.As(err, &no):
			if err = c.bury(ctx, list, no.reason); err == nil {
				c.took()
				return true
			}
		case errors.As(err, &wait):
			pause = max(pause, min(wait.pause, longestPause))
		}
		c.failed(err.Error())
		if !c.pause(ctx, pause) {
			return false
		}
	}
}

// send has the carrier send.
func (c *courier) send(ctx context.Context, list []eventjournal.Entry) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	err := c.carrier.send(ctx, list)
	c.given = c.given || err == nil
	return err
}

// bury puts events to the dead letters that the sink has refused. Of several, each is sent alone first: the sink
// may have refused one of them only.
func (c *courier) bury(ctx context.Context, list []eventjournal.Entry, reason string) error {
	if len(list) > 1 {
		for i := range list {
			err := c.send(ctx, list[i:i+1])
			var no *refusal
			if errors.As(err, &no) {
				err = c.bury(ctx, list[i:i+1], no.reason)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := c.dead.add(time.Now(), list, reason); err != nil {
		return err
	}
	c.died.add(len(list))
	c.log.Warning("sink %s: %d events go to dead letters: %s", c.sink.Name, len(list), reason)
	return nil
}

// failed notes why an attempt failed.
func (c *courier) failed(why string) {
	c.mu.Lock()
	said := c.problem == why
	c.problem = why
	if c.failing.IsZero() {
		c.failing = time.Now()
	}
	c.mu.Unlock()
	if !said {
		c.log.Warning("sink %s: %s; trying again", c.sink.Name, why)
	}
}

// took notes that the sink has taken events. One that did not keep those before works when it keeps these.
func (c *courier) took() {
	c.mu.Lock()
	unstable := c.unstable > 0
	c.mu.Unlock()
	if !unstable {
		c.works()
	}
}

// works notes that an attempt has not failed.
func (c *courier) works() {
	c.mu.Lock()
	failed := !c.failing.IsZero()
	c.problem, c.failing, c.next = "", time.Time{}, time.Time{}
	c.mu.Unlock()
	if failed {
		c.log.Info("sink %s takes events again", c.sink.Name)
	}
}

// pause waits, a little more or less than told, so that many do not come back at the same time. It is false when
// it was interrupted.
func (c *courier) pause(ctx context.Context, d time.Duration) bool {
	d += time.Duration((rand.Float64() - 0.5) * float64(d) / 2)
	c.mu.Lock()
	c.next = time.Now().Add(d)
	c.mu.Unlock()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-c.hurry:
	case <-ctx.Done():
		return false
	}
	return true
}

// replay has all from an event on sent once more.
func (c *courier) replay(from uint64) {
	c.mu.Lock()
	c.wanted, c.position = from, from
	c.settled = min(c.settled, from)
	stop := c.stop
	c.journal.Hold(c.sink.Name, min(from, c.saved))
	c.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// retry has the next attempt made now.
func (c *courier) retry() {
	select {
	case c.hurry <- struct{}{}:
	default:
	}
}

// resend sends the dead letters again, until ctx ends at most: the journal's next process waits for this one. Those
// that are refused again stay dead. n is how many were taken.
func (c *courier) resend(ctx context.Context) (n uint64, err error) {
	turn, cancel := context.WithTimeout(ctx, resendTime)
	defer cancel()
	return c.dead.resend(func(e *eventjournal.Entry) error {
		err := c.send(turn, []eventjournal.Entry{*e})
		if err == nil { // the letter is removed then
			_, err = c.settle()
		}
		if err != nil && ctx.Err() != nil {
			return errors.New("the events service ends; the others stay")
		}
		return err
	})
}

// status is the state of the sink.
func (c *courier) status() proto.EventSink {
	dead := c.dead.count()
	c.mu.Lock()
	defer c.mu.Unlock()
	return proto.EventSink{Name: c.sink.Name, Target: c.sink.String(), Position: c.position, Sent: c.sent, Dead: dead, Lost: c.lost,
		Error: c.problem, Failing: c.failing, Next: c.next}
}
