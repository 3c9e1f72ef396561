package pgspool

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/mail"
	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A shard is looked at from outside by reading its records as a takeover does, oldest segment first, but for what is kept
// of it: a window of message numbers, which is narrowed whenever there is too much in it. So the memory that it takes does not
// depend on the length of the queue; a long one is read once for each window. Nothing is locked for longer than one
// segment is read, so that the owner can drop segments. What is alive in one that is dropped meanwhile has moved to a later one, which is read later.
const (
	// viewWindow is how many messages a window has at most in the end, and twice that while it is read. A message takes
	// some 130 octets then, and as many as an entry.
	viewWindow = 50000
	// viewAge is how long a window is good for further pages, and maxViews is how many there may be.
	viewAge  = 30 * time.Second
	maxViews = 4
)

// A view is a window of a shard, as it was at a time.
type view struct {
	shard       int
	after, upto uint64 // it has the messages with numbers above after, and up to upto
	list        []storage.Viewed
	at          time.Time
}

// views keeps windows for the pages to come.
type views struct {
	reading sync.Mutex // held while a shard's records are read. One at a time: the database has other things to do
	mu      sync.Mutex
	list    []*view // oldest first
}

// Parts implements storage.Viewer.
func (r *reader) Parts() (list []storage.Part, err error) {
	err = r.store.ask(func(ctx context.Context, conn *pgx.Conn) error {
		rows, _ := conn.Query(ctx, `SELECT id, coalesce(node, ''), coalesce(node = $1, false), node IS NOT NULL AND until > clock_timestamp()
			FROM shard JOIN lease ON shard = id ORDER BY node, id`, r.store.node) // its error is that of reading the rows
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[storage.Part])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", queue.ErrUnread, clean(err))
	}
	return list, nil
}

// View implements storage.Viewer.
func (r *reader) View(ctx context.Context, part int, after, upto uint64, n int) (list []storage.Viewed, next uint64, err error) {
	s := r.store
	// The first page of a listing is read anew: what was done a moment ago is to be seen. So is a message that is asked
	// for by its number: who asks wants to read its record, which may have moved.
	v := (*view)(nil)
	if after > 0 && upto == 0 {
		v = s.views.find(part, after)
	}
	if v == nil {
		s.views.reading.Lock()
		v, err = s.readView(ctx, part, after, upto, viewWindow)
		s.views.reading.Unlock()
		if err != nil {
			return nil, 0, fmt.Errorf("%w: %w", queue.ErrUnread, clean(err))
		}
	}
	list, next = v.page(after, n)
	if next != 0 && next != v.upto && upto == 0 {
		s.views.keep(v)
	}
	if upto != 0 && next >= upto {
		next = 0
	}
	return list, next, nil
}

// page is n of the window's messages above after, and what to go on with.
func (v *view) page(after uint64, n int) (list []storage.Viewed, next uint64) {
	i := sort.Search(len(v.list), func(i int) bool { return number(v.list[i].ID) > after })
	list = v.list[i:min(i+max(n, 1), len(v.list))]
	if len(list) > 0 && &list[len(list)-1] != &v.list[len(v.list)-1] {
		return list, number(list[len(list)-1].ID)
	}
	if v.upto == lastNumber {
		return list, 0
	}
	return list, v.upto
}

// number is the number in an ID that was made of one.
func number(id mail.QueueID) uint64 {
	_, n, _ := id.Parse()
	return n
}

// lastNumber is above all message numbers.
const lastNumber = 1<<63 - 1

// find is the newest window that has the page behind after; nil: there is none.
func (vs *views) find(shard int, after uint64) *view {
	vs.sweep()
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for _, v := range slices.Backward(vs.list) {
		if v.shard == shard && v.after <= after && after < v.upto {
			return v
		}
	}
	return nil
}

// keep keeps v, instead of the oldest if there are too many.
func (vs *views) keep(v *view) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if slices.Contains(vs.list, v) {
		return
	}
	if len(vs.list) >= maxViews {
		copy(vs.list, vs.list[1:])
		vs.list = vs.list[:maxViews-1]
	}
	vs.list = append(vs.list, v)
}

