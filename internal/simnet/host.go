package simnet

import (
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// An Answer is what a host says, and how long it takes to say it.
type Answer struct {
	Code int    // of the reply; 0: the host says nothing at all
	Text string // enhanced code and words; "" of one that accepts
	Took time.Duration
}

// OK says whether the answer accepts.
func (a Answer) OK() bool { return a.Code >= 200 && a.Code < 400 }

// Away says that nobody answers. Took is 0: how long to wait for that is the client's to know.
func (a Answer) Away() bool { return a.Code == 0 }

// A Count is what a host has answered.
type Count struct {
	Accepted int // messages
	Refused  int // messages, and sessions at their greeting
	Sessions int // begun
}

// A Host is one simulated host. Its methods must be called by one goroutine at a time, with times that do
// not go back.
type Host struct {
	p       Profile
	rng     *rand.Rand
	clients map[string]*client
	seen    map[string]time.Time // by triplet: the first attempt
	open    int                  // sessions of all clients
	count   Count
}

// client is what a host knows of one client.
type client struct {
	open    int         // sessions
	recent  []time.Time // when messages were accepted within the last Span, oldest first
	shut    time.Time   // refused until then
	badness float64     // complaints, as of at
	at      time.Time
}

// New makes a host. Hosts with the same profile and seed that are asked the same give the same answers.
func New(p Profile, seed uint64) *Host {
	return &Host{p: p, rng: rand.New(rand.NewPCG(seed, 0x5ee)), clients: map[string]*client{}, seen: map[string]time.Time{}}
}

// Profile is what the host was made of.
func (h *Host) Profile() Profile { return h.p }

// Counted is what the host has answered so far.
func (h *Host) Counted() Count { return h.count }

func (h *Host) of(name string) *client {
	c := h.clients[name]
	if c == nil {
		c = &client{}
		h.clients[name] = c
	}
	return c
}

// took is a time with its jitter.
func (h *Host) took(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 + h.p.Jitter*(2*h.rng.Float64()-1)))
}

// refusal is the profile's reply.
func (h *Host) refusal(took time.Duration) Answer {
	h.count.Refused++
	code, text, _ := strings.Cut(h.p.Reply, " ")
	n, _ := strconv.Atoi(code)
	return Answer{Code: n, Text: text, Took: took}
}

// Connect begins a session of a client. If the answer does not accept, there is no session, and nothing to
// leave.
func (h *Host) Connect(now time.Time, who string) Answer {
	if h.p.Kind == Dead {
		return Answer{}
	}
	c := h.of(who)
	h.count.Sessions++
	switch {
	case h.p.Kind == Crowded && c.open >= h.p.Sessions,
		h.p.Kind == Metered && now.Before(c.shut):
		return h.refusal(h.took(h.p.Greeting))
	}
	c.open++
	h.open++
	return Answer{Code: 220, Took: h.took(h.p.Greeting)}
}

// Leave ends a session that Connect has accepted.
func (h *Host) Leave(_ time.Time, who string) {
	h.of(who).open--
	h.open--
}

// Hear takes one message for one recipient, in a session of the client.
func (h *Host) Hear(now time.Time, who, from, rcpt string) Answer {
	c, took := h.of(who), h.took(h.p.Took)
	refuse := false
	switch h.p.Kind {
	case Metered:
		refuse = h.overdone(c, now)
	case Judged:
		refuse = h.frowns(c, now)
	case Grey:
		key := who + "\x00" + from + "\x00" + rcpt
		first, known := h.seen[key]
		if !known {
			h.seen[key] = now
		}
		refuse = !known || now.Sub(first) < h.p.Delay
	case Slow:
		// Whoever has no worker waits for those before it: all take turns.
		took = time.Duration(float64(took) * max(1, float64(h.open)/float64(max(h.p.Sessions, 1))))
	}
	if refuse {
		return h.refusal(took / 2) // at RCPT: no content is sent
	}
	h.count.Accepted++
	return Answer{Code: 250, Took: took}
}

// overdone says whether a message is one too many, or comes in the penalty for one.
func (h *Host) overdone(c *client, now time.Time) bool {
	if now.Before(c.shut) {
		return true
	}
	for len(c.recent) > 0 && now.Sub(c.recent[0]) >= h.p.Span {
		c.recent = c.recent[1:]
	}
	if len(c.recent) >= h.p.Messages {
		c.shut = now.Add(h.p.Penalty)
		return true
	}
	c.recent = append(c.recent, now)
	return false
}

// frowns says whether a message is refused for the complaints about others, and draws whether it makes
// one itself.
func (h *Host) frowns(c *client, now time.Time) bool {
	if c.badness > 0 && h.p.HalfLife > 0 {
		c.badness *= math.Exp2(-float64(now.Sub(c.at)) / float64(h.p.HalfLife))
	}
	c.at = now
	// Up to what is tolerated nothing is refused, and everything at twice that.
	if over := c.badness/h.p.Tolerated - 1; over > 0 && h.rng.Float64() < over {
		c.badness += h.p.Complaints / 4
		return true
	}
	if h.rng.Float64() < h.p.Complaints {
		c.badness++
	}
	return false
}
