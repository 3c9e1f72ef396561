package postsuper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/queueread"
	"posthaste/internal/rights"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// offline is the queue of a mail system that is down. The spool is opened when
// it is first needed, for writing, as cleanup does it.
type offline struct {
	queue *queueclient.Queue
	warn  func(string, ...any)
	sp    storage.Engine
}

func (o *offline) open() error {
	if o.sp != nil {
		return nil
	}
	if err := o.queue.OnlyLog("to change the queue while the mail system is down"); err != nil {
		return err
	}
	if _, err := os.Stat(o.queue.Spool()); errors.Is(err, os.ErrNotExist) {
		return cli.Errorf(cli.ExitNoInput, "%s: nothing has been queued here yet", o.queue.Spool())
	}
	content, err := queueread.OpenContent(o.queue.Config) // its owner may not get there by the path
	if err != nil {
		return err
	}
	plan, err := o.queue.Plan()
	if err != nil {
		return err
	}
	if err := o.queue.BecomeOwner(); err != nil {
		return cli.Errorf(cli.ExitNoPerm, "become the owner of %s: %w", o.queue.Spool(), err)
	}
	options := o.queue.SpoolOptions(o.warn)
	if content != nil {
		options.ContentFS = content // until the process ends
	}
	sp, err := plan.Engine(options)
	var held *vfs.LockedError
	switch {
	case errors.As(err, &held):
		return cli.Errorf(cli.ExitTemp, "%w; the mail system is starting or stopping: try again", err)
	case err != nil:
		return err
	}
	o.sp = sp
	return nil
}

func (o *offline) close() error {
	if o.sp == nil {
		return nil
	}
	return o.sp.Close()
}

func (o *offline) find(_ context.Context, ids []mail.QueueID, queues []string, f func([]target) error) error {
	if err := o.open(); err != nil {
		return err
	}
	for group := range slices.Chunk(ids, window) {
		var list []target
		for _, id := range group {
			if e, ok := o.sp.Locate(id); ok && wanted(queues, e.Queue.String()) {
				list = append(list, target{id, e.Queue.String(), e.Expire})
			}
		}
		if err := f(list); err != nil {
			return err
		}
	}
	return nil
}

func (o *offline) each(_ context.Context, queues []string, f func([]target) error) error {
	if err := o.open(); err != nil {
		return err
	}
	g := &grouped{do: func(list []target, _ []*proto.Item) error { return f(list) }}
	o.sp.Entries(func(e queue.Entry) bool {
		return !wanted(queues, e.Queue.String()) || g.add(target{e.ID, e.Queue.String(), e.Expire}, nil)
	})
	return g.end()
}

// apply commits a group. Each message's change is one by itself: with long
// recipient lists all of them together may be more than the spool takes as one.
func (o *offline) apply(_ context.Context, step byte, _ bool, list []target, _ bool) (done []mail.QueueID, err error) {
	b := o.sp.NewBatch()
	b.Apart()
	for _, t := range list {
		switch step {
		case 'd':
			b.Remove(t.id)
		case 'h':
			b.Update(t.id, queue.Change{Set: queue.SetQueue, Queue: queue.Hold})
		case 'H':
			b.Update(t.id, queue.Change{Set: queue.SetQueue | queue.SetNextAttempt, Queue: queue.Deferred, NextAttempt: time.Now()})
		case 'e':
			b.Update(t.id, queue.Change{Set: queue.SetExpire, Expire: true})
		}
	}
	if err := o.sp.Commit(b); err != nil {
		return nil, err
	}
	var errs []error
	for i, t := range list {
		if err := b.Refused(i); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.id, err))
			continue
		}
		done = append(done, t.id)
	}
	return done, errors.Join(errs...)
}

// deleteDropped removes mail that the sendmail program has left and nobody has
// picked up yet: files, whatever runs.
func (c *command) deleteDropped(w *wish) error {
	return c.inMaildrop(func(dir string) error { return c.deleteIn(dir, w) })
}

// inMaildrop calls f with the file rights of the owner of the maildrop directory: what root did
// by name there, that user could lead elsewhere. It is no error that there is none.
func (c *command) inMaildrop(f func(dir string) error) error {
	dir := c.queue.Dir("maildrop")
	d, who, err := rights.OpenDirectory(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	d.Close()
	return who.Do(func() error { return f(dir) })
}

func (c *command) deleteIn(dir string, w *wish) error {
	names := make([]string, 0, len(w.ids))
	for _, id := range w.ids {
		names = append(names, string(id))
	}
	if w.all {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Type().IsRegular() && mail.QueueID(e.Name()).Valid() {
				names = append(names, e.Name())
			}
		}
	}
	for _, name := range names {
		err := os.Remove(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		c.counts['d']++
		if !w.all || c.verbose {
			c.say(action(name, 'd'))
		}
	}
	return nil
}

// litterAge is when a file that is not finished will not be any more.
const litterAge = 7 * 24 * time.Hour

// purgeDropped removes what sendmail programs that were killed have left in
// maildrop: files without the mark of a whole message.
func (c *command) purgeDropped(now time.Time) error {
	return c.inMaildrop(func(dir string) error { return c.purgeIn(dir, now) })
}

func (c *command) purgeIn(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		st, err := e.Info()
		if err != nil || !st.Mode().IsRegular() || st.Mode()&0o100 != 0 || now.Sub(st.ModTime()) < litterAge {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if c.verbose {
			fmt.Fprintf(c.Stderr, "%s: removed maildrop/%s\n", c.Name, maillog.AppendClean(nil, []byte(e.Name())))
		}
	}
	return nil
}
