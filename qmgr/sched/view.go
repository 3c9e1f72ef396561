package sched

import (
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
)

// Info describes one message, for mailq, qshape and their like.
type Info struct {
	ID       MsgID
	Queue    Queue
	Created  time.Time
	Next     time.Time // deferred: when it is due
	Size     int64
	Pending  int // recipients without a final outcome
	Attempts int
	Flags    Flags
}

// Wait is why some recipients have not been delivered yet.
type Wait uint8

const (
	WaitNone          Wait = iota
	WaitDelivery           // with an agent, since Since
	WaitWindow             // Limit deliveries to the destination are under way already
	WaitProcess            // Limit deliveries of the transport are under way already
	WaitJob                // it is message By's turn
	WaitPreempted          // smaller message By was let past
	WaitRate               // destination_rate_delay, until Until
	WaitTransportRate      // transport_rate_delay, until Until when that is known
	WaitRead               // recipients not read yet: no room in memory, or being read
	WaitActive             // the active queue is full
	WaitRetry              // next attempt at Until
	WaitSite               // the destination is dead; next attempt at Until, sooner when it answers
	WaitHold               // an operator
	WaitNotice             // a notice to the sender is being made
	WaitCommand            // an operator's command waits for the deliveries under way
)

// A Reason says of a group of a message's recipients what they wait for.
type Reason struct {
	Wait      Wait
	Transport mail.Transport
	Queue     string
	Nexthop   mail.Nexthop
	Rcpts     []int // indexes, sorted; nil: all that no other Reason names
	Count     int   // recipients meant
	Since     time.Time
	Until     time.Time
	Limit     int
	By        MsgID
	Status    dsn.Status // WaitSite: the reply that counted
	Text      string
}

// DestState is a destination's condition.
type DestState uint8

const (
	DestReady     DestState = iota
	DestDead                // throttled after failures, until Until
	DestSuspended           // rate delay, until Until
)

// Dest describes one destination in core.
type Dest struct {
	Transport mail.Transport
	Queue     string
	Nexthop   mail.Nexthop
	State     DestState
	Until     time.Time
	Status    dsn.Status // DestDead
	Text      string     // DestDead
	Window    int
	Limit     int
	Busy      int // delivery requests under way
	Todo      int // delivery requests waiting
	Waiting   int // deferred messages that its next answer releases
}

// Explain says why message id is still here; nil when it is not.
func (s *Scheduler) Explain(id MsgID) []Reason { return nil }

// Lookup describes one message.
func (s *Scheduler) Lookup(id MsgID) (Info, bool) { return Info{}, false }

// Scan visits about n messages in no particular order, starting with cursor
// 0, and returns the cursor to go on with, 0 at the end. What arrives or
// leaves between two calls may be missed, nothing is seen twice. It lets a
// queue of any length be listed without holding up deliveries.
func (s *Scheduler) Scan(cursor, n int, yield func(Info) bool) int { return 0 }

// Dests visits every destination in core, in order of creation within each
// transport.
func (s *Scheduler) Dests(yield func(Dest) bool) {}

// Stats are totals, maintained as events happen.
type Stats struct {
	Incoming, Active, Deferred, Hold int // messages
	Rcpts                            int // recipients in memory
	Busy                             int // delivery requests under way
	Decisions                        uint64
	Preemptions                      uint64
}

// Stats returns the totals.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.Incoming, st.Deferred = int(s.incoming.n), int(s.due.n)+len(s.retries.s)
	return st
}
