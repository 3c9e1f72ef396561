package console

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"posthaste/internal/history"
	"posthaste/internal/overview"
)

const (
	// lookTime is how old the numbers of a page are at most while somebody looks at it, on a
	// machine that is not busy.
	lookTime = 10 * time.Second
	// lookShare is the share of the time that counting for pages may take: one of so many parts.
	lookShare = 20
	// beatTime is how often a live page is sent something when nothing changes, so that it can
	// tell that it still lives.
	beatTime = 20 * time.Second
	// rateTime is over how long a time rates are, where there are samples enough.
	rateTime = 70 * time.Second
	// sendTime is how long a browser may take to read what it is sent; then it has to come back.
	sendTime = 10 * time.Second
	// maxStreams bounds the live pages of all sessions, sessionStreams those of one.
	maxStreams, sessionStreams = 64, 8
)

// live is what the pages show of the queue as it is now: the last sample, and what is behind it
// for as long as somebody looks. Pages never wait for the queue manager to count. Methods may be
// called concurrently.
type live struct {
	look chan struct{} // has one when somebody looks

	mu      sync.Mutex
	sample  *history.Sample
	before  map[string][]*history.Sample // earlier ones of each node, of the last rateTime, the earliest first, without tables: rates are since then
	now     *overview.Now
	changed chan struct{} // closed when there is something newer
}

func newLive() *live { return &live{look: make(chan struct{}, 1), changed: make(chan struct{})} }

// latest is the last sample; nil: there is none yet.
func (l *live) latest() *history.Sample {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sample
}

// view is the state at a glance; one without a time when there is no sample yet.
func (l *live) view() *overview.Now {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil {
		return &overview.Now{Queues: []overview.QueueState{}, Hurts: []overview.Hurt{}, Orders: overview.NoOrders()}
	}
	return l.now
}

// change is closed when there is something newer than what view and latest say now.
func (l *live) change() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// poke says that somebody looks.
func (l *live) poke() {
	select {
	case l.look <- struct{}{}:
	default:
	}
}

// publish has a sample shown, with what is known of it. What was known of domains before stays
// until it is known anew.
func (l *live) publish(s *history.Sample, n *overview.Now) {
	l.publishAll([]overview.Sampled{{Sample: s}}, s, n)
}

// publishAll is publish for a queue that nodes share: of has what each of them counts.
func (l *live) publishAll(of []overview.Sampled, s *history.Sample, n *overview.Now) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != nil && n.Suspensions == nil {
		n.Orders, n.Providers, n.ProvidersFault = l.now.Orders, l.now.Providers, l.now.ProvidersFault
		for i := range n.Hurts {
			if j := slices.IndexFunc(l.now.Hurts, func(h overview.Hurt) bool { return h.Domain == n.Hurts[i].Domain }); j >= 0 {
				n.Hurts[i].Keep(&l.now.Hurts[j], n.Suspensions)
			}
		}
	}
	if n.Suspensions == nil {
		n.Orders = overview.NoOrders()
	}
	n.Rates = l.ratesOf(of)
	l.sample, l.now = s, n
	close(l.changed)
	l.changed = make(chan struct{})
}

// ratesOf are the rates of all nodes together; nil as long as those of one are not known. l.mu is held.
func (l *live) ratesOf(of []overview.Sampled) *overview.Rates {
	before, all := l.before, new(overview.Rates)
	l.before = make(map[string][]*history.Sample, len(of)) // a node that was missing begins anew
	for _, n := range of {
		var r *overview.Rates
		l.before[n.Node], r = rates(before[n.Node], n.Sample)
		switch {
		case r == nil:
			all = nil
		case all != nil:
			all.Add(r)
		}
	}
	return all
}

// rates are those up to a sample, and remembers what it says.
func rates(before []*history.Sample, s *history.Sample) ([]*history.Sample, *overview.Rates) {
	for len(before) > 1 && s.At.Sub(before[0].At) > rateTime {
		before = before[1:]
	}
	var earliest *history.Sample
	if len(before) > 0 {
		earliest = before[0]
	}
	r := overview.RatesOf(earliest, s)
	return append(before[max(0, len(before)-int(rateTime/time.Second)):], &history.Sample{At: s.At, Totals: s.Totals}), r
}

