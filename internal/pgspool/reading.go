package pgspool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
	"posthaste/internal/storage"
)

// A shard is read backwards: the newest segment first, and each from its end. So the first record with a message's state is
// the one that holds, and all that was recorded of the message since has been read by then: what is doubtful of it as well. It can be
// delivered while older records are read, whatever there is of them. No content is read.
//
// pageRows is how many rows are read before their messages are given out.
const pageRows = 4000

// pageRows is that, but in a test.
func (s *Store) pageRows() int { return cmp.Or(s.page, pageRows) }

// A reading is a shard of which there is something still to be read. It belongs to who reads, but for left.
type reading struct {
	replay // idx has what was found and has not been given out
	e      *engine
	t      *taken
	began  time.Time

	tries int       // how often it could not be read on, one after the other
	due   time.Time // when it is tried again
	why   string    // what the log was last told of why it cannot be read on
	said  time.Time // when; zero: never

	begun  bool
	beside bool     // the queue is open already
	segs   []uint32 // still to be read, the newest last
	below  int64    // of the last of them the rows with positions below this
	page   int      // rows that have been read and not given out

	// ended are messages that have left, by a record that has been read, while there may be older records: with the oldest segment
	// that may have one. Each is forgotten when that has been read.
	ended map[uint64]uint32
	// left are those that were given out and have left since. Guarded by engine.mu.
	left map[uint64]uint32
	// later is what was recorded of messages after their last state, which has not been read yet; the newest first.
	later map[uint64][]change
	// long are messages with long content whose state does not say where that is.
	long []uint64

	rows, segments, messages int           // that have been read
	lost                     bool          // some rows could not be read, or are damaged: what was in hand may be among them
	unsure                   unsure        // what may be delivered twice because of that
	scans                    int           // of the segment that is being read, those without its index that have failed
	compared, short          bool          // of that: its index has been compared with the table, and has all rows; it lacks some
	untold                   bool          // cleanup may not have heard of what an earlier reading has found to be in doubt
	owed                     []queue.Doubt // not noted yet, by a planted fault
	told                     int           // messages that cleanup has been told of, 1 at least; 0: it has been told of none
}

// A change is a DONE or HANDED record.
type change struct {
	kind       uint8
	segno, pos uint32
	head       []byte
}

func (e *engine) newReading(t *taken) *reading {
	return &reading{replay: replay{warn: e.opt.Warn, idx: newIndex()}, e: e, t: t, ended: map[uint64]uint32{}, left: map[uint64]uint32{}, later: map[uint64][]change{}}
}

// forget remembers that a message has left, if there may be records of it that are still to be read. The caller holds mu.
func (sh *shard) forget(s *staged) {
	if sh.reading != nil {
		sh.reading.left[s.number] = s.first
	}
}

// lastPosition is above all positions in a segment.
const lastPosition = 1 << 32

