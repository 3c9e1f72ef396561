package ipc

import "sync"

// maxIdleWorkers bounds how many idle goroutines Workers keep.
const maxIdleWorkers = 32

// Workers run what a Handler must not do itself because it takes time. They
// are used as a sync.WaitGroup is, and the zero value is ready. A goroutine
// that has done its work waits for more for a while: its stack has the size
// that such work needs, which a new one reaches only by being moved from one
// stack to the next, a tenth of what a short request costs.
type Workers struct {
	busy sync.WaitGroup // functions that have not returned
	all  sync.WaitGroup // goroutines
	mu   sync.Mutex
	idle []chan func() // the one that became idle last is last: its stack is warm
}

// Go runs f on a goroutine of its own.
func (w *Workers) Go(f func()) {
	w.busy.Add(1)
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		ch := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		ch <- f // which has room: whoever is idle has taken all that was in it
		return
	}
	w.mu.Unlock()
	w.all.Go(func() { w.work(f) })
}

func (w *Workers) work(f func()) {
	next := make(chan func(), 1)
	for ok := true; ok; f, ok = <-next {
		f()
		f = nil // what it refers to may be freed
		w.mu.Lock()
		stay := len(w.idle) < maxIdleWorkers
		if stay {
			w.idle = append(w.idle, next)
		}
		w.mu.Unlock()
		w.busy.Done()
		if !stay {
			return
		}
	}
}

// Wait returns when all functions have returned and the goroutines have ended.
// As with a sync.WaitGroup, Go must not be called meanwhile, except by a
// function that is running.
func (w *Workers) Wait() {
	w.busy.Wait()
	w.mu.Lock()
	for _, ch := range w.idle {
		close(ch)
	}
	w.idle = nil
	w.mu.Unlock()
	w.all.Wait()
}
