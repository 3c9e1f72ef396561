// Commands while a part of the queue is being read. A part that this node has taken over
// from another is read beside the queue, the newest mail first, and what has been read of
// it is here and delivered. The rest is in nobody's memory: whoever deletes a message
// there, or all mail, would be told that there is no such message, or would miss some.
//
// So what is meant of the rest becomes orders for the part, as for the mail of a node
// that does not answer: with the queue IDs of what is meant when the order is given. They
// are carried out when all of the part has been read.
//
// Why this comes before the request itself is carried out on what is here: a message
// that has not been read when the orders are made is in them, and one that has is here
// when the request is carried out. A message that is read in between has both, which
// comes to the same.
//
// Why what has been read is ordered, too, while other orders wait for the part: they may
// be about the same messages, and would be carried out behind this request.

package qmgr

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// byHere is who orders something of this node's own mail here, for the log and the list of
// orders: sockets do not say more of a process than its user, which is that of the tools.
const byHere = "a command on this node"

// orderUnread leaves orders for what a request means of mail that this node has taken
// over and not read yet, and says what becomes of that. by is who has given it. It runs
// outside the loop.
func (s *Server) orderUnread(r *ipc.Request, by string, open bool) (u proto.Unread) {
	ids := s.meantIDs(r)
	if s.orders == nil || r.Kind == proto.KindOverride || ids == nil {
		return u
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.Patience)
	defer cancel()
	owned, err := s.ownedParts(ctx)
	parts := owned.Reading
	if len(parts) == 0 && err == nil {
		return u
	}
	base := storage.Order{Call: storage.Call{By: by, Kind: r.Kind, Payload: r.Payload}, Node: s.opt.Settings.Node, What: orderText(r.Kind, r.Payload), Open: open}
	var list []storage.Order
	if err == nil {
		list, err = s.unreadOrders(ctx, base, parts, ids)
	}
	if err == nil && len(list) > 0 {
		err = s.orders.Leave(ctx, list)
	}
	switch {
	case err == nil && len(list) == 0:
		return u
	case err == nil:
		for i := range list {
			s.opt.Log.Info("ordered by %s of part %d of the queue, which has not been read yet: %s", by, list[i].Part, list[i].What)
		}
		u.Ordered = fmt.Sprintf("%s has not been read yet. This is ordered: %s; it is carried out when it has been read", partNames(parts), summary(list))
		return u
	}
	if len(parts) == 0 {
		u.Omitted = fmt.Sprintf("whether all of the queue has been read is not known, and nothing is ordered: %v", err)
		return u
	}
	// What has been read meanwhile is here. What is being read no more, and is not open
	// either, is another node's by now, or nobody's.
	again, end := context.WithTimeout(s.ctx, s.opt.Patience)
	defer end()
	if now, lost := s.ownedParts(again); lost == nil && allOpen(&now, parts) {
		return u
	}
	u.Omitted = fmt.Sprintf("%s has not been read yet, and nothing is ordered of it: %v", partNames(parts), err)
	return u
}

// meantIDs are the messages that a request names; empty: it means all that fulfil its
// conditions; nil: it is none about messages, goes on with one, or is refused.
func (s *Server) meantIDs(r *ipc.Request) []mail.QueueID {
	switch r.Kind {
	case proto.KindCommand:
		var q proto.Command
		switch err := r.Decode(&q); {
		case err != nil, q.Site != "" && !s.opt.Settings.FlushDomain(q.Site):
		case q.ID != "":
			return []mail.QueueID{q.ID}
		default:
			return []mail.QueueID{}
		}
	case proto.KindSelect:
		var q proto.Select
		if r.Decode(&q) == nil && q.Cursor == 0 {
			return append([]mail.QueueID{}, q.IDs...)
		}
	}
	return nil
}

// ownedParts asks cleanup which parts of the queue are this node's: those that can be
// changed, and those that have not been read to their ends.
func (s *Server) ownedParts(ctx context.Context) (reply proto.OwnedReply, err error) {
	err = s.cleanup.CallAgain(ctx, &proto.Owned{}, &reply)
	return reply, err
}

// allOpen says whether parts of the queue can be changed here.
func allOpen(owned *proto.OwnedReply, parts []int) bool {
	for _, id := range parts {
		if !slices.ContainsFunc(owned.Parts, func(p proto.OwnedPart) bool { return p.ID == id }) {
			return false
		}
	}
	return true
}

// unreadOrders are the orders for what is meant in parts that are being read. ids are the
// messages that are meant, if they are named.
func (s *Server) unreadOrders(ctx context.Context, base storage.Order, parts []int, ids []mail.QueueID) ([]storage.Order, error) {
	at := &places{parts: parts, left: func(part int, list []storage.Viewed) ([]storage.Viewed, error) {
		if waits, err := s.orders.Waits(ctx, part); err != nil || waits {
			return list, err
		}
		return s.withoutRead(list)
	}}
	// Mostly what is named is here, and then the records need not be gone through.
	named := make([]storage.Viewed, len(ids))
	for i, id := range ids {
		named[i].Entry = queue.Entry{ID: id}
	}
	for i := 0; i < len(parts) && len(ids) > 0; i++ {
		list, err := at.left(parts[i], named)
		if err != nil {
			return nil, err
		}
		if len(list) > 0 {
			break
		}
		if i == len(parts)-1 {
			return nil, nil
		}
	}
	return s.ordersFor(ctx, base, at)
}

// partNames names parts of the queue.
func partNames(parts []int) string {
	if len(parts) == 1 {
		return fmt.Sprintf("part %d of the queue", parts[0])
	}
	names := make([]string, len(parts))
	for i, id := range parts {
		names[i] = fmt.Sprint(id)
	}
	return fmt.Sprintf("a part of the queue (%s)", strings.Join(names, ", "))
}
