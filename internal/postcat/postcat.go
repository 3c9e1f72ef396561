// Package postcat is the postcat(1) command: it shows what is in a queued
// message, envelope and content, in the words of Postfix's command.
//
//	postcat [-bdefhorv] [-c config_dir] [-q] [-s offset] [queue_id | file ...]
//
// With -q the arguments are queue IDs; they are looked up with cleanup, or in
// the spool itself when the mail system is down, and in a queue that nodes share
// with all of them. Otherwise they are
// files: exported messages (posthaste spool export), files in maildrop, and queue files
// of Postfix. Without arguments the file is standard input.
//
// Of -b (body), -e (envelope) and -h (header) those that are given are shown,
// and all if none is. -d prints record types, those that Postfix
// has for the same, and -o the place of each line in the content; -s begins at such a place;
// -f prints the name before each line; -v adds what is known of delivery. Records have no other
// order than the one shown, so that -r changes nothing.
//
// # Security
//
// Who may not read the spool is told so. For root a file is opened with the rights of whoever controls its
// path, mail_owner for those in maildrop: nobody's link leads to what he could not read himself. Envelope values are printed with
// control characters made visible; content is printed as it is.
//
// # Diagnostics
//
// Exit status 0; 64 wrong usage; 65 a file is no message, or damaged; 66
// no such message or file; 69 cleanup does not answer; 74 the output cannot be
// written; 77 not permitted; 78 wrong configuration.
package postcat

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/maildrop"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/rights"
	"posthaste/internal/spooltool/pffile"
	"posthaste/internal/spooltool/plain"
	"posthaste/internal/storage"
)

const usage = "usage: %s [-b (body text)] [-c config_dir] [-d (decimal record type)] [-e (envelope records)] [-f (prepend name)] " +
	"[-h (header text)] [-o (print offsets)] [-q (access queue)] [-r (file order)] [-s (skip to offset)] [-v] [file(s)...]"

type command struct {
	cli.Tool
	flags map[byte]bool
	dir   string
	kind  storage.Kind
	skip  int64
	out   *cli.ErrWriter
}

// Run carries out the command and returns its exit status. kind is the engine that the program has for the queue
// beside the log; nil: none.
func Run(name string, args []string, kind storage.Kind, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &command{kind: kind, Tool: cli.Tool{Name: name, Stdin: stdin, Stderr: stderr}, flags: make(map[byte]bool), out: &cli.ErrWriter{W: stdout}}
	opts, rest, err := cli.Getopt(args, "bc:defhoqrs:v")
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\n", name, err)
		return c.Fatal(cli.ExitUsage, usage, name)
	}
	for _, o := range opts {
		switch c.flags[o.Letter] = true; o.Letter {
		case 'c':
			c.dir = o.Value
		case 's':
			if c.skip, err = strconv.ParseInt(o.Value, 10, 64); err != nil || c.skip < 0 {
				return c.Fatal(cli.ExitUsage, "bad offset: %s", o.Value)
			}
		}
	}
	if !c.flags['b'] && !c.flags['e'] && !c.flags['h'] {
		c.flags['b'], c.flags['e'], c.flags['h'] = true, true, true
	}
	if c.flags['q'] {
		err = c.queued(context.Background(), rest)
	} else {
		err = c.files(rest)
	}
	switch {
	case err != nil:
		return c.Fail(err)
	case c.out.Err != nil:
		return c.Fatal(cli.ExitIO, "%v", c.out.Err)
	}
	return 0
}

// queued shows messages in the queue.
func (c *command) queued(ctx context.Context, ids []string) error {
	q, err := queueclient.Open(c.dir)
	if err != nil {
		return err
	}
	defer q.Close()
	q.Storage = c.kind
	read, done, err := reader(q)
	if err != nil {
		return err
	}
	defer done()
	for _, text := range ids {
		id := mail.QueueID(text)
		if !id.Valid() {
			return cli.Errorf(cli.ExitUsage, "bad mail queue ID: %s", maillog.AppendClean(nil, []byte(text)))
		}
		if err := c.one(ctx, q, read, id); err != nil {
			return err
		}
	}
	return nil
}

// A readFunc reads a queued message.
type readFunc func(*queue.Entry) (*plain.Message, *plain.Content, error)

// reader returns a readFunc, and what frees it. Of the log, damaged content can be shown as it is.
func reader(q *queueclient.Queue) (readFunc, func(), error) {
	if !storage.Elsewhere(q.Config) {
		logs, err := q.Logs()
		if err != nil {
			return nil, nil, err
		}
		return func(e *queue.Entry) (*plain.Message, *plain.Content, error) { return plain.FromSpool(logs.Of(e), e) }, func() { logs.Close() }, nil
	}
	rd, err := q.Reader()
	if err != nil {
		return nil, nil, err
	}
	return func(e *queue.Entry) (*plain.Message, *plain.Content, error) { return plain.FromReader(rd, e) }, func() { rd.Close() }, nil
}

func (c *command) one(ctx context.Context, q *queueclient.Queue, read readFunc, id mail.QueueID) error {
	for tries := 1; ; tries++ {
		e, where, err := locate(ctx, q, id, c.Warn)
		if err != nil {
			return err
		}
		m, content, err := read(&e)
		if errors.Is(err, queue.ErrStale) && tries < 4 {
			continue // it has been moved since we were told
		}
		if errors.Is(err, fs.ErrPermission) {
			return cli.Errorf(cli.ExitNoPerm, "open queue file %s: %w", id, err)
		}
		if err != nil {
			return err
		}
		defer content.Close()
		m.Queue = where
		err = c.show(where+"/"+string(id), m, content, int64(e.Ref.Offset))
		if damage := content.Damaged(); damage != nil {
			c.Warn("%v", damage)
		}
		return err
	}
}

