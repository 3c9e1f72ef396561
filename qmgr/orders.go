// Orders for nodes that do not answer. What an operator wants changed of such a node's
// mail is written down in the database, and carried out by whoever has the mail then:
// another node that takes the part over, or the node itself when it is back. What holds
// on all nodes, as a suspension does, is written down for the node.
//
// Why queue IDs are written down, and not the conditions that the operator gave: an
// order may wait for long, and by then they would be fulfilled by mail that nobody has
// thought of. So the mail is looked at now, as it is on record, and the IDs of what is
// meant are kept. To carry out such an order twice comes to the same: an ID is never
// given to another message.
//
// Why a command waits until the orders that were given before it have been carried out:
// who has had a message put on hold, while its node was dead, and releases it when it
// is back, does not want it on hold a second later.
//
// Each queue manager looks for orders once a second, when it knows its queue. It asks
// cleanup which parts are open, and once more afterwards: a message that is not found
// in a part that was open all the while is gone.

package qmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/selection"
	"posthaste/internal/storage"
)

const (
	// orderPeriod is how often orders are looked for.
	orderPeriod = time.Second
	// maxOrdered bounds the messages of one request that are ordered: as many IDs go
	// into a hundred rows.
	maxOrdered = 100 * proto.SelectIDs
	// requeueLook is how often it is looked whether a message has been requeued, and
	// requeueLooks after how many looks it is asked for again.
	requeueLook, requeueLooks = 100 * time.Millisecond, 50
	// orderTries is how often an order is tried that is refused each time: then it is
	// given up, so that those behind it are not kept waiting. Tries that nobody answers
	// are not counted.
	orderTries = 5
)

// orders is what a queue manager knows of orders. They are carried out by one task at a
// time.
type orders struct {
	storage.Orderer
	turn  chan struct{} // capacity 1: held while orders are carried out
	known chan struct{} // closed when the queue is known
	// failed counts how often the order with this number was refused. It belongs to who
	// holds turn.
	failed map[int64]int
}

// newOrders is for a queue that nodes share; nil for another.
func newOrders(c *courier) *orders {
	if c == nil {
		return nil
	}
	o, ok := c.Courier.(storage.Orderer)
	if !ok {
		return nil
	}
	return &orders{Orderer: o, turn: make(chan struct{}, 1), known: make(chan struct{}), failed: map[int64]int{}}
}

// leaveOrder writes down what a node was asked for that does not answer because of why.
// The error says that nothing is ordered, or that it is not known. It runs outside the
// loop.
func (s *Server) leaveOrder(ctx context.Context, q *proto.Forward, why, what string, open bool) (*proto.ForwardReply, error) {
	if s.orders == nil {
		return nil, errors.New("this queue keeps no orders")
	}
	// One template for all orders of the request: they differ in their parts, and in
	// what messages they name.
	base := storage.Order{Call: storage.Call{By: q.By, Kind: q.Asked, Payload: q.Payload}, Node: q.Node, What: what, Open: open}
	var list []storage.Order
	var err error
	if q.Asked == proto.KindOverride {
		list, err = overrideOrder(base)
	} else {
		var at places
		if at.parts, err = s.partsOf(base.Node); err == nil {
			// Those that another node has taken over while this one was waited for: whoever
			// has them knows nothing of what was asked.
			for _, id := range q.Parts {
				if !slices.Contains(at.parts, id) {
					at.parts = append(at.parts, id)
				}
			}
			list, err = s.ordersFor(ctx, base, &at)
		}
	}
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		// What is on record of its mail says so: that is as good an answer as its own.
		return &proto.ForwardReply{Payload: noneMeant(q)}, nil
	}
	// All of the request is durable when this returns, or none of it: the operator is
	// told of both in the same words as of a command that was carried out.
	if err := s.orders.Leave(ctx, list); err != nil {
		return nil, err
	}
	when := "it is carried out when another node has its part of the queue, or it is back"
	if list[0].Part == 0 {
		when = "it is carried out when it is back"
	}
	for i := range list {
		s.opt.Log.Info("ordered of node %s by %s: %s", q.Node, q.By, list[i].What)
	}
	return &proto.ForwardReply{Ordered: fmt.Sprintf("%s. This is ordered: %s; %s", why, summary(list), when)}, nil
}

// places are where mail is looked for that something is ordered of.
type places struct {
	parts []int
	// left leaves out of a page of a part what nothing is to be ordered of; nil: all of
	// it is meant.
	left func(part int, list []storage.Viewed) ([]storage.Viewed, error)
}

// ordersFor are the orders for what a request about messages means there.
func (s *Server) ordersFor(ctx context.Context, base storage.Order, at *places) ([]storage.Order, error) {
	switch base.Kind {
	case proto.KindCommand:
		return s.commandOrders(ctx, base, at)
	case proto.KindSelect:
		return s.selectOrders(ctx, base, at)
	}
	return nil, errors.New("it changes nothing")
}

