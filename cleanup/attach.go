// What the queue manager is told of the queue: all of it when it attaches, and each new message.

package cleanup

import (
	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/reuse"
)

// attach makes c the queue manager's connection and pushes the incoming queue over it.
// Messages that become durable meanwhile are pushed by those who queued them. Because c
// is set first, some may be pushed twice, before it is told that this is all, and none is missed.
func (s *server) attach(c *ipc.Conn, r *ipc.Request) {
	s.mu.Lock()
	old := s.qmgr
	s.qmgr = c
	s.mu.Unlock()
	if old != nil && old != c {
		// There is one queue manager: a new one replaces the old, which may not know yet
		// that it is to end.
		old.Close()
	}
	kept := s.leavingOthers(c)
	s.wg.Go(func() {
		// What the former queue manager was told of before it was durable is part of the queue that is told now.
		s.ends(kept)
		var batch proto.Entries
		for e := range s.opt.Engine.Entries {
			switch e.Queue {
			// Only counted: the queue manager asks for deferred mail when it is due.
			case queue.Deferred:
				batch.Deferred++
				batch.OldestDeferred = older(batch.OldestDeferred, e.ID)
			case queue.Hold:
				batch.Hold++
				batch.OldestHold = older(batch.OldestHold, e.ID)
			case queue.Incoming:
				if s.isUntold(e.ID) {
					continue // it is announced when that is over
				}
				batch.List = append(batch.List, proto.Entry{Entry: e})
			}
			if len(batch.List) == entriesBatch {
				if c.Send(&batch) != nil {
					return
				}
				batch.List = reuse.Truncated(batch.List)
			}
		}
		// The queue manager remembers what it removes until it has heard that this is all, and would take what it is told
		// of later for a new message. So whoever is queueing a message, which may have been among these, announces it first.
		// A disk that is slow to take it does not keep the others from being delivered.
		if len(batch.List) > 0 {
			if c.Send(&batch) != nil {
				return
			}
			batch.List = reuse.Truncated(batch.List)
		}
		s.queueing.wait(s.ctx)
		// When this process ends nobody has been waited for, and some announce theirs yet: the next process says that it is all.
		if s.ctx.Err() != nil {
			r.Fail("cleanup ends")
			return
		}
		batch.Complete = true
		if c.Send(&batch) == nil {
			r.Reply(&proto.RecordReply{})
		}
	})
}

// tellAgain has the queue manager attach once more, which tells it the whole queue. What it has under way goes
// on meanwhile.
func (s *server) tellAgain() {
	s.mu.Lock()
	c := s.qmgr
	s.mu.Unlock()
	if c != nil {
		c.Close()
	}
}

// announce pushes a new message to the queue manager, if there is one; otherwise the next
// one is told by attach.
func (in *incoming) announce(e queue.Entry, envelope, recipients []byte) {
	in.s.announce(&in.entries, e, envelope, recipients)
}

// announce is the same for a message whose memory is another one's by now. What goes out is put into msg.
func (s *server) announce(msg *proto.Entries, e queue.Entry, envelope, recipients []byte) {
	s.mu.Lock()
	c := s.qmgr
	s.mu.Unlock()
	if c == nil {
		return // it will be in what the next one gets
	}
	entry := proto.Entry{Entry: e}
	if len(envelope)+len(recipients) <= maxInlineEntry {
		entry.Envelope, entry.Recipients = envelope, recipients
	}
	msg.List = append(msg.List, entry)
	c.Push(msg)
}
