package spooltool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/spooltool/plain"
	"posthaste/internal/storage"
)

// suffix is that of exported files.
const suffix = ".msg"

func (c *command) export(ctx context.Context, flags options, args []string) error {
	if queue := flags['p']; queue != "" {
		if len(flags) > 1 && !(len(flags) == 2 && flags.has('r')) || len(args) > 0 {
			return c.wrongUsage()
		}
		return c.toPostfix(ctx, defaultQueue(queue), flags.has('r'))
	}
	all, dir := flags['a'], flags['d']
	switch {
	case flags.has('r'):
		return c.wrongUsage()
	case all != "" && (dir != "" || len(args) > 0), all == "" && len(args) == 0, dir == "" && len(args) > 1:
		return c.wrongUsage()
	}
	x := &exporter{c: c, dir: all + dir}
	if err := x.open(ctx); err != nil {
		return err
	}
	defer x.rd.Close()
	if x.dir != "" {
		if err := os.MkdirAll(x.dir, 0o700); err != nil {
			return cli.Errorf(cli.ExitIO, "%w", err)
		}
	}
	err := x.run(ctx, all != "", args)
	if err == nil && x.dir != "" {
		if err = x.finish(); err == nil {
			fmt.Fprintf(c.out, "%d messages exported to %s\n", len(x.written), x.dir)
		}
	}
	if err == nil && x.damaged > 0 {
		err = cli.Errorf(cli.ExitData, "%d messages are damaged: what could be read of them was exported", x.damaged)
	}
	return err
}

// An exporter writes messages.
type exporter struct {
	c       *command
	rd      io.Closer
	read    func(*queue.Entry) (*plain.Message, *plain.Content, error)
	dir     string   // "": standard output
	written []string // files that do not have their names yet
	damaged int
}

// open prepares to read what the queue is kept in. Of the log, damaged content can be had as it is.
func (x *exporter) open(ctx context.Context) error {
	q := x.c.queue
	if !storage.Elsewhere(q.Config) {
		if err := x.c.there(); err != nil {
			return err
		}
		logs, err := q.Logs()
		if err != nil {
			return err
		}
		x.rd, x.read = logs, func(e *queue.Entry) (*plain.Message, *plain.Content, error) { return plain.FromSpool(logs.Of(e), e) }
		return nil
	}
	if _, err := q.Manager(ctx); err != nil {
		return cli.Errorf(cli.Status(err), "%w, and export needs it with spool_type = %s", err, q.Config.String("spool_type"))
	}
	rd, err := q.Reader()
	if err != nil {
		return err
	}
	x.rd, x.read = rd, func(e *queue.Entry) (*plain.Message, *plain.Content, error) { return plain.FromReader(rd, e) }
	return nil
}

// running exports all messages that the queue manager knows.
func (x *exporter) running(ctx context.Context) error {
	conn, err := x.c.queue.Manager(ctx)
	if err != nil {
		return err
	}
	var ids []string
	if err := queueclient.Each(ctx, conn, true, func(it *proto.Item) bool { ids = append(ids, string(it.ID)); return true }); err != nil {
		return err
	}
	for _, id := range ids {
		e, found, err := x.locate(ctx, mail.QueueID(id))
		if err == nil && found {
			err = x.one(ctx, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (x *exporter) run(ctx context.Context, all bool, ids []string) error {
	if all && storage.Elsewhere(x.c.queue.Config) {
		return x.running(ctx)
	}
	if all {
		var failed error
		err := x.c.queue.View(x.c.Warn, func(e queue.Entry) bool {
			failed = x.one(ctx, e)
			return failed == nil
		})
		return errors.Join(err, failed)
	}
	for _, text := range ids {
		id := mail.QueueID(text)
		e, found, err := x.locate(ctx, id)
		if err != nil {
			return err
		}
		if !found {
			return cli.Errorf(cli.ExitNoInput, "no message %q in the spool", text)
		}
		if err := x.one(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// locate asks cleanup where a message is, or looks for it when cleanup is down.
func (x *exporter) locate(ctx context.Context, id mail.QueueID) (e queue.Entry, found bool, err error) {
	conn, err := x.c.queue.Cleanup(ctx)
	switch {
	case errors.Is(err, queueclient.ErrDown):
		err = x.c.queue.View(x.c.Warn, func(at queue.Entry) bool {
			if at.ID == id {
				e, found = at, true
			}
			return !found
		})
	case err == nil:
		var at proto.LocateReply
		err = conn.Call(ctx, &proto.Locate{ID: id}, &at)
		e, found = at.Entry, at.Found
	}
	return e, found, err
}

// one exports a message. One that has left the queue since it was seen is
// passed over.
func (x *exporter) one(ctx context.Context, e queue.Entry) error {
	m, content, err := x.read(&e)
	for range 3 {
		if !errors.Is(err, queue.ErrStale) {
			break
		}
		found := false
		if e, found, err = x.locate(ctx, e.ID); err != nil || !found {
			return err
		}
		m, content, err = x.read(&e)
	}
	if errors.Is(err, queue.ErrCorrupt) || errors.Is(err, queue.ErrUnread) {
		x.c.Warn("%v", err)
		x.damaged++
		return nil
	}
	if err != nil {
		return err
	}
	defer content.Close()
	if x.dir == "" {
		err = plain.Write(x.c.out, m, content)
	} else {
		err = x.file(string(e.ID), m, content)
	}
	if err != nil {
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	if damage := content.Damaged(); damage != nil {
		x.c.Warn("%v", damage)
		x.damaged++
	}
	return nil
}

// file writes a file that does not have its name yet.
func (x *exporter) file(id string, m *plain.Message, content io.Reader) error {
	path := filepath.Join(x.dir, id+suffix)
	f, err := os.OpenFile(path+unnamed, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err = errors.Join(plain.Write(f, m, content), f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	x.written = append(x.written, path)
	return nil
}

// unnamed is at the end of a file's name until it is on stable storage.
const unnamed = ".tmp"

// finish gives the files their names once all are on stable storage, which is
// asked for once: a sync for each would take a hundred times as long.
func (x *exporter) finish() error {
	d, err := os.Open(x.dir)
	if err != nil {
		return cli.Errorf(cli.ExitIO, "%w", err)
	}
	defer d.Close()
	err = unix.Syncfs(int(d.Fd()))
	for _, path := range x.written {
		if err == nil {
			err = os.Rename(path+unnamed, path)
		}
	}
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		return cli.Errorf(cli.ExitIO, "%s: %w", x.dir, err)
	}
	return nil
}
