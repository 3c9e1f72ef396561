// Mail that was set aside as corrupt, on behalf of tools on other nodes. The queue
// manager knows nothing of such mail, which it does not touch, and a tool on its own
// node asks cleanup to delete some. A tool elsewhere has no other way than this queue
// manager.

package qmgr

import (
	"context"
	"slices"

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
	var sizes []int64
	for _, id := range c.q.IDs {
		var at proto.LocateReply
		if err := s.cleanup.CallAgain(ctx, &proto.Locate{ID: id}, &at); err != nil {
			c.r.Fail("%v", err)
			return
		}
		if at.Found && at.Entry.Queue == queue.Corrupt {
			ops, ids, sizes = append(ops, proto.Op{ID: id, Remove: true}), append(ids, id), append(sizes, at.Entry.Size)
		}
	}
	if len(ops) > 0 {
		// Urgent: whoever has asked waits, and nothing else may be recorded soon.
		var reply proto.RecordReply
		if err := s.cleanup.CallAgain(ctx, &proto.Record{Ops: ops, Urgent: true}, &reply); err != nil {
			c.r.Fail("%v", err)
			return
		}
		// Each change stands for itself: what cleanup has left out is still there, and the operator is told so.
		for _, f := range reply.Refused {
			c.reply.Failed = append(c.reply.Failed, string(f.ID)+": it is not removed: "+f.Reason)
			if i := slices.Index(ids, f.ID); i >= 0 {
				ids, sizes = slices.Delete(ids, i, i+1), slices.Delete(sizes, i, i+1)
			}
		}
	}
	for i, id := range ids {
		c.reply.IDs, c.reply.Octets = append(c.reply.IDs, id), c.reply.Octets+sizes[i]
	}
	next()
}
