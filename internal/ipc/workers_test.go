package ipc

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// Every function runs once, side by side with the others, and Wait waits for
// all of them and for the goroutines.
func TestWorkers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which fails when a goroutine is left
		var w Workers
		var ran atomic.Int64
		for range 5 {
			gate := make(chan struct{})
			const many = 3 * maxIdleWorkers
			for range many {
				w.Go(func() {
					<-gate // none ends before all have begun
					ran.Add(1)
					w.Go(func() { ran.Add(1) })
				})
			}
			synctest.Wait()
			close(gate)
			synctest.Wait()
			if n := len(w.idle); n != maxIdleWorkers {
				t.Errorf("%d are kept idle, want %d", n, maxIdleWorkers)
			}
		}
		w.Wait()
		if got, want := ran.Load(), int64(5*2*3*maxIdleWorkers); got != want {
			t.Errorf("%d functions ran, want %d", got, want)
		}
		w.Go(func() { ran.Add(1) }) // they can be used again
		w.Wait()
	})
}

// deep needs a stack of some size, as a delivery does.
//
//go:noinline
func deep(n int) int {
	var b [512]byte
	if n == 0 {
		return len(b)
	}
	b[n] = byte(deep(n - 1))
	return int(b[n])
}

func BenchmarkWorkers(b *testing.B) {
	for name, start := range map[string]func(*sync.WaitGroup, *Workers, func()){
		"kept": func(_ *sync.WaitGroup, w *Workers, f func()) { w.Go(f) },
		"new":  func(wg *sync.WaitGroup, _ *Workers, f func()) { wg.Go(f) },
	} {
		b.Run(name, func(b *testing.B) {
			var wg sync.WaitGroup
			var w Workers
			done := make(chan struct{})
			f := func() { deep(30); done <- struct{}{} }
			for b.Loop() {
				start(&wg, &w, f)
				<-done
			}
			w.Wait()
			wg.Wait()
		})
	}
}
