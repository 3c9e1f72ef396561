package postsuper

import (
	"context"
	"fmt"
	"slices"

	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queuelist"
	"posthaste/internal/selection"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/cli"
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
		return cli.Errorf(cli.ExitUsage, "the long options say which mail, but not what is to be done: give -d ALL, -h ALL and the like with them")
	}
	return nil
}

// doSelected fulfils a wish for what the long options select.
func (c *command) doSelected(ctx context.Context, b backend, w *wish) error {
	steps := []byte{w.verb}
	if w.verb == 'f' {
		steps = []byte{'e', 'H'}
	}
	for _, step := range steps {
		list := queuelist.Text{W: c.out}
		ch := &choice{where: c.where, ids: w.ids, all: w.all, step: step, last: w.verb == 'f', dry: c.dry, warn: c.Warn}
		err := b.choose(ctx, ch, func(r result) error {
			for _, it := range r.items {
				list.Add(it)
			}
			c.counts[step] += len(r.ids)
			for _, id := range r.ids {
				if !c.dry && (!w.all || c.verbose) {
					c.say(action(string(id), step))
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if c.dry {
			list.End()
			c.out.Flush() // before the total, which goes to standard error
		}
	}
	return nil
}

// sayDry gives the total of what would have been done.
func (c *command) sayDry(verb byte) {
	fmt.Fprintf(c.Stderr, "%s: dry run, nothing is changed: %s: %s\n", c.Name, words[verb].all, cli.Messages(c.counts[verb]))
}

func (l *live) choose(ctx context.Context, ch *choice, f func(result) error) error {
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
	for group := range slices.Chunk(ch.ids, proto.SelectIDs) {
		q.IDs = group
		if err := cli.Select(ctx, l.conn, q, take); err != nil {
			return err
		}
	}
	if ch.all {
		q.IDs, q.Cursor = nil, 0
		if err := cli.Select(ctx, l.conn, q, take); err != nil {
			return err
		}
	}
	if ch.step == 'd' && ch.where.NamesQueue(spool.Corrupt.String()) {
		return l.chooseCorrupt(ctx, ch, f)
	}
	return nil
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

// chooseCorrupt deletes mail that was set aside, which the queue manager does
// not know: it is looked for in the spool.
func (l *live) chooseCorrupt(ctx context.Context, ch *choice, f func(result) error) error {
	if ch.where.NeedsRoute() {
		return cli.Errorf(cli.ExitUsage, "where mail in the queue corrupt would go is not known: --nexthop and --transport do not select it")
	}
	var list []target
	var r result
	err := l.queue.Items(ch.warn, func(it *proto.Item) bool {
		if it.Queue == spool.Corrupt.String() && (ch.all || slices.Contains(ch.ids, it.ID)) && cli.Meant(ch.where, it) {
			list = append(list, target{id: it.ID, queue: it.Queue})
			if r.ids = append(r.ids, it.ID); ch.dry {
				r.items = append(r.items, it)
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	if ch.dry {
		return f(r)
	}
	for group := range slices.Chunk(list, window) {
		done, err := l.apply(ctx, ch.step, false, group, true)
		if err == nil {
			err = f(result{ids: done})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (o *offline) choose(ctx context.Context, ch *choice, f func(result) error) error {
	if ch.where.NeedsRoute() {
		return cli.Errorf(cli.ExitUnavailable, "--nexthop and --transport need the running mail system: only that knows where mail goes")
	}
	if err := o.open(); err != nil {
		return err
	}
	rd := spool.NewReader(nil, o.queue.Spool())
	defer rd.Close()
	var list []target
	var failed error
	look := func(e *spool.Entry) bool {
		t := target{e.ID, e.Queue.String(), e.Expire}
		if !applies(ch.step, t) || !ch.where.Queue(t.queue) {
			return true
		}
		it, err := cli.ReadItem(rd, e)
		if err != nil {
			ch.warn("%s is left alone: %v", e.ID, err)
			return true
		}
		if cli.Meant(ch.where, it) {
			if ch.dry {
				failed = f(result{ids: []mail.QueueID{e.ID}, items: []*proto.Item{it}})
			} else {
				list = append(list, t)
			}
		}
		return failed == nil
	}
	for _, id := range ch.ids {
		if e, ok := o.sp.Locate(id); ok && !look(&e) {
			return failed
		}
	}
	if ch.all {
		for e := range o.sp.Entries {
			if !look(&e) {
				return failed
			}
		}
	}
	for group := range slices.Chunk(list, window) {
		done, err := o.apply(ctx, ch.step, ch.last, group, true)
		if ferr := f(result{ids: done}); err == nil {
			err = ferr
		}
		if err != nil {
			return err
		}
	}
	return nil
}
