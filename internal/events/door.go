package events

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"posthaste/internal/eventjournal"
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
)

// A counter is a number that grows.
type counter struct{ n atomic.Uint64 }

func (c *counter) add(n int)   { c.n.Add(uint64(n)) }
func (c *counter) get() uint64 { return c.n.Load() }

// handle is the service's ipc.Handler. Events are queued for the journal in the order in which they come over a
// connection. ctx ends when the service is to.
func (s *server) handle(ctx context.Context, c *ipc.Conn, r *ipc.Request) {
	switch r.Kind {
	case proto.KindEvents:
		s.take(c, r)
	case proto.KindEventStatus:
		r.Reply(s.status())
	case proto.KindEventOrder:
		var q proto.EventOrder
		if err := r.Decode(&q); err != nil {
			r.Fail("%v", err)
			return
		}
		s.wg.Go(func() { s.order(ctx, &q, r) }) // it may take time
	default:
		r.Fail("events: unknown request %d", r.Kind)
	}
}

// take appends events to the journal, and answers when they are durable. When it is not known whether they are,
// there is no answer: they come again, to the next process.
func (s *server) take(c *ipc.Conn, r *ipc.Request) {
	var q proto.Events
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	if slices.ContainsFunc(q.List, func(e proto.EventRecord) bool { return len(e.JSON) > proto.MaxEvent || len(e.Key)+len(e.Kind) > 1024 }) {
		r.Fail("events: an event is too large")
		return
	}
	s.journal.Append(q.List, func(_ uint64, err error) {
		switch {
		case err == nil:
			r.Reply(&proto.EventsReply{})
			r.Free() // the journal has copied what it keeps
		case errors.Is(err, eventjournal.ErrFull):
			s.refused.add(len(q.List))
			r.Reply(&proto.EventsReply{Reason: err.Error()})
		default:
			s.env.Log.Warning("%v", err)
			s.env.Retire()
			c.Close()
		}
	})
}

// status says how far the sinks are.
func (s *server) status() *proto.EventStatusReply {
	reply := &proto.EventStatusReply{Refused: s.refused.get()}
	reply.Oldest, reply.Next, reply.Octets = s.journal.Bounds()
	for _, c := range s.couriers {
		reply.Sinks = append(reply.Sinks, c.status())
	}
	return reply
}

// order carries out what an operator wants of a sink.
func (s *server) order(ctx context.Context, q *proto.EventOrder, r *ipc.Request) {
	i := slices.IndexFunc(s.couriers, func(c *courier) bool { return c.sink.Name == q.Sink })
	if i < 0 {
		r.Fail("there is no sink of the name %s", q.Sink)
		return
	}
	c := s.couriers[i]
	var n uint64
	var err error
	switch q.Verb {
	case proto.EventReplay:
		oldest, next, _ := s.journal.Bounds()
		from := max(q.From, oldest)
		if from > next {
			r.Fail("the newest event has the number %d", next-1)
			return
		}
		n = next - from
		c.replay(from)
	case proto.EventRetry:
		c.retry()
	case proto.EventResend:
		n, err = c.resend(ctx)
	default:
		err = fmt.Errorf("events: unknown order %d", q.Verb)
	}
	if err != nil {
		r.Fail("%v", err)
		return
	}
	r.Reply(&proto.EventOrderReply{N: n})
}
