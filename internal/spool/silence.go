package spool

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// silentTime is how long the disk may leave somebody without an answer, neither success
// nor failure, before new mail is refused: a busy one takes a second or two for a sync.
const silentTime = 10 * time.Second

// watchPeriod is how often that is looked after while somebody waits.
const watchPeriod = time.Second

// A diskWatch knows who waits for the disk, and since when. It may be used
// concurrently. The zero diskWatch is not ready for use: see newDiskWatch.
type diskWatch struct {
	born   time.Time     // times below are since then
	writer atomic.Int64  // when the writer asked, or was last answered, in ns; 0: it wants nothing
	silent atomic.Bool   // the disk has not answered for silentTime
	wanted chan struct{} // capacity 1: there is somebody to look after

	commits atomic.Int64 // callers of Commit with new mail who wait
	awake   atomic.Bool  // they are looked after

	longest time.Duration // watch's: of the present silence, 0 when there is none

	mu     sync.Mutex
	others []time.Time // when who writes content files asked; zero: a free place
}

func newDiskWatch() *diskWatch {
	return &diskWatch{born: time.Now(), wanted: make(chan struct{}, 1)}
}

// ask says that the writer wants something of the disk from now on.
func (d *diskWatch) ask() { d.writer.Store(max(1, int64(time.Since(d.born)))) }

// answered says that the disk has answered the writer, which may ask for more.
func (d *diskWatch) answered() {
	d.ask()
	if d.silent.Load() {
		d.silent.Store(false)
	}
}

// rest says that the writer wants nothing more.
func (d *diskWatch) rest() { d.writer.Store(0) }

// begin says that somebody else waits for the disk, until end is called with what it gives.
func (d *diskWatch) begin() (place int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	place = slices.IndexFunc(d.others, time.Time.IsZero)
	if place < 0 {
		place = len(d.others)
		d.others = append(d.others, time.Time{})
	}
	d.others[place] = time.Now()
	return place
}

func (d *diskWatch) end(place int) {
	d.mu.Lock()
	d.others[place] = time.Time{}
	d.mu.Unlock()
}

// arrive says that a caller of Commit with new mail waits, until leave. The error is
// that it is not to wait.
func (d *diskWatch) arrive() error {
	if err := d.refusal(); err != nil {
		return err
	}
	d.commits.Add(1)
	if !d.awake.Load() && d.awake.CompareAndSwap(false, true) {
		signal(d.wanted)
	}
	return nil
}

func (d *diskWatch) leave() { d.commits.Add(-1) }

// look finds out how long the disk has left somebody without an answer, and whether
// there is anybody to look after.
func (d *diskWatch) look() (silence time.Duration, goOn bool) {
	now := time.Now()
	if at := d.writer.Load(); at != 0 {
		silence = now.Sub(d.born) - time.Duration(at)
	}
	d.mu.Lock()
	for _, at := range d.others {
		if !at.IsZero() {
			silence = max(silence, now.Sub(at))
		}
	}
	d.mu.Unlock()
	d.silent.Store(silence >= silentTime)
	if silence < silentTime {
		d.awake.Store(false) // before commits is read: who comes after that sees it
	}
	if silence >= silentTime || d.commits.Load() > 0 {
		d.awake.Store(true)
		return silence, true
	}
	return silence, false
}

// refusal is the error for new mail while the disk is silent, or nil.
func (d *diskWatch) refusal() error {
	if !d.silent.Load() {
		return nil
	}
	return fmt.Errorf("%w: for %v and more", ErrSilent, silentTime)
}

// Silent is the reason to refuse new mail at once, ErrSilent, while the disk neither
// carries out what it was told to nor says that it cannot, and nil otherwise. It
// costs next to nothing.
func (s *Spool) Silent() error { return s.e.disk.refusal() }

// watch is the goroutine that refuses new mail while the disk is silent. It rests
// while nobody waits.
func (s *Spool) watch() {
	d := s.e.disk
	for {
		select {
		case <-d.wanted:
		case <-s.written:
			return
		}
		t := time.NewTicker(watchPeriod)
		for goOn := true; goOn; {
			select {
			case <-t.C:
			case <-s.written:
				t.Stop()
				return
			}
			var silence time.Duration
			silence, goOn = d.look()
			s.tellSilence(silence)
		}
		t.Stop()
	}
}

// tellSilence refuses the new mail that waits, when the disk is silent, and tells the
// operator of news.
func (s *Spool) tellSilence(silence time.Duration) {
	d := s.e.disk
	was := d.longest
	if silence < silentTime {
		if d.longest = 0; was > 0 {
			s.e.warn("spool: the disk answers again, after %v", was.Round(time.Second))
		}
		return
	}
	if d.longest = silence; was == 0 {
		s.e.warn("spool: the disk has not answered for %v: new mail is refused until it does", silence.Round(time.Second))
	}
	for _, r := range s.withdraw() {
		s.finish(r, d.refusal())
	}
}

// withdraw takes the new mail out of what waits for the writer. What that has taken
// already may be on the disk, and is left to it.
func (s *Spool) withdraw() (refused []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = slices.DeleteFunc(s.queue, func(r *request) bool {
		if r.b.adds == 0 || r.done != nil {
			return false
		}
		s.urgent--
		refused = append(refused, r)
		return true
	})
	return refused
}
