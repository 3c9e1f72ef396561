// What the queue manager asks of the queue: the mail that is due next, and pages of
// everything. It reads the index that the engine has in memory, and never the disk.

package cleanup

import (
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
	// What a former queue manager was told of before it was durable is in the queue in a moment. An agent that
	// says what it has delivered of it must not be taken for one that speaks of mail that does not exist.
	if kept := s.leavingOthers(c); len(kept) > 0 {
		s.wg.Go(func() {
			s.ends(kept)
			s.answerPage(r, &q)
		})
		return
	}
	s.answerPage(r, &q)
}

// answerPage is page when the queue is all there.
func (s *server) answerPage(r *ipc.Request, q *proto.Page) {
	var reply proto.PageReply
	if len(q.Numbers) > 0 {
		// Numbers that are not in the queue are left out of the answer.
		for _, n := range q.Numbers[:min(len(q.Numbers), proto.PageNumbers)] {
			if e, ok := s.opt.Engine.Find(n); ok {
				reply.Entries = append(reply.Entries, queue.Placed{Entry: e})
			}
		}
		r.Reply(&reply)
		return
	}
	reply.Next = q.Cursor
	for range pageTries {
		if reply.Entries, reply.Next = s.opt.Engine.Page(reply.Next, reply.Entries); reply.Next == 0 || len(reply.Entries) >= pageLeast {
			break
		}
	}
	r.Reply(&reply)
}

// older is the earlier of t and the time at which a message came. The zero t is none.
func older(t time.Time, id mail.QueueID) time.Time {
	created, _, err := id.Parse()
	if err != nil || !t.IsZero() && t.Before(created) {
		return t
	}
	return created
}
