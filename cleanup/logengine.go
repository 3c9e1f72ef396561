// The engine that keeps the queue in the log on the local disk, as package queuelog has it, with what a start
// has to tell, the scrubbing and the numbers for this service.

package cleanup

import (
	"context"
	"fmt"
	"time"

	"posthaste/internal/metrics"
	"posthaste/internal/queue"
	"posthaste/internal/queuelog"
	"posthaste/internal/spool"
)

// A logEngine is an engine; most of its methods are those of the Spool.
type logEngine struct {
	*spool.Spool
	scrub *scrubbing // nil: nothing is scrubbed
	// The log was followed while the predecessor had it. Whether that was of use is in the
	// recovery report.
	followed bool
}

// openLog opens the spool, which recovers it if need be. Errors are those of spool.Open.
func openLog(o spool.Options, scrub *scrubbing) (engine, error) {
	sp, err := spool.Open(o)
	if err != nil {
		return nil, err
	}
	return logEngine{sp, scrub, o.Follower != nil}, nil
}

func (e logEngine) NewBatch() batch { return queuelog.Engine{Spool: e.Spool}.NewBatch() }

func (e logEngine) Stash(m addition) (queue.Entry, error) {
	return queuelog.Engine{Spool: e.Spool}.Stash(m)
}

func (e logEngine) NewFile() (contentFile, error) { return queuelog.Engine{Spool: e.Spool}.NewFile() }

func (e logEngine) Commit(b batch) error { return queuelog.Engine{Spool: e.Spool}.Commit(b) }

func (e logEngine) Post(b batch, done func(error)) { queuelog.Engine{Spool: e.Spool}.Post(b, done) }

// Recovery words the summary that the log has of a start that was not clean, or had a
// predecessor.
func (e logEngine) Recovery() recovery {
	r := e.Spool.Recovery()
	rep := recovery{InDoubt: r.InDoubt, MoreInDoubt: r.MoreInDoubt, Exact: r.Exact, Unanswered: r.Unanswered, MoreUnanswered: r.MoreUnanswered,
		Withdrawn: r.Withdrawn, MoreWithdrawn: r.MoreWithdrawn, Report: r.Report, Unclean: !r.Clean && r.Segments > 0}
	// A first start, and one after an orderly stop, have nothing to tell.
	switch {
	case r.Followed:
		rep.Summary = fmt.Sprintf("took over the queue: %d records read while the predecessor had it, %d since in %s",
			r.Ahead, r.Records-r.Ahead, r.Elapsed.Round(time.Millisecond))
	// Nothing is wrong, but mail had to wait for it.
	case r.Clean && e.followed:
		rep.Summary = fmt.Sprintf("took over the queue: what was read while the predecessor had it was of no use; %d segments, %d records read in %s",
			r.Segments, r.Records, r.Elapsed.Round(time.Millisecond))
	case !r.Clean && r.Segments > 0:
		rep.Summary = fmt.Sprintf("recovered the queue: %d segments, %d records read in %s, %d of them in doubt and recorded again",
			r.Segments, r.Records, r.Elapsed.Round(time.Millisecond), r.Tail)
	}
	return rep
}

// Maintain reads all queued mail once in each spool_scrub_period. Cleaning of segments is
// the spool's own affair.
func (e logEngine) Maintain(ctx context.Context) {
	if e.scrub != nil {
		e.scrub.run(ctx, e.Spool)
	}
}

// Offer publishes the spool's numbers. "full" is 0 or 1, for alerts.
func (e logEngine) Offer(o *metrics.Offer) {
	st := e.Stats()
	o.Gauge(metrics.SpoolMessages, float64(st.Messages))
	o.Gauge(metrics.SpoolLiveBytes, float64(st.LiveBytes))
	o.Gauge(metrics.SpoolDiskBytes, float64(st.DiskBytes))
	o.Gauge(metrics.SpoolSegments, float64(st.Segments-st.Free), "used")
	o.Gauge(metrics.SpoolSegments, float64(st.Free), "free")
	full := 0.0
	if st.Full {
		full = 1
	}
	o.Gauge(metrics.SpoolFull, full)
	o.Total(metrics.SpoolBatches, float64(st.Batches))
	o.Total(metrics.SpoolCommits, float64(st.Commits))
	o.Total(metrics.SpoolWrittenBytes, float64(st.Written))
	o.Total(metrics.SpoolCopiedBytes, float64(st.Copied))
	offerScrub(o, e.scrub.stats())
}
