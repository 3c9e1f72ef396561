package spool

import "posthaste/internal/reuse"

// ahead reads segments in a goroutine of its own while what it has read is
// replayed. It alone reads, one segment after the other, so that a recovery
// asks the same of the disk in the same order every time.
type ahead struct {
	steps chan step
	spare chan *logBatch
	quit  chan struct{}
	done  chan struct{}
}

// step is a batch, or with b nil the end of a segment, whose scanner the
// goroutine is then through with.
type step struct {
	scan     int // which scanner
	b        *logBatch
	promised uint64 // the highest promise up to there
}

// aheadSteps bounds how many batches are read and not replayed yet: one
// is half a segment at most.
const aheadSteps = 16

// readAhead starts reading. The caller receives steps until they end, and
// calls stop in any case.
func readAhead(scans []scanner) *ahead {
	a := &ahead{steps: make(chan step, aheadSteps), spare: make(chan *logBatch, 2*aheadSteps),
		quit: make(chan struct{}), done: make(chan struct{})}
	go func() { // ends when all is read or with stop, which waits for it
		defer close(a.done)
		defer close(a.steps)
		var next prefetch
		defer next.wait()
		for i := range scans {
			sc := &scans[i]
			sc.spare, sc.w.next = a.get, &next
			sc.scan(func(b *logBatch) bool { return a.put(step{i, b, sc.promised}) })
			next.reset()
			sc.w.buf = nil
			if !a.put(step{scan: i, promised: sc.promised}) {
				return
			}
		}
	}()
	return a
}

func (a *ahead) put(s step) bool {
	select {
	case a.steps <- s:
		return true
	case <-a.quit:
		return false
	}
}

// get gives an empty batch to read into.
func (a *ahead) get() *logBatch {
	select {
	case b := <-a.spare:
		*b = logBatch{recs: reuse.Truncated(b.recs), buf: reuse.Truncated(b.buf)}
		return b
	default:
		return new(logBatch)
	}
}

// again takes a batch that is done with.
func (a *ahead) again(b *logBatch) {
	select {
	case a.spare <- b:
	default:
	}
}

// stop ends the reading.
func (a *ahead) stop() {
	close(a.quit)
	<-a.done
}
