// The queue in several logs, on a disk each (spool_directories): what package spools joins them of, with the
// start, the scrubbing and the numbers for this service.

//
// What this service relies on is the same as with one log: a batch is durable as a whole or not at all, and what is
// refused has no effect. What differs is that a log that breaks does not end the engine: the keeper, which opens a
// broken engine again, never sees one here. It is told that a log is back as it is told of mail that another node
// has left (storage.Options.Adopted): the start's findings are logged, and the queue manager hears the queue anew.

package cleanup

import (
	"context"
	"time"

	"posthaste/internal/metrics"
	"posthaste/internal/queueread"
	"posthaste/internal/service"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// useLogs has the queue kept in the logs of plan. What useLog says of the time before and after it is the
// process's turn holds for each of them.
func (st *store) useLogs(env *service.Env, plan *spools.Plan) error {
	// Large messages go to one directory, if there is one for them, whatever the number of logs.
	content, err := queueread.OpenContent(env.Config)
	if err != nil {
		return err
	}
	// The directories may lie outside of what the process sees later.
	if err := plan.Reach(); err != nil {
		return err
	}
	var parts []spools.Part
	// All are followed, so that the pause at a reload does not grow with the number of logs.
	var all followers
	for i, pl := range plan.Places {
		o := logOptions(env)
		if content != nil {
			o.ContentFS = content // it stays open as long as the process lives
		}
		o = pl.Options(o)
		// A scrubber for each: one disk that answers slowly does not keep the others from being read in time.
		scrub := newScrubbing(env.Config.Duration("spool_scrub_period"), env.Log, filesOf(st, pl), o.Dir)
		f := spool.NewFollower(o)
		all = append(all, f)
		parts = append(parts, spools.Part{Number: pl.Number, Dir: pl.Dir, Takes: pl.Takes, Large: i == 0 && content != nil, Open: func() (storage.Engine, error) {
			// It is of use once, as with one log: a log that has failed, and is opened again, has been written by this process.
			o := o
			o.Follower, all[i] = all[i], nil
			return openLog(o, scrub)
		}})
	}
	st.await = func(ctx context.Context) {
		if !awaitTurn(ctx, env, all) {
			clear(all)
		}
	}
	// As long as one of the logs cannot be opened, all mail is refused: to begin without it would be to lose sight of what
	// it has. Who cannot wait for it has it left out (spool_directories_absent), and starts anew.
	st.open = func(context.Context) (engine, error) {
		set, err := plan.Open(spools.Options{Parts: parts, Warn: env.Log.Warning, Offer: offerLogs,
			Adopted: func(en engine, r recovery) { st.adopted(en, r) }})
		if err != nil {
			return nil, err // and not a nil *spools.Set, which would be an engine
		}
		return set, nil
	}
	// The list of doubtful messages names recipients, which are read where each message lies.
	st.reader = func() queueread.Reader {
		own := spool.NewReader(env.Files(), spool.Subdir)
		if content != nil {
			own.UseContent(content, env.Config.String("spool_content_directory"))
		}
		return plan.Readers(queueread.Log(own), queueread.Log)
	}
	return nil
}

// filesOf is the file system of a place: a directory that was opened early, or for the log in queue_directory the one
// that the whole service goes by, which a test may have put in place of the operating system's.
func filesOf(st *store, pl spools.Place) vfs.FS {
	if pl.FS == nil {
		return st.files
	}
	return pl.FS
}

// followers read the logs of a predecessor, one after the other. Each is nil when it has been used.
type followers []*spool.Follower

// Read implements follower.
func (all followers) Read(ctx context.Context) {
	for _, f := range all {
		f.Read(ctx)
	}
}

// offerLogs publishes the numbers of all logs together, as of one, and of each directory whether it works.
func offerLogs(o *metrics.Offer, list []spools.Standing) {
	// The families without a label keep their meaning, so that alerts and pictures made for one log go on to be right.
	var sum spool.Stats
	var scrub *spool.ScrubStats
	// New mail is refused only when no log takes it.
	full := 1.0
	for _, s := range list {
		// One that has failed is closed, and still says what it has.
		up, en := 0.0, s.Engine.(logEngine)
		st := en.Stats()
		if r := en.scrub.stats(); scrub == nil {
			scrub = r
		} else if r != nil {
			// The whole queue was last read when the disk that is behind the others was.
			oldest := earlier(scrub.Last, r.Last)
			*scrub = plus(*scrub, *r)
			scrub.Last = oldest
		}
		if s.Err == nil {
			up = 1
		}
		if s.Takes && s.Err == nil && !st.Full {
			full = 0 // one is enough to take mail
		}
		o.Gauge(metrics.SpoolDirectoryUp, up, s.Dir)
		o.Gauge(metrics.SpoolDirectoryMessages, float64(st.Messages), s.Dir)
		o.Gauge(metrics.SpoolDirectoryDiskBytes, float64(st.DiskBytes), s.Dir)
		sum.Messages += st.Messages
		sum.LiveBytes += st.LiveBytes
		sum.DiskBytes += st.DiskBytes
		sum.Segments += st.Segments
		sum.Free += st.Free
		sum.Batches += st.Batches
		sum.Commits += st.Commits
		sum.Written += st.Written
		sum.Copied += st.Copied
	}
	o.Gauge(metrics.SpoolMessages, float64(sum.Messages))
	o.Gauge(metrics.SpoolLiveBytes, float64(sum.LiveBytes))
	o.Gauge(metrics.SpoolDiskBytes, float64(sum.DiskBytes))
	o.Gauge(metrics.SpoolSegments, float64(sum.Segments-sum.Free), "used")
	o.Gauge(metrics.SpoolSegments, float64(sum.Free), "free")
	o.Gauge(metrics.SpoolFull, full)
	o.Total(metrics.SpoolBatches, float64(sum.Batches))
	o.Total(metrics.SpoolCommits, float64(sum.Commits))
	o.Total(metrics.SpoolWrittenBytes, float64(sum.Written))
	o.Total(metrics.SpoolCopiedBytes, float64(sum.Copied))
	offerScrub(o, scrub)
}

// earlier is the time before the other. The zero time, of what has never been, is before all others.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
