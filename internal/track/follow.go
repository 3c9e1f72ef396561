package track

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"posthaste/internal/logread"
)

const (
	// pollTime is how often a log is looked at that is followed.
	pollTime = 200 * time.Millisecond
	// lookBack is how much of the end of a log is read first, so that the beginning of what is under way is known.
	lookBack = 1 << 20
)

// A Live is a step of a message, or a line that is of none, as it comes.
type Live struct {
	ID string `json:"queue_id,omitempty"`
	Step
}

// Follow calls yield for each step of what a query finds, as the last of the logs grows, until yield returns false or the
// context ends. Of a message that is found by a later line the earlier lines come then. A log that is renamed
// or cut is opened anew. "-" is standard input, up to its end.
func Follow(ctx context.Context, o Options, q Query, yield func(Live) bool) error {
	p, err := q.plan()
	if err != nil {
		return err
	}
	x := newRun(o)
	x.plan = p
	f := &follower{run: x, book: newBook(0), shown: map[*entry]int{}, show: yield, memory: streamMemory}
	src := x.standardInput()
	c := newCutter(o.Stdin, x.sizes.block, 0, 1)
	if src.name = o.Logs[len(o.Logs)-1]; src.name != "-" {
		t := &tail{ctx: ctx, name: src.name}
		defer t.close()
		if err := t.open(); err != nil {
			return err
		}
		if f.quiet, err = t.back(); err != nil {
			return err
		}
		c.r = t
	} else {
		r, err := logread.Unpack(o.Stdin, "standard input")
		if err != nil {
			return err
		}
		defer r.Close()
		c.r = r
	}
	c.live = true
	return f.follow(c, src)
}

// A follower reports lines as they come.
type follower struct {
	*run
	book   *book
	memory int
	shown  map[*entry]int // how many lines of a message were reported
	show   func(Live) bool
	quiet  int64 // offset before which nothing is reported
	stop   bool
}

func (f *follower) follow(c *cutter, src *source) error {
	for !f.stop {
		b, err := c.next(false)
		if err == io.EOF || errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", src.name, err)
		}
		b.lines(everyLine, 0, f.parsers[0], &f.event, func(at place) {
			if !f.stop {
				f.line(&f.event, at)
			}
		})
	}
	return nil
}

func (f *follower) line(ev *event, at place) {
	match := f.plan.match(ev)
	quiet := at.pos < f.quiet
	if len(ev.id) == 0 {
		if match == f.plan.all && !quiet {
			f.stop = !f.show(Live{Step: f.step(ev, record{at, ev.line.Time, string(ev.line.Raw)})})
		}
		return
	}
	family := f.book.family(f.book.add(ev, at, match))
	if got, _ := matched(family); got == f.plan.all {
		for _, e := range family {
			f.report(e, quiet)
		}
	}
	for f.book.size > f.memory {
		e := f.book.order.Back().Value.(*entry)
		f.book.forget(e)
		delete(f.shown, e)
	}
}

// report reports what was not reported of a message.
func (f *follower) report(e *entry, quiet bool) {
	for _, r := range e.records[f.shown[e]:] {
		var ev event
		if l, ok := f.parsers[0].Parse([]byte(r.raw)); ok && ev.parse(l) && !quiet && !f.stop {
			f.stop = !f.show(Live{e.id, f.step(&ev, r)})
		}
	}
	f.shown[e] = len(e.records)
}

// A tail reads a log that grows. It waits for more at its end.
type tail struct {
	ctx  context.Context // a Reader has no other way to get it
	name string
	f    *os.File
	at   int64
}

func (t *tail) open() (err error) {
	t.f, err = os.Open(t.name)
	t.at = 0
	return err
}

func (t *tail) close() {
	if t.f != nil {
		t.f.Close()
	}
}

// back goes to the end of the log, less lookBack. It returns how far the end is from there.
func (t *tail) back() (int64, error) {
	info, err := t.f.Stat()
	if err != nil {
		return 0, err
	}
	t.at = max(0, info.Size()-lookBack)
	_, err = t.f.Seek(t.at, io.SeekStart)
	return info.Size() - t.at, err
}

// Read implements io.Reader. It returns an error when the context ends.
func (t *tail) Read(p []byte) (int, error) {
	for {
		n, err := t.f.Read(p)
		t.at += int64(n)
		if n > 0 || err != nil && err != io.EOF {
			return n, err
		}
		if err := t.reopen(); err != nil {
			return 0, err
		}
		select {
		case <-t.ctx.Done():
			return 0, context.Canceled
		case <-time.After(pollTime):
		}
	}
}

// reopen opens the log anew if it is another one by now, or was cut. There may be none for a while.
func (t *tail) reopen() error {
	now, err := os.Stat(t.name)
	if err != nil {
		return nil
	}
	old, err := t.f.Stat()
	if err != nil {
		return err
	}
	if os.SameFile(now, old) && now.Size() >= t.at {
		return nil
	}
	if n, err := t.f.Seek(0, io.SeekEnd); err == nil && n > t.at && !os.SameFile(now, old) {
		_, err = t.f.Seek(t.at, io.SeekStart) // what was written before it was renamed is read first
		return err
	}
	t.f.Close()
	return t.open()
}
