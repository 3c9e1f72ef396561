package spooltool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/cli"
	"posthaste/internal/mail"
	"posthaste/internal/proto"
	"posthaste/internal/queue"
	"posthaste/internal/rights"
	"posthaste/internal/spooltool/pffile"
	"posthaste/internal/spooltool/plain"
	"posthaste/internal/submit"
)

const (
	// importers is how many messages are imported at once: they share commits.
	importers = 16
	// patience bounds the import of one message.
	patience = 10 * time.Minute
)

// postfixQueues are those of Postfix's queues that hold mail which cleanup has
// seen. maildrop is not among them.
var postfixQueues = []string{"incoming", "active", "deferred", "hold"}

// A source is a file to be imported.
type source struct {
	path  string
	queue string // of a Postfix queue directory: the queue that it is in
	log   string // of its deferred queue: the file that says why
}

// open opens one of the source's files. A Postfix queue is its mail_owner's, and a
// directory of exported mail may be a user's: what root opened there by name, that user
// could lead elsewhere. A pipe in a file's place holds nobody up.
func (s source) open(name string) (*os.File, error) {
	name, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	flags := syscall.O_RDONLY | syscall.O_NONBLOCK
	if s.queue != "" {
		flags |= syscall.O_NOFOLLOW
	}
	f, who, err := rights.Open(name, flags, 0)
	if err != nil {
		if errors.Is(err, fs.ErrPermission) && !who.IsOwn() {
			err = fmt.Errorf("%w, with the rights of user %d, to whom a directory of this path belongs", err, who.UID)
		}
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, cmp.Or(err, fmt.Errorf("%s is no regular file", name))
	}
	return f, nil
}

// remove removes the source's file, with the rights of the directory's owner.
func (s source) remove() error {
	dir, who, err := rights.OpenDirectory(filepath.Dir(s.path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return who.Do(func() error {
		if err := unix.Unlinkat(int(dir.Fd()), filepath.Base(s.path), 0); err != nil {
			return &fs.PathError{Op: "remove", Path: s.path, Err: err}
		}
		return nil
	})
}

// ownerOf are the rights of a directory's owner.
func ownerOf(path string) (rights.Rights, error) {
	dir, who, err := rights.OpenDirectory(path)
	if err == nil {
		dir.Close()
	}
	return who, err
}

func (c *command) importAll(ctx context.Context, flags options, args []string) error {
	if len(args) == 0 {
		return c.wrongUsage()
	}
	im := &importer{c: c, dry: flags.has('n'), remove: flags.has('r'), verbose: flags.has('v')}
	if !im.dry {
		if _, err := c.queue.Cleanup(ctx); err != nil {
			return cli.Errorf(cli.Status(err), "%w, and import needs it: start it first", err)
		}
		im.submit = submit.New(c.queue.CleanupClient())
		defer im.submit.Close()
	}
	work := make(chan source)
	var wg sync.WaitGroup
	for range importers {
		wg.Go(func() {
			for s := range work {
				im.one(ctx, s)
			}
		})
	}
	var err error
	for _, path := range args {
		if err = c.sources(path, func(s source) { work <- s }); err != nil {
			break
		}
	}
	close(work)
	wg.Wait()
	return errors.Join(err, im.result())
}

// sources finds the files below a path.
func (c *command) sources(path string, f func(source)) error {
	st, err := os.Stat(path)
	if err != nil {
		return cli.Errorf(cli.ExitNoInput, "%w", err)
	}
	if !st.IsDir() {
		f(source{path: path})
		return nil
	}
	if !isPostfix(path) {
		list, err := filepath.Glob(filepath.Join(path, "*"+suffix))
		if err != nil {
			return err
		}
		for _, name := range list {
			f(source{path: name})
		}
		return nil
	}
	if err := postfixRuns(path); err != nil {
		return err
	}
	if left, err := os.ReadDir(filepath.Join(path, "maildrop")); err == nil && len(left) > 0 {
		c.Warn("%s has %d files that Postfix's pickup has not taken yet: start Postfix once more with its network services off, or submit them again",
			filepath.Join(path, "maildrop"), len(left))
	}
	for _, queue := range postfixQueues {
		top := filepath.Join(path, queue)
		err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case d.Type().IsRegular():
				s := source{path: name, queue: queue}
				if queue == "deferred" {
					s.log = filepath.Join(path, "defer", strings.TrimPrefix(name, top))
				}
				f(s)
			}
			return nil
		})
		if err != nil {
			return cli.Errorf(cli.ExitNoInput, "%w", err)
		}
	}
	return nil
}

