package pgspool

import (
	"fmt"
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
