package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"posthaste/internal/event"
	"posthaste/internal/eventjournal"
)

// A fileCarrier appends events to a file, one on each line. When the file has grown to its limit, or somebody
// has renamed it, another is begun.
type fileCarrier struct {
	path  string
	limit int64
	keep  int // former files

	f     *os.File // nil: not open
	size  int64
	had   int64       // the size before what no sync has made durable
	mode  fs.FileMode // of the file before, which the next one gets
	say   func(format string, args ...any)
	dirty bool  // something was written that no sync has made durable
	lost  error // why something was not made durable, which settle has not said yet
}

// tornKept is how many former files with what power cuts have spoilt are kept beside the last one.
const tornKept = 5

// newFile makes the carrier of a file. say is told of what is taken off a file that power has failed in.
func newFile(s *event.Sink, say func(format string, args ...any)) *fileCarrier {
	return &fileCarrier{path: s.Target, limit: s.SizeLimit, keep: s.Former, mode: 0o600, say: say}
}

// send implements carrier. Events are durable when settle has returned: a sync for each few events would be most of
// what a file costs, and would keep the queue's own waiting.
func (c *fileCarrier) send(_ context.Context, list []eventjournal.Entry) error {
	var text []byte
	for i := range list {
		text = append(append(text, list[i].JSON...), '\n')
	}
	if err := c.ready(int64(len(text))); err != nil {
		return err
	}
	if c.dirty && c.size+int64(len(text))-c.had > maxUnsynced {
		c.sync()
	}
	if c.lost != nil { // settle says so, too, and what is missing comes before what is behind it
		return c.lost
	}
	if _, err := c.f.Write(text); err != nil {
		// What is there of it comes again, whole.
		return errors.Join(err, c.f.Truncate(c.size), c.close())
	}
	c.size += int64(len(text))
	c.dirty = true
	return nil
}

// settle implements settler.
func (c *fileCarrier) settle() error {
	if c.dirty {
		c.sync()
	}
	err := c.lost
	c.lost = nil
	return err
}

// sync makes durable what was written, or notes why it could not.
func (c *fileCarrier) sync() {
	c.dirty = false
	if err := c.f.Sync(); err != nil {
		c.lost = errors.Join(err, c.takeBack(), c.close())
		return
	}
	c.had = c.size
}

// takeBack cuts off what was not made durable, since it comes again: a disk that goes on to fail would be filled with
// the same events. A file that somebody else has changed is left as it is.
func (c *fileCarrier) takeBack() error {
	if info, err := c.f.Stat(); err != nil || info.Size() != c.size {
		return err
	}
	return c.f.Truncate(c.had)
}

// ready sees to it that the file is open under its name, and has room for n octets.
func (c *fileCarrier) ready(n int64) error {
	if c.f != nil {
		named, err := os.Stat(c.path)
		ours, ferr := c.f.Stat()
		// One that somebody has made shorter has another end: to cut off a line behind the old one would write NULs.
		if err != nil || ferr != nil || !os.SameFile(named, ours) || ours.Size() < c.size {
			c.close()
		}
	}
	if c.f == nil {
		if err := c.open(); err != nil {
			return err
		}
	}
	if c.size > 0 && c.size+n > c.limit {
		if err := c.rotate(); err != nil {
			return fmt.Errorf("%s cannot be renamed: %w", c.path, err)
		}
		return c.open()
	}
	return nil
}

// open opens the file, or makes it. What power has failed in is taken off: a line without an end, and NULs with all that
// follows them. The events that it has failed in come again, since the journal's position is behind an event only when a
// sync was.
func (c *fileCarrier) open() error {
	f, err := os.OpenFile(c.path, os.O_RDWR|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = os.OpenFile(c.path, os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL, c.mode); err == nil {
			err = errors.Join(f.Chmod(c.mode), syncDir(filepath.Dir(c.path)))
		}
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", c.path)
	}
	if err == nil {
		c.size, err = c.mend(f, info.Size())
	}
	if err != nil {
		f.Close()
		return err
	}
	c.f, c.mode, c.had = f, info.Mode().Perm(), c.size
	return nil
}

