package postsuper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/queuelist"
	"posthaste/internal/reuse"
	"posthaste/internal/selection"
)

// A choice is what a step is to be done to, of what a wish names.
type choice struct {
	where *selection.Selection
	ids   []mail.QueueID // these
	all   bool           // or all
	step  byte
	last  bool // a release follows an expiry
	dry   bool // nothing is done: messages are only listed
	warn  func(string, ...any)
}

// A result is some of what was chosen and done.
type result struct {
	ids   []mail.QueueID
	items []*proto.Item // of a dry run
}

// selects says whether long options narrow down what is named.
func (c *command) selects() bool { return c.dry || !c.where.Empty() }

// narrow makes queues that are named in Postfix's manner conditions.
func (c *command) narrow() error {
	for _, q := range c.queues {
		if slices.Contains(selection.Queues, q) {
			if err := c.where.Set("queue", q); err != nil {
				return err
			}
		} else {
			return cli.Errorf(cli.ExitUsage, "the long options do not apply to %s: they select mail in %v", q, selection.Queues)
		}
	}
	if len(c.wishes) == 0 {
		return cli.Errorf(cli.ExitUsage, "the long options select mail, but no action is given: add -d ALL, -h ALL or the like")
	}
	return nil
}

// doSelected fulfils a wish for what the long options select.
func (c *command) doSelected(ctx context.Context, b backend, w *wish) error {
	var failed error
	for _, step := range stepsOf(w.verb) {
		list := queuelist.Text{W: c.out, Own: c.queue.Node()}
		ch := &choice{where: c.where, ids: w.ids, all: w.all, step: step, last: w.verb == 'f', dry: c.dry, warn: c.Warn}
		err := b.choose(ctx, ch, func(r result) error {
			for _, it := range r.items {
				list.Add(it)
			}
			c.counts[step] += len(r.ids)
			for _, id := range r.ids {
				if !c.dry {
					c.did(string(id), step, !w.all || c.verbose)
				}
			}
			return nil
		})
		if failed = queueclient.Join(failed, err); !queueclient.Later(failed) {
			return failed
		}
		if c.dry {
			list.End()
			c.out.Flush() // before the total, which goes to standard error
		}
	}
	return failed
}

// doShared fulfils a wish for a queue that nodes share: each does it to those of the messages that it has, in the queues that are named.
// What this node has taken over and not read yet no listing of its own has: it is left to the queue manager here, too.
func (c *command) doShared(ctx context.Context, l *live, w *wish) error {
	// A message that is named is meant whatever the clock of its node said. All mail is what there is now: what is requeued comes anew.
	at := time.Time{}
	if w.all {
		at = time.Now()
	}
	where := selection.New(at)
	for _, q := range c.queues {
		// Other queues hold no messages, or none that a queue manager knows.
		if slices.Contains(selection.Queues, q) {
			if err := where.Set("queue", q); err != nil {
				return err
			}
		}
	}
	if len(c.queues) > 0 && where.Empty() {
		return nil
	}
	var failed error
	for _, step := range stepsOf(w.verb) {
		ch := &choice{where: where, ids: w.ids, all: w.all, step: step, last: w.verb == 'f'}
		err := l.choose(ctx, ch, func(r result) error {
			c.counts[step] += len(r.ids)
			for _, id := range r.ids {
				c.did(string(id), step, !w.all || c.verbose)
			}
			return nil
		})
		if failed = queueclient.Join(failed, err); queueclient.Later(failed) {
			continue
		}
		return failed
	}
	return failed
}

// stepsOf are the steps of a verb, in their order.
func stepsOf(verb byte) []byte {
	if verb == 'f' {
		return []byte{'e', 'H'}
	}
	return []byte{verb}
}

// sayDry gives the total of what would have been done.
func (c *command) sayDry(verb byte) {
	fmt.Fprintf(c.Stderr, "%s: dry run, nothing is changed: %s: %s\n", c.Name, words[verb].all, queueclient.Messages(c.counts[verb]))
}

func (l *live) choose(ctx context.Context, ch *choice, f func(result) error) error {
	var err error
	if l.own {
		err = l.chooseOwn(ctx, ch, f)
	}
	return queueclient.Join(err, l.chooseElsewhere(ctx, ch, f))
}

