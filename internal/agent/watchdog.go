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
	// watchShare is the part of the time limit within which deliveries begin
	// that are watched together.
	watchShare = 256
)

// errWatchdog is why a delivery's context has ended.
var errWatchdog = errors.New("watchdog timeout")

// A watch bounds deliveries (daemon_timeout): their context ends with the time
// limit, and should one go on regardless, Overdue is told. Those that begin
// within a short time share one, so that none needs a context and timers of its
// own; the limit counts from the end of that time.
type watch struct {
	server  *Server
	ctx     context.Context    // of the deliveries
	cancel  context.CancelFunc // nil: there is no limit
	late    *time.Timer
	until   time.Time // when its deliveries began, at the latest
	running map[*running]struct{}
}

// begin puts a delivery under the present watch. Its context is part of ctx,
// which is the same for all.
func (s *Server) begin(ctx context.Context, run *running) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watch
	if w == nil || w.cancel != nil && now.After(w.until) {
		if w != nil && len(w.running) == 0 {
			w.stop()
		}
		w = s.newWatch(ctx, now)
		s.watch = w
	}
	w.running[run] = struct{}{}
	run.watch = w
}

func (s *Server) newWatch(ctx context.Context, now time.Time) *watch {
	w := &watch{server: s, ctx: ctx, running: make(map[*running]struct{})}
	limit := s.opt.TimeLimit
	if limit <= 0 {
		return w
	}
	w.until = now.Add(limit / watchShare)
	w.ctx, w.cancel = context.WithDeadlineCause(ctx, w.until.Add(limit), errWatchdog)
	w.late = time.AfterFunc(limit/watchShare+limit+watchdogGrace, func() { s.overdue(w) })
	return w
}

// stop frees what a watch holds: there is nothing left to watch.
func (w *watch) stop() {
	if w.cancel != nil {
		w.late.Stop()
		w.cancel()
	}
}

// overdue tells of the deliveries that have not ended although they were told to.
func (s *Server) overdue(w *watch) {
	var late []mail.QueueID
	s.mu.Lock()
	for run := range w.running {
		late = append(late, run.order.Envelope.ID)
	}
	s.mu.Unlock()
	for _, id := range late {
		s.opt.Overdue(id)
	}
}

// end is the end of a delivery.
func (s *Server) end(run *running) {
	w := run.watch
	if context.Cause(w.ctx) == errWatchdog {
		s.opt.Log.Warning("%s: watchdog timeout: the delivery was cut off after %s", run.order.Envelope.ID, s.opt.TimeLimit)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(w.running, run)
	if len(w.running) == 0 && w != s.watch {
		w.stop()
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