// summary is what a request comes to.
func summary(list []storage.Order) string {
	if len(list) == 1 {
		return list[0].What
	}
	return fmt.Sprintf("%s, and %d more such orders", list[0].What, len(list)-1)
}

// noneMeant is the answer of a node that has nothing of what is meant.
func noneMeant(q *proto.Forward) []byte {
	if q.Asked == proto.KindSelect {
		return new(proto.SelectReply).Append(nil)
	}
	var c proto.Command
	reply := new(proto.CommandReply)
	if c.Decode(q.Payload) == nil && c.Verb == proto.VerbFlush {
		reply.Denied = noSuchMessage
	}
	return reply.Append(nil)
}

// overrideOrder is the order for what holds on all nodes. It is forgotten when it would
// not hold any more.
func overrideOrder(base storage.Order) ([]storage.Order, error) {
	var q proto.Override
	if err := q.Decode(base.Payload); err != nil {
		return nil, err
	}
	base.Until = q.Entry.Until
	return []storage.Order{base}, nil
}

// commandOrders are the orders for a Command: one for the part that has the message, or
// one for each part of the node.
func (s *Server) commandOrders(ctx context.Context, base storage.Order, at *places) (list []storage.Order, err error) {
	var q proto.Command
	if err := q.Decode(base.Payload); err != nil {
		return nil, err
	}
	// All mail at once is a Select's. A flush of a site or of everything goes to each
	// part: who has one flushes all that it has.
	if q.ID == "" && q.Verb != proto.VerbFlush {
		return nil, errors.New("it does not say which message it means")
	}
	for _, part := range at.parts {
		// The part is looked for by the message's number, since a queue ID does not say
		// which one it is in.
		if q.ID != "" {
			found, err := s.idsIn(ctx, at, part, func(v *storage.Viewed) bool { return v.ID == q.ID }, uint64(msgID(q.ID)))
			if err != nil {
				return nil, err
			}
			if len(found) == 0 {
				continue
			}
		}
		o := base
		o.Part = part
		list = append(list, o)
	}
	return list, nil
}

// selectOrders are the orders for a Select: the IDs of what it means now, by parts.
func (s *Server) selectOrders(ctx context.Context, base storage.Order, at *places) (list []storage.Order, err error) {
	var q proto.Select
	if err := q.Decode(base.Payload); err != nil {
		return nil, err
	}
	// Times in it are those of the command line: "older than an hour" means an hour
	// before the order was given.
	where := selection.New(time.Time{})
	if len(q.Where) > 0 {
		if where, err = selection.Decode(q.Where); err != nil {
			return nil, err
		}
	}
	if where.NeedsManager() {
		return nil, errors.New("where its mail goes, or what it waits for, is not known, and nothing is ordered")
	}
	total, number := 0, uint64(0)
	if len(q.IDs) == 1 {
		number = uint64(msgID(q.IDs[0]))
	}
	// Mail that was set aside is ordered by itself, by its queue: so it is told from
	// the rest.
	for _, aside := range []bool{false, true} {
		if aside && (q.Verb != proto.VerbDelete || !where.NamesQueue(queue.Corrupt.String())) {
			break
		}
		for _, part := range at.parts {
			held := map[mail.QueueID]bool{}
			ids, err := s.idsIn(ctx, at, part, func(v *storage.Viewed) bool {
				held[v.ID] = v.Queue == queue.Hold
				return (v.Queue == queue.Corrupt) == aside && (len(q.IDs) == 0 || slices.Contains(q.IDs, v.ID)) && s.meantByOrder(where, v)
			}, number)
			if err != nil {
				return nil, err
			}
			if total += len(ids); total > maxOrdered {
				return nil, fmt.Errorf("more than %d messages are meant, and nothing is ordered: say more closely which", maxOrdered)
			}
			list = append(list, orderIDs(base, part, ids, &q, aside)...)
			// What is on hold is returned when it is released, and who asks does not
			// learn which messages that are.
			if q.Verb == proto.VerbExpire && q.Now {
				ids = slices.DeleteFunc(ids, func(id mail.QueueID) bool { return !held[id] })
				list = append(list, orderIDs(base, part, ids, &proto.Select{Verb: proto.VerbRelease}, false)...)
			}
		}
	}
	return list, nil
}

// orderIDs are the orders for some messages of a part.
func orderIDs(base storage.Order, part int, ids []mail.QueueID, q *proto.Select, aside bool) (list []storage.Order) {
	for group := range slices.Chunk(ids, proto.SelectIDs) {
		do := &proto.Select{IDs: group, Verb: q.Verb, Now: q.Now}
		if aside {
			do.Where = selection.Corrupt().Encode()
		}
		base.Part, base.Payload = part, do.Append(nil)
		base.What = orderText(proto.KindSelect, base.Payload)
		list = append(list, base)
	}
	return list
}

