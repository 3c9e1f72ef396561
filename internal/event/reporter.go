package event

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/ipc"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

const (
	// maxPending bounds the events that a process keeps while the journal does not answer, and
	// maxPendingOctets their octets.
	maxPending       = 10000
	maxPendingOctets = 8 << 20
	// batchEvents and batchOctets bound what is handed over with one request.
	batchEvents = 1000
	batchOctets = 1 << 20
	// retryTime is how long is waited before the journal is asked again.
	retryTime = 250 * time.Millisecond
	// quietTime is how often losses are logged at most.
	quietTime = 10 * time.Second
)

// A then is what is to be done when so many events are settled.
type then struct {
	after uint64
	do    func()
}

// A waiter waits until so many events are settled.
type waiter struct {
	after   uint64
	settled chan struct{} // closed then, or when nobody is to wait
}

// Enabled says whether anybody is to be told of events.
func Enabled(cfg *config.Config) bool { return len(cfg.List("event_sinks")) > 0 }

// A Reporter hands the events of a process over to the events service. The nil Reporter, which a process has
// that is not to report, does nothing, and costs nothing. Methods may be called concurrently.
type Reporter struct {
	host     string
	scope    string // in identifiers, see Event.json
	service  string // the delivery service that attempts are of; empty: the process is none
	kinds    []Kind // that a sink wants, sorted; empty: all
	patience time.Duration
	log      *maillog.Logger
	client   *ipc.Client
	cancel   context.CancelFunc
	done     chan struct{} // closed when nothing is handed over any more; nil before Start

	wake chan struct{} // capacity 1: there is something to hand over

	mu      sync.Mutex
	pending []proto.EventRecord // told and not handed over; those under way are at the front
	octets  int                 // of pending
	told    uint64              // events, without those that were lost at once
	settled uint64              // of these, how many nobody has to wait for any more: durable, or refused
	waiters []waiter            // who waits, the earliest first
	silent  bool                // the journal has not answered in time: nobody waits until it does
	lost    uint64              // events that are in no journal
	unsaid  uint64              // of these, how many the log has not
	thens   []then              // what is to be done in order, see Then; that which is done now is the first
	why     string              // the last reason
	saidAt  time.Time           // when the log was told last
}

// NewReporter makes the Reporter of a process, nil when main.cf wants no events. service is its name in master.cf,
// or empty if it is not one that delivers. at is where the events service is reached. Kinds that no sink wants are
// not handed over.
func NewReporter(cfg *config.Config, service string, at ipc.Address, log *maillog.Logger) *Reporter {
	if !Enabled(cfg) {
		return nil
	}
	host := cfg.String("myhostname")
	scope := host
	// A node that takes mail over from another one tells of it again, and that is the same event.
	if cfg.String("spool_type") != "log" {
		scope = ""
	}
	return &Reporter{host: host, scope: scope, service: service, kinds: wanted(cfg), patience: cfg.Duration("event_timeout"), log: log,
		client: ipc.NewClient(at, nil), wake: make(chan struct{}, 1)}
}

