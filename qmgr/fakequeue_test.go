package qmgr

import (
	"cmp"
	"slices"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
)

// A fakeQueue is the index of the spool of a stage. It belongs to who has the stage locked.
type fakeQueue struct {
	list []queue.Entry // in the order of their numbers
	// perPage is how many messages are on a page; 0: all.
	perPage int
	paged   int // messages that pages had
}

func number(id mail.QueueID) uint64 {
	_, n, _ := id.Parse()
	return n
}

func (q *fakeQueue) find(n uint64) *queue.Entry {
	if i, found := slices.BinarySearchFunc(q.list, n, byNumber); found {
		return &q.list[i]
	}
	return nil
}

func byNumber(e queue.Entry, n uint64) int { return cmp.Compare(number(e.ID), n) }

func (q *fakeQueue) add(e queue.Entry) {
	if q.find(number(e.ID)) == nil {
		at, _ := slices.BinarySearchFunc(q.list, number(e.ID), byNumber)
		q.list = slices.Insert(q.list, at, e)
	}
}

// change records what the queue manager has decided on.
func (q *fakeQueue) change(op *proto.Op) {
	e := q.find(number(op.ID))
	if e == nil {
		return
	}
	if op.Remove {
		q.list = slices.DeleteFunc(q.list, func(e queue.Entry) bool { return e.ID == op.ID })
		return
	}
	if op.Set&queue.SetQueue != 0 {
		e.Queue = op.Queue
	}
	if op.Set&queue.SetNextAttempt != 0 {
		e.NextAttempt = op.NextAttempt
	}
	if op.Set&queue.SetAttempts != 0 {
		e.Attempts = op.Attempts
	}
	if op.Set&queue.SetWarned != 0 {
		e.Warned = op.Warned
	}
	if op.Set&queue.SetExpire != 0 {
		e.Expire = op.Expire
	}
	m := message{done: slices.Clone(e.Done)}
	for _, i := range op.Done {
		if !m.isDone(i) {
			m.setDone(i)
			e.NPending--
		}
	}
	e.Done = m.done
}

// due answers Due.
func (q *fakeQueue) due(c *ipc.Conn, r *ipc.Request, d proto.Due) {
	var list []queue.Entry
	for _, e := range q.list {
		if e.Queue != queue.Deferred {
			continue
		}
		if e.NextAttempt.After(d.Sane) && !d.Amnesty.Before(d.After.Next) {
			e.NextAttempt = d.Amnesty
		}
		if at := e.NextAttempt.Compare(d.After.Next); at > 0 || at == 0 && number(e.ID) > d.After.Number {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b queue.Entry) int {
		return cmp.Or(a.NextAttempt.Compare(b.NextAttempt), cmp.Compare(number(a.ID), number(b.ID)))
	})
	reply := &proto.DueReply{Last: d.After, Whole: len(list) <= d.Limit}
	batch := &proto.Entries{Known: true}
	for _, e := range list[:min(len(list), d.Limit)] {
		reply.Last = queue.Mark{Next: e.NextAttempt, Number: number(e.ID)}
		batch.List = append(batch.List, proto.Entry{Entry: e})
	}
	c.Push(batch)
	r.Reply(reply)
}

// page answers Page.
func (q *fakeQueue) page(p proto.Page) *proto.PageReply {
	reply := new(proto.PageReply)
	for _, n := range p.Numbers {
		if e := q.find(n); e != nil {
			reply.Entries = append(reply.Entries, queue.Placed{Entry: *e})
		}
	}
	if len(p.Numbers) > 0 {
		q.paged += len(reply.Entries)
		return reply
	}
	// As with the spool's, a cursor is a number, and any will do.
	at, _ := slices.BinarySearchFunc(q.list, p.Cursor, byNumber)
	for i, e := range q.list[at:] {
		if q.perPage > 0 && i == q.perPage {
			reply.Next = number(e.ID)
			break
		}
		reply.Entries = append(reply.Entries, queue.Placed{Entry: e, Next: number(e.ID) + 1})
	}
	q.paged += len(reply.Entries)
	return reply
}

// pushed is what is told to a queue manager that attaches.
func (st *stage) pushed() *proto.Entries {
	batch := &proto.Entries{List: st.entries, Complete: true}
	if !st.exact {
		return batch
	}
	batch.List = nil
	for _, e := range st.queue.list {
		switch {
		case e.Queue == queue.Incoming:
			batch.List = append(batch.List, proto.Entry{Entry: e})
		case e.Queue == queue.Deferred:
			batch.Deferred++
			batch.OldestDeferred = earlier(batch.OldestDeferred, created(e.ID))
		case e.Queue == queue.Hold:
			batch.Hold++
			batch.OldestHold = earlier(batch.OldestHold, created(e.ID))
		}
	}
	return batch
}

func created(id mail.QueueID) time.Time {
	at, _, _ := id.Parse()
	return at
}