// sweep forgets what is too old.
func (vs *views) sweep() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	n := 0
	for n < len(vs.list) && time.Since(vs.list[n].at) > viewAge {
		n++
	}
	clear(vs.list[copy(vs.list, vs.list[n:]):])
	vs.list = vs.list[:len(vs.list)-n]
}

// readView reads a window of a shard, of so many messages at most.
func (s *Store) readView(ctx context.Context, id int, after, upto uint64, window int) (*view, error) {
	w := &windowed{replay: replay{warn: func(string, ...any) {}, idx: newIndex()}, after: after, upto: lastNumber, window: window}
	if upto != 0 {
		w.upto = upto
	}
	v := &view{shard: id, after: after, at: time.Now()}
	sh := &shard{id: uint32(id)}
	for seg, more := int64(-1), true; more; {
		next := seg
		err := s.ask(func(limited context.Context, conn *pgx.Conn) (err error) {
			if next, more, err = nextSegment(limited, conn, id, seg); err != nil || !more {
				return err
			}
			// A connection that breaks has the segment read once more: that comes to the same.
			read := func() error { return w.segment(limited, conn, sh, &segment{segno: uint32(next)}) }
			if err = compareIndex(limited, conn, segmentTable(sh.id, uint32(next))); err == nil {
				err = read()
			}
			if isOfIndex(err) {
				err = scan(limited, conn, read)
			}
			if sqlState(err) == undefinedTable {
				return nil // it was dropped, and nothing that is alive was in it
			}
			return err
		})
		seg = next
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return nil, err
		}
	}
	v.upto = w.upto
	for from, more := uint64(0), true; more; {
		from, more = w.idx.page(from, func(l *live) {
			v.list = append(v.list, storage.Viewed{Entry: l.entry(w.idx.more[l.number]), InHand: len(w.idx.handed[l.number]) > 0})
		})
	}
	return v, nil
}

// nextSegment is the first segment of a shard behind seg.
func nextSegment(ctx context.Context, conn *pgx.Conn, shard int, seg int64) (next int64, more bool, err error) {
	var n *int64
	err = scan(ctx, conn, func() error {
		return conn.QueryRow(ctx, "SELECT min(segno) FROM segment WHERE shard = $1 AND segno > $2", shard, seg).Scan(&n)
	})
	if err != nil || n == nil {
		return seg, false, err
	}
	return *n, true, nil
}

// A windowed is a replay that keeps messages of a window only.
type windowed struct {
	replay
	after, upto uint64
	window      int
}

// segment reads the records of a segment that are about messages in the window.
func (w *windowed) segment(ctx context.Context, conn *pgx.Conn, sh *shard, s *segment) error {
	rows, _ := conn.Query(ctx, "SELECT pos, kind, number, head, coalesce(octet_length(rest), 0), coalesce(octet_length(body), 0) FROM "+segmentTable(sh.id, s.segno)+
		" WHERE kind <> $1 AND number > $2 AND number <= $3 ORDER BY pos", rowPART, int64(w.after), int64(w.upto)) // its error is that of reading the rows
	var r row
	var restLen, bodyLen int
	_, err := pgx.ForEachRow(rows, []any{&r.pos, &r.kind, &r.number, &r.head, &restLen, &bodyLen}, func() error {
		if r.number > w.upto {
			return nil // the window was wider when this was asked for
		}
		w.apply(sh, s, &r, uint32(rowOverhead+len(r.head)+restLen+bodyLen))
		if w.idx.n > 2*w.window {
			w.narrow()
		}
		return nil
	})
	return err
}

// narrow leaves the first messages in the window. All that was read of them was read, and will be.
func (w *windowed) narrow() {
	kept := 0
	var drop []uint64
	for from, more := uint64(0), true; more; {
		from, more = w.idx.page(from, func(l *live) {
			if kept++; kept == w.window {
				w.upto = l.number
			} else if kept > w.window {
				drop = append(drop, l.number)
			}
		})
	}
	for _, number := range drop {
		w.idx.remove(number)
	}
}