func isPostfix(dir string) bool {
	for _, q := range []string{"incoming", "active", "deferred"} {
		if st, err := os.Stat(filepath.Join(dir, q)); err != nil || !st.IsDir() {
			return false
		}
	}
	return true
}

// postfixRuns says so when a Postfix works on the queue: its master keeps a
// lock on its process file.
func postfixRuns(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, "pid", "master.pid"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cli.Errorf(cli.ExitNoPerm, "%w", err)
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == syscall.EWOULDBLOCK {
		pid, _ := io.ReadAll(io.LimitReader(f, 64))
		return cli.Errorf(cli.ExitTemp, "%s is in use by a running Postfix (process %s): stop it first, or its mail is delivered twice",
			dir, strings.TrimSpace(string(pid)))
	}
	return err
}

// An importer submits messages. Its counts may be changed by many.
type importer struct {
	c                    *command
	submit               *submit.Client
	dry, remove, verbose bool

	mu                            sync.Mutex
	imported, empty, bad, refused int
	failed                        error // the first refusal
}

func (im *importer) result() error {
	what := "imported"
	if im.dry {
		what = "can be imported"
	}
	fmt.Fprintf(im.c.out, "%d messages %s, %d have nothing left to do, %d files are not sound messages, %d were refused\n",
		im.imported, what, im.empty, im.bad, im.refused)
	switch {
	case im.refused > 0:
		return cli.Errorf(cli.ExitTemp, "%w", im.failed)
	case im.bad > 0:
		return cli.Errorf(cli.ExitData, "%d files were not imported", im.bad)
	}
	return nil
}

// errUnfinished is for a file that Postfix had not finished when it stopped.
var errUnfinished = errors.New("not a whole message: its sender was not told that it was accepted")

// one imports one file.
func (im *importer) one(ctx context.Context, s source) {
	f, err := s.open(s.path)
	if err != nil {
		im.note(&im.bad, "%v", err)
		return
	}
	defer f.Close()
	m, created, content, err := read(f, s)
	switch {
	case err != nil:
		im.note(&im.bad, "%s: %v", s.path, err)
		return
	case len(m.Pending()) == 0 || m.Envelope.Trace&mail.TraceProbe != 0:
		im.note(&im.empty, "")
		im.done(s)
		return
	case im.dry:
		im.note(&im.imported, "")
		return
	}
	id, err := im.send(ctx, m, created, content)
	if err != nil {
		im.mu.Lock()
		if im.failed == nil {
			im.failed = err
		}
		im.mu.Unlock()
		im.note(&im.refused, "%s: %v", s.path, err)
		return
	}
	im.note(&im.imported, "")
	if im.verbose {
		im.mu.Lock()
		fmt.Fprintf(im.c.out, "%s: %s\n", s.path, id)
		im.mu.Unlock()
	}
	im.done(s)
}

// done removes a file that has been dealt with, if that is wanted.
func (im *importer) done(s source) {
	if !im.remove || im.dry {
		return
	}
	if err := s.remove(); err != nil {
		im.mu.Lock()
		defer im.mu.Unlock()
		im.c.Warn("%s is in the queue, and cannot be removed: %v", s.path, err)
	}
}

func (im *importer) note(count *int, format string, args ...any) {
	im.mu.Lock()
	defer im.mu.Unlock()
	*count++
	if format != "" {
		im.c.Warn(format, args...)
	}
}

