// Mail that was set aside as corrupt, on behalf of tools on other nodes. The queue
// manager knows nothing of such mail, which it does not touch, and a tool on its own
// node asks cleanup to delete some. A tool elsewhere has no other way than this queue
// manager.

package qmgr

import (
	"context"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// deletesCorrupt says whether a selection is an order to delete mail that was set
// aside. It has to name the messages, and no other condition: who lists them has judged
// them.
func (c *selecting) deletesCorrupt() bool {
	return c.q.Verb == proto.VerbDelete && len(c.q.IDs) > 0 && c.where.OnlyCorrupt()
}

// deleteCorrupt deletes those of the messages that were set aside, and then goes on
// with next in the loop. It is a task.
func (s *Server) deleteCorrupt(c *selecting, next func()) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ResolveTime)
	defer cancel()
	var ops []proto.Op
	var ids []mail.QueueID
	for _, id := range c.q.IDs {
		var at proto.LocateReply
		if err := s.cleanup.CallAgain(ctx, &proto.Locate{ID: id}, &at); err != nil {
			c.r.Fail("%v", err)
			return
		}
		if at.Found && at.Entry.Queue == queue.Corrupt {
			ops, ids = append(ops, proto.Op{ID: id, Remove: true}), append(ids, id)
			c.reply.Octets += at.Entry.Size
		}
	}
	if len(ops) > 0 {
		// Urgent: whoever has asked waits, and nothing else may be recorded soon.
		if err := s.cleanup.CallAgain(ctx, &proto.Record{Ops: ops, Urgent: true}, new(proto.RecordReply)); err != nil {
			c.r.Fail("%v", err)
			return
		}
	}
	c.reply.IDs = append(c.reply.IDs, ids...)
	next()
}
