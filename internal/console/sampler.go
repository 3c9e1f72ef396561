package console

import (
	"context"
	"fmt"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/history"
	"posthaste/internal/ipc"
	"posthaste/internal/statedir"
)

const (
	// sampleTime bounds how long the queue manager may take to count.
	sampleTime = 2 * time.Minute
	// sampleShare is the share of the time that taking samples may take: one of so many parts.
	sampleShare = 100
)

// openHistory opens the history for writing, within the bounds that main.cf has for it.
func openHistory(dir *statedir.Dir, cfg *config.Config, warn func(string, ...any)) (*history.Writer, error) {
	store, err := history.OpenWriter(dir, history.Limits{Octets: cfg.Bytes("queue_history_limit"), Age: cfg.Duration("queue_history_time")})
	if err != nil {
		return nil, fmt.Errorf("queue_history_directory: %w", err)
	}
	store.Warn = warn
	return store, nil
}

// A sampler takes the samples that package history keeps. It belongs to one goroutine.
type sampler struct {
	manager *ipc.Client
	store   interface{ Append(*history.Sample) error }
	warn    func(format string, args ...any)
	failed  string    // what was said last, of a failure that goes on
	next    time.Time // no sample before
}

// take takes a sample, unless the last ones took so long that it would be too early: then it is
// nil, as it is when none could be taken. One that cannot be kept is returned.
func (s *sampler) take(ctx context.Context, clock func() time.Time) *history.Sample {
	begin := clock()
	if begin.Before(s.next) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sampleTime)
	defer cancel()
	sample, err := s.ask(ctx, begin)
	if err == nil {
		err = s.store.Append(sample)
	}
	s.next = begin.Add(sampleShare * clock().Sub(begin))
	switch {
	case err == nil:
		s.failed = ""
	case err.Error() != s.failed:
		s.failed = err.Error()
		s.warn("the history of the queue lacks a sample: %v", err)
	}
	return sample
}

func (s *sampler) ask(ctx context.Context, now time.Time) (*history.Sample, error) {
	conn, err := s.manager.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return history.Take(ctx, conn, now)
}
