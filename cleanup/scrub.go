// Scrubbing: reading all queued mail once in each period, so that a disk that loses data
// is noticed while there is time (spool_scrub_period).

package cleanup

import (
	"context"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"posthaste/internal/maillog"
	"posthaste/internal/metrics"
	"posthaste/internal/spool"
	"posthaste/internal/vfs"
)

// scrubbing reads the queue of one spool after the other. It is done in this process,
// because whoever writes the spool knows what is alive, and where, and may record a
// damaged state again. It has a reader of its own, which has the kernel drop its cached
// pages first, so that the disk is read and not memory. The commit path knows nothing of
// it.
type scrubbing struct {
	period time.Duration
	log    *maillog.Logger
	// The spool's file system and directory there.
	fs   vfs.FS
	dir  string
	idle func() // has the calling goroutine read when nobody else does

	// mu guards what follows, which stats reads while a scrubber runs.
	mu      sync.Mutex
	present *spool.Scrubber  // nil: none runs
	past    spool.ScrubStats // of those that have ended
}

// newScrubbing is one of that period; nil, without any, for 0.
func newScrubbing(period time.Duration, log *maillog.Logger, disk vfs.FS, dir string) *scrubbing {
	if period <= 0 {
		return nil
	}
	return &scrubbing{period: period, log: log, fs: disk, dir: dir, idle: idleIO}
}

// run scrubs sp until ctx ends. Its goroutine keeps the thread that idle has given it.
func (s *scrubbing) run(ctx context.Context, sp *spool.Spool) {
	s.idle()
	rd := spool.NewReader(s.fs, s.dir)
	defer rd.Close()
	c := spool.NewScrubber(sp, rd, s.period, s.found)
	s.mu.Lock()
	s.present = c
	s.mu.Unlock()
	c.Run(ctx)
	s.mu.Lock()
	// Totals must not fall when the next spool begins to be scrubbed.
	s.present, s.past = nil, plus(s.past, c.Stats())
	s.mu.Unlock()
}

// found logs a finding. The postmaster reads it: a warning each, as each is a message
// that somebody may miss.
func (s *scrubbing) found(f spool.ScrubFinding) {
	what := "damaged: it goes to the corrupt queue"
	switch {
	case f.Unread:
		what = "cannot be read; it stays where it is, and may be read later"
	case f.Mended:
		what = "its last state was damaged, and has been recorded again from memory"
	}
	s.log.Warning("%s: found by reading the queue (spool_scrub_period), at %s: %s: %v", f.ID, f.Where, what, f.Err)
}

// plus adds the numbers of two scrubbers. b is the later one, whose last pass counts.
func plus(a, b spool.ScrubStats) spool.ScrubStats {
	a.Passes, a.Bytes, a.Findings, a.Last = a.Passes+b.Passes, a.Bytes+b.Bytes, a.Findings+b.Findings, b.Last
	return a
}

// stats are the numbers of all scrubbers; nil: s is nil, and nothing is scrubbed.
func (s *scrubbing) stats() *spool.ScrubStats {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.past
	if s.present != nil {
		st = plus(st, s.present.Stats())
	}
	return &st
}

// offerScrub publishes the numbers; nil: there are none.
func offerScrub(o *metrics.Offer, st *spool.ScrubStats) {
	if st == nil {
		return
	}
	o.Total(metrics.ScrubPasses, float64(st.Passes))
	o.Total(metrics.ScrubBytes, float64(st.Bytes))
	o.Total(metrics.ScrubFindings, float64(st.Findings))
	if !st.Last.IsZero() {
		o.Gauge(metrics.ScrubLast, float64(st.Last.Unix()))
	}
}

// idleIO keeps the calling goroutine to a thread of its own, which ends with it, and has
// the kernel serve that thread's reads when nobody else wants the disk. Whether that has
// an effect depends on the disk's I/O scheduler; an error is ignored, because scrubbing
// works without.
func idleIO() {
	const whoThread, idleClass, classShift = 1, 3, 13 // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE
	runtime.LockOSThread()
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoThread, 0, idleClass<<classShift)
}
