package pgspool

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// BenchmarkLifecycle queues messages of 10 KB durably, and removes each, with so many writers at a time, in
// a database that syncs. The cleaner runs beside. It is what the engine does for a message, without the services
// around it.
func BenchmarkLifecycle(b *testing.B) {
	s := newServer(b, "fsync=on", "shared_buffers=256MB", "max_wal_size=4GB")
	content := strings.Repeat("0123456789abcde\n", 640)
	for _, writers := range []int{1, 10, 20, 100} {
		b.Run(fmt.Sprint(writers), func(b *testing.B) {
			e := newDatabase(b, s, 1).store("a").mustOpen(b)
			defer e.Close()
			go e.Maintain(b.Context())
			todo := make(chan struct{}, writers)
			var working sync.WaitGroup
			for range writers {
				working.Go(func() {
					add := e.NewBatch()
					for range todo {
						m := message(b, e, content)
						add.Reset()
						add.Add(m)
						if err := e.Commit(add); err != nil {
							b.Error(err)
						}
						remove := e.NewBatch() // the engine has the last one
						remove.Finish(m.ID)
						e.Post(remove, func(err error) {
							if err != nil {
								b.Error(err)
							}
						})
					}
				})
			}
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				todo <- struct{}{}
			}
			close(todo)
			working.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkTakeover has another node take over a deep queue: from when the lease is over until all of it can be
// told to the queue manager. memory is what the index takes of each message, in octets.
func BenchmarkTakeover(b *testing.B) {
	for _, deep := range []int{100_000, 300_000, 1_000_000} {
		b.Run(fmt.Sprint(deep), func(b *testing.B) { takeOver(b, deep) })
	}
}

func takeOver(b *testing.B, deep int) {
	d := newDatabase(b, newServer(b, "shared_buffers=256MB", "max_wal_size=4GB"), 1)
	a := d.store("a").mustOpen(b)
	content := strings.Repeat("0123456789abcde\n", 64)
	for range deep / 1000 {
		add := a.NewBatch()
		for range 1000 {
			add.Add(message(b, a, content))
		}
		if err := a.Commit(add); err != nil {
			b.Fatal(err)
		}
	}
	a.stop()
	for i := 0; b.Loop(); i++ {
		d.expire()
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		e := d.store(fmt.Sprint("b", i)).mustOpen(b)
		n := 0
		for range e.Entries {
			n++
		}
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n != deep {
			b.Fatalf("%d messages", n)
		}
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(deep), "memory/message")
		e.stop()
		b.StartTimer()
	}
}
