package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"posthaste/internal/mail"
)

const (
	// watchdogGrace is what a delivery that has been told to end may take for
	// it. One that takes longer hangs where no context reaches it, in a file
	// system that does not answer for instance.
	watchdogGrace = time.Minute
	// lastTime is how long a process with such a delivery goes on with its
	// others, before it ends and takes that one with it.
	lastTime = 10 * time.Minute
)

// errWatchdog is why a delivery's context has ended.
var errWatchdog = errors.New("watchdog timeout")

// watch bounds a delivery (daemon_timeout): its context ends with the time
// limit, and should it go on regardless, Overdue is told. done is to be called
// when the delivery has ended.
func (s *Server) watch(ctx context.Context, id mail.QueueID) (bounded context.Context, done func()) {
	if s.opt.TimeLimit <= 0 {
		return ctx, func() {}
	}
	bounded, cancel := context.WithTimeoutCause(ctx, s.opt.TimeLimit, errWatchdog)
	late := time.AfterFunc(s.opt.TimeLimit+watchdogGrace, func() { s.opt.Overdue(id) })
	return bounded, func() {
		late.Stop()
		if context.Cause(bounded) == errWatchdog {
			s.opt.Log.Warning("%s: watchdog timeout: the delivery was cut off after %s", id, s.opt.TimeLimit)
		}
		cancel()
	}
}

// overdue ends the process when a delivery cannot be ended: nobody knows what
// it would do later on. Retire has it take no more orders, and its other
// deliveries may end; then exit ends it.
func overdue(say func(format string, args ...any), retire, exit func()) func(mail.QueueID) {
	return func(id mail.QueueID) {
		say("watchdog timeout: the delivery of message %s does not end; the process does, when its others have had %s", id, fmt.Sprint(lastTime))
		retire()
		time.AfterFunc(lastTime, exit)
	}
}