// locate finds a message, and the queue that it is in.
func locate(ctx context.Context, q *queueclient.Queue, id mail.QueueID, warn func(string, ...any)) (e queue.Entry, where string, err error) {
	var parts queueclient.Parts
	manager, down := q.Manager(ctx)
	if down == nil {
		if parts, err = q.Parts(ctx, manager); err != nil {
			return e, "", err
		}
	}
	found := false
	if parts.Own() { // a node that stands by has nothing, and cannot be asked
		if e, found, err = locateHere(ctx, q, id, warn); err != nil {
			return e, "", err
		}
	}
	if !found {
		it, err := parts.Find(ctx, manager, id)
		switch {
		case err != nil:
			return e, "", err
		case it == nil:
			return e, "", cli.Errorf(cli.ExitNoInput, "open queue file %s: No such file or directory", id)
		}
		return queue.Entry{ID: id, Ref: it.Ref, Done: it.Done, NextAttempt: it.Next, Attempts: it.Attempts, Size: it.Size, Expire: it.ForcedExpire}, it.Queue, nil
	}
	where = e.Queue.String()
	if down == nil { // who else knows what is active
		var list proto.ListReply
		if manager.Call(ctx, &proto.List{ID: id, Brief: true}, &list) == nil && len(list.Items) == 1 {
			where = list.Items[0].Queue
		}
	}
	return e, where, nil
}

// locateHere asks cleanup for a message, or looks for it in the spool of a mail system that is down.
func locateHere(ctx context.Context, q *queueclient.Queue, id mail.QueueID, warn func(string, ...any)) (e queue.Entry, found bool, err error) {
	conn, err := q.Cleanup(ctx)
	switch {
	case errors.Is(err, queueclient.ErrDown):
		err = q.View(warn, func(at queue.Entry) bool {
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

// files shows messages in files.
func (c *command) files(names []string) error {
	if len(names) == 0 {
		f, err := spill(c.Stdin)
		if err != nil {
			return err
		}
		defer f.Close()
		return c.file("stdin", f)
	}
	for _, name := range names {
		f, err := open(name)
		if err != nil {
			return cli.Errorf(cli.ExitNoInput, "%w", err)
		}
		err = c.file(name, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// open opens a file that is named in the arguments. What root opened by its name below a directory of another
// user's, maildrop for one, that user could lead elsewhere.
func open(name string) (*os.File, error) {
	name = filepath.Clean(name)
	if !rights.Switching() || name == "/dev/stdin" || filepath.Dir(name) == "/dev/fd" { // these are no paths
		return os.Open(name)
	}
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	f, who, err := rights.Open(path, os.O_RDONLY, 0)
	if err != nil && !who.IsOwn() {
		return nil, fmt.Errorf("%w, with the rights of user %d, to whom a directory of this path belongs", err, who.UID)
	}
	return f, err
}

// spill keeps what cannot be read twice in a file without a name.
func spill(r io.Reader) (*os.File, error) {
	f, err := os.CreateTemp("", "postcat-")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	_, err = io.Copy(f, r)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// file shows a file of whatever kind it is.
func (c *command) file(name string, f io.ReadSeeker) error {
	m, content, err := plain.Read(f)
	if errors.Is(err, plain.ErrNotPlain) {
		if m, content, err = dropped(f); err != nil {
			m, content, err = foreign(f)
		}
	}
	if err != nil {
		return cli.Errorf(cli.ExitData, "%s: input is not a valid queue file: %w", name, err)
	}
	return c.show(name, m, content, 0)
}

func foreign(f io.ReadSeeker) (*plain.Message, io.Reader, error) {
	q, err := pffile.Open(f)
	if err != nil {
		return nil, nil, err
	}
	content, err := q.Content()
	return &q.Message, content, err
}

// dropped reads a file from maildrop.
func dropped(f io.ReadSeeker) (*plain.Message, io.Reader, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, nil, err
	}
	d, err := maildrop.NewReader(f)
	if err != nil {
		return nil, nil, err
	}
	m := &plain.Message{Envelope: mail.Envelope{Arrival: d.Time, Sender: d.Sender, EnvID: d.EnvID, Ret: d.Ret, Trace: d.Trace,
		VERP: d.VERP, Filter: d.Filter, LogIdent: string(d.OrigID), Recipients: d.Recipients}}
	if d.Body8Bit {
		m.Envelope.Body |= mail.Body8Bit
	}
	if d.SMTPUTF8 {
		m.Envelope.Body |= mail.BodySMTPUTF8
	}
	return m, plain.CRLF(d), nil
}

// show prints one message.
func (c *command) show(name string, m *plain.Message, content io.Reader, place int64) error {
	w := bufio.NewWriter(c.out)
	p := &printer{w: w, name: name, flags: c.flags, skip: c.skip}
	if c.flags['e'] {
		fmt.Fprintf(w, "*** ENVELOPE RECORDS %s ***\n", name)
		p.envelope(m, place)
		fmt.Fprintf(w, "*** MESSAGE CONTENTS %s ***\n", name)
	}
	err := p.content(content)
	if err == nil && c.flags['e'] {
		fmt.Fprintf(w, "*** HEADER EXTRACTED %s ***\n", name)
		p.attribute("encoding", encoding(m.Envelope.Body))
		fmt.Fprintf(w, "*** MESSAGE FILE END %s ***\n", name)
	}
	w.Flush() // its error is out's
	if err != nil {
		return cli.Errorf(cli.ExitData, "%s: %w", name, err)
	}
	return nil
}
