package events

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"posthaste/internal/eventjournal"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
	"posthaste/internal/vfs"
)

// BenchmarkFile has events of twenty that each wait for the journal before the next one go to a file, and says what
// processor time each takes from the journal on.
func BenchmarkFile(b *testing.B) {
	dir := b.TempDir()
	j, err := eventjournal.Open(eventjournal.Options{FS: vfs.OS{}, Dir: dir, Limit: 1 << 30, Now: time.Now, Warn: b.Logf})
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(dir, "mail.json")
	s := sink(b, "file:"+path)
	c, err := newCourier(s, newFile(s, b.Logf), j, maillog.New("test", discard{}), &deadLetters{path: deadPath(dir, s.Name), limit: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var sending, telling sync.WaitGroup
	sending.Go(func() { c.run(ctx) })
	text := bytes.Repeat([]byte("x"), 600)
	var work = make(chan int)
	before := used(b)
	b.ResetTimer()
	for range 20 {
		telling.Go(func() {
			durable := make(chan struct{}, 1)
			for i := range work {
				list := []proto.EventRecord{{Kind: "delivered", Key: "4jWn4F1YhnzSshsm4", JSON: fmt.Appendf(nil, "%d %s", i, text)}}
				j.Append(list, func(uint64, error) { durable <- struct{}{} })
				<-durable
			}
		})
	}
	for i := range b.N {
		work <- i
	}
	close(work)
	telling.Wait()
	for c.status().Sent < uint64(b.N) {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64((used(b)-before).Nanoseconds())/float64(b.N), "cpu-ns/op")
	cancel()
	sending.Wait()
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
}

// used is the processor time of this process.
func used(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
