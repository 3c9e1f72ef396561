package spools

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"

	"posthaste/internal/mail"
	"posthaste/internal/metrics"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A Part is an engine of a set, as its owner wants it.
type Part struct {
	Number uint8  // of the spool, 0 to 31; no other part has it
	Dir    string // for people
	Takes  bool   // new mail goes there; else what it has is delivered, and nothing more comes
	Large  bool   // the content of large messages goes there, as long as it can be stored there; one part at most
	// Open opens the engine. It is called again after the engine that it gave was closed, by another goroutine.
	Open func() (storage.Engine, error)
}

// Options are how a set is opened.
type Options struct {
	Parts []Part
	// Opened is called when all parts are open and none has been changed, in their order; an error has all closed.
	Opened func(list []storage.Engine) error
	Warn   func(format string, args ...any) // may be called from several goroutines
	// Adopted is told that a part that had failed is back, and what was found out about it; the set has it already. Nil: nobody
	// is told. Close waits for it.
	Adopted func(e storage.Engine, r storage.Recovery)
	// Offer publishes numbers. Nil: there are none.
	Offer func(o *metrics.Offer, list []Standing)
}

// A Set is an engine that keeps the queue in several others. See the package comment.
type Set struct {
	warn    func(format string, args ...any)
	adopted func(storage.Engine, storage.Recovery)
	offer   func(*metrics.Offer, []Standing)
	parts   []*part // those that take mail come first
	takers  []*part
	large   *part // nil: any
	found   storage.Recovery

	files atomic.Uint64 // that have been begun

	closing chan struct{}
	closed  atomic.Bool
	unclean atomic.Bool // see LeaveUnclean
	wg      sync.WaitGroup

	// arriving are messages that have been posted and are not durable yet: where they are going to be.
	nArriving atomic.Int64
	mu        sync.Mutex
	arriving  map[mail.QueueID]*part
	stashed   map[queue.Ref]stash
}

// A stash is a message in the volatile area of an engine.
type stash struct {
	id mail.QueueID
	en storage.Engine
}

var (
	_ storage.Engine  = (*Set)(nil)
	_ storage.Stasher = (*Set)(nil)
)

// Open opens all parts. An error is that of the first that cannot be opened; the others are closed then. Messages that are
// in two parts, since moving them was interrupted, are for the caller to deal with: see Twice.
func Open(o Options) (*Set, error) {
	s := &Set{warn: o.Warn, adopted: o.Adopted, offer: o.Offer, closing: make(chan struct{}), arriving: map[mail.QueueID]*part{}, stashed: map[queue.Ref]stash{}}
	if s.warn == nil {
		s.warn = func(string, ...any) {}
	}
	if s.adopted == nil {
		s.adopted = func(storage.Engine, storage.Recovery) {}
	}
	var list []storage.Engine
	giveUp := func(err error) (*Set, error) {
		for _, en := range list {
			err = errors.Join(err, en.Close())
		}
		return nil, err
	}
	for i := range o.Parts {
		en, err := o.Parts[i].Open()
		if err != nil {
			return giveUp(fmt.Errorf("%s: %w", o.Parts[i].Dir, err))
		}
		list = append(list, en)
	}
	if o.Opened != nil {
		if err := o.Opened(list); err != nil {
			return giveUp(err)
		}
	}
	for _, takes := range []bool{true, false} {
		for i := range o.Parts {
			if o.Parts[i].Takes == takes {
				p := newPart(s, &o.Parts[i], list[i])
				s.parts = append(s.parts, p)
				if p.Large {
					s.large = p
				}
			}
		}
	}
	for _, p := range s.parts {
		if p.Takes {
			s.takers = append(s.takers, p)
		}
	}
	// With none that takes new mail there would be nobody to give out numbers.
	if len(s.takers) == 0 {
		s.takers = s.parts
	}
	s.found.Exact = true
	for _, p := range s.parts {
		s.found = s.joined(s.found, p, p.present().en.Recovery())
	}
	for _, p := range s.parts {
		s.wg.Go(p.watch)
	}
	return s, nil
}

