// What the queue manager asks of the queue: the mail that is due next, and pages of
// everything. It reads the index that the engine has in memory, and never the disk.

package cleanup

import (
	"slices"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
)

// entriesBatch is how many messages the queue manager is told of in one message: few
// enough to fit into a frame, enough for the cost of a frame not to matter.
const entriesBatch = 1000

const (
	// pageLeast is how many messages a page of the queue should have.
	pageLeast = 500
	// pageTries bounds how long they are looked for in an index that is mostly empty.
	//
	// A queue that was once long leaves holes in its index.
	pageTries = 1000
)

// due tells the queue manager of the deferred mail that it asks for. That needs a walk
// over the whole index, so it is done in a goroutine of its own, and commits go on
// meanwhile. The reply goes behind the entries, over the same connection, so it arrives
// after them.
func (s *server) due(c *ipc.Conn, r *ipc.Request) {
	var q proto.Due
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.wg.Go(func() {
		// Known: the queue manager has asked, and what it knows itself is newer.
		batch := proto.Entries{Known: true}
		gone := false
		send := func() bool {
			gone = gone || c.Send(&batch) != nil
			batch.List = reuse.Truncated(batch.List)
			return !gone
		}
		last, whole := s.opt.Engine.Due(&q.DueQuery, func(e queue.Entry) bool {
			if s.isUntold(e.ID) {
				return true // it is announced when that is over
			}
			batch.List = append(batch.List, proto.Entry{Entry: e})
			return len(batch.List) < entriesBatch || send()
		})
		if send() {
			r.Reply(&proto.DueReply{Last: last, Whole: whole})
		}
	})
}

// page answers with a part of the queue: the messages that are asked for by number, or
// those from a cursor on.
func (s *server) page(c *ipc.Conn, r *ipc.Request) {
	var q proto.Page
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	// What a former queue manager was told of before it was durable is in the queue in
	// a moment. An agent that says what it has delivered of it must not be taken for
	// one that speaks of mail that does not exist.
	if kept := s.leavingOthers(c); len(kept) > 0 {
		s.wg.Go(func() {
			s.ends(kept)
			s.answerPage(c, r, &q)
		})
		return
	}
	s.answerPage(c, r, &q)
}

// answerPage is page when the queue is all there. The queue manager hears of each
// message in the page before: who lists them may have one removed or held, and what is
// told of it afterwards would be taken for a new message, and be delivered.
func (s *server) answerPage(c *ipc.Conn, r *ipc.Request, q *proto.Page) {
	reply := s.makePage(q)
	before := s.unannounced(reply.Entries)
	if len(before) == 0 {
		r.Reply(reply)
		return
	}
	s.wg.Go(func() {
		for _, t := range before {
			select {
			case <-t.over:
			case <-c.Done(): // nobody hears the answer
			case <-s.ctx.Done():
			}
		}
		// As it is now: what has moved meanwhile was told. What has come meanwhile is
		// told of later.
		reply := s.makePage(q)
		reply.Entries = slices.DeleteFunc(reply.Entries, func(e queue.Placed) bool {
			return len(s.unannounced([]queue.Placed{e})) > 0
		})
		r.Reply(reply)
	})
}

// makePage is a page as the queue is now.
func (s *server) makePage(q *proto.Page) *proto.PageReply {
	reply := new(proto.PageReply)
	if len(q.Numbers) > 0 {
		// Numbers that are not in the queue are left out of the answer.
		for _, n := range q.Numbers[:min(len(q.Numbers), proto.PageNumbers)] {
			if e, ok := s.opt.Engine.Find(n); ok {
				reply.Entries = append(reply.Entries, queue.Placed{Entry: e})
			}
		}
		return reply
	}
	reply.Next = q.Cursor
	for range pageTries {
		if reply.Entries, reply.Next = s.opt.Engine.Page(reply.Next, reply.Entries); reply.Next == 0 || len(reply.Entries) >= pageLeast {
			break
		}
	}
	return reply
}

// older is the earlier of t and the time at which a message came. The zero t is none.
func older(t time.Time, id mail.QueueID) time.Time {
	created, _, err := id.Parse()
	if err != nil || !t.IsZero() && t.Before(created) {
		return t
	}
	return created
}
