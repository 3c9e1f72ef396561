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

// scrubbing has all queued mail read once in each period (spool_scrub_period). It is done
// here since who writes the spool knows what is alive, and where, and may record a
// damaged state again. It has a Reader of its own: what it reads is given up by the kernel
// first, so that the disk is read and not memory, and nobody else waits for that. The
// commit path knows nothing of it.
type scrubbing struct {
	period time.Duration
	log    *maillog.Logger
	fs     vfs.FS
	dir    string
	idle   func() // has the calling goroutine read when nobody else does

	mu      sync.Mutex
	present *spool.Scrubber  // nil: none runs
	past    spool.ScrubStats // of those that have ended
}

// run scrubs sp until ctx ends.
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
	s.present, s.past = nil, plus(s.past, c.Stats())
	s.mu.Unlock()
}

// found logs a finding.
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

// plus joins the numbers of two scrubbers, b being the later one.
func plus(a, b spool.ScrubStats) spool.ScrubStats {
	a.Passes, a.Bytes, a.Findings, a.Last = a.Passes+b.Passes, a.Bytes+b.Bytes, a.Findings+b.Findings, b.Last
	return a
}

// offer has the numbers published.
func (s *scrubbing) offer(o *metrics.Offer) {
	if s == nil {
		return
	}
	s.mu.Lock()
	st := s.past
	if s.present != nil {
		st = plus(st, s.present.Stats())
	}
	s.mu.Unlock()
	o.Total(metrics.ScrubPasses, float64(st.Passes))
	o.Total(metrics.ScrubBytes, float64(st.Bytes))
	o.Total(metrics.ScrubFindings, float64(st.Findings))
	if !st.Last.IsZero() {
		o.Gauge(metrics.ScrubLast, float64(st.Last.Unix()))
	}
}

// idleIO keeps the calling goroutine to a thread of its own, which ends with it, and has the kernel
// serve what that reads when nobody else wants the disk, where its scheduler knows of such a thing.
func idleIO() {
	const whoThread, idleClass, classShift = 1, 3, 13 // IOPRIO_WHO_PROCESS, IOPRIO_CLASS_IDLE
	runtime.LockOSThread()
	_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, whoThread, 0, idleClass<<classShift)
}
