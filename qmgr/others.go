// The queue beyond this node. Nodes that share a queue have a part of it each, and this
// queue manager knows its own part only. What is in the parts of others is read from
// their records, as they are on stable storage, whether the nodes that have them are
// alive or not. So mailq shows all of the queue on any node.
//
// Why the records and not the other queue managers: a node that is down is the one
// whose mail is looked for, and its records are there. What only a queue manager knows
// is missing then: that a message is in the active queue is known only while an agent
// has it, and why one waits in there is not known. "posthaste explain" asks the other
// node.
//
// Why this process: who may list the queue need not be able to read the database's
// password, nor other people's mail. The queue manager has the connections already, and
// says what a listing says of its own messages.
//
// Memory does not depend on how long the queue is, and one page is read at a time,
// however many ask: deliveries need the database, too.

package qmgr

import (
	"context"
	"slices"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
	"posthaste/qmgr/sched"
)

// A viewer is what Options.Viewer is to be: a Reader that sees the parts of all nodes.
type viewer interface {
	storage.Reader
	storage.Viewer
}

// nodesReply answers which nodes there are, and which parts the queue has. Where it is
// not shared there are none.
func (s *Server) nodesReply(r *ipc.Request) {
	if s.opt.Viewer == nil {
		r.Reply(&proto.NodesReply{})
		return
	}
	// The database is asked each time: the tool goes by the answer a moment later, and
	// a node may have died since the last one.
	s.tasks.Go(func() {
		parts, err := s.opt.Viewer.Parts()
		if err != nil {
			r.Fail("%v", err)
			return
		}
		reply := new(proto.NodesReply)
		unread := s.unreadParts(parts)
		for _, p := range parts {
			reply.Parts = append(reply.Parts, proto.NodePart{ID: p.ID, Node: p.Node, Own: p.Own, Down: !p.Alive, Unread: p.Own && slices.Contains(unread, p.ID)})
		}
		if s.courier != nil {
			members, err := s.courier.Nodes()
			if err != nil {
				r.Fail("%v", err)
				return
			}
			for _, m := range members {
				reply.Nodes = append(reply.Nodes, proto.NodeInfo{Name: m.Name, Own: m.Own, Down: !m.Alive})
			}
		}
		r.Reply(reply)
	})
}

// unreadParts are the parts that this node has taken over and has not read yet. Where
// cleanup does not answer none is known: a listing says so itself.
func (s *Server) unreadParts(parts []storage.Part) []int {
	var reply proto.OwnedReply
	if slices.ContainsFunc(parts, func(p storage.Part) bool { return p.Own }) && s.cleanup.CallAgain(s.ctx, &proto.Owned{}, &reply) == nil {
		return reply.Reading
	}
	return nil
}

// withoutRead leaves out what cleanup has read of an own part meanwhile: it is among the
// own messages, and no listing is to have it twice.
func (s *Server) withoutRead(list []storage.Viewed) ([]storage.Viewed, error) {
	if len(list) == 0 {
		return nil, nil // a page without numbers would be one of all mail
	}
	q, reply := new(proto.Page), new(proto.PageReply)
	for i := range list {
		q.Numbers = append(q.Numbers, uint64(msgID(list[i].ID)))
	}
	if err := s.cleanup.CallAgain(s.ctx, q, reply); err != nil {
		return nil, err
	}
	here := make(map[mail.QueueID]bool, len(reply.Entries))
	for i := range reply.Entries {
		here[reply.Entries[i].ID] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(v storage.Viewed) bool { return here[v.ID] }), nil
}

// fromLister answers a request to list: the own part, or one of another node.
func (s *Server) fromLister(r *ipc.Request) {
	var q proto.List
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	if q.Part != 0 {
		s.listPart(r, &q)
		return
	}
	s.ask(r, func() { s.list(r, &q) })
}

