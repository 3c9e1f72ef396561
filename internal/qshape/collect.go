package qshape

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"slices"
	"sync"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/override"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/queueread"
	"posthaste/internal/selection"
)

// group is how many messages one reader takes at a time.
const group = 512

// A place is where a message lies.
type place struct {
	id   mail.QueueID
	ref  queue.Ref
	done []byte
	at   time.Time
}

// collect counts what is in the queues.
func (c *command) collect(ctx context.Context, q *queueclient.Queue) error {
	if c.by != "" && c.by != byCampaign {
		return c.collectBy(ctx, q)
	}
	if slices.Contains(c.queues, "maildrop") {
		if err := q.Dropped(func(it *proto.Item) bool { c.count(it); return true }); err != nil {
			return err
		}
	}
	rd, err := q.Reader()
	if err != nil {
		return err
	}
	defer rd.Close()
	opener := queueread.Opener{Reader: rd, Cleanup: q.CleanupClient()}
	work := make(chan []place, runtime.NumCPU())
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for range runtime.NumCPU() {
		r := reader{opener: &opener, shape: c.shape.same()}
		wg.Go(func() {
			for list := range work {
				r.read(ctx, list)
			}
			mu.Lock()
			defer mu.Unlock()
			c.shape.merge(r.shape)
			if failed == nil {
				failed = r.err
			}
		})
	}
	c.answers = c.shape.same()
	err = c.places(ctx, q, work)
	close(work)
	wg.Wait()
	c.shape.merge(c.answers)
	return errors.Join(err, failed)
}

func (c *command) count(it *proto.Item) {
	if c.shape.senders {
		c.shape.add(it.Sender, it.Arrival)
		return
	}
	for _, r := range it.Recipients {
		c.shape.add(r.Address, it.Arrival)
	}
}

// places finds the messages and has them read.
func (c *command) places(ctx context.Context, q *queueclient.Queue, work chan<- []place) error {
	list := make([]place, 0, group)
	add := func(p place) bool {
		if list = append(list, p); len(list) == group {
			work <- list
			list = make([]place, 0, group)
		}
		return true
	}
	defer func() { work <- list }()
	entry := func(e queue.Entry) bool {
		if slices.Contains(c.queues, e.Queue.String()) {
			created, _, _ := e.ID.Parse()
			add(place{e.ID, e.Ref, e.Done, created})
		}
		return true
	}
	conn, err := q.Manager(ctx)
	if errors.Is(err, queueclient.ErrDown) {
		return q.View(c.Warn, entry)
	}
	if err != nil {
		return err
	}
	if slices.Contains(c.queues, "corrupt") { // what the queue manager does not know
		err := q.View(c.Warn, func(e queue.Entry) bool { return e.Queue != queue.Corrupt || entry(e) })
		if err != nil {
			return err
		}
	}
	if c.shape.campaigns {
		// What is suspended is marked by domain.
	} else if err := c.askOverrides(ctx, conn); err != nil {
		c.Warn("what is suspended, limited or diverted is not marked: %v", err)
	}
	parts, err := q.Parts(ctx, conn)
	other := func(it *proto.Item) bool {
		return !slices.Contains(c.queues, it.Queue) || add(place{it.ID, it.Ref, it.Done, it.Arrival})
	}
	if err == nil {
		err = parts.EachUnread(ctx, conn, true, other)
	}
	if err == nil && parts.Own() {
		err = c.ask(ctx, conn, add)
	}
	if err != nil {
		return err
	}
	// What one node has may be unreadable: the table is of all others, and the status says that it lacks something.
	c.missing = parts.EachOfOthers(ctx, conn, true, other)
	return nil
}

// askOverrides asks the queue manager what is suspended, limited or diverted.
func (c *command) askOverrides(ctx context.Context, conn *ipc.Conn) error {
	var reply proto.OverrideReply
	if err := conn.Call(ctx, &proto.Override{Op: proto.OverrideList}, &reply); err != nil {
		return err
	}
	if reply.Refused != "" {
		return errors.New(reply.Refused)
	}
	for _, e := range reply.Entries {
		t, err := selection.ParseTarget(e.Target)
		switch {
		case err != nil:
		case e.Of == string(override.Suspension):
			c.shape.suspended = append(c.shape.suspended, t)
		case e.Of == string(override.Limit):
			c.shape.limited = append(c.shape.limited, t)
		case e.Of == string(override.Diversion):
			c.shape.diverted = append(c.shape.diverted, t)
		}
	}
	return nil
}

// ask has the queue manager count. What it has not read itself it leaves to us.
func (c *command) ask(ctx context.Context, conn *ipc.Conn, add func(place) bool) error {
	q := &proto.Shape{Queues: c.queues, Senders: c.shape.senders, Split: c.shape.campaigns, Edges: c.shape.edges()}
	for {
		var reply proto.ShapeReply
		if err := conn.Call(ctx, q, &reply); err != nil {
			return cli.Errorf(cli.ExitUnavailable, "ask the queue manager: %w", err)
		}
		for i := range reply.Rows {
			switch r := &reply.Rows[i]; {
			case !c.shape.campaigns:
				c.answers.addRow(r.Domain, r.Counts)
			case r.Campaigns:
				c.answers.addCounts(r.Domain, r.Counts)
			}
		}
		for i := range reply.Unread {
			it := &reply.Unread[i]
			add(place{it.ID, it.Ref, it.Done, it.Arrival})
		}
		if q.Cursor = reply.Next; q.Cursor == 0 {
			return nil
		}
	}
}

// A reader reads envelopes and counts.
type reader struct {
	opener *queueread.Opener
	shape  *shape
	err    error // the first that is not about one message
}

func (r *reader) read(ctx context.Context, list []place) {
	for i := range list {
		if r.err != nil {
			return
		}
		err := r.one(ctx, &list[i])
		if errors.Is(err, fs.ErrPermission) {
			r.err = cli.Errorf(cli.ExitNoPerm, "%w", err)
		}
		// Another failure is that of one message: gone meanwhile, or damaged.
	}
}

func (r *reader) one(ctx context.Context, p *place) error {
	st, err := r.opener.Open(ctx, p.ref, p.id)
	if err != nil {
		return err
	}
	if r.shape.senders || r.shape.campaigns {
		env, err := st.Envelope()
		if err != nil {
			return err
		}
		if !r.shape.campaigns {
			r.shape.add(env.Sender, p.at)
		} else if env.Campaign != "" {
			r.shape.add(env.Tenant+"/"+env.Campaign, p.at)
		}
		return nil
	}
	st.Overlay(p.done)
	rcpts, err := st.Recipients(0, -1)
	if err != nil {
		return err
	}
	for i := range rcpts {
		if st.Pending(i) {
			r.shape.add(rcpts[i].Address, p.at)
		}
	}
	return nil
}
