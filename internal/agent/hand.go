package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"posthaste/internal/dsn"
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
		if err != nil {
			s.opt.Log.Warning("%s: %v: %v", m.ID, errHand, err)
			err = errHand
		}
		done <- err
	})
	return sync.OnceValue(func() error { return <-done })
}

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