// joined adds what the start of a part has found to what others have.
func (s *Set) joined(all storage.Recovery, p *part, r storage.Recovery) storage.Recovery {
	if r.Summary != "" {
		if all.Summary != "" {
			all.Summary += "; "
		}
		all.Summary += p.Dir + ": " + r.Summary
	}
	if r.Report != "" {
		all.Report += "In " + p.Dir + ":\n" + r.Report
	}
	all.InDoubt = append(all.InDoubt, r.InDoubt...)
	all.MoreInDoubt += r.MoreInDoubt
	// After an orderly end there is nothing to be exact about.
	all.Exact = all.Exact && (r.Exact || !r.Unclean)
	all.Unanswered = append(all.Unanswered, r.Unanswered...)
	all.MoreUnanswered += r.MoreUnanswered
	for _, w := range r.Withdrawn {
		// Its volatile area was of one part, and it may have been kept by another, or be in this process's hands.
		if !s.keeps(w.ID) {
			all.Withdrawn = append(all.Withdrawn, w)
		}
	}
	all.MoreWithdrawn += r.MoreWithdrawn
	all.Unclean = all.Unclean || r.Unclean
	return all
}

// keeps says whether a message is in some part, or in a volatile area for this process.
func (s *Set) keeps(id mail.QueueID) bool {
	if p, _ := s.where(id); p != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.stashed {
		if st.id == id {
			return true
		}
	}
	return false
}

// Lease implements storage.Engine. Numbers come from one part as long as it is there, and say which.
func (s *Set) Lease(n int) (first uint64, err error) {
	err = fmt.Errorf("%w: no spool can be written", queue.ErrFull)
	for _, p := range s.parts {
		st := p.present()
		// The engine may have given out numbers that its successor will take for new.
		if !st.up {
			continue
		}
		if first, err = st.en.Lease(n); err == nil {
			if (first+uint64(n))>>queue.SpoolShift == 0 {
				return first | uint64(p.Number)<<queue.SpoolShift, nil
			}
			err = fmt.Errorf("%w: the message numbers of %s are used up", queue.ErrFull, p.Dir)
		}
		if errors.Is(err, queue.ErrInvalid) {
			return 0, err
		}
	}
	return 0, err
}

// at is the place of a message's part among all, to begin looking for it.
func (s *Set) at(number uint64) int { return int(number % uint64(len(s.takers))) }

// where is the part that has a message, also one that has failed, and how it stands there by what has been decided; nil:
// none has.
func (s *Set) where(id mail.QueueID) (*part, queue.Entry) {
	first := s.at(id.Number())
	for i := range s.parts {
		p := s.parts[(first+i)%len(s.parts)]
		if e, ok := p.locate(id); ok {
			return p, e
		}
	}
	return nil, queue.Entry{}
}

// goes is where, for messages that are on their way, too.
func (s *Set) goes(id mail.QueueID) *part {
	if s.nArriving.Load() > 0 {
		s.mu.Lock()
		p := s.arriving[id]
		s.mu.Unlock()
		if p != nil {
			return p
		}
	}
	p, _ := s.where(id)
	return p
}

// Locate implements storage.Engine. Of a part that has failed it is what was known when it did, and has been decided
// since.
func (s *Set) Locate(id mail.QueueID) (queue.Entry, bool) {
	p, e := s.where(id)
	return e, p != nil
}

// Find implements storage.Engine.
func (s *Set) Find(number uint64) (queue.Entry, bool) {
	first := s.at(number)
	for i := range s.parts {
		p := s.parts[(first+i)%len(s.parts)]
		st := p.present()
		if e, ok := st.en.Find(number); ok {
			return p.shown(st, e)
		}
	}
	return queue.Entry{}, false
}

