package spooltool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/postsuper"
	"posthaste/internal/spool"
	"posthaste/internal/spooltool/cli"
	"posthaste/internal/spooltool/pffile"
	"posthaste/internal/spooltool/plain"
)

// whole is the mode of a queue file that Postfix may deliver; without the bit
// it takes the file for one that its cleanup has not finished.
const whole = 0o700

// toPostfix writes all messages as queue files of a Postfix, and if remove is
// set takes them out of the spool then.
func (c *command) toPostfix(ctx context.Context, dir string, remove bool) error {
	if !isPostfix(dir) {
		return cli.Errorf(cli.ExitNoInput, "%s is not a Postfix queue directory: start Postfix once, and stop it", dir)
	}
	if err := postfixRuns(dir); err != nil {
		return err
	}
	if _, err := c.queue.Manager(ctx); !errors.Is(err, cli.ErrDown) {
		return cli.Errorf(cli.ExitTemp, "the mail system runs: stop it first, or its mail is delivered twice")
	}
	if err := c.there(); err != nil {
		return err
	}
	rd := spool.NewReader(nil, c.queue.Spool())
	defer rd.Close()
	x := &toPostfix{c: c, rd: rd, dir: dir, now: time.Now()}
	var failed error
	err := c.queue.View(c.Warn, func(e spool.Entry) bool {
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
	fmt.Fprintf(c.out, "%d messages exported to %s\n", len(x.files), dir)
	if remove && len(x.ids) > 0 {
		args := []string{"-c", c.queue.Config.Dir(), "-d", "-"}
		if status := postsuper.Run(c.Name, args, strings.NewReader(strings.Join(x.ids, "\n")+"\n"), c.Stderr, c.Stderr); status != 0 {
			return cli.Errorf(status, "the messages are in both queues: do not start both mail systems")
		}
	}
	if x.left > 0 {
		return cli.Errorf(cli.ExitData, "%d messages are damaged, and stay here: posthaste spool export -a DIR gives what can be read of them", x.left)
	}
	return nil
}

// A toPostfix is an export under way.
type toPostfix struct {
	c     *command
	rd    *spool.Reader
	dir   string
	now   time.Time
	files []string
	ids   []string
	left  int
}

func (x *toPostfix) one(e *spool.Entry) error {
	m, content, err := plain.FromSpool(x.rd, e)
	if errors.Is(err, spool.ErrCorrupt) {
		x.c.Warn("%v", err)
		x.left++
		return nil
	}
	if err != nil {
		return err
	}
	defer content.Close()
	if e.Queue == spool.Corrupt || len(m.Pending()) == 0 {
		x.left += min(1, len(m.Pending()))
		return nil
	}
	if m.Envelope.RequireTLS {
		x.c.Warn("%s: its sender asked for TLS all the way (RFC 8689), which Postfix does not know of", e.ID)
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
		return os.Remove(path)
	}
	x.files = append(x.files, path)
	x.ids = append(x.ids, string(e.ID))
	return nil
}

// write makes a queue file that is not yet whole. Its name has the file's
// inode number in it, as Postfix wants.
func (x *toPostfix) write(m *plain.Message, content io.Reader) (path string, err error) {
	queue := "incoming"
	if m.Queue == spool.Hold.String() {
		queue = "hold"
	}
	f, err := os.CreateTemp(filepath.Join(x.dir, queue), ".export")
	if err != nil {
		return "", err
	}
	path = f.Name()
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err = pffile.Write(f, m, m.Envelope.Created(), content); err != nil {
		return path, err
	}
	ino, err := x.give(f, queue)
	if err != nil {
		return path, err
	}
	to := filepath.Join(x.dir, queue, fmt.Sprintf("%05X%X", x.now.Nanosecond()/1000, ino))
	if err = os.Link(path, to); err != nil { // fails where there is one: rename would replace it
		return path, err
	}
	if err = os.Remove(path); err != nil {
		return path, err
	}
	path = to
	if m.Next.After(x.now) {
		err = os.Chtimes(path, m.Next, m.Next)
	}
	return path, err
}

// give gives a file to the owner of the queue. It returns its inode number.
func (x *toPostfix) give(f *os.File, queue string) (ino uint64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	dir, err := os.Stat(filepath.Join(x.dir, queue))
	if err != nil {
		return 0, err
	}
	own, owner := info.Sys().(*syscall.Stat_t), dir.Sys().(*syscall.Stat_t)
	if own.Uid != owner.Uid {
		err = f.Chown(int(owner.Uid), -1)
	}
	return own.Ino, err
}

// finish makes the files whole once all are on stable storage.
func (x *toPostfix) finish() error {
	d, err := os.Open(x.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = unix.Syncfs(int(d.Fd()))
	for _, path := range x.files {
		if err == nil {
			err = os.Chmod(path, whole)
		}
	}
	return errors.Join(err, unix.Syncfs(int(d.Fd())))
}

// giveUp removes what was written: the messages are still in our queue.
func (x *toPostfix) giveUp() {
	for _, path := range x.files {
		if err := os.Remove(path); err != nil {
			x.c.Warn("%v: remove it, its message is still in the queue here", err)
		}
	}
}
