package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"posthaste/internal/dsn"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

// handTime is how long the queue may take to record that a delivery is about to be
// made. Servers that wait for the end of a message wait longer (RFC 5321 section
// 4.5.3.2.5).
const handTime = time.Minute

// errHand is what is told of a delivery that could not be recorded: it is not made.
var errHand = errors.New("the delivery cannot be recorded in the queue")

// A Hander is a Deliverer that calls Hand itself, at the last moment before a
// delivery cannot be taken back, or that delivers nothing. For others it is called before
// Deliver.
type Hander interface{ Hands() }

// Exact says whether what is about to be delivered is to be recorded before it is
// (spool_exact_doubt). If it is not, Hand need not be called.
func (r *Request) Exact() bool { return r.order.Exact && !r.Envelope.Trace.DontDeliver() }

// Hand begins to have it recorded that these recipients, by their positions, are about
// to have the message from relay, which is for people. The function that it
// returns waits until that is on stable storage, and is to be called before the delivery is made, or
// given up; its error says that the delivery must not be made. It may be called again, and says the same.
func (r *Request) Hand(rcpts []int, relay string) (wait func() error) {
	if !r.Exact() || len(rcpts) == 0 {
		return func() error { return nil }
	}
	index := make([]int, 0, len(rcpts))
	for _, i := range rcpts {
		index = append(index, r.order.Index[i])
	}
	return r.from.hand(&proto.Hand{ID: r.Envelope.ID, Index: index, Relay: relay})
}

// hand asks cleanup, for Request.Hand.
func (run *running) hand(m *proto.Hand) func() error {
	s, parent := run.watch.server, run.watch.ctx
	if s.opt.Hand == nil {
		return func() error { return fmt.Errorf("%w: the service is not running", errHand) }
	}
	done := make(chan error, 1)
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(parent, handTime)
		defer cancel()
		var reply proto.RecordReply
		err := s.opt.Hand(ctx, m, &reply)
		if err == nil && len(reply.Refused) > 0 {
			err = errors.New(reply.Refused[0].Reason)
		}
		s.unhanded.note(s.opt.Log, m.ID, err)
		if err != nil {
			err = errHand
		}
		done <- err
	})
	return sync.OnceValue(func() error { return <-done })
}

// unhanded is the deliveries that could not be recorded, one after the other and for the
// same reason. When a part of the queue is handed over, or the database has failed, there is
// one for each delivery that was about to begin: the log has a line for the first, and one
// with how many more there were. Each has its own line with status=deferred besides.
type unhanded struct {
	mu  sync.Mutex
	why string
	n   int // beside the first
}

// note notes what came of recording a delivery.
func (u *unhanded) note(log *maillog.Logger, id mail.QueueID, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	why := ""
	if err != nil { // it may name the message
		why = strings.ReplaceAll(err.Error(), fmt.Sprintf("message %q", string(id)), "the message")
	}
	if why != "" && why == u.why {
		u.n++
		return
	}
	if u.n > 0 {
		log.Warning("%d more deliveries cannot be recorded in the queue: %s", u.n, u.why)
	}
	if u.why, u.n = why, 0; why != "" {
		log.Warning("%s: %v: %v", id, errHand, err)
	}
}

// end tells what has not been told.
func (u *unhanded) end(log *maillog.Logger) { u.note(log, "", nil) }

// handAll is Hand for a Deliverer that does not call it. It is false when nothing must be
// delivered, which has been reported.
func (r *Request) handAll(d Deliverer) bool {
	if _, own := d.(Hander); own || !r.Exact() {
		return true
	}
	err := r.Hand(positions(len(r.order.Index)), string(r.Nexthop))()
	if err == nil {
		return true
	}
	for i := range r.reply.Outcomes {
		r.Defer(i, dsn.S(4, 3, 0), err.Error(), Detail{})
	}
	return false
}