// chooseElsewhere is choose for what other nodes have. One that fails does not keep the others from it.
func (l *live) chooseElsewhere(ctx context.Context, ch *choice, f func(result) error) error {
	var err error
	if ch.step != 'd' || !ch.where.OnlyCorrupt() {
		err = queueclient.EachNode(l.others, func(m queueclient.Caller) error { return chooseAt(ctx, m, ch, f) })
	}
	if ch.step == 'd' && ch.where.NamesQueue(queue.Corrupt.String()) && l.queue.Node() != "" {
		err = queueclient.Join(err, l.chooseShared(ctx, ch, f))
	}
	return err
}

// chooseShared deletes mail that was set aside, of a queue that nodes share, also what this node has. It is in no listing of a queue manager:
// the records are looked at, and the node's queue manager has cleanup delete what is meant.
func (l *live) chooseShared(ctx context.Context, ch *choice, f func(result) error) error {
	if ch.where.NeedsManager() {
		return errCorruptRoute
	}
	parts, err := l.queue.Parts(ctx, l.conn)
	if err != nil {
		return err
	}
	var nodes []*queueclient.Node
	own := new(result)
	meant := map[string]*result{} // by node
	failed := parts.EachAside(ctx, l.conn, !ch.dry && !ch.where.NeedsEnvelope(), func(p *proto.NodePart, it *proto.Item) {
		if !ch.all && !slices.Contains(ch.ids, it.ID) || !queueclient.Meant(ch.where, it) {
			return
		}
		r := meant[p.Node]
		if p.Own {
			r = own
		}
		if r == nil {
			r = new(result)
			meant[p.Node], nodes = r, append(nodes, queueclient.Elsewhere(l.conn, p.Node, ""))
		}
		r.ids, r.items = append(r.ids, it.ID), append(r.items, it)
	})
	do := func(m queueclient.Caller, r *result) error {
		if ch.dry {
			return f(*r)
		}
		return chooseAt(ctx, m, &choice{where: selection.Corrupt(), ids: r.ids, step: ch.step}, f)
	}
	if len(own.ids) > 0 {
		failed = queueclient.Join(failed, do(l.conn, own))
	}
	return queueclient.Join(failed, queueclient.EachNode(nodes, func(m queueclient.Caller) error { return do(m, meant[m.(*queueclient.Node).Name]) }))
}

// chooseOwn is choose for what this node has.
func (l *live) chooseOwn(ctx context.Context, ch *choice, f func(result) error) error {
	if err := chooseAt(ctx, l.conn, ch, f); err != nil {
		return err
	}
	if ch.step == 'd' && ch.where.NamesQueue(queue.Corrupt.String()) && l.queue.Node() == "" {
		return l.chooseCorrupt(ctx, ch, f)
	}
	return nil
}

// chooseAt is choose for what one node's queue manager has.
func chooseAt(ctx context.Context, manager queueclient.Caller, ch *choice, f func(result) error) error {
	q := &proto.Select{Where: ch.where.Encode(), Verb: orders[ch.step], Now: ch.last, Items: ch.dry}
	if ch.dry {
		q.Verb = 0
	}
	take := func(reply *proto.SelectReply) error {
		if ch.dry {
			return f(eligible(ch.step, reply.Items))
		}
		return f(result{ids: reply.IDs})
	}
	var failed error
	for group := range slices.Chunk(ch.ids, proto.SelectIDs) {
		q.IDs, q.Cursor = group, 0
		if failed = queueclient.Join(failed, queueclient.Select(ctx, manager, q, take)); !queueclient.Later(failed) {
			return failed
		}
	}
	if ch.all {
		q.IDs, q.Cursor = nil, 0
		failed = queueclient.Join(failed, queueclient.Select(ctx, manager, q, take))
	}
	return failed
}

// eligible are those of the messages that the step has something to do with.
func eligible(step byte, items []proto.Item) (r result) {
	for i := range items {
		it := &items[i]
		if applies(step, target{it.ID, it.Queue, it.ForcedExpire}) {
			r.ids, r.items = append(r.ids, it.ID), append(r.items, it)
		}
	}
	return r
}

