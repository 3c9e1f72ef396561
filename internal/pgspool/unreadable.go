package pgspool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
)

// unreadableTable has the shards of which the database does not give all, for who asks how the cluster stands. A row counts as long as the
// shard has that epoch.
const unreadableTable = `CREATE TABLE IF NOT EXISTS unreadable (shard integer PRIMARY KEY, epoch bigint NOT NULL, since timestamptz NOT NULL, why text NOT NULL)`

const (
	// maxGap is how many rows in a row are left out that the database does not give. With more it is not a block of a table that is
	// damaged, but all of it, or the server: that is for a person to mend, and the shard waits.
	maxGap = 2000
	// maxScans is how often rows of a segment are looked for without its index, before it is taken for damaged itself.
	maxScans = 20
	// maxAgain is how long is waited at most before a shard is read on that the database does not give, and sayAgain how often the log
	// says that it does not.
	maxAgain = time.Minute
	sayAgain = time.Hour
)

// isDamage says that the database does not give a row, and may give those beside it.
func isDamage(err error) bool {
	state := sqlState(err)
	return state == dataCorrupted || state == indexCorrupted || state == ioError
}

// isOfShard says that something is wrong with the tables of a shard, and not with the database as a whole.
func isOfShard(err error) bool {
	state := sqlState(err)
	return strings.HasPrefix(state, classInternal) || strings.HasPrefix(state, classSystem) || errors.Is(err, errHidden)
}

// A gap is a run of positions whose rows the database does not give, from the highest down.
type gap struct {
	first, last int64
	n           int
	why         error
	// all and of are what they have put in doubt that was not before; see unsure.
	all bool
	of  []uint64
}

// readAround reads the rest of the segment, but for the rows that the database does not give. After an error it is where it was, or further
// down.
func (r *reading) readAround(ctx context.Context, conn *pgx.Conn, s *segment) error {
	var g gap
	if err := r.readRange(ctx, conn, s, 0, r.below, &g); err != nil {
		if g.n > 0 { // nobody has been told of it
			r.below = g.first + 1
			r.unsure.restore(&g)
		}
		return err
	}
	r.leaveOut(s, &g)
	return nil
}

// readRange is readAround for some positions. The database says of no row that it is the damaged one, and does not count those of a block
// that is lost: so ever smaller ranges are asked for.
func (r *reading) readRange(ctx context.Context, conn *pgx.Conn, s *segment, from, below int64, g *gap) error {
	n, err := r.readRows(ctx, conn, s, "pos >= $1 AND pos < $2 ORDER BY pos DESC", from, below)
	if n > 0 {
		r.leaveOut(s, g)
	}
	switch {
	case err == nil:
		r.below = from
		return nil
	case !isDamage(err):
		return err
	}
	if below = min(below, r.below); below == from {
		return nil // all rows came before the error
	}
	if below-from == 1 {
		if done, err := r.rescue(ctx, conn, s, from, g); done || err != nil {
			return err
		}
		if g.n++; g.n == 1 {
			g.first = from
		}
		g.last, g.why, r.below = from, err, from
		if g.n > maxGap {
			return err
		}
		return nil
	}
	middle := from + (below-from)/2
	if err := r.readRange(ctx, conn, s, middle, below, g); err != nil {
		return err
	}
	return r.readRange(ctx, conn, s, from, middle, g)
}

// rescue reads a row without the index before it is given up, and says whether it has. If it has not, it notes what is known of the row.
func (r *reading) rescue(ctx context.Context, conn *pgx.Conn, s *segment, pos int64, g *gap) (done bool, err error) {
	if r.scans < maxScans {
		n := 0
		err := scan(ctx, conn, func() (err error) {
			n, err = r.readRows(ctx, conn, s, "pos = $1", pos)
			return err
		})
		switch {
		case err != nil && !isDamage(err):
			return false, err
		case err == nil || n > 0: // the damage may be behind the row
			if n > 0 {
				r.leaveOut(s, g)
			}
			r.below = pos
			return true, nil
		}
		r.scans++
	}
	return false, r.lostRow(ctx, conn, s, pos, g)
}

// leaveOut tells of rows that are left out, and begins another gap. Their table is kept.
func (r *reading) leaveOut(s *segment, g *gap) {
	if g.n == 0 {
		return
	}
	r.damaged("%s, positions %d to %d: %d records cannot be read, and are left out: %v. The table is kept; what they may have said is in doubt", segmentTable(r.t.id, s.segno), g.last, g.first, g.n, clean(g.why))
	*g, r.lost = gap{}, true
	r.keep(s.segno, s.segno)
}

// waits has a shard wait that the database does not give to its end because of err: it is tried again, ever more seldom.
func (e *engine) waits(r *reading, err error) {
	r.tries++
	r.due = time.Now().Add(min(readAgain<<min(r.tries-1, 10), maxAgain))
	// Until now agents have spoken of what is left in vain, if it was this node's.
	r.t.resumed = false
	e.store.unremember(r.t)
	e.mu.Lock()
	e.own(r)
	r.t.shard.bad = true
	e.mu.Unlock()
	table := "its tables"
	if len(r.segs) > 0 {
		table = "table " + segmentTable(r.t.id, r.segs[len(r.segs)-1])
	}
	why := fmt.Sprintf("%s: %v", table, clean(err))
	if why != r.why || time.Since(r.said) >= sayAgain {
		r.why, r.said = why, time.Now()
		e.opt.Warn("spool: part %d of the queue cannot be read to its end, and the rest of its mail waits: %s. A standby may have a whole copy; else restore the table, or drop it with the mail in it. It is tried again each minute", r.t.id, why)
	}
	// The log has it if this is not written.
	_ = e.noteOf(r.t, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `INSERT INTO unreadable VALUES ($1, $2, clock_timestamp(), $3) ON CONFLICT (shard) DO UPDATE SET why = excluded.why, epoch = excluded.epoch,
			since = CASE WHEN unreadable.epoch = excluded.epoch THEN unreadable.since ELSE excluded.since END`, int(r.t.id), r.t.epoch, plainText(why))
		return err
	})
}

// noteOf has f write something about a shard, if that is still this node's: the next owner has notes of its own.
func (e *engine) noteOf(t *taken, f func(context.Context, *pgx.Conn) error) error {
	return e.store.ask(func(ctx context.Context, conn *pgx.Conn) error {
		return e.transact(ctx, conn, []*shard{&t.shard}, func() error { return f(ctx, conn) })
	})
}

// readAll notes that a shard has been read to its end which the database did not give before.
func (e *engine) readAll(r *reading) {
	e.mu.Lock()
	bad := r.t.shard.bad
	r.t.shard.bad = false
	e.mu.Unlock()
	if !bad {
		return
	}
	e.opt.Warn("spool: part %d of the queue has been read to its end", r.t.id)
	_ = e.noteOf(r.t, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DELETE FROM unreadable WHERE shard = $1", int(r.t.id))
		return err
	})
}

// remind says that what other nodes have left cannot be read, when that was not said for a while: the same fault of the database concerns
// all shards, and more than one goroutine may read.
func (e *engine) remind(err error) {
	e.mu.Lock()
	say := time.Since(e.readSaid) >= remindTime
	if say {
		e.readSaid = time.Now()
	}
	e.mu.Unlock()
	if say && !errors.Is(err, queue.ErrClosed) {
		e.opt.Warn("spool: the rest of what other nodes have left cannot be read: %v", err)
	}
}
