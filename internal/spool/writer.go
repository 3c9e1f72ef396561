package spool

import (
	"errors"
	"time"

	"posthaste/internal/reuse"
)

// write is the writer's goroutine: whatever waits goes out with the next
// batch, whose sync they all share.
func (s *Spool) write() {
	for s.serve(s.nextRequests()) {
	}
}

// serve does what is to be done for reqs, and a step of maintenance. It is false when there is
// nothing more to do: last says that the spool is closing.
func (s *Spool) serve(reqs []*request, last bool) bool {
	s.e.disk.ask()
	defer s.e.disk.rest()
	if len(reqs) > 0 {
		if !s.commit(reqs) {
			return false
		}
	}
	more, err := s.e.maintain()
	if err != nil {
		s.giveUp(nil)
		return false
	}
	if s.e.wantsChores() {
		signal(s.chores)
	}
	if more {
		signal(s.wake) // do not sleep, but look at the queue first
	}
	return !last || len(reqs) > 0
}

// nextRequests waits for something to do and returns what waits, in order. last says
// that the spool is closing.
func (s *Spool) nextRequests() (reqs []*request, last bool) {
	s.pause()
	s.linger()
	for {
		s.mu.Lock()
		delay := s.postDelay
		if !s.oldest.IsZero() {
			delay = time.Until(s.oldest.Add(s.postDelay))
		}
		if s.urgent > 0 || s.closing || len(s.queue) > 0 && delay <= 0 {
			reqs, s.queue = s.queue, s.emptyList()
			s.urgent, s.oldest = 0, time.Time{}
			last = s.closing
			s.mu.Unlock()
			return reqs, last
		}
		waiting := len(s.queue) > 0
		s.mu.Unlock()
		if !waiting {
			s.rest()
			s.mu.Lock()
			idle := len(s.queue) == 0 && !s.closing
			s.mu.Unlock()
			if idle {
				return nil, false // woken for maintenance
			}
			continue
		}
		t := time.NewTimer(delay)
		select {
		case <-s.wake:
		case <-t.C:
		}
		t.Stop()
	}
}

// idleDelay is after how much time without work the last batch is promised, at
// least, and at most twice that.
const idleDelay = 100 * time.Millisecond

// rest waits for work. When there is none for a while, one batch is written
// that promises the last one: one each time that there was work. The timer runs on while
// there is work: to set it for every batch would cost as much as a small message.
func (s *Spool) rest() {
	for s.e.unpromised() {
		if s.idle == nil {
			s.idle = time.NewTimer(idleDelay)
			s.idleBatch = s.e.batch
		}
		select {
		case <-s.wake:
			return
		case <-s.idle.C:
		}
		s.idle.Stop()
		s.idle = nil
		if s.e.batch != s.idleBatch {
			continue // there was work meanwhile
		}
		s.e.disk.ask()
		err := s.e.promise()
		s.e.disk.rest()
		if err != nil {
			signal(s.wake) // the writer finds out what is wrong
		}
		break
	}
	<-s.wake
}

// linger waits a little for more company when syncs are slow and the last
// batch had some: without it those who commit one after the other fall into
// two cohorts that alternate, and each message costs two syncs of time. A
// timer is too coarse for fast disks, and one who is alone never waits.
func (s *Spool) linger() {
	if s.company > 1 && s.syncs > 2*time.Millisecond {
		time.Sleep(s.syncs / 10)
	}
}

// commit writes reqs in as many batches as they need, and answers them. It
// is false when the log is broken.
func (s *Spool) commit(reqs []*request) bool {
	s.company = len(reqs)
	whole := reqs
	for len(reqs) > 0 {
		start := time.Now()
		n, err := s.e.commit(reqs)
		if errors.Is(err, ErrFull) {
			s.stall(reqs, err)
			return true
		}
		if err != nil {
			s.giveUp(reqs)
			return false
		}
		if !s.retry.IsZero() {
			s.retry = time.Time{}
			s.e.warn("spool: there is room again to record delivery results")
		}
		s.syncs += (time.Since(start) - s.syncs) / 8
		tidings := answers{reqs: reqs[:n]}
		if reqs = reqs[n:]; len(reqs) == 0 {
			tidings.list = whole
		}
		s.tell(tidings)
		if len(reqs) > 0 {
			if _, err := s.e.maintain(); err != nil {
				s.giveUp(reqs)
				return false
			}
		}
	}
	return true
}