// listPart answers with one page of another node's part. Orders that hold here are
// shown with its messages: they hold on all nodes.
func (s *Server) listPart(r *ipc.Request, q *proto.List) {
	if s.opt.Viewer == nil {
		r.Fail("the queue has no parts")
		return
	}
	// What the loop has to say is the rules. It does not wait until the own part is
	// known: a node that stands by has none.
	s.post(func() {
		like := listed{rules: s.rules.set, limits: s.rules.limits, at: s.now}
		s.tasks.Go(func() {
			reply, err := s.viewPart(q, like)
			if err != nil {
				r.Fail("part %d of the queue cannot be read: %v", q.Part, err)
				return
			}
			r.Reply(reply)
		})
	}, sched.Event{})
}

// viewPart reads a page of a part. It is a task. like has what is said of all messages.
func (s *Server) viewPart(q *proto.List, like listed) (*proto.ListReply, error) {
	// Who waits here has asked for a listing, and a listing of a deep queue takes its
	// time. What comes from deliveries does not pass here.
	select {
	case s.viewing <- struct{}{}:
		defer func() { <-s.viewing }()
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
	part := storage.Part{ID: q.Part}
	parts, err := s.opt.Viewer.Parts()
	if err != nil {
		return nil, err
	}
	// A part that is not there has no messages: the reader says so.
	for _, p := range parts {
		if p.ID == q.Part {
			part = p
		}
	}
	// The cursor comes back from the tool, which may have made it up: any number will
	// do.
	after, upto := uint64(max(q.Cursor, 0)), uint64(0)
	if q.ID != "" {
		upto = uint64(msgID(q.ID))
		after = max(upto, 1) - 1
	}
	list, next, err := s.opt.Viewer.View(s.ctx, q.Part, after, upto, min(max(q.N, 1), listPage))
	if err != nil {
		return nil, err
	}
	// What is set aside is in no listing of the own messages.
	if part.Own && !q.Aside && q.ID == "" {
		if list, err = s.withoutRead(list); err != nil {
			return nil, err
		}
	}
	reply := &proto.ListReply{Next: int(next)}
	for i, size := 0, 0; i < len(list); i++ {
		l, ok := s.viewed(&list[i], q, like)
		if !ok {
			continue
		}
		l.item.Node, l.item.Down = part.Node, !part.Alive
		reply.Items = append(reply.Items, l.item)
		for _, rc := range l.item.Recipients {
			size += rc.Size()
		}
		// The next page begins behind the last message that goes into this one.
		if size > listOctets && i < len(list)-1 {
			reply.Next = int(msgID(l.item.ID))
			break
		}
	}
	return reply, nil
}

// viewed is what a listing says of a message of another node; false: it is not in the
// listing.
func (s *Server) viewed(v *storage.Viewed, q *proto.List, like listed) (listed, bool) {
	// Corrupt messages are in no listing but their own. Whoever asks for one by its
	// queue ID wants to read it.
	aside := v.Queue == queue.Corrupt
	if v.NPending == 0 && !aside || q.ID == "" && aside != q.Aside || q.ID != "" && v.ID != q.ID {
		return like, false
	}
	l := like
	l.ref, l.done = v.Ref, v.Done
	created, _, _ := v.ID.Parse() // an ID of the queue has both
	l.item = proto.Item{ID: v.ID, Queue: v.Queue.String(), Arrival: created, Next: v.NextAttempt, Size: v.Size, Attempts: v.Attempts, ForcedExpire: v.Expire}
	// It is active as long as an agent has it. Before that, and between two recipients,
	// nobody else can tell.
	if v.InHand && (v.Queue == queue.Incoming || v.Queue == queue.Deferred) {
		l.item.Queue = sched.QueueActive.String()
	}
	if v.Queue == queue.Hold {
		l.rules, l.limits = nil, nil // as with the own messages: no order is what keeps it
	}
	if q.Brief {
		l.item.Ref, l.item.Done = v.Ref, v.Done
		return l, true
	}
	// It may have left meanwhile, or be damaged: mailq shows the others, as it does of
	// the own part.
	return l, s.fillFrom(&l, func(_ context.Context) (storage.Stored, error) { return s.opt.Viewer.Read(v.Ref, v.ID) })
}
