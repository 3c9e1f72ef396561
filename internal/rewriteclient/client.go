// Package rewriteclient asks the trivial-rewrite service for addresses in
// standard form and for where mail to them goes, and keeps answers for as
// long as they cannot change.
//
// An answer is kept when the service says that it is Fixed, or FixedSender, and forgotten
// when the service says that a table has changed (proto.Stale), or when the
// connection over which it would say so is gone. The standard form of an address
// depends on no table, and is forgotten with the connection alone. Questions that are under way
// are not asked twice: who comes second waits for the first one's answer.
//
// Those who go through many addresses, a client's recipients or the members of
// a list, foresee some of them at a time: both processes then wake up once for all
// these questions, where waking is what a question costs. An answer of that kind
// is good for a second, also when it is not Fixed.
//
// # Security
//
// What is asked comes from clients. The cache is bounded in entries, and an
// address over maxKept bytes is never kept. What is asked ahead is bounded by who
// asks and, in all, by maxAhead.
package rewriteclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

const (
	// generation is the number of answers in the younger half of a cache: at
	// most twice as many are kept.
	generation = 5000
	// generationOctets bounds them in another way: with a large pool of sources an answer has thousands of octets.
	generationOctets = 4 << 20
	// maxShared bounds the texts that answers share, and generationOctets their octets.
	maxShared = 500
	// maxKept is the longest question that is worth keeping an answer to.
	maxKept = 512
	// maxAhead bounds the questions under way when another is asked ahead: a
	// service that does not answer is not to be given more of them.
	maxAhead = 1000
	// shelfLife is how long what was asked ahead may be used when such answers
	// are not kept. Postfix's processes use the last one for 30 seconds.
	shelfLife = time.Second
)

// A Client speaks to one trivial-rewrite service. All methods may be called
// concurrently.
type Client struct {
	ipc *ipc.Client

	mu       sync.Mutex
	conn     *ipc.Conn // where Stale would come from
	epoch    uint64    // raised by what makes answers of Resolve void
	dials    uint64    // raised by what makes all answers void
	rewrites cache[question, string]
	resolves cache[string, proto.ResolveReply]   // by the address, for any sender, without a pool
	asked    cache[question, proto.ResolveReply] // those that depend on the sender, or on a pool
	flights  map[question]*flight
	ahead    cache[question, *flight] // what was asked ahead, and is not kept
	// The members of pools, with thousands of octets in each text: all answers have the same one, which is compared in no time.
	// With shaping_files there are as many texts as destinations, which strangers choose.
	members       map[string]string
	membersOctets int
	limits        bool // set before the first question
	now           func() time.Time
}

// A question is what makes two requests the same one. For Rewrite, a is the
// context; for Resolve it is the sender.
type question struct {
	kind    uint16
	a, addr string
	pool    string // of ResolveFrom; empty: none
}

func (q question) length() int { return len(q.a) + len(q.addr) + len(q.pool) }

// A flight is a request under way and, once done is closed, its answer.
type flight struct {
	done    chan struct{}
	rewrite proto.RewriteReply
	resolve proto.ResolveReply
	err     error
	ahead   bool      // it was foreseen
	stale   time.Time // when an answer that was is not to be used any more
}

// New returns a client of the service at that address.
func New(at ipc.Address) *Client {
	c := &Client{flights: make(map[question]*flight), now: time.Now}
	c.ipc = ipc.NewClient(at, c.pushed)
	c.ipc.OnDial(func(conn *ipc.Conn) {
		c.mu.Lock()
		c.conn = conn
		c.dials++
		c.rewrites.clear()
		c.stale()
		c.mu.Unlock()
	})
	return c
}

// AskLimits has Resolve say what is limited, too. It must be called before the first
// question.
func (c *Client) AskLimits() { c.limits = true }

// Close ends the connection. Questions under way fail.
func (c *Client) Close() { c.ipc.Close() }

// pushed is told what the service says unasked. It runs on the connection's
// reading goroutine, so that an answer that comes after a Stale is new.
func (c *Client) pushed(_ *ipc.Conn, r *ipc.Request) {
	if r.Kind == proto.KindStale {
		c.mu.Lock()
		c.stale()
		c.mu.Unlock()
	}
}

// stale forgets all answers that tables have a part in, also those on their way. Where there are such tables it
// is called each second: who asks for a thousand senders must not ask for all of their standard forms
// each second, too. Called with mu held.
func (c *Client) stale() {
	c.epoch++
	c.resolves.clear()
	c.asked.clear()
	c.ahead.clear()
	c.members, c.membersOctets = nil, 0
}