// read reads a file of either kind. created is when the message was queued
// first: its age counts from there.
func read(f *os.File, s source) (m *plain.Message, created time.Time, content io.Reader, err error) {
	m, content, err = plain.Read(f)
	if err == nil {
		return m, m.Envelope.Created(), content, nil
	}
	if !errors.Is(err, plain.ErrNotPlain) {
		return nil, created, nil, err
	}
	if st, serr := f.Stat(); serr == nil && s.queue != "" && st.Mode()&0o100 == 0 {
		return nil, created, nil, errUnfinished
	}
	q, err := pffile.Open(f)
	if err != nil {
		return nil, created, nil, err
	}
	m = &q.Message
	m.Queue = s.queue
	if s.log != "" {
		if err := deferral(f, s, m); err != nil {
			return nil, created, nil, err
		}
	}
	created = m.Envelope.Arrival
	if q.Created > 0 {
		created = time.Unix(q.Created, 0)
	}
	content, err = q.Content()
	return m, created, content, err
}

// deferral learns from a file of Postfix's deferred queue when its message is
// due, which is the file's time, and from the defer service's file of the same
// name why recipients do not have it yet.
func deferral(f *os.File, s source, m *plain.Message) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	m.Next, m.Attempts = st.ModTime(), 1 // how many there were it does not say
	log, err := s.open(s.log)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer log.Close()
	if st, err = log.Stat(); err != nil {
		return err
	}
	return pffile.ReadLog(log, m, st.ModTime())
}

// send queues a message under a new ID of its old age.
func (im *importer) send(ctx context.Context, m *plain.Message, created time.Time, content io.Reader) (mail.QueueID, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if created.IsZero() {
		created = time.Now()
	}
	env := m.Envelope
	env.Recipients = m.Pending()
	if env.Arrival.IsZero() {
		env.Arrival = created
	}
	if env.LogIdent == "" {
		env.LogIdent = string(m.Envelope.ID)
	}
	var err error
	if env.ID, err = im.submit.NewID(ctx, created); err != nil {
		return "", err
	}
	flags := proto.SubmitNoReceive | proto.SubmitRequeued
	if m.Queue == queue.Hold.String() {
		flags |= proto.SubmitHold
	}
	msg := im.submit.Open(&env, submit.Options{Flags: flags, State: state(m)})
	// A reader's failure must not be taken for the end of the message; a
	// refusal is told by Commit.
	in := &failing{r: content}
	if io.Copy(msg, in); in.err != nil {
		msg.Abort()
		return "", in.err
	}
	reply, err := msg.Commit(ctx)
	if err != nil {
		return "", err
	}
	if reply.Code != 250 {
		return "", fmt.Errorf("refused: %s", reply.Reason())
	}
	return env.ID, nil
}

// state is how a message stands besides its envelope and hold, nil when it is
// as new. Outcomes are by the recipients' indexes in m.Pending.
func state(m *plain.Message) *queue.Change {
	op := &queue.Change{Queue: queue.Deferred, NextAttempt: m.Next, Attempts: m.Attempts, Warned: m.Warned, Expire: m.Expire}
	set := func(on bool, f queue.Field) {
		if on {
			op.Set |= f
		}
	}
	set(m.Queue == queue.Deferred.String(), queue.SetQueue)
	set(!m.Next.IsZero(), queue.SetNextAttempt)
	set(m.Attempts > 0, queue.SetAttempts)
	set(m.Warned, queue.SetWarned)
	set(m.Expire, queue.SetExpire)
	n := 0
	for i := range m.Envelope.Recipients {
		if m.Done[i] {
			continue
		}
		if o, ok := m.Outcomes[i]; ok {
			o.Rcpt = n
			op.Outcomes = append(op.Outcomes, o)
		}
		n++
	}
	if op.Set == 0 && len(op.Outcomes) == 0 {
		return nil
	}
	return op
}

// failing remembers that reading has failed.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}
