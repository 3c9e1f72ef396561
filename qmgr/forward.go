// Commands beyond this node. A message is changed by the queue manager of the node that
// has it, and what an operator orders for now holds on all nodes: so a tool that is
// called on any node has what it asks carried to the others ("Forward"). The way is the
// database that they share (storage.Courier): no port is opened for it, and who could
// use it could change the queue anyway.
//
// Who may ask for what is decided here, on the node of the user: a request to another
// node is public if the same request to this one is. The other node carries out what
// arrives as if its mail owner had asked: it knows no users of this one. Only requests
// that proto.Forwards names are carried, and never on to a third node.
//
// Why the request is given to this process's own socket, and not to the loop: there it
// is told apart, bounded and answered as any other is, and at a reload the process that
// serves then answers.

package qmgr

import (
	"context"
	"errors"
	"fmt"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/storage"
)

// maxForwards bounds the requests to other nodes that are under way; further ones wait.
// Those that anybody may make, and those of operators, are as many each: whoever has
// mail flushed again and again, while a node does not answer, does not keep an operator
// from deleting something. Both together are as many as a node may have in the table
// (package pgspool).
const maxForwards = 8

// A courier carries requests to the queue managers of other nodes.
type courier struct {
	storage.Courier
	self *ipc.Client // this queue manager, as tools reach it
	// metrics is the service that has what this node publishes; nil: nothing is
	// published.
	metrics *ipc.Client
	room    chan struct{} // holds one for each request under way, of operators
	open    chan struct{} // likewise, of those that anybody may make
}

// newCourier makes one of what Options says; nil: the queue is not shared.
func newCourier(o *Options) *courier {
	c, ok := o.Viewer.(storage.Courier)
	if !ok {
		return nil
	}
	out := &courier{Courier: c, self: ipc.NewClient(o.Self, nil), room: make(chan struct{}, maxForwards), open: make(chan struct{}, maxForwards)}
	if o.Metrics != nil {
		out.metrics = ipc.NewClient(o.Metrics, nil)
	}
	return out
}

// forward answers with what another node's queue manager answers.
func (s *Server) forward(r *ipc.Request) {
	var q proto.Forward
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	c := s.courier
	if c == nil || !proto.Forwards(q.Asked) || q.Node == s.opt.Settings.Node {
		r.Fail("qmgr: a request that does not go to another node")
		return
	}
	room := c.room
	if public(r) {
		room = c.open
	}
	// It takes a turn of the other node and some of the database, and the loop waits
	// for nobody. The tool waits, and one that goes away takes nothing back: what was
	// asked is carried out, or was not begun.
	s.tasks.Go(func() {
		select {
		case room <- struct{}{}:
			defer func() { <-room }()
		case <-s.ctx.Done():
			r.Fail("the queue manager ends")
			return
		}
		// Both logs say who has changed something: here what was asked for, there what
		// was done.
		what := orderText(q.Asked, q.Payload)
		if what != "" {
			s.opt.Log.Info("asked of node %s by %s: %s", q.Node, q.By, what)
		}
		payload, err := c.Ask(s.ctx, q.Node, storage.Call{By: q.By, Kind: q.Asked, Payload: q.Payload})
		if not, ok := errors.AsType[storage.ErrNotCarriedOut](err); ok && what != "" && s.orders != nil {
			reply, oerr := s.leaveOrder(s.ctx, &q, string(not), what, public(r))
			if oerr == nil {
				r.Reply(reply)
				return
			}
			err = fmt.Errorf("%w, and it is not ordered: %w", err, oerr)
		}
		if err != nil {
			if what != "" {
				s.opt.Log.Warning("node %s: %v", q.Node, err)
			}
			r.Reply(&proto.ForwardReply{Failed: err.Error()})
			return
		}
		r.Reply(&proto.ForwardReply{Payload: payload})
	})
}

// attend carries out what other nodes ask, until ctx ends.
func (s *Server) attend(ctx context.Context) {
	defer s.courier.self.Close()
	if s.courier.metrics != nil {
		defer s.courier.metrics.Close()
	}
	s.courier.Attend(ctx, s.fromNode, s.opt.Log.Warning)
}

