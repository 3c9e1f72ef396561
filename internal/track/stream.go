package track

import (
	"context"
	"fmt"
	"io"
	"slices"

	"posthaste/internal/logread"
)

const (
	// streamMemory bounds the messages that a search without the index keeps, in octets.
	streamMemory = 128 << 20
	// settleTime is how long, by the log, a message is waited with after it has left the queue, for what it became: in
	// microseconds.
	settleTime = 60e6
)

// A streamer searches in one pass.
type streamer struct {
	*run
	book    *book
	memory  int // bound
	ended   []ending
	now     int64 // the latest time of a line
	dropped bool
	stop    bool
}

// ending is that a message has left the queue.
type ending struct {
	entry *entry
	at    int64
}

// stream searches without the index.
func (x *run) stream(ctx context.Context) error {
	names := slices.DeleteFunc(slices.Clone(x.Logs), func(n string) bool { return n == "-" })
	if err := x.openSources(names); err != nil {
		return err
	}
	x.parsers = newParsers(x.sources)
	return x.streamFiles(ctx)
}

// streamFiles reads the logs that are open, and standard input behind them.
func (x *run) streamFiles(ctx context.Context) error {
	s := &streamer{run: x, book: newBook(0), memory: streamMemory}
	for _, src := range x.sources {
		r, err := src.reader()
		if err != nil {
			return err
		}
		err = s.read(ctx, src, newCutter(r, x.sizes.block, 0, 1))
		r.Close()
		if err != nil || s.stop {
			return err
		}
	}
	if slices.Contains(x.Logs, "-") {
		r, err := logread.Unpack(x.Stdin, "standard input")
		if err != nil {
			return err
		}
		defer r.Close()
		src := x.standardInput()
		c := newCutter(r, x.sizes.block, 0, 1)
		c.live = true
		if err := s.read(ctx, src, c); err != nil || s.stop {
			return err
		}
	}
	s.rest()
	return nil
}

// standardInput is the source of lines that come from no file.
func (x *run) standardInput() *source {
	src := &source{number: len(x.sources), name: "-", now: x.now}
	x.sources = append(x.sources, src)
	x.parsers = append(x.parsers, logread.NewParser(x.now))
	return src
}

// read goes through one log.
func (s *streamer) read(ctx context.Context, src *source, c *cutter) error {
	for !s.stop {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, err := c.next(false)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", src.name, err)
		}
		b.lines(everyLine, src.number, s.parsers[src.number], &s.event, func(at place) {
			if !s.stop {
				s.line(&s.event, at)
			}
		})
	}
	return nil
}

// line takes the next line.
func (s *streamer) line(ev *event, at place) {
	match := s.plan.match(ev)
	if len(ev.id) == 0 {
		if match == s.plan.all {
			s.stop = !s.yield(Found{Refusal: s.refusal(ev, at)})
		}
		return
	}
	e := s.book.add(ev, at, match)
	e.printed = false
	s.now = max(s.now, ev.line.Time)
	if e.ended {
		s.ended = append(s.ended, ending{e, s.now})
	}
	s.settle(s.now - settleTime)
	for s.book.size > s.memory && !s.stop {
		s.evict()
	}
}

// settle reports what has ended before a time.
func (s *streamer) settle(before int64) {
	n := 0
	for ; n < len(s.ended) && s.ended[n].at < before && !s.stop; n++ {
		if e := s.ended[n].entry; s.book.entries[e.id] == e && !e.printed {
			s.report(e, false)
		}
		s.ended[n].entry = nil
	}
	s.ended = s.ended[n:]
}

// report reports a message and all that is connected with it, if it is what is looked for, and, unless all is true,
// if all of it has ended.
func (s *streamer) report(e *entry, all bool) {
	if e.matched != s.plan.all && s.book.alone(e) {
		return
	}
	family := s.book.family(e)
	if got, _ := matched(family); got != s.plan.all {
		return
	}
	fresh := false
	for _, m := range family {
		if !all && !(m.ended && s.book.followed(m)) {
			return
		}
		fresh = fresh || !m.printed
	}
	if !fresh {
		return
	}
	for _, m := range family {
		m.printed = true
	}
	s.stop = !s.yield(Found{Messages: s.messages(s.book, family)})
}

// followed says whether all is there that a message is known to have become.
func (b *book) followed(e *entry) bool {
	again := false
	for _, l := range b.links[e.id] {
		if l.parent != e.id || l.how != forward && l.how != bounce && l.how != requeue {
			continue
		}
		if b.entries[l.new] == nil {
			return false
		}
		again = again || l.how == requeue
	}
	return again || !e.requeued
}

// evict drops the message that was used least recently.
func (s *streamer) evict() {
	e := s.book.order.Back().Value.(*entry)
	if !e.printed {
		s.report(e, true)
	}
	if !e.ended && !s.dropped {
		s.dropped = true
		s.Warn("more messages are under way than a search without the index can keep: the beginning of some may be missing")
	}
	s.book.forget(e)
}

// rest reports what has not ended.
func (s *streamer) rest() {
	for el := s.book.order.Back(); el != nil && !s.stop; el = el.Prev() {
		if e := el.Value.(*entry); !e.printed {
			s.report(e, true)
		}
	}
}
