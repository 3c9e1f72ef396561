package spooltool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/cli"
	"posthaste/internal/postsuper"
	"posthaste/internal/queue"
	"posthaste/internal/queueclient"
	"posthaste/internal/rights"
	"posthaste/internal/spooltool/pffile"
	"posthaste/internal/spooltool/plain"
)

// whole is the mode of a queue file that Postfix may deliver; without the bit
// it takes the file for one that its cleanup has not finished.
const whole = 0o700

// A PostfixQueue is where and how a Postfix keeps its queue.
type PostfixQueue struct {
	Dir    string   // its queue_directory
	Hashed []string // hash_queue_names: queues with subdirectories
	Depth  int      // hash_queue_depth: how many of them one below the other
}

// defaultQueue has Postfix's defaults.
func defaultQueue(dir string) PostfixQueue {
	return PostfixQueue{Dir: dir, Hashed: []string{"deferred", "defer"}, Depth: 1}
}

// sub is the directory of a file with the name given, below q.Dir.
func (q *PostfixQueue) sub(queue, name string) string {
	if !slices.Contains(q.Hashed, queue) {
		return queue
	}
	for i := range min(q.Depth, len(name)) {
		queue = filepath.Join(queue, name[i:i+1])
	}
	return queue
}

// toPostfix writes all messages as queue files of a Postfix, and if remove is
// set takes them out of the spool then.
func (c *command) toPostfix(ctx context.Context, q PostfixQueue, remove bool) error {
	dir := q.Dir
	if !isPostfix(dir) {
		return cli.Errorf(cli.ExitNoInput, "%s is not a Postfix queue directory: start Postfix once, and stop it", dir)
	}
	if err := postfixRuns(dir); err != nil {
		return err
	}
	if _, err := c.queue.Manager(ctx); !errors.Is(err, queueclient.ErrDown) {
		return cli.Errorf(cli.ExitTemp, "the mail system runs: stop it first, or its mail is delivered twice")
	}
	if err := c.there(); err != nil {
		return err
	}
	logs, err := c.queue.Logs()
	if err != nil {
		return err
	}
	defer logs.Close()
	root, err := openQueueRoot(dir)
	if err != nil {
		return cli.Errorf(cli.ExitNoPerm, "%w", err)
	}
	defer root.Close()
	x := &toPostfix{c: c, spools: logs, queue: q, root: root, now: time.Now(), to: make(map[string]int)}
	var failed error
	err = c.queue.View(c.Warn, func(e queue.Entry) bool {
		failed = x.one(&e)
		return failed == nil
	})
	if err = errors.Join(err, failed); err == nil {
		err = x.finish()
	}
	if err != nil {
		x.giveUp()
		return cli.Errorf(cli.ExitIO, "%w; nothing was exported", err)
	}
	if remove && len(x.ids) > 0 {
		args := []string{"-c", c.queue.Config.Dir(), "-d", "-"}
		var said strings.Builder // it counts what it removes, which the summary says
		if status := postsuper.Run(c.Name, args, strings.NewReader(strings.Join(x.ids, "\n")+"\n"), &said, &said); status != 0 {
			fmt.Fprint(c.Stderr, said.String())
			return cli.Errorf(status, "the messages are in both queues: do not start both mail systems")
		}
	}
	x.summary(remove)
	if x.left > 0 {
		return cli.Errorf(cli.ExitData, "%d messages are damaged, and stay here: posthaste spool export -a DIR gives what can be read of them", x.left)
	}
	return nil
}

// summary says in one line what came of it.
func (x *toPostfix) summary(remove bool) {
	what := "exported"
	if remove {
		what = "moved"
	}
	fmt.Fprintf(x.c.out, "%d messages %s to %s: %d deferred, %d on hold, %d to be delivered at once; %d stay here\n",
		len(x.ids), what, x.queue.Dir, x.to["deferred"], x.to["hold"], x.to["incoming"], x.left)
}

// A toPostfix is an export under way.
type toPostfix struct {
	c      *command
	spools *queueclient.Logs
	queue  PostfixQueue
	root   *queueRoot // of queue.Dir
	now    time.Time
	files  []string       // below root: queue files, not whole yet
	logs   []string       // and those that say what they wait for
	to     map[string]int // messages by queue
	ids    []string
	left   int
}

func (x *toPostfix) one(e *queue.Entry) error {
	m, content, err := plain.FromSpool(x.spools.Of(e), e)
	if errors.Is(err, queue.ErrCorrupt) {
		x.c.Warn("%v", err)
		x.left++
		return nil
	}
	if err != nil {
		return err
	}
	defer content.Close()
	if e.Queue == queue.Corrupt || len(m.Pending()) == 0 {
		x.left += min(1, len(m.Pending()))
		return nil
	}
	if m.Envelope.RequireTLS {
		x.c.Warn("%s: its sender requires TLS (RFC 8689), which Postfix does not support", e.ID)
	}
	if m.Envelope.LogIdent == "" {
		m.Envelope.LogIdent = string(e.ID)
	}
	path, err := x.write(m, content)
	if err != nil {
		return fmt.Errorf("%s: %w", e.ID, err)
	}
	if damage := content.Damaged(); damage != nil {
		x.c.Warn("%v", damage)
		x.left++
		return x.root.Remove(path)
	}
	x.files = append(x.files, path)
	if err := x.log(m, filepath.Base(path)); err != nil {
		return fmt.Errorf("%s: %w", e.ID, err)
	}
	x.to[place(m)]++
	x.ids = append(x.ids, string(e.ID))
	return nil
}

