// The time before it is the process's turn, at a reload: its predecessor still has the queue.
//
// Nobody can bring mail between the moment at which the one gives the queue up and that at which
// the other has opened it. To open it is to read the log, which takes longer the more is queued. So
// the successor reads it before, while the predecessor still writes it, and has then only the last
// moments to read.

package cleanup

import (
	"context"
	"sync"
	"time"

	"posthaste/internal/service"
)

const (
	// followTime bounds how long the process reads the log before it says that it is ready to serve,
	// so that a long log does not hold up a reload: the other services wait for it. It goes on
	// reading after that until it is its turn.
	followTime = 8 * time.Second

	// followPause is how often it reads what has been written since. Any rate of mail writes no more
	// in that time than is read in a few milliseconds.
	followPause = 50 * time.Millisecond

	// followShare bounds the share of the time for which it reads to one part in so many, up to a
	// pause of followMost: to look takes some microseconds for each segment of the log, the
	// predecessor has work to do, and it may be long until it ends.
	followShare = 10
	followMost  = 500 * time.Millisecond
)

// A follower reads what the predecessor has written since it read last. It is called by one
// goroutine at a time, and returns early when ctx ends. What it cannot read is for the one who
// opens the queue to deal with.
type follower interface {
	Read(ctx context.Context)
}

// awaitTurn is Env.Await, and has f follow the predecessor until then. Without a predecessor
// nothing is followed, and it is false: whoever opens the queue reads it once, and not twice.
func awaitTurn(ctx context.Context, env *service.Env, f follower) (followed bool) {
	select {
	case <-env.Turn():
		return false
	default:
	}
	// It ends when it is the process's turn, also in the middle of a long log: the rest is read by
	// the one who opens the queue.
	following, stop := context.WithCancel(ctx)
	first := make(chan struct{}) // closed when all has been read once
	var reading sync.WaitGroup
	reading.Go(func() { follow(following, f, sync.OnceFunc(func() { close(first) })) })
	late := time.NewTimer(followTime)
	defer late.Stop()
	select {
	case <-first:
	case <-late.C:
	// The predecessor has died, or master does not wait any longer.
	case <-env.Turn():
	// It is to end before it has been its turn: there is another reload.
	case <-env.Leaving():
	case <-ctx.Done():
	}
	env.Await(ctx)
	stop()
	// The follower is the caller's from here on.
	reading.Wait()
	return true
}

// follow has f read again and again until ctx ends. done is called after each time.
func follow(ctx context.Context, f follower, done func()) {
	for {
		began := time.Now()
		f.Read(ctx)
		took := time.Since(began)
		done()
		pause := time.NewTimer(min(max(followPause, (followShare-1)*took), followMost))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
	}
}
