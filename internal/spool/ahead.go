package spool

import (
	"sync"

	"posthaste/internal/reuse"
)

// ahead reads segments while what it has read is replayed. One goroutine reads, one
// segment after the other, so that a recovery asks the same of the disk in the same order every
// time, and finds where records begin; another decodes what is in them, which takes
// about as long.
type ahead struct {
	steps chan step
	work  chan *logBatch // to be decoded
	spare chan *logBatch
	quit  chan struct{}
	done  sync.WaitGroup
}

// step is a batch, which is sound to use when decoded says so, or with b nil the end of a segment,
// whose scanner the goroutines are then through with.
type step struct {
	scan     int // which scanner
	b        *logBatch
	promised uint64 // the highest promise up to there
}

// aheadSteps bounds how many batches are read and not replayed yet: one
// is half a segment at most.
const aheadSteps = 4

// readAhead starts reading. The caller receives steps until they end, and
// calls stop in any case.
func readAhead(scans []scanner) *ahead {
	a := &ahead{steps: make(chan step, aheadSteps), work: make(chan *logBatch, aheadSteps),
		spare: make(chan *logBatch, 2*aheadSteps+4), quit: make(chan struct{})}
	a.done.Add(2) // both end when all is read or with stop, which waits for them
	go a.read(scans)
	go func() {
		defer a.done.Done()
		for b := range a.work {
			b.decode()
			b.decoded <- struct{}{} // there is always room
		}
	}()
	return a
}

func (a *ahead) read(scans []scanner) {
	defer a.done.Done()
	defer close(a.steps)
	defer close(a.work)
	var next prefetch
	defer next.wait()
	for i := range scans {
		sc := &scans[i]
		sc.spare, sc.w.next = a.get, &next
		sc.scan(func(b *logBatch) bool {
			select {
			case a.work <- b:
			case <-a.quit:
				return false
			}
			return a.put(step{i, b, sc.promised})
		})
		next.reset()
		sc.w.buf = nil
		if !a.put(step{scan: i, promised: sc.promised}) {
			return
		}
	}
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
		*b = logBatch{recs: reuse.Truncated(b.recs), buf: reuse.Truncated(b.buf), decoded: b.decoded}
		return b
	default:
		return &logBatch{decoded: make(chan struct{}, 1)}
	}
}

// maxAgain bounds what is kept of a batch for the next: those of a start that records many states again
// are long, and rare.
const maxAgain = 1 << 20 // bytes

// again takes a batch that is done with.
func (a *ahead) again(b *logBatch) {
	if cap(b.buf) > maxAgain {
		return
	}
	select {
	case a.spare <- b:
	default:
	}
}

// stop ends the reading.
func (a *ahead) stop() {
	close(a.quit)
	a.done.Wait()
}
