package inject

import (
	"context"
	"slices"
	"sync"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/mail"
	"posthaste/internal/maillog"
	"posthaste/internal/proto"
)

const (
	// releaseRetry is how long the queue manager is left alone after it has not answered.
	releaseRetry = time.Second
	// releaseLimit bounds what waits for it; more is tried when its time comes.
	releaseLimit = 1 << 20
)

// A releaser has the queue manager try messages that wait for a request with a key to be answered.
// Methods may be called concurrently.
type releaser struct {
	manager *ipc.Client
	log     *maillog.Logger

	mu   sync.Mutex
	ids  []mail.QueueID
	wake chan struct{} // capacity 1
}

func newReleaser(manager *ipc.Client, log *maillog.Logger) *releaser {
	return &releaser{manager: manager, log: log, wake: make(chan struct{}, 1)}
}

// add has messages released.
func (r *releaser) add(ids []mail.QueueID) {
	r.mu.Lock()
	if len(r.ids) < releaseLimit {
		r.ids = append(r.ids, ids...)
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take is what waits.
func (r *releaser) take() []mail.QueueID {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := r.ids
	r.ids = nil
	return ids
}

// run releases messages until ctx ends, and then what there still is, if the queue manager answers at
// once. What is left is released by the next process.
func (r *releaser) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-r.wake:
		case <-ctx.Done():
		}
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		ids := r.take()
		left := r.send(last, ids)
		cancel()
		if len(left) == 0 {
			continue
		}
		r.add(left)
		select {
		case <-time.After(releaseRetry):
		case <-ctx.Done():
			return
		}
	}
}

// send releases messages, and returns those that it could not.
func (r *releaser) send(ctx context.Context, ids []mail.QueueID) []mail.QueueID {
	for part := range slices.Chunk(ids, proto.SelectIDs) {
		var reply proto.SelectReply
		if err := r.manager.CallAgain(ctx, &proto.Select{IDs: part, Verb: proto.VerbFlush}, &reply); err != nil {
			r.log.Warning("the queue manager does not answer, and messages wait to be released: %v", err)
			return ids
		}
		ids = ids[len(part):]
	}
	return nil
}