const (
	// tailLook is how far from the end of a file NULs are looked for, in octets.
	tailLook = 64 << 20
	// maxUnsynced is how much is written without a sync. There is one each second, but a sink that was away gets what a
	// disk can take in that time.
	maxUnsynced = tailLook / 2
)

// mend cuts off what power has failed in, and returns how long the file is then. Some file systems have its new length on
// the disk before its contents, and NULs in the place of these: they may be in the midst of a line, and have whole lines
// behind them. What has NULs is kept in a file of its own: they may be older than the last sync, and their events do not
// come again then.
func (c *fileCarrier) mend(f *os.File, size int64) (int64, error) {
	at, err := firstNUL(f, max(size-tailLook, 0), size)
	if err == nil && at < size {
		if at, err = lineStart(f, at); err == nil {
			err = c.keepTorn(f, at, size)
		}
		if err == nil {
			err = f.Truncate(at)
		}
		if err != nil {
			return 0, err
		}
		c.say("%s: %d octets from octet %d on have NULs, as after a power cut: they are in %s now; what was written in the last second before it comes again, and what is older does not",
			c.path, size-at, at, c.path+event.TornSuffix)
		size = at
	}
	if err != nil {
		return 0, err
	}
	end, err := wholeLines(f, size)
	if err == nil && end < size {
		c.say("%s: %d octets without the end of a line are taken off, as after a power cut: their event comes again", c.path, size-end)
	}
	return end, err
}

// firstNUL is where the first NUL is from an octet on, or the size where there is none.
func firstNUL(f *os.File, from, size int64) (int64, error) {
	buf := make([]byte, 256<<10)
	for ; from < size; from += int64(len(buf)) {
		part := buf[:min(int64(len(buf)), size-from)]
		if _, err := f.ReadAt(part, from); err != nil {
			return 0, err
		}
		if i := bytes.IndexByte(part, 0); i >= 0 {
			return from + int64(i), nil
		}
	}
	return size, nil
}

// lineStart is where the line begins that an octet is in.
func lineStart(f *os.File, at int64) (int64, error) {
	var buf [64 << 10]byte
	for end := at; end > 0; {
		start := max(end-int64(len(buf)), 0)
		part := buf[:end-start]
		if _, err := f.ReadAt(part, start); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return start + int64(i) + 1, nil
		}
		end = start
	}
	return 0, nil
}

// keepTorn copies a part of the file to another one, and has it durable. What was kept before has another name then; not before
// all is copied, as a disk that is full is tried again and again.
func (c *fileCarrier) keepTorn(f *os.File, from, to int64) error {
	name := c.path + event.TornSuffix
	temp := name + ".new"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	torn, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(torn, io.NewSectionReader(f, from, to-from))
	if err = errors.Join(err, torn.Sync(), torn.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	if err := shift(name, tornKept); err != nil {
		return err
	}
	return errors.Join(os.Rename(temp, name), syncDir(filepath.Dir(c.path)))
}

// wholeLines cuts off what follows the last end of a line, and returns how long the file is then.
func wholeLines(f *os.File, size int64) (int64, error) {
	end, err := lineStart(f, size)
	if err != nil || end == size {
		return end, err
	}
	return end, f.Truncate(end)
}

// rotate renames the file to .1, that to .2 and so on, and removes what is too much.
func (c *fileCarrier) rotate() error {
	c.close()
	if err := shift(c.path, c.keep); err != nil {
		return err
	}
	return syncDir(filepath.Dir(c.path))
}

// shift renames a file to .1, that to .2 and so on, and removes what is too much.
func shift(path string, keep int) error {
	name := func(i int) string {
		if i == 0 {
			return path
		}
		return fmt.Sprintf("%s.%d", path, i)
	}
	if err := os.Remove(name(keep)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for i := keep; i > 0; i-- {
		if err := os.Rename(name(i-1), name(i)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// close implements carrier. What was written is made durable, or settle says why it was not.
func (c *fileCarrier) close() error {
	if c.f == nil {
		return nil
	}
	if c.dirty {
		c.dirty = false
		if err := c.f.Sync(); err != nil {
			c.lost = err
		}
	}
	err := c.f.Close()
	c.f, c.size = nil, 0
	return err
}