// wanted are the kinds that some sink wants, sorted; nil: all, which is also where event_sinks cannot be read, as the
// events service will say.
func wanted(cfg *config.Config) (kinds []Kind) {
	sinks, err := Sinks(cfg)
	if err != nil {
		return nil
	}
	for i := range sinks {
		if len(sinks[i].Kinds) == 0 {
			return nil
		}
		kinds = append(kinds, sinks[i].Kinds...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// Wants says whether a sink wants events of a kind, so that others need not be made. Any goroutine may call it.
func (r *Reporter) Wants(k Kind) bool {
	if r == nil {
		return false
	}
	if len(r.kinds) == 0 {
		return true
	}
	_, ok := slices.BinarySearch(r.kinds, k)
	return ok
}

// Start begins to hand over. A second call does nothing; no two are made at the same time.
func (r *Reporter) Start() {
	if r == nil || r.done != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel, r.done = cancel, make(chan struct{})
	go func() {
		defer close(r.done)
		r.run(ctx)
	}()
}

// Close waits until all events are handed over, at most for event_timeout, and ends. Nothing may be told
// afterwards.
func (r *Reporter) Close() {
	if r == nil || r.done == nil {
		return
	}
	r.Wait(context.Background())
	r.cancel()
	<-r.done
	r.client.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.pending); n > 0 {
		r.lose(uint64(n), "the process ends")
	}
	r.say(time.Time{})
}

// Observe tells of what the log's lines say; it is a maillog.Observer.
func (r *Reporter) Observe(_ maillog.Level, _ bool, line maillog.Event) {
	if r == nil || line == nil {
		return
	}
	// There is a line for each delivery, and most sinks want to hear of what failed.
	if k, ok := kindOf(line); !ok || !r.Wants(k) {
		return
	}
	if e, ok := Of(time.Now(), line); ok {
		r.Tell(&e)
	}
}

// Tell tells of an event. It does not wait, and does not keep e. The transport of an attempt is the service's
// own name.
func (r *Reporter) Tell(e *Event) {
	if r == nil || !r.Wants(e.Kind) {
		return
	}
	if e.Delays != nil && e.Transport == "" {
		e.Transport = r.service
	}
	rec := proto.EventRecord{Kind: string(e.Kind), Key: e.QueueID, JSON: e.json(r.host, r.scope)}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case len(rec.JSON) > proto.MaxEvent:
		r.lose(1, "an event is too large")
		return
	case len(r.pending) >= maxPending || r.octets+len(rec.JSON) > maxPendingOctets:
		r.lose(1, "the events service does not answer")
		return
	}
	r.pending = append(r.pending, rec)
	r.octets += len(rec.JSON)
	r.told++
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Wait returns when all that this process has told before is on stable storage in the journal; or when ctx
// ends, or the journal has not answered for event_timeout. Mail goes on in any case, so that it returns
// nothing.
func (r *Reporter) Wait(ctx context.Context) {
	if r == nil {
		return
	}
	r.mu.Lock()
	if r.settled >= r.told || r.silent {
		r.mu.Unlock()
		return
	}
	w := waiter{r.told, make(chan struct{})}
	r.waiters = append(r.waiters, w)
	r.mu.Unlock()
	late := time.NewTimer(r.patience)
	defer late.Stop()
	// Who leaves early stays in the list until it is its turn, which costs nobody anything.
	select {
	case <-w.settled:
	case <-ctx.Done():
	case <-late.C:
		r.giveUp()
	}
}

// Settled says whether all that this process has told is on stable storage in the journal, or lost, which the log has.
func (r *Reporter) Settled() bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.settled >= r.told
}

// Then has f called when Wait would return, for callers that must not wait: at once, or later on the Reporter's
// goroutine, one after the other in the order of the calls.
func (r *Reporter) Then(f func()) {
	if r == nil {
		f()
		return
	}
	r.mu.Lock()
	if len(r.thens) == 0 && (r.settled >= r.told || r.silent || r.done == nil) {
		r.mu.Unlock()
		f()
		return
	}
	r.thens = append(r.thens, then{r.told, f})
	r.mu.Unlock()
}

// follow does what is due of what Then was told.
func (r *Reporter) follow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.thens) > 0 && (r.silent || r.settled >= r.thens[0].after) {
		f := r.thens[0].do
		r.mu.Unlock()
		f()
		r.mu.Lock()
		r.thens[0] = then{}
		if r.thens = r.thens[1:]; len(r.thens) == 0 {
			r.thens = nil
		}
	}
}

// giveUp has nobody wait until the journal answers.
func (r *Reporter) giveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.silent {
		r.silent = true
		r.advance()
		r.log.Warning("the events service does not answer; mail goes on, and events wait")
	}
}