var errCorruptRoute = cli.Errorf(cli.ExitUsage, "where mail in the queue corrupt would go is not known: --nexthop, --transport, --destination, --waits-for and --source do not select it")

// chooseCorrupt deletes mail that was set aside, which the queue manager does
// not know: it is looked for in the spool.
func (l *live) chooseCorrupt(ctx context.Context, ch *choice, f func(result) error) error {
	if ch.where.NeedsManager() {
		return errCorruptRoute
	}
	g := &grouped{do: func(list []target, items []*proto.Item) error {
		if ch.dry {
			return f(result{idsOf(list), items})
		}
		done, err := l.apply(ctx, ch.step, false, list, true)
		if err != nil {
			return err
		}
		return f(result{ids: done})
	}}
	err := l.queue.Items(ch.warn, func(it *proto.Item) bool {
		if it.Queue == queue.Corrupt.String() && (ch.all || slices.Contains(ch.ids, it.ID)) && queueclient.Meant(ch.where, it) {
			return g.add(target{id: it.ID, queue: it.Queue}, it)
		}
		return true
	})
	if err != nil {
		return err
	}
	return g.end()
}

// A grouped does something to messages, a window of them at a time, as they are found: the list
// of all could be as long as the queue.
type grouped struct {
	do    func(list []target, items []*proto.Item) error
	list  []target
	items []*proto.Item
	err   error
}

// add says whether there is use in more.
func (g *grouped) add(t target, it *proto.Item) bool {
	g.list, g.items = append(g.list, t), append(g.items, it)
	return len(g.list) < window || g.flush()
}

func (g *grouped) flush() bool {
	if g.err == nil && len(g.list) > 0 {
		g.err = g.do(g.list, g.items)
	}
	g.list = reuse.Truncated(g.list)
	g.items = reuse.Truncated(g.items)
	return g.err == nil
}

// end does the rest, and returns the error of the first that failed.
func (g *grouped) end() error {
	g.flush()
	return g.err
}

func idsOf(list []target) (ids []mail.QueueID) {
	for _, t := range list {
		ids = append(ids, t.id)
	}
	return ids
}

func (o *offline) choose(ctx context.Context, ch *choice, f func(result) error) error {
	if ch.where.NeedsManager() {
		return cli.Errorf(cli.ExitUnavailable, "--nexthop, --transport, --destination, --waits-for and --source need the running mail system: only that knows where mail goes")
	}
	if err := o.open(); err != nil {
		return err
	}
	logs, err := o.queue.Logs()
	if err != nil {
		return err
	}
	defer logs.Close()
	g := &grouped{do: func(list []target, items []*proto.Item) error {
		if ch.dry {
			return f(result{idsOf(list), items})
		}
		done, err := o.apply(ctx, ch.step, ch.last, list, true)
		if ferr := f(result{ids: done}); err == nil {
			err = ferr
		}
		return err
	}}
	look := func(e queue.Entry) bool {
		t := target{e.ID, e.Queue.String(), e.Expire}
		if !applies(ch.step, t) || !ch.where.Queue(t.queue) {
			return true
		}
		it, err := o.item(logs, e)
		switch {
		case err != nil:
			ch.warn("%s is left alone: %v", e.ID, err)
		case it != nil && queueclient.Meant(ch.where, it):
			if !ch.dry {
				it = nil // of no more use
			}
			return g.add(t, it)
		}
		return true
	}
	for _, id := range ch.ids {
		if e, ok := o.sp.Locate(id); ok && !look(e) {
			return g.end()
		}
	}
	if ch.all {
		o.sp.Entries(look)
	}
	return g.end()
}

// item reads a message, which the spool may have moved since e was its entry; nil: it is gone.
func (o *offline) item(logs *queueclient.Logs, e queue.Entry) (*proto.Item, error) {
	it, err := queueclient.ReadItem(logs.Of(&e), &e)
	for tries := 0; errors.Is(err, queue.ErrStale) && tries < 3; tries++ {
		now, ok := o.sp.Locate(e.ID)
		if !ok {
			return nil, nil
		}
		it, err = queueclient.ReadItem(logs.Of(&now), &now)
	}
	return it, err
}