// current says whether what is kept is still good. Called with mu held.
func (c *Client) current() bool { return c.conn != nil && !c.conn.Away() }

// Rewrite returns addr in standard form. rewriteContext is "local" or
// "remote". The error is ctx's, or says which service could not be asked.
func (c *Client) Rewrite(ctx context.Context, rewriteContext, addr string) (string, error) {
	q := question{proto.KindRewrite, rewriteContext, addr, ""}
	c.mu.Lock()
	if a, ok := c.rewrites.get(q); ok && c.current() {
		c.mu.Unlock()
		return a, nil
	}
	f, err := c.ask(ctx, q)
	if err != nil {
		return "", fmt.Errorf("rewrite address: %w", err)
	}
	return f.rewrite.Address, nil
}

// Resolve returns where mail from sender to addr goes. addr is in standard
// form. A reply with proto.ResolveFail is no error here: the service was
// asked, and could not ask a table of its own.
func (c *Client) Resolve(ctx context.Context, sender, addr string) (proto.ResolveReply, error) {
	return c.ResolveFrom(ctx, sender, addr, "")
}

// ResolveFrom is Resolve for mail whose envelope names a pool of sources, which the answer is
// about. With an empty pool it is Resolve.
func (c *Client) ResolveFrom(ctx context.Context, sender, addr, pool string) (proto.ResolveReply, error) {
	q := question{proto.KindResolve, sender, addr, pool}
	c.mu.Lock()
	if a, ok := c.held(q); ok && c.current() {
		c.mu.Unlock()
		return a, nil
	}
	f, err := c.ask(ctx, q)
	if err != nil {
		return proto.ResolveReply{}, fmt.Errorf("resolve address: %w", err)
	}
	return f.resolve, nil
}

// Foresee begins to ask what both Rewrite, in the local context, and Resolve are
// going to be asked of an address, without waiting for the answers. A caller that has
// many addresses foresees some of them: it then waits and is woken once for these, not for
// each question.
func (c *Client) Foresee(ctx context.Context, sender, addr string) {
	c.mu.Lock()
	if _, ok := c.rewrites.get(question{proto.KindRewrite, "local", addr, ""}); !ok {
		c.foresee(ctx, question{proto.KindRewrite, "local", addr, ""})
	}
	c.mu.Unlock()
	c.ForeseeResolve(ctx, sender, addr)
}

// ForeseeResolve is Foresee for Resolve alone.
func (c *Client) ForeseeResolve(ctx context.Context, sender, addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := question{proto.KindResolve, sender, addr, ""}
	if _, ok := c.held(q); !ok {
		c.foresee(ctx, q)
	}
}

// held is the answer to a question of Resolve's, if there is one. Called with mu held.
func (c *Client) held(q question) (proto.ResolveReply, bool) {
	if q.pool == "" {
		if a, ok := c.resolves.get(q.addr); ok {
			return a, true
		}
	}
	return c.asked.get(q)
}

// Known is Resolve's answer, for any sender, if it is there and nobody needs to
// be asked.
func (c *Client) Known(addr string) (proto.ResolveReply, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.resolves.get(addr)
	return a, ok && c.current()
}

// foresee begins a flight for q that nobody waits for yet. Called with mu held,
// which it gives up for a while.
func (c *Client) foresee(ctx context.Context, q question) {
	if c.flights[q] != nil || c.foreseen(q) != nil || !c.current() || q.length() > maxKept || len(c.flights) >= maxAhead {
		return
	}
	c.launch(ctx, q, true)
	c.mu.Lock()
}

// foreseen is the answer to q that was asked for ahead, if it is still good. Called
// with mu held.
func (c *Client) foreseen(q question) *flight {
	if f, ok := c.ahead.get(q); ok && c.now().Before(f.stale) && c.current() {
		return f
	}
	return nil
}

// launch begins a flight for q. Called with mu held; unlocks.
func (c *Client) launch(ctx context.Context, q question, ahead bool) *flight {
	f := &flight{done: make(chan struct{}), ahead: ahead}
	c.flights[q] = f
	c.mu.Unlock()
	c.begin(ctx, q, f)
	return f
}