// advance wakes those who have waited for long enough, and nobody else: with many messages under way at once, most wait
// for what comes later. The caller has mu.
func (r *Reporter) advance() {
	n := 0
	for n < len(r.waiters) && (r.silent || r.waiters[n].after <= r.settled) {
		close(r.waiters[n].settled)
		r.waiters[n] = waiter{}
		n++
	}
	if r.waiters = r.waiters[n:]; len(r.waiters) == 0 {
		r.waiters = nil
	}
}

// lose counts events that are in no journal. The caller has mu.
func (r *Reporter) lose(n uint64, why string) {
	r.lost += n
	r.unsaid += n
	r.why = why
	if now := time.Now(); now.Sub(r.saidAt) >= quietTime {
		r.say(now)
	}
}

// say logs losses that the log does not have. The caller has mu.
func (r *Reporter) say(now time.Time) {
	if r.unsaid > 0 {
		r.log.Warning("%d events are lost: %s", r.unsaid, r.why)
		r.unsaid, r.saidAt = 0, now
	}
}

// Lost is how many events of this process are in no journal.
func (r *Reporter) Lost() uint64 {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// run hands over what is told until ctx ends. Requests go one after the other, so that the order stays.
func (r *Reporter) run(ctx context.Context) {
	for begun := time.Now(); ; {
		r.follow()
		list := r.next()
		if len(list) == 0 {
			select {
			case <-r.wake:
			case <-ctx.Done():
				return
			}
			begun = time.Now()
			continue
		}
		reply, err := r.hand(ctx, list, r.patience-time.Since(begun))
		if err == nil {
			r.handed(len(list), reply.Reason)
			begun = time.Now()
			continue
		}
		if ctx.Err() == nil && time.Since(begun) >= r.patience {
			r.giveUp()
			r.follow()
		}
		select {
		case <-time.After(retryTime):
		case <-ctx.Done():
			return
		}
	}
}

// next is what is handed over next. The records stay pending.
func (r *Reporter) next() []proto.EventRecord {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, octets := 0, 0
	for n < len(r.pending) && n < batchEvents && (n == 0 || octets+len(r.pending[n].JSON) <= batchOctets) {
		octets += len(r.pending[n].JSON)
		n++
	}
	return r.pending[:n:n]
}

// hand makes one request. If it was lost, whether it was carried out is not known, and it is made again:
// the events have identifiers. One that is not answered in time is not made again as long as the connection is there: a
// journal whose disk hangs has it, and would keep the events once more each time, in its memory and then on the disk.
// Nobody waits for it any more then. left is how much of the time there is.
func (r *Reporter) hand(ctx context.Context, list []proto.EventRecord, left time.Duration) (*proto.EventsReply, error) {
	reply := new(proto.EventsReply)
	answered := make(chan error, 1)
	go func() { answered <- r.client.Call(ctx, &proto.Events{List: list}, reply) }()
	late := time.NewTimer(left)
	defer late.Stop()
	var err error
	select {
	case err = <-answered:
	case <-late.C:
		r.giveUp()
		r.follow()
		err = <-answered
	}
	var refused ipc.RemoteError
	if errors.As(err, &refused) { // it would say so again
		return &proto.EventsReply{Reason: string(refused)}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("events service: %w", err)
	}
	return reply, nil
}

// handed takes the first n pending events off: they are in the journal, or were refused for a reason.
func (r *Reporter) handed(n int, refused string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range n {
		r.octets -= len(r.pending[i].JSON)
		r.pending[i] = proto.EventRecord{}
	}
	if r.pending = r.pending[n:]; len(r.pending) == 0 {
		r.pending = nil
	}
	r.settled += uint64(n)
	if r.silent {
		r.silent = false
		r.log.Info("the events service answers again")
	}
	if refused != "" {
		r.lose(uint64(n), refused)
	}
	r.advance()
}