// fromNode carries out a request of another node. The database may have anything in it:
// what is no request of a tool is refused.
func (s *Server) fromNode(ctx context.Context, c storage.Call) ([]byte, error) {
	if !proto.Forwards(c.Kind) {
		return nil, fmt.Errorf("requests of kind %d are not carried out for other nodes: it may be of another version", c.Kind)
	}
	var q ipc.Message = &rawMessage{kind: c.Kind, octets: c.Payload}
	if what := orderText(c.Kind, c.Payload); what != "" {
		s.opt.Log.Info("asked by node %s for %s: %s", c.From, c.By, what)
		// What has to wait for a part of the queue is ordered in the same name.
		by := fmt.Sprintf("node %s for %s", c.From, c.By)
		q = &proto.Carry{Asked: c.Kind, Payload: c.Payload, By: by[:min(len(by), storage.CallBy)]}
	}
	answer, err := s.askSelf(ctx, q, c.Kind)
	if _, refused := errors.AsType[ipc.RemoteError](err); err != nil && !refused && s.ending() {
		return nil, storage.ErrAgain // what a message was to become it becomes or is already
	}
	if err != nil {
		// A refusal is an answer. Any other error leaves open what was done before it.
		if _, ok := errors.AsType[ipc.RemoteError](err); !ok {
			err = fmt.Errorf("whether it is carried out is not known: %w", err)
		}
		return nil, err
	}
	return answer, nil
}

// fromService answers with what another service of this node answers.
func (s *Server) fromService(r *ipc.Request) {
	if r.Kind == proto.KindGather {
		s.published(r)
	} else {
		s.cameBack(r)
	}
}

// ending says that this process is to end.
func (s *Server) ending() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// askSelf asks the queue manager of this node, and returns the answer in its stored
// form. kind is that of what is asked in the end. At a reload the socket is between two
// processes for a moment, and the answer of the one that ends may be lost. Then the
// other is asked once more: what a message was to become it becomes or is already, and
// an ID is never another message's.
func (s *Server) askSelf(ctx context.Context, q ipc.Message, kind uint16) ([]byte, error) {
	answer := &rawMessage{kind: kind}
	if err := s.courier.self.CallAgain(ctx, q, answer); err != nil {
		return nil, err
	}
	return answer.octets, nil
}

// A rawMessage is a message in its stored form.
type rawMessage struct {
	kind   uint16
	octets []byte
}

func (m *rawMessage) Kind() uint16           { return m.kind }
func (m *rawMessage) Append(b []byte) []byte { return append(b, m.octets...) }
func (m *rawMessage) Decode(b []byte) error  { m.octets = append([]byte(nil), b...); return nil }

// verbWords are what is said of orders in the log.
var verbWords = map[proto.Verb]string{proto.VerbFlush: "flush", proto.VerbHold: "hold", proto.VerbRelease: "release", proto.VerbDelete: "delete",
	proto.VerbRequeue: "requeue", proto.VerbExpire: "expire"}

// orderText says what a request changes, for the log; empty: nothing.
func orderText(kind uint16, payload []byte) string {
	switch kind {
	// What does not decode is refused by whom it is for, and changes nothing.
	case proto.KindCommand:
		var q proto.Command
		if q.Decode(payload) == nil {
			return verbWords[q.Verb] + " " + meantBy(q.Site, q.ID)
		}
	case proto.KindSelect:
		var q proto.Select
		switch {
		case q.Decode(payload) != nil || q.Verb == 0:
		case len(q.IDs) > 0:
			return fmt.Sprintf("%s %d messages, the first of them %s", verbWords[q.Verb], len(q.IDs), q.IDs[0])
		default:
			return fmt.Sprintf("%s all mail that fulfils %q", verbWords[q.Verb], q.Where)
		}
	case proto.KindOverride:
		var q proto.Override
		switch {
		case q.Decode(payload) != nil || q.Dry:
		case q.Op == proto.OverridePut:
			return fmt.Sprintf("%s of %s begins", q.Entry.Of, q.Entry.Target)
		case q.Op == proto.OverrideRemove:
			return fmt.Sprintf("%s of %s ends", q.Entry.Of, q.Entry.Target)
		}
	}
	return ""
}

// meantBy is what a Command is about.
func meantBy(site string, id mail.QueueID) string {
	switch {
	case site != "":
		return "mail for " + site
	case id != "":
		return string(id)
	}
	return "all mail"
}