// A keeper counts: a sample each time that master wakes the service, and more while somebody looks.
type keeper struct {
	sampler *sampler
	mta     *mta
	live    *live
	day     *day
	next    time.Time // no look before
}

// run counts until ctx ends.
func (k *keeper) run(ctx context.Context, wake <-chan struct{}) {
	k.day.load(k.mta.history, time.Now())
	for {
		select {
		case <-wake:
			if s := k.sampler.take(ctx, time.Now); s != nil {
				k.day.add(s)
				// Of a queue that nodes share that is what this node has. What all have is counted for who looks.
				if k.mta.node == "" {
					k.live.publish(s, overview.Glance(s))
				}
			}
		case <-k.live.look:
			k.see(ctx, time.Now)
		case <-ctx.Done():
			return
		}
	}
}

// see counts for who looks, unless it was done a moment ago, or takes too long to be done again.
func (k *keeper) see(ctx context.Context, clock func() time.Time) {
	begin := clock()
	if begin.Before(k.next) {
		return
	}
	defer func() { k.next = begin.Add(max(lookTime, lookShare*clock().Sub(begin))) }()
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	seen, err := k.mta.see(ctx, begin)
	if err != nil {
		return // the page says of what time it is
	}
	k.live.publishAll(seen.Of, seen.Sample, seen.Now)
}

// freshTime is how old a count of all nodes may be for who looks once. Where the queue is not shared there is one each minute.
const freshTime = time.Minute

// freshen waits until the queue of all nodes has been counted, if that was too long ago: it is only counted while somebody looks.
func (c *console) freshen(ctx context.Context) {
	if c.mta.node == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for {
		changed := c.live.change()
		if s := c.live.latest(); s != nil && c.now().Sub(s.At) < freshTime {
			return
		}
		c.live.poke()
		select {
		case <-changed:
		case <-c.stopping:
			return
		case <-ctx.Done():
			return // what there is says of what time it is
		}
	}
}

// serveLive sends a part of a page each time that there is something newer, as server-sent
// events, until the browser goes away, the session ends, or what was sent is not read in time.
func (c *console) serveLive(w http.ResponseWriter, r *http.Request, s *session, part func(*bytes.Buffer) error) {
	done, ok := c.sessions.stream(s)
	if !ok {
		http.Error(w, "too many live pages are open", http.StatusTooManyRequests)
		return
	}
	defer done()
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no")
	out := http.NewResponseController(w)
	if out.SetReadDeadline(time.Time{}) != nil { // the request has been read, and the answer has no end
		return
	}
	beat := time.NewTicker(beatTime)
	defer beat.Stop()
	look := time.NewTicker(lookTime)
	defer look.Stop()
	until := time.NewTimer(s.begun.Add(wholeTime).Sub(c.now()))
	defer until.Stop()
	var last []byte
	for {
		changed := c.live.change()
		b := new(bytes.Buffer)
		if err := part(b); err != nil || !c.sessions.alive(s) {
			return
		}
		text := []byte(": alive\n\n")
		if !bytes.Equal(b.Bytes(), last) {
			last = b.Bytes()
			text = event(last)
		}
		if out.SetWriteDeadline(time.Now().Add(sendTime)) != nil {
			return
		}
		if _, err := w.Write(text); err != nil || out.Flush() != nil {
			return
		}
		for waiting := true; waiting; {
			select {
			case <-changed:
				waiting = false
			case <-beat.C:
				waiting = false
			case <-look.C:
				c.live.poke()
			case <-r.Context().Done():
				return
			case <-until.C:
				return
			case <-c.stopping:
				return
			}
		}
	}
}

// event is a text as an event.
func event(text []byte) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		fmt.Fprintf(&b, "data: %s\n", bytes.TrimRight(line, "\r\n"))
	}
	b.WriteByte('\n')
	return b.Bytes()
}