// meantByOrder says whether a message is meant, by its records.
func (s *Server) meantByOrder(where *selection.Selection, v *storage.Viewed) bool {
	q := &proto.List{Brief: !where.NeedsEnvelope(), Aside: v.Queue == queue.Corrupt}
	l, ok := s.viewed(v, q, listed{at: time.Now()})
	return ok && queueclient.Meant(where, &l.item)
}

// partsOf are the parts of the queue that a node has; "": those that are nobody's.
func (s *Server) partsOf(node string) (ids []int, err error) {
	parts, err := s.opt.Viewer.Parts()
	if err != nil {
		return nil, err
	}
	for i := range parts {
		if parts[i].Node == node {
			ids = append(ids, parts[i].ID)
		}
	}
	return ids, nil
}

// idsIn are the messages of a part that are meant; number, if it is not 0, is the
// number of the only one that may be.
func (s *Server) idsIn(ctx context.Context, at *places, part int, meant func(*storage.Viewed) bool, number uint64) (ids []mail.QueueID, err error) {
	// As with listings: one part is read at a time, whoever asks, since deliveries need
	// the database, too.
	select {
	case s.viewing <- struct{}{}:
		defer func() { <-s.viewing }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	after, upto := uint64(0), number
	if number > 0 {
		after = number - 1
	}
	for {
		list, next, err := s.opt.Viewer.View(ctx, part, after, upto, listPage)
		if err != nil {
			return nil, err
		}
		if at.left != nil {
			if list, err = at.left(part, list); err != nil {
				return nil, err
			}
		}
		for i := range list {
			if list[i].NPending > 0 && meant(&list[i]) {
				ids = append(ids, list[i].ID)
			}
		}
		if next == 0 || len(ids) > maxOrdered {
			return ids, nil
		}
		after = next
	}
}

// carryOrders carries out orders until ctx ends.
func (s *Server) carryOrders(ctx context.Context) {
	again := time.NewTicker(orderPeriod)
	defer again.Stop()
	for said := ""; ctx.Err() == nil; {
		err := s.fulfil(ctx)
		// Where the database is away others say so already: once is enough.
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			s.opt.Log.Warning("orders for this node, or for its parts of the queue, wait: %v", err)
		} else if err == nil {
			said = ""
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// fulfil carries out the orders that there are. An error says that some may be left.
func (s *Server) fulfil(ctx context.Context) error {
	o := s.orders
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var open []proto.OwnedPart
	parts := func() (ids []int, err error) {
		select {
		case <-o.known:
		default:
			return nil, nil // what is for this node alone can be carried out
		}
		open, err = s.openParts(ctx)
		for _, p := range open {
			ids = append(ids, p.ID)
		}
		return ids, err
	}
	return o.Carry(ctx, parts, func(ctx context.Context, or *storage.Order) error { return s.fulfilOne(ctx, or, open) })
}

// openParts asks cleanup which parts of the queue can be changed through it.
func (s *Server) openParts(ctx context.Context) ([]proto.OwnedPart, error) {
	owned, err := s.ownedParts(ctx)
	return owned.Parts, err
}

// fulfilOne carries one order out. nil: it is done, or given up.
func (s *Server) fulfilOne(ctx context.Context, o *storage.Order, open []proto.OwnedPart) error {
	what := fmt.Sprintf("order %d, given %s by %s on node %s: %s", o.Number, o.Given.Local().Format(time.DateTime), o.By, o.From, o.What)
	answer, err := s.askSelf(ctx, &proto.Carry{Asked: o.Kind, Payload: o.Payload}, o.Kind)
	if err == nil {
		what, err = carriedText(what, o.Kind, answer)
	}
	if err == nil {
		err = s.requeuedAll(ctx, o)
	}
	// What was not found may only have been away: then whoever has the part now carries
	// the order out, and it comes to the same for those messages that it has been
	// carried out on already.
	if err == nil && o.Part != 0 {
		var now []proto.OwnedPart
		if now, err = s.openParts(ctx); err == nil && !slices.ContainsFunc(now, func(p proto.OwnedPart) bool { return p.ID == o.Part && slices.Contains(open, p) }) {
			err = fmt.Errorf("part %d of the queue was handed on meanwhile", o.Part)
		}
	}
	if err == nil {
		delete(s.orders.failed, o.Number)
		s.opt.Log.Info("%s", what)
		return nil
	}
	// What nobody has answered is tried for as long as it is kept.
	if _, refused := errors.AsType[ipc.RemoteError](err); refused {
		if s.orders.failed[o.Number]++; s.orders.failed[o.Number] >= orderTries {
			delete(s.orders.failed, o.Number)
			s.opt.Log.Warning("%s: it is given up: %v", what, err)
			return nil
		}
	}
	return err
}

// requeuedAll waits until messages that an order has requeued have left: to requeue is
// answered when it begins, and an order that is forgotten by then would be lost with
// this process.
func (s *Server) requeuedAll(ctx context.Context, o *storage.Order) error {
	var left []mail.QueueID
	var one proto.Command
	var some proto.Select
	switch {
	case o.Kind == proto.KindCommand && one.Decode(o.Payload) == nil && one.Verb == proto.VerbRequeue:
		left = []mail.QueueID{one.ID}
	case o.Kind == proto.KindSelect && some.Decode(o.Payload) == nil && some.Verb == proto.VerbRequeue:
		left = some.IDs
	}
	look := time.NewTicker(requeueLook)
	defer look.Stop()
	for n := 0; len(left) > 0; n++ {
		var at proto.LocateReply
		if err := s.cleanup.CallAgain(ctx, &proto.Locate{ID: left[0]}, &at); err != nil {
			return err
		}
		if !at.Found {
			left, n = left[1:], 0
			continue
		}
		if n == requeueLooks {
			return ipc.RemoteError(fmt.Sprintf("%s is still in the queue", left[0])) // it could not be requeued, or will be by the next try
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// errUnrecorded says that something was not recorded: the part of the queue may be
// another node's by now.
var errUnrecorded = ipc.RemoteError("not all of it is recorded")

// carriedText says what came of an order, for the log.
func carriedText(what string, kind uint16, answer []byte) (string, error) {
	switch kind {
	case proto.KindCommand:
		var reply proto.CommandReply
		if err := reply.Decode(answer); err != nil {
			return what, err
		}
		if reply.Denied != "" {
			return what + ": refused: " + reply.Denied, nil
		}
	case proto.KindSelect:
		var reply proto.SelectReply
		switch err := reply.Decode(answer); {
		case err != nil:
			return what, err
		case len(reply.Failed) > 0:
			return what, fmt.Errorf("%w: %s", errUnrecorded, reply.Failed[0])
		}
		return fmt.Sprintf("%s: done to %d", what, len(reply.IDs)), nil
	case proto.KindOverride:
		var reply proto.OverrideReply
		if err := reply.Decode(answer); err != nil {
			return what, err
		}
		if reply.Refused != "" {
			return what + ": refused: " + reply.Refused, nil
		}
	}
	return what + ": done", nil
}

// carried takes an order that is due. It is a request that may change something, and
// waits for no other orders; what another node asks now does.
func (s *Server) carried(c *ipc.Conn, r *ipc.Request) {
	var q proto.Carry
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	if orderText(q.Asked, q.Payload) == "" {
		r.Fail("qmgr: an order that changes nothing")
		return
	}
	// From here on it is as if it had been asked without the wrapping, by the mail
	// owner: that is who may send one.
	r.Kind, r.Payload = q.Asked, q.Payload
	if q.By != "" {
		s.afterOrders(r, q.By, func(u proto.Unread) { s.obey(c, r, u) })
		return
	}
	s.obey(c, r, proto.Unread{})
}

// afterOrders has f run when the orders that were given before have been carried out,
// where r changes something that there may be orders for. by is who has given it.
func (s *Server) afterOrders(r *ipc.Request, by string, f func(proto.Unread)) {
	switch {
	case s.orders == nil || orderText(r.Kind, r.Payload) == "":
		f(proto.Unread{})
		return
	case public(r):
		s.tasks.Go(func() { f(s.orderUnread(r, by, true)) })
		return
	}
	// Public requests flush, and nothing that was ordered is undone by that. The others
	// are an operator's, and rare: each may cost a look into the database.
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.opt.Patience)
		defer cancel()
		var err error
		if r.Kind != proto.KindOverride { // a node that stands by has no queue to know
			err = s.awaitKnown(ctx)
		}
		if err == nil {
			err = s.fulfil(ctx)
		}
		// What holds for now is kept on this node's disk: it must be possible also
		// while the database is away. A message cannot be changed then.
		if s.ctx.Err() != nil {
			return // who has asked loses the connection, and asks the successor
		}
		if err != nil && r.Kind != proto.KindOverride {
			r.Fail("orders that were given before wait, and this one is not carried out: %v", err)
			return
		}
		f(s.orderUnread(r, by, false))
	})
}

// awaitKnown waits until the queue is known.
func (s *Server) awaitKnown(ctx context.Context) error {
	select {
	case <-s.orders.known:
		return nil
	case <-ctx.Done():
		return errors.New("the queue is not known: the cleanup service does not answer, the log may say why")
	}
}
