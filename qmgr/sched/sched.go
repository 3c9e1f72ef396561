package sched

import "time"

// Scheduler is the whole of the queue manager's knowledge. Its methods must
// be called by one goroutine at a time.
type Scheduler struct {
	cfg Config
}

// New returns a scheduler that knows of no message.
func New(cfg Config) *Scheduler { return &Scheduler{cfg: cfg} }

// Step takes note of one event and appends what is to be done about it to
// out. It does not block and reads no clock. now is the wall clock; when it
// goes back, the scheduler's time goes on at half speed until it is caught
// up with.
func (s *Scheduler) Step(now time.Time, ev Event, out []Effect) []Effect { return out }

// Wake is when EventTick is needed if nothing happens before; zero: never.
func (s *Scheduler) Wake() time.Time { return time.Time{} }

// Check verifies every invariant, in time proportional to all that is
// queued. It is for tests.
func (s *Scheduler) Check() error { return nil }
