package queueclient

import (
	"posthaste/internal/cli"
	"posthaste/internal/queue"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
)

// Plan says in which spools the queue is, with spool_type = log. An error is in the configuration, or says that one of
// them is not there.
func (q *Queue) Plan() (*spools.Plan, error) {
	p, err := spools.Find(nil, q.Spool(), q.Config)
	if err == nil && p.Several() {
		err = p.Reach()
	}
	if err != nil {
		return nil, cli.Errorf(cli.ExitConfig, "%w", noPerm(err))
	}
	return p, nil
}

// Logs read the spools of a queue, what is damaged in them, too.
type Logs struct {
	own    *spool.Reader
	others map[uint8]*spool.Reader
}

// Logs makes readers of all spools. Errors are those of Plan.
func (q *Queue) Logs() (*Logs, error) {
	p, err := q.Plan()
	if err != nil {
		return nil, err
	}
	l := &Logs{own: spool.NewReader(nil, q.Spool()), others: map[uint8]*spool.Reader{}}
	for i := range p.Places[1:] {
		pl := &p.Places[1+i]
		l.others[pl.Number] = spool.NewReader(pl.FS, pl.Dir)
	}
	return l, nil
}

// Of is the reader of the spool that an entry is in. In one that is not named any more the message is not found.
func (l *Logs) Of(e *queue.Entry) *spool.Reader {
	if rd := l.others[e.Ref.Spool]; rd != nil {
		return rd
	}
	return l.own
}

// Close closes the readers.
func (l *Logs) Close() error {
	for _, rd := range l.others {
		rd.Close()
	}
	return l.own.Close()
}

// SpoolOptions are how the mail system that is down would open the spool in queue_directory, but for the file system of
// spool_content_directory.
func (q *Queue) SpoolOptions(warn func(string, ...any)) spool.Options {
	cfg := q.Config
	return spool.Options{
		Dir:         q.Spool(),
		ContentDir:  cfg.String("spool_content_directory"),
		SegmentSize: cfg.Bytes("spool_segment_size"),
		InlineLimit: cfg.Bytes("spool_inline_limit"),
		Budget:      cfg.Bytes("spool_size_limit"),
		Warn:        warn,
	}
}
