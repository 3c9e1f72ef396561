package spools

import (
	"context"
	"fmt"

	"posthaste/internal/metrics"
	"posthaste/internal/queuelog"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
	"posthaste/internal/vfs"
)

// A logPart is a spool as an engine, for tools that change the queue while the mail system is down: nothing is maintained
// or measured then.
type logPart struct{ queuelog.Engine }

// OpenLog opens a spool as an engine. Errors are those of spool.Open.
func OpenLog(o spool.Options) (storage.Engine, error) {
	sp, err := spool.Open(o)
	if err != nil {
		return nil, err
	}
	return logPart{queuelog.Engine{Spool: sp}}, nil
}

// Recovery implements storage.Engine, without the summary for the log.
func (l logPart) Recovery() storage.Recovery {
	r := l.Engine.Recovery()
	return storage.Recovery{InDoubt: r.InDoubt, MoreInDoubt: r.MoreInDoubt, Exact: r.Exact, Unanswered: r.Unanswered, MoreUnanswered: r.MoreUnanswered,
		Withdrawn: r.Withdrawn, MoreWithdrawn: r.MoreWithdrawn, Report: r.Report, Unclean: !r.Clean && r.Segments > 0}
}

// Maintain implements storage.Engine.
func (logPart) Maintain(ctx context.Context) { <-ctx.Done() }

// Offer implements storage.Engine.
func (logPart) Offer(*metrics.Offer) {}

// Options are those of the spool in a place, like o, which are those of the one in queue_directory.
func (pl *Place) Options(o spool.Options) spool.Options {
	if pl.FS == nil {
		return o
	}
	// One directory for large content belongs to one spool.
	o.FS, o.Dir, o.ContentDir, o.ContentFS = pl.FS, pl.Dir, "", nil
	return o
}

// Engine opens the queue, which nobody else has open: the set, or the one spool that there is. o are the options of the one
// in queue_directory. The places have been reached. A move of mail that was interrupted is ended.
func (p *Plan) Engine(o spool.Options) (storage.Engine, error) {
	if !p.Several() {
		return OpenLog(o)
	}
	s, err := p.Set(o)
	if err != nil {
		return nil, err // and not a nil *Set
	}
	return s, nil
}

// Set is Engine for several spools.
func (p *Plan) Set(o spool.Options) (*Set, error) {
	var parts []Part
	for i := range p.Places {
		pl := &p.Places[i]
		po := pl.Options(o)
		parts = append(parts, Part{Number: pl.Number, Dir: pl.Dir, Takes: pl.Takes, Large: i == 0 && o.ContentDir != "",
			Open: func() (storage.Engine, error) { return OpenLog(po) }})
	}
	return p.Open(Options{Parts: parts, Warn: o.Warn})
}

// Open opens a set of the places, of which o has a part each, in their order, whose engines are spools. Fresh ones are
// entered into the record before they can get mail, and a move of mail that was interrupted is ended.
func (p *Plan) Open(o Options) (*Set, error) {
	o.Opened = p.opened
	set, err := Open(o)
	if err != nil {
		return nil, err
	}
	for _, n := range p.Moving() {
		// One that is absent may have some of it, too: the next start that has all looks again.
		if _, err = set.Twice(n); err == nil && len(p.Away()) == 0 {
			err = p.Settled(n)
		}
		if err != nil {
			set.Close() // the error is why
			return nil, err
		}
	}
	return set, nil
}

// opened enters what has been opened into the record.
func (p *Plan) opened(list []storage.Engine) error {
	var ids []spool.Identity
	var messages []int
	for i, en := range list {
		sp, ok := en.(interface {
			Identity() spool.Identity
			Stats() spool.Stats
		})
		if !ok {
			return fmt.Errorf("%s: it is no spool", p.Places[i].Dir)
		}
		ids, messages = append(ids, sp.Identity()), append(messages, sp.Stats().Messages)
	}
	return p.Enter(ids, messages)
}

// View calls f for each message of a mail system that is down, and writes nothing, until f returns false. own is the file system
// of the spool in queue_directory; nil: the operating system's, for that and for the others. Damage is told through warn.
func (p *Plan) View(own vfs.FS, warn func(string, ...any), f func(*Place, spool.Entry) bool) error {
	for i := range p.Places {
		pl := &p.Places[i]
		fsys, going := own, true
		if i > 0 {
			fsys = pl.FS
		}
		if pl.Fresh {
			continue
		}
		err := spool.View(fsys, pl.Dir, warn, func(e spool.Entry) bool {
			e.Ref.Spool = pl.Number
			going = f(pl, e)
			return going
		})
		if err != nil || !going {
			return err
		}
	}
	return nil
}