// begin finds out which segments there are.
func (r *reading) begin(ctx context.Context, conn *pgx.Conn) error {
	r.began = time.Now()
	var list []int64
	err := scan(ctx, conn, func() (err error) {
		rows, _ := conn.Query(ctx, "SELECT segno FROM segment WHERE shard = $1 ORDER BY segno", int(r.t.id)) // its error is that of reading the rows
		list, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	if err != nil {
		return err
	}
	r.t.nextSeg = 1
	for _, n := range list {
		s := &segment{segno: uint32(n)}
		r.segs = append(r.segs, s.segno)
		r.t.segs[s.segno], r.t.nextSeg = s, s.segno+1
	}
	r.segments, r.below, r.begun, r.untold = len(list), lastPosition, true, r.e.store.isUntold(r.t.id)
	return nil
}

// next reads the next part of the shard, and notes what is doubtful of it. After an error the same can be tried again, over another
// connection.
func (r *reading) next(ctx context.Context, conn *pgx.Conn) (*adoption, error) {
	for most := r.e.store.pageRows(); r.page < most && len(r.segs) > 0; {
		if err := r.readPage(ctx, conn, most-r.page); err != nil {
			return nil, err
		}
	}
	if err := r.findLong(ctx, conn); err != nil {
		return nil, err
	}
	a := &adoption{r: r, idx: r.idx, found: storage.Recovery{Exact: !r.lost}, last: len(r.segs) == 0}
	a.inDoubt()
	// Before anybody may deliver anything of it.
	doubt := a.doubt
	if r.e.store.plant.late && r.beside {
		r.owed = append(r.owed, doubt...)
		if doubt = nil; a.last {
			doubt = r.owed
		}
	}
	if err := r.noteUnsure(ctx, conn, doubt, a); err != nil {
		return nil, err
	}
	r.messages += a.idx.n
	r.idx, r.page = newIndex(), 0
	return a, nil
}

// readPage reads so many rows of the newest segment that is left.
func (r *reading) readPage(ctx context.Context, conn *pgx.Conn, most int) error {
	s := r.t.segs[r.segs[len(r.segs)-1]]
	n, err := r.readPart(ctx, conn, s, most)
	switch {
	case sqlState(err) == undefinedTable:
		if err := isDropped(ctx, conn, segmentTable(r.t.id, s.segno)); err != nil {
			return err
		}
		r.damaged("table %s is missing, and the mail in it", segmentTable(r.t.id, s.segno))
		r.lost, r.unsure.all = true, true
	case err != nil:
		return err
	case n == most:
		return nil
	}
	r.endSegment(s.segno)
	return nil
}

// readPart reads so many rows of a segment, and 0 when all that is left has been read: by its index, and without that when it is damaged; and if not all
// can be read so either, all but the rows that are damaged.
func (r *reading) readPart(ctx context.Context, conn *pgx.Conn, s *segment, most int) (n int, err error) {
	read := func() (err error) {
		n, err = r.readRows(ctx, conn, s, "pos < $1 ORDER BY pos DESC LIMIT $2", r.below, most)
		return err
	}
	var byIndex error
	if !s.unindexed {
		if byIndex = r.compare(ctx, conn, s); byIndex == nil {
			byIndex = read()
		}
		if !isOfIndex(byIndex) {
			return n, byIndex
		}
	}
	err = scan(ctx, conn, read)
	switch {
	case err == nil && !s.unindexed:
		return n, r.e.unindex(ctx, conn, r.t, s, byIndex)
	case isDamage(err) && !r.short: // what is around the damage is read by the index
		return 0, r.readAround(ctx, conn, s)
	}
	return n, err
}

// compare is compareIndex for the segment that is read: once, before anything of it is given out. A record that is found later would
// say too late that a message has been delivered.
func (r *reading) compare(ctx context.Context, conn *pgx.Conn, s *segment) error {
	if r.compared {
		return nil
	}
	err := compareIndex(ctx, conn, segmentTable(r.t.id, s.segno))
	r.compared, r.short = err == nil, errors.Is(err, errShort)
	return err
}

// readRows reads rows of a segment, which come by descending positions, and returns how many there were before an error.
func (r *reading) readRows(ctx context.Context, conn *pgx.Conn, s *segment, where string, args ...any) (n int, err error) {
	rows, _ := conn.Query(ctx, "SELECT kind, number, pos, head, coalesce(octet_length(rest), 0), coalesce(octet_length(body), 0) FROM "+
		segmentTable(r.t.id, s.segno)+" WHERE "+where, args...) // its error is that of reading the rows
	var w row
	var restLen, bodyLen int
	var octets int64
	_, err = pgx.ForEachRow(rows, []any{&w.kind, &w.number, &w.pos, &w.head, &restLen, &bodyLen}, func() error {
		n++
		r.below = w.pos
		if w.kind == rowPART {
			octets += int64(bodyLen)
			return nil
		}
		size := rowOverhead + len(w.head) + restLen + bodyLen
		octets += int64(size)
		r.record(s, &w, uint32(size))
		return nil
	})
	r.page, r.rows = r.page+n, r.rows+n
	r.e.mu.Lock()
	s.bytes += octets
	r.e.mu.Unlock()
	return n, err
}

// endSegment goes on to the next one. Of messages that have left, and have no records in older ones, nothing need be known any more.
func (r *reading) endSegment(segno uint32) {
	r.segs, r.below, r.scans, r.compared, r.short = r.segs[:len(r.segs)-1], lastPosition, 0, false, false
	over := func(_ uint64, first uint32) bool { return first >= segno }
	maps.DeleteFunc(r.ended, over)
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	maps.DeleteFunc(r.left, over)
}

// isKnown says whether a newer record has said all of a message.
func (r *reading) isKnown(number uint64) bool {
	if _, ended := r.ended[number]; ended || r.idx.find(number) != nil {
		return true
	}
	r.e.mu.RLock()
	defer r.e.mu.RUnlock()
	_, left := r.left[number]
	return left || r.e.idx.find(number) != nil
}

// record takes a record in.
func (r *reading) record(s *segment, w *row, n uint32) {
	r.records++
	head, err := openHead(w.head, w.kind, w.number)
	switch {
	case err != nil:
		// What is wrong may be the kind or the number: it says nothing of that message, nor that one has ended.
		r.unsure.all = true
	case r.isKnown(w.number):
		return
	case w.kind == rowGONE:
		r.ended[w.number] = firstOf(head)
		delete(r.later, w.number)
		return
	case w.kind == rowMSG || w.kind == rowSTATE:
		if err = r.state(&r.t.shard, s, w, head, n); err == nil {
			r.settle(w)
		}
	case w.kind == rowDONE || w.kind == rowHANDED:
		r.later[w.number] = append(r.later[w.number], change{w.kind, s.segno, uint32(w.pos), head})
	default:
		err = fmt.Errorf("%w: kind %d is not known", queue.ErrCorrupt, w.kind)
	}
	if err != nil {
		r.damagedRow(s.segno, uint32(w.pos), w.number, err)
	}
}

// damagedRow leaves a record out. Its table is kept, like that of one which the database does not give.
func (r *reading) damagedRow(segno, pos uint32, number uint64, err error) {
	r.damaged("%s, position %d: the record of message number %d is left out: %v. The table is kept", segmentTable(r.t.id, segno), pos, number, err)
	r.lost = true
	r.keep(segno, segno)
	r.unsure.lose(number)
}

// keep has segments not be cleaned, since something in them may be needed.
func (r *reading) keep(from, to uint32) {
	r.e.mu.Lock()
	defer r.e.mu.Unlock()
	for n, s := range r.t.segs {
		if from <= n && n <= to {
			s.lost = true
		}
	}
}

// settle makes of a message's state what was recorded since.
func (r *reading) settle(w *row) {
	l := r.idx.find(w.number)
	for _, c := range slices.Backward(r.later[w.number]) {
		if err := r.change(l, c.kind, c.head, c.segno); err != nil {
			r.damagedRow(c.segno, c.pos, w.number, err)
		}
	}
	delete(r.later, w.number)
	r.unsure.found(w.number)
	if l.flags&msgBig != 0 && w.kind == rowSTATE {
		r.long = append(r.long, w.number)
	}
}

// findLong looks into the MSG records of messages for where their long content is. When such a record cannot be read the content may be in any table that is not newer: those
// are kept.
func (r *reading) findLong(ctx context.Context, conn *pgx.Conn) error {
	at, known := map[uint32][]int64{}, map[uint64]bool{}
	for _, number := range r.long {
		l := r.idx.find(number)
		at[l.msgSeg] = append(at[l.msgSeg], int64(l.msgPos))
	}
	for _, seg := range slices.Sorted(maps.Keys(at)) {
		err := readRows(ctx, conn, rowAt{r.t.id, seg}, at[seg], func(w *row) {
			st, err := w.state(seg)
			if known[w.number] = known[w.number] || err == nil; err == nil && st.big.parts > 0 && r.idx.find(w.number) != nil {
				r.idx.big[w.number] = st.big
			}
		}, func(error) {}) // see below
		if err != nil {
			return err
		}
	}
	for _, number := range r.long {
		if l := r.idx.find(number); !known[number] {
			r.damaged("message %s: the record that says where its content is cannot be read. The tables that may have it are kept", l.id())
			r.keep(0, l.msgSeg)
		}
	}
	r.long = nil
	return nil
}
