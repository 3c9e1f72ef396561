package cleanup

import (
	"context"
	"fmt"
	"time"

	"posthaste/internal/metrics"
	"posthaste/internal/spool"
)

// A logEngine is the queue in the log on the local disk (package spool).
type logEngine struct {
	*spool.Spool
	scrub *scrubbing // nil: nothing is scrubbed
}

// openLog opens the spool.
func openLog(o spool.Options, scrub *scrubbing) (engine, error) {
	sp, err := spool.Open(o)
	if err != nil {
		return nil, err
	}
	return logEngine{sp, scrub}, nil
}

// A logBatch is a batch for the log.
type logBatch struct{ spool.Batch }

func (b *logBatch) Add(m addition) int {
	file, _ := m.File.(*spool.File) // nil: the content is in memory
	return b.Batch.Add(spool.Message{ID: m.ID, Envelope: m.Envelope, Recipients: m.Recipients, NRcpt: m.NRcpt, Queue: m.Queue,
		NextAttempt: m.NextAttempt, Content: m.Content, File: file})
}

func (e logEngine) NewBatch() batch { return new(logBatch) }

func (e logEngine) NewFile() (contentFile, error) {
	f, err := e.Spool.NewFile()
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (e logEngine) Commit(b batch) error { return e.Spool.Commit(&b.(*logBatch).Batch) }

func (e logEngine) Post(b batch, done func(error)) { e.Spool.Post(&b.(*logBatch).Batch, done) }

func (e logEngine) Recovery() recovery {
	r := e.Spool.Recovery()
	rep := recovery{InDoubt: r.InDoubt, MoreInDoubt: r.MoreInDoubt, Exact: r.Exact, Unanswered: r.Unanswered, MoreUnanswered: r.MoreUnanswered,
		Report: r.Report}
	if !r.Clean && r.Segments > 0 {
		rep.Summary = fmt.Sprintf("recovered the queue: %d segments, %d records read in %s, %d of them in doubt and recorded again",
			r.Segments, r.Records, r.Elapsed.Round(time.Millisecond), r.Tail)
	}
	return rep
}

// Maintain reads all queued mail once in each period (spool_scrub_period). The spool cleans its log itself.
func (e logEngine) Maintain(ctx context.Context) {
	if e.scrub != nil {
		e.scrub.run(ctx, e.Spool)
	}
}

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
	e.scrub.offer(o)
}
