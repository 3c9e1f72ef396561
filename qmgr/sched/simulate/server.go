package simulate

import (
	"fmt"
	"time"

	"posthaste/internal/adaptive"
	"posthaste/internal/dsn"
	"posthaste/internal/simnet"
	"posthaste/qmgr/sched"
)

// server is the far end: what accepts, keeps waiting, turns away and serves
// connections.
type server struct {
	serverKind
	serving  int          // processes with a connection
	sessions int          // connections with the client, as the client counts them
	backlog  []*conn      // complete, waiting to be accepted
	turn     int          // of the load balancer
	host     *simnet.Host // of provider=; nil: there is none
	terms    *sched.Terms // of limits= and the like; nil: there are none
	pools    map[*send]*sched.Pool
}

// conn is one agent's connection.
type conn struct {
	srv      *server
	agent    sched.AgentID
	entry    sched.EntryID // the request under way; 0: none
	rcpts    []int
	opened   time.Duration // when the connection attempt began
	queued   bool          // the connection is complete
	accepted bool
	over     bool
	fresh    bool // the request is the first over it
	tries    int
}

// client is who sends, to a provider.
const client = "192.0.2.1"

// connect is an agent's attempt to reach the server with a request.
func (r *run) connect(c *conn) {
	s := c.srv
	if s.host != nil {
		r.greet(c)
		return
	}
	if s.members > 0 {
		if s.inTurn {
			s.turn = (s.turn + 1) % s.members
		} else {
			s.turn = int(r.random(uint64(s.members)))
		}
		if s.turn < s.bad {
			r.after(time.Millisecond, func() { r.fail(c, "Connection refused") })
			return
		}
	}
	if s.clientLimit > 0 && s.sessions >= s.clientLimit {
		r.after(time.Millisecond, func() { r.fail(c, "421 4.7.0 Error: too many connections") })
		return
	}
	s.sessions++
	c.opened = r.clock
	r.enter(c)
	if s.full == "syn" || s.silent {
		r.after(s.timeout, func() {
			if !c.accepted && !c.queued && !c.over {
				r.giveUp(c, "Operation timed out")
			}
		})
	}
	if !c.accepted {
		r.after(s.greeting, func() {
			if !c.accepted && !c.over {
				r.giveUp(c, "conversation timed out while receiving the initial server greeting")
			}
		})
	}
}

// greet is connect for a provider.
func (r *run) greet(c *conn) {
	a := c.srv.host.Connect(r.now(), client)
	c.opened, c.fresh = r.clock, true
	if a.OK() {
		c.accepted = true
		r.after(a.Took, func() { r.speak(c) })
		return
	}
	r.after(a.Took, func() { r.refuse(c, a, true) })
}

// speak delivers c's request to a provider, one recipient after the other: its messages have one.
func (r *run) speak(c *conn) {
	e := r.busy[c.entry]
	a := c.srv.host.Hear(r.now(), client, fmt.Sprint(e.ID), fmt.Sprint(e.ID))
	r.after(a.Took, func() {
		if a.OK() {
			r.served(c)
			return
		}
		c.srv.host.Leave(r.now(), client)
		r.refuse(c, a, false)
	})
}

// refuse reports what a provider has said in the place of taking the mail, and ends the session.
func (r *run) refuse(c *conn, a simnet.Answer, greeting bool) {
	c.over = true
	delete(r.agents, c.agent)
	res := sched.Result{Deferred: c.rcpts, Opened: c.fresh, Said: fmt.Sprint(a.Code, " ", a.Text)}
	res.Ask, res.After = adaptive.Read(a.Code, a.Text, greeting)
	// As the SMTP client has it: who is refused at the greeting, or told 421, has not been heard.
	if greeting || a.Code == 421 {
		res.SiteFailed, res.Status, res.Reason = true, dsn.S(4, 7, 0), res.Said
	}
	r.done(c.entry, c.rcpts, res)
}

// enter tries to get c served, or at least into the queue; and again later.
func (r *run) enter(c *conn) {
	s := c.srv
	switch {
	case c.over || c.accepted || c.queued || s.silent:
	case s.processes == 0 || s.serving < s.processes:
		r.accept(c)
	case len(s.backlog) < s.queue:
		s.backlog = append(s.backlog, c)
		c.queued = true
	case c.tries < len(s.retry):
		wait := s.retry[c.tries]
		if c.tries > 0 {
			wait -= s.retry[c.tries-1]
		}
		c.tries++
		r.after(wait, func() { r.enter(c) })
	}
}

// accept: a process takes c.
func (r *run) accept(c *conn) {
	c.accepted = true
	c.srv.serving++
	r.serve(c, c.srv.setup)
}

// serve delivers c's request over its session.
func (r *run) serve(c *conn, d time.Duration) {
	for range c.rcpts {
		d += r.vary(c.srv.perRecipient, c.srv.jitter)
	}
	r.after(max(d, time.Microsecond), func() { r.served(c) })
}

// giveUp is the client's time limit: it could not connect, or was not greeted.
func (r *run) giveUp(c *conn, reason string) {
	// What waits to be accepted goes on to take a place there: a system keeps a
	// connection that the client has closed until a process accepts it.
	c.srv.sessions--
	r.report.Timeouts++
	r.fail(c, reason)
}

// hangUp ends a session; the process takes the next connection.
func (r *run) hangUp(c *conn) {
	s := c.srv
	c.over = true
	if s.host != nil {
		s.host.Leave(r.now(), client)
		delete(r.agents, c.agent)
		return
	}
	s.sessions--
	s.serving--
	delete(r.agents, c.agent)
	for len(s.backlog) > 0 {
		next := s.backlog[0]
		s.backlog = append(s.backlog[:0], s.backlog[1:]...)
		if !next.over {
			r.accept(next)
			return
		} // else the process finds the client gone, and takes the next one
	}
}

// fail reports that the destination took no part in the request.
func (r *run) fail(c *conn, reason string) {
	c.over = true
	delete(r.agents, c.agent)
	r.done(c.entry, c.rcpts, sched.Result{Deferred: c.rcpts, SiteFailed: true, Status: dsn.S(4, 4, 1), Reason: reason})
}

// served: the request is done.
func (r *run) served(c *conn) {
	var res sched.Result
	for _, i := range c.rcpts {
		switch x := r.random(1 << 20); {
		case float64(x) < c.srv.deferShare*(1<<20):
			res.Deferred = append(res.Deferred, i)
		case float64(x) < (c.srv.deferShare+c.srv.bounceShare)*(1<<20):
			res.Failed = true
			r.report.Bounced++
		}
	}
	kind := r.kindOf(r.busy[c.entry].Transport)
	store := r.busy[c.entry].Cache&sched.CacheStore != 0
	res.Opened = c.fresh
	c.fresh = false
	res.Hungry = kind.cache && store && !r.aged(c, kind.reuse)
	entry, rcpts := c.entry, c.rcpts
	c.entry, c.rcpts = 0, nil
	if !res.Hungry {
		r.hangUp(c)
	}
	r.done(entry, rcpts, res)
}

// aged says whether a session has been used for as long as it may. Postfix counts
// whole seconds, and ends a session when the last of them is over.
func (r *run) aged(c *conn, limit time.Duration) bool {
	return r.clock.Truncate(time.Second)-c.opened.Truncate(time.Second) > limit
}