// stall puts off what there is no room for, save new mail, which is refused. It
// does not come to that while what is won back from dead mail is enough
// (invariant 14).
func (s *Spool) stall(reqs []*request, err error) {
	if s.retry.IsZero() {
		s.e.warn("%v; delivery results cannot be recorded until the file system has room for a segment; trying again every %v", err, stallDelay)
	}
	s.retry = time.Now().Add(stallDelay)
	var wait, refused []*request
	s.mu.Lock()
	for _, r := range reqs {
		switch {
		case s.closing || r.b.adds > 0:
			refused = append(refused, r)
			continue
		case r.done == nil:
			s.urgent++
		case s.oldest.IsZero():
			s.oldest = time.Now()
		}
		wait = append(wait, r)
	}
	s.queue = append(wait, s.queue...)
	s.mu.Unlock()
	clear(reqs)
	for _, r := range refused {
		s.finish(r, err)
	}
}

// stallDelay is how often that is tried.
const stallDelay = time.Second

// pause waits until it is worth trying again, if there was no room, or the
// spool is closed.
func (s *Spool) pause() {
	if s.retry.IsZero() {
		return
	}
	t := time.NewTimer(time.Until(s.retry))
	defer t.Stop()
	for {
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return
		}
		select {
		case <-s.wake:
		case <-t.C:
			return
		}
	}
}

// answers are what is to be told to those whose batches the writer has written.
type answers struct {
	reqs []*request // with their err
	list []*request // the memory that they are in, when these are the last in it
}

// tell has reqs answered. To wake a hundred sessions takes longer than to encode their messages,
// and so another goroutine does it while the next batch is made. One that is alone is told at
// once, for that would only be a detour; but nobody is told before those who came earlier.
func (s *Spool) tell(a answers) {
	if len(a.reqs) == 1 && s.untold.Load() == 0 {
		s.answer(a)
		return
	}
	s.untold.Add(1)
	s.answers <- a
}

// answerLoop is the goroutine that does that, until the writer has ended.
func (s *Spool) answerLoop() {
	for a := range s.answers {
		s.answer(a)
		s.untold.Add(-1)
	}
}

func (s *Spool) answer(a answers) {
	for i, r := range a.reqs {
		a.reqs[i] = nil // before who made it has it back
		s.finish(r, r.err)
	}
	if a.list == nil {
		return
	}
	select {
	case s.lists <- reuse.Truncated(a.list):
	default:
	}
}

// emptyList is memory for requests.
func (s *Spool) emptyList() []*request {
	select {
	case l := <-s.lists:
		return l
	default:
		return nil
	}
}

func (s *Spool) finish(r *request, err error) {
	if r.done == nil {
		r.ch <- err
		return
	}
	r.b.settle(err)
	r.done(err)
}

// giveUp refuses those who wait, and all who come, once the log is broken.
func (s *Spool) giveUp(reqs []*request) {
	err := s.Err()
	s.mu.Lock()
	close(s.broken)
	rest := s.queue
	s.queue, s.urgent = nil, 0
	s.mu.Unlock()
	for _, r := range reqs {
		if r != nil {
			s.finish(r, err)
		}
	}
	for _, r := range rest {
		s.finish(r, err)
	}
	signal(s.chores)
}

// choreDelay is how often the housekeeper looks whether there is room again
// when there was none.
const choreDelay = time.Second

// housekeep is the goroutine for what is no part of the log.
func (s *Spool) housekeep() {
	for {
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		s.e.housekeep()
		if closing || s.Err() != nil {
			return
		}
		var again <-chan time.Time
		var t *time.Timer
		if s.e.wantsChores() {
			t = time.NewTimer(choreDelay)
			again = t.C
		}
		select {
		case <-s.chores:
		case <-again:
		}
		if t != nil {
			t.Stop()
		}
	}
}

// wantsChores says whether there is something for housekeep.
func (e *engine) wantsChores() bool {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.broken == nil && (len(e.gone) > 0 || len(e.drop) > 0 || len(e.odd) > 0 || e.diskLow || e.lacksAhead() && e.mayAdd() ||
		int64(len(e.free)+len(e.fresh)) < e.spares() && e.mayAdd())
}
