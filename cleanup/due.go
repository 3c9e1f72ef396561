package cleanup

import (
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
)

// entriesBatch is how many messages the queue manager is told of at once.
const entriesBatch = 1000

const (
	// pageLeast is how many messages a page of the queue should have.
	pageLeast = 500
	// pageTries bounds how long they are looked for in an index that is mostly empty.
	pageTries = 1000
)

// due tells the queue manager of the deferred mail that it asks for. It goes through the
// whole index for that, beside all else.
func (s *server) due(c *ipc.Conn, r *ipc.Request) {
	var q proto.Due
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	s.wg.Go(func() {
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

// page gives a part of the queue.
func (s *server) page(r *ipc.Request) {
	var q proto.Page
	if err := r.Decode(&q); err != nil {
		r.Fail("%v", err)
		return
	}
	var reply proto.PageReply
	if len(q.Numbers) > 0 {
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

// older is the earlier one of a time, if there is one, and that at which a message came.
func older(t time.Time, id mail.QueueID) time.Time {
	created, _, err := id.Parse()
	if err != nil || !t.IsZero() && t.Before(created) {
		return t
	}
	return created
}
