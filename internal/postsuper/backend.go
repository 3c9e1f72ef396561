package postsuper

import (
	"context"
	"slices"
	"sync"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
)

// window is how many messages are worked on at once: enough that many changes
// share one commit, few enough that the queue manager's other work goes on.
const window = 1000

// A target is a message, as it was when it was found.
type target struct {
	id      mail.QueueID
	queue   string
	expired bool // is to be returned at its next attempt already
}

// A backend is where the queue is.
type backend interface {
	// find passes on those of the messages that are there, in groups. queues,
	// unless empty, are the only ones to look in.
	find(ctx context.Context, ids []mail.QueueID, queues []string, f func([]target) error) error
	// each passes on every message of these queues; of none named those that
	// the queue manager works with.
	each(ctx context.Context, queues []string, f func([]target) error) error
	// apply does one thing to messages, and returns those that it was done
	// to. There first be others who change them: with pinned a message is left
	// alone that is no longer in the queue in which it was found. last says that
	// a release follows an expiry.
	apply(ctx context.Context, step byte, last bool, list []target, pinned bool) ([]mail.QueueID, error)
	// choose does a step to what is meant at that moment, and passes it on in groups.
	choose(ctx context.Context, ch *choice, f func(result) error) error
	close() error
}

// live is the queue of a running mail system.
type live struct {
	queue *queueclient.Queue
	conn  *ipc.Conn
	// own says that this node has some of the queue, and others are those that have the rest.
	own    bool
	others []*queueclient.Node
}

func (l *live) close() error { return nil }

func (l *live) find(ctx context.Context, ids []mail.QueueID, queues []string, f func([]target) error) error {
	for group := range slices.Chunk(ids, window) {
		replies := make([]proto.ListReply, len(group))
		err := callAll(ctx, len(group), func(i int) (ipc.Message, ipc.Message) {
			return &proto.List{ID: group[i], Brief: true}, &replies[i]
		}, l.conn)
		if err != nil {
			return err
		}
		var list []target
		for i := range replies {
			for _, it := range replies[i].Items {
				if it.ID == group[i] && wanted(queues, it.Queue) {
					list = append(list, target{it.ID, it.Queue, it.ForcedExpire})
				}
			}
		}
		if slices.Contains(queues, "corrupt") {
			more, err := l.findCorrupt(ctx, group)
			if err != nil {
				return err
			}
			list = append(list, more...)
		}
		if err := f(list); err != nil {
			return err
		}
	}
	return nil
}

// findCorrupt asks cleanup for messages that were set aside: the queue manager
// does not know them.
func (l *live) findCorrupt(ctx context.Context, ids []mail.QueueID) (list []target, err error) {
	conn, err := l.queue.Cleanup(ctx)
	if err != nil {
		return nil, err
	}
	replies := make([]proto.LocateReply, len(ids))
	err = callAll(ctx, len(ids), func(i int) (ipc.Message, ipc.Message) {
		return &proto.Locate{ID: ids[i]}, &replies[i]
	}, conn)
	for i := range replies {
		if replies[i].Found && replies[i].Entry.Queue == queue.Corrupt {
			list = append(list, target{id: ids[i], queue: "corrupt"})
		}
	}
	return list, err
}

// each lists first and changes then: what the listing walks over must not
// move meanwhile.
func (l *live) each(ctx context.Context, queues []string, f func([]target) error) error {
	var list packed
	err := queueclient.Each(ctx, l.conn, true, func(it *proto.Item) bool {
		if wanted(queues, it.Queue) {
			list.add(target{it.ID, it.Queue, it.ForcedExpire})
		}
		return true
	})
	if err == nil && slices.Contains(queues, "corrupt") && l.queue.Node() == "" { // else see chooseShared
		err = l.queue.View(nil, func(e queue.Entry) bool {
			if e.Queue == queue.Corrupt {
				list.add(target{id: e.ID, queue: "corrupt"})
			}
			return true
		})
	}
	if err != nil {
		return err
	}
	return list.each(window, f)
}

var orders = map[byte]proto.Verb{'d': proto.VerbDelete, 'r': proto.VerbRequeue, 'h': proto.VerbHold, 'H': proto.VerbRelease,
	'e': proto.VerbExpire}

func (l *live) apply(ctx context.Context, step byte, last bool, list []target, pinned bool) (done []mail.QueueID, err error) {
	replies := make([]proto.CommandReply, len(list))
	var corrupt []proto.Op
	var ordered []int
	for i, t := range list {
		if t.queue == "corrupt" {
			corrupt = append(corrupt, proto.Op{ID: t.id, Remove: true})
		} else {
			ordered = append(ordered, i)
		}
	}
	err = callAll(ctx, len(ordered), func(n int) (ipc.Message, ipc.Message) {
		t := list[ordered[n]]
		// A message on hold is released by an order of its own, which records it.
		q := &proto.Command{Verb: orders[step], ID: t.id, Now: last && t.queue != "hold"}
		if pinned {
			q.Queue = t.queue
		}
		return q, &replies[ordered[n]]
	}, l.conn)
	for i := range replies {
		done = append(done, replies[i].IDs...)
	}
	if err == nil && len(corrupt) > 0 {
		var conn *ipc.Conn
		if conn, err = l.queue.Cleanup(ctx); err == nil {
			if err = conn.Call(ctx, &proto.Record{Ops: corrupt, Urgent: true}, new(proto.RecordReply)); err == nil {
				for _, op := range corrupt {
					done = append(done, op.ID)
				}
			}
		}
	}
	return done, err
}

// callAll makes n calls at once and waits for all. The error is the first.
func callAll(ctx context.Context, n int, call func(i int) (req, reply ipc.Message), conn *ipc.Conn) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		req, reply := call(i)
		wg.Add(1)
		conn.Go(req, func(payload []byte, err error) {
			if err == nil {
				err = reply.Decode(payload)
			}
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

func wanted(queues []string, queue string) bool {
	return len(queues) == 0 && queue != "corrupt" || slices.Contains(queues, queue)
}