// ask finds or begins the flight for q, and waits for it. A lost connection
// is no answer: the question is asked again. Called with mu held; unlocks.
func (c *Client) ask(ctx context.Context, q question) (*flight, error) {
	if f := c.foreseen(q); f != nil {
		c.mu.Unlock()
		return f, nil
	}
	ctx, cancel := ipc.Bounded(ctx)
	defer cancel()
	for {
		f := c.flights[q]
		if f == nil {
			f = c.launch(ctx, q, false)
		} else {
			c.mu.Unlock()
		}
		select {
		case <-f.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if f.err == nil {
			return f, nil
		}
		if !errors.Is(f.err, ipc.ErrLost) && !errors.Is(f.err, ipc.ErrUnsent) && !contextEnded(f.err) {
			return nil, f.err
		}
		// The one that asked may have given up; that is no reason for us to.
		if ctx.Err() != nil {
			return nil, f.err
		}
		c.mu.Lock()
	}
}

func contextEnded(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// begin sends the question. ctx bounds the wait for a connection only: once
// sent, the answer is for whoever waits.
func (c *Client) begin(ctx context.Context, q question, f *flight) {
	conn, err := c.ipc.Conn(ctx)
	if err != nil {
		c.land(q, f, 0, nil, err)
		return
	}
	c.mu.Lock()
	since := c.epoch
	if q.kind == proto.KindRewrite {
		since = c.dials
	}
	c.mu.Unlock()
	var req ipc.Message = &proto.Rewrite{Context: q.a, Address: q.addr}
	if q.kind == proto.KindResolve {
		req = &proto.Resolve{Sender: q.a, Address: q.addr, Limits: c.limits || q.pool != "", Pool: q.pool}
	}
	conn.Go(req, func(payload []byte, err error) { c.land(q, f, since, payload, err) })
}

// land gives the answer to all who wait for it, and keeps it when nothing
// has made it void since it was asked for: since is the epoch of that time, or the dials.
func (c *Client) land(q question, f *flight, since uint64, payload []byte, err error) {
	if err == nil {
		if q.kind == proto.KindResolve {
			err = f.resolve.Decode(payload)
		} else {
			err = f.rewrite.Decode(payload)
		}
	}
	f.err = err
	c.mu.Lock()
	delete(c.flights, q)
	now := c.epoch
	if q.kind == proto.KindRewrite {
		now = c.dials
	}
	members, known := c.shared(f.resolve.Members)
	f.resolve.Members = members
	if err == nil && since == now && q.length() <= maxKept {
		size := q.length() + len(payload)
		// The answer that has brought the text counts for it.
		if known {
			size -= len(members)
		}
		switch {
		case q.kind == proto.KindRewrite: // depends on main.cf alone
			c.rewrites.put(q, f.rewrite.Address, size)
		case f.resolve.Fixed && q.pool == "": // for any sender
			c.resolves.put(q.addr, f.resolve, size)
		case f.resolve.Fixed, f.resolve.FixedSender:
			c.asked.put(q, f.resolve, size)
		case f.ahead:
			f.stale = c.now().Add(shelfLife)
			c.ahead.put(q, f, size)
		}
	}
	c.mu.Unlock()
	close(f.done)
}

// shared is a text of an answer as others have it, which are kept; known says that there are such. Called with mu held.
func (c *Client) shared(text string) (same string, known bool) {
	if text == "" {
		return "", true
	}
	if same, ok := c.members[text]; ok {
		return same, true
	}
	if c.members == nil || len(c.members) >= maxShared || c.membersOctets >= generationOctets {
		c.members, c.membersOctets = make(map[string]string), 0
	}
	c.members[text] = text
	c.membersOctets += len(text)
	return text, false
}

// A cache keeps the answers of the last two generations: when the younger is
// full the older is dropped. An answer that is used stays.
type cache[K comparable, V any] struct {
	young, old map[K]kept[V]
	octets     int // of the younger
}

// kept is an answer with how many octets it has, about.
type kept[V any] struct {
	v      V
	octets int
}

func (c *cache[K, V]) get(k K) (v V, ok bool) {
	if a, ok := c.young[k]; ok {
		return a.v, true
	}
	a, ok := c.old[k]
	if ok {
		c.put(k, a.v, a.octets)
	}
	return a.v, ok
}

func (c *cache[K, V]) put(k K, v V, octets int) {
	if len(c.young) >= generation || c.octets >= generationOctets {
		c.old, c.young, c.octets = c.young, nil, 0
	}
	if c.young == nil {
		c.young = make(map[K]kept[V])
	}
	c.octets += octets // of one that is replaced, twice
	c.young[k] = kept[V]{v, octets}
}

func (c *cache[K, V]) clear() { c.young, c.old, c.octets = nil, nil, 0 }