// Entries implements storage.Engine.
func (s *Set) Entries(yield func(queue.Entry) bool) {
	for _, p := range s.parts {
		st := p.present()
		for e := range st.en.Entries {
			if e, there := p.shown(st, e); there && !yield(e) {
				return
			}
		}
	}
}

// InHand implements storage.Engine.
func (s *Set) InHand(id mail.QueueID, rcpts []int) []int {
	p := s.goes(id)
	if p == nil {
		return nil
	}
	return p.present().en.InHand(id, rcpts)
}

// Hands implements storage.Engine.
func (s *Set) Hands(yield func(queue.Doubt) bool) {
	for _, p := range s.parts {
		for d := range p.present().en.Hands {
			if !yield(d) {
				return
			}
		}
	}
}

// InlineLimit implements storage.Engine: it is the same for all.
func (s *Set) InlineLimit() int { return s.parts[0].present().en.InlineLimit() }

// Recovery implements storage.Engine: what was found when the set was opened, in all parts.
func (s *Set) Recovery() storage.Recovery { return s.found }

// Silent implements storage.Engine: while one part takes mail, so does the set.
func (s *Set) Silent() (err error) {
	for _, p := range s.takers {
		if st := p.present(); st.up {
			if err = st.en.Silent(); err == nil {
				return nil
			}
		}
	}
	return err
}

// Hurry implements storage.Engine.
func (s *Set) Hurry() {
	for _, p := range s.parts {
		if st := p.present(); st.up {
			st.en.Hurry()
		}
	}
}

// Maintain implements storage.Engine.
func (s *Set) Maintain(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, p := range s.parts {
		wg.Go(func() { p.maintain(ctx) })
	}
}

// Broken implements storage.Engine. A set opens its parts again itself, and so is never broken.
func (s *Set) Broken() <-chan struct{} { return nil }

// Err implements storage.Engine.
func (s *Set) Err() error { return nil }

// LeaveUnclean implements storage.Engine. It is also for a part that is opened again before Close.
func (s *Set) LeaveUnclean() { s.unclean.Store(true) }

// Close implements storage.Engine. What could not be recorded of the mail of parts that have failed is lost, and
// told of: it may be delivered again.
func (s *Set) Close() error {
	if s.closed.Swap(true) {
		return queue.ErrClosed
	}
	close(s.closing)
	s.wg.Wait()
	var errs []error
	for _, p := range s.parts {
		errs = append(errs, p.close())
	}
	return errors.Join(errs...)
}

// Stash implements storage.Stasher.
func (s *Set) Stash(m storage.Addition) (queue.Entry, error) {
	var room [maxNumber + 2]*part
	for _, p := range s.choose(room[:0], m.ID.Number(), false) {
		en := p.present().en
		area, ok := en.(storage.Stasher)
		if !ok {
			continue
		}
		e, serr := area.Stash(m)
		if serr != nil {
			return e, serr
		}
		e = p.ours(e)
		s.mu.Lock()
		s.stashed[e.Ref] = stash{m.ID, en}
		s.mu.Unlock()
		return e, nil
	}
	return queue.Entry{}, fmt.Errorf("%w: no volatile area", queue.ErrUnstored)
}

// forget drops what is noted of the volatile area of an engine that has been closed: nobody need give it up any more.
func (s *Set) forget(en storage.Engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.stashed, func(_ queue.Ref, st stash) bool { return st.en == en })
}

// Drop implements storage.Stasher. An engine that has been closed since has given up all of its area.
func (s *Set) Drop(ref queue.Ref, settled bool) {
	s.mu.Lock()
	st, ok := s.stashed[ref]
	delete(s.stashed, ref)
	s.mu.Unlock()
	if !ok {
		return
	}
	for _, p := range s.parts {
		if now := p.present(); now.up && now.en == st.en {
			ref.Spool = 0
			st.en.(storage.Stasher).Drop(ref, settled)
		}
	}
}