// place is the queue of Postfix's that a message goes to.
func place(m *plain.Message) string {
	switch m.Queue {
	case queue.Hold.String():
		return "hold"
	case queue.Deferred.String():
		return "deferred"
	}
	return "incoming"
}

// write makes a queue file that is not yet whole, below root. Its name has the file's
// inode number in it, as Postfix wants. A deferred one's time is that of its next
// attempt.
func (x *toPostfix) write(m *plain.Message, content io.Reader) (path string, err error) {
	queue := place(m)
	tmp := filepath.Join(queue, fmt.Sprintf(".export%d.%d", os.Getpid(), x.now.UnixNano()))
	f, err := x.root.OpenFile(tmp, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	path = tmp
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, x.root.Remove(path))
		}
	}()
	if err = pffile.Write(f, m, m.Envelope.Created(), content); err != nil {
		return path, err
	}
	info, err := f.Stat()
	if err != nil {
		return path, err
	}
	name := fmt.Sprintf("%05X%X", x.now.Nanosecond()/1000, info.Sys().(*syscall.Stat_t).Ino)
	dir := x.queue.sub(queue, name)
	if err = x.mkdir(dir); err != nil {
		return path, err
	}
	to := filepath.Join(dir, name)
	if err = x.root.Link(tmp, to); err != nil { // fails where there is one: rename would replace it
		return path, err
	}
	if err = x.root.Remove(tmp); err != nil {
		return path, err
	}
	path = to
	if queue == "deferred" && !m.Next.IsZero() {
		err = x.root.Chtimes(path, m.Next, m.Next)
	}
	return path, err
}

// log writes what the recipients of a message have been deferred for, where Postfix's
// defer service keeps it. name is that of the queue file.
func (x *toPostfix) log(m *plain.Message, name string) error {
	var text bytes.Buffer
	n, last, err := pffile.WriteLog(&text, m)
	if err != nil || n == 0 {
		return err
	}
	const queue = "defer"
	if err := x.mkdir(queue); err != nil {
		return err
	}
	dir := x.queue.sub(queue, name)
	if err := x.mkdir(dir); err != nil {
		return err
	}
	path := filepath.Join(dir, name)
	f, err := x.root.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	x.logs = append(x.logs, path)
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Close()); err == nil && !last.IsZero() {
		err = x.root.Chtimes(path, last, last)
	}
	return err
}

// mkdir makes dir, and what is above it.
func (x *toPostfix) mkdir(dir string) error {
	if _, err := x.root.Stat(dir); err == nil {
		return nil
	}
	if up := filepath.Dir(dir); up != "." {
		if err := x.mkdir(up); err != nil {
			return err
		}
	}
	return x.root.Mkdir(dir, 0o700)
}

// finish makes the files whole once all are on stable storage.
func (x *toPostfix) finish() error {
	d, err := x.root.Open(".")
	if err != nil {
		return err
	}
	defer d.Close()
	err = unix.Syncfs(int(d.Fd()))
	for _, path := range x.files {
		if err == nil {
			err = x.root.Chmod(path, whole)
		}
	}
	return errors.Join(err, unix.Syncfs(int(d.Fd())))
}

// giveUp removes what was written: the messages are still in our queue.
func (x *toPostfix) giveUp() {
	for _, path := range slices.Concat(x.files, x.logs) {
		if err := x.root.Remove(path); err != nil {
			x.c.Warn("%v: remove it, its message is still in the queue here", err)
		}
	}
}

// queueRoot is the directory of a Postfix's queue. What is done below it is done
// with the rights of the queue's owner, who decides what names in it lead to; and
// no link leads out of it.
type queueRoot struct {
	root *os.Root
	who  rights.Rights
}

func openQueueRoot(dir string) (*queueRoot, error) {
	who, err := ownerOf(filepath.Join(dir, "incoming"))
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	return &queueRoot{root, who}, err
}

func (q *queueRoot) OpenFile(name string, flags int, perm os.FileMode) (f *os.File, err error) {
	err = q.who.Do(func() error {
		f, err = q.root.OpenFile(name, flags, perm)
		return err
	})
	return f, err
}

func (q *queueRoot) Open(name string) (*os.File, error) { return q.OpenFile(name, os.O_RDONLY, 0) }

func (q *queueRoot) Stat(name string) (info os.FileInfo, err error) {
	err = q.who.Do(func() error {
		info, err = q.root.Stat(name)
		return err
	})
	return info, err
}

func (q *queueRoot) Link(from, to string) error {
	return q.who.Do(func() error { return q.root.Link(from, to) })
}

func (q *queueRoot) Remove(name string) error {
	return q.who.Do(func() error { return q.root.Remove(name) })
}

func (q *queueRoot) Mkdir(name string, perm os.FileMode) error {
	return q.who.Do(func() error { return q.root.Mkdir(name, perm) })
}

func (q *queueRoot) Chmod(name string, perm os.FileMode) error {
	return q.who.Do(func() error { return q.root.Chmod(name, perm) })
}

func (q *queueRoot) Chtimes(name string, accessed, modified time.Time) error {
	return q.who.Do(func() error { return q.root.Chtimes(name, accessed, modified) })
}

func (q *queueRoot) Close() error { return q.root.Close() }
