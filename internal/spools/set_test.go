package spools_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"context"
	"posthaste/internal/metrics"
	"posthaste/internal/queuelog"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/spools"
	"posthaste/internal/storage"
	"posthaste/internal/storage/storagetest"
	"posthaste/internal/vfs"
)

// A log is the engine on one directory, with what cleanup adds to it.
type log struct{ queuelog.Engine }

func (l log) Recovery() storage.Recovery {
	r := l.Engine.Recovery()
	return storage.Recovery{InDoubt: r.InDoubt, MoreInDoubt: r.MoreInDoubt, Exact: r.Exact, Unanswered: r.Unanswered, Withdrawn: r.Withdrawn,
		Report: r.Report, Unclean: !r.Clean && r.Segments > 0}
}
func (log) Maintain(ctx context.Context) { <-ctx.Done() }
func (log) Offer(*metrics.Offer)         {}

// openLog opens a small spool.
func openLog(o spool.Options) (storage.Engine, error) {
	o.SegmentSize, o.ExactDoubt = 1<<20, true
	sp, err := spool.Open(o)
	if err != nil {
		return nil, err
	}
	return log{queuelog.Engine{Spool: sp}}, nil
}

// logs are the parts of a set of n spools below dir, of which the first takes no new mail if others is set.
func logs(fsys vfs.FS, dir string, n int, others bool) (list []spools.Part) {
	for i := range n {
		o := spool.Options{FS: fsys, Dir: filepath.Join(dir, fmt.Sprint("d", i))}
		list = append(list, spools.Part{Number: uint8(i), Dir: o.Dir, Takes: i > 0 || !others, Open: func() (storage.Engine, error) { return openLog(o) }})
	}
	return list
}

// readers reads what logs has.
func readers(fsys vfs.FS, dir string, n int) storage.Reader {
	parts := map[uint8]storage.Reader{}
	for i := range n {
		parts[uint8(i)] = queueread.Log(spool.NewReader(fsys, filepath.Join(dir, fmt.Sprint("d", i))))
	}
	return spools.NewReader(parts)
}

// A set keeps what every engine promises, with one spool and with several.
func TestSetEngine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n      int
		others bool
	}{{1, false}, {2, false}, {3, true}} {
		t.Run(fmt.Sprint(c.n, c.others), func(t *testing.T) {
			t.Parallel()
			storagetest.Run(t, func(t *testing.T) *storagetest.Queue {
				disk, dir := vfs.NewMem(512), "q"
				return &storagetest.Queue{
					Several: true,
					Open: func() storage.Engine {
						t.Helper()
						s, err := spools.Open(spools.Options{Parts: logs(disk, dir, c.n, c.others), Warn: t.Logf})
						if err != nil {
							t.Fatal(err)
						}
						return s
					},
					Reader: func() storage.Reader { return readers(disk, dir, c.n) },
				}
			})
		})
	}
}
