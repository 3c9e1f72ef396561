package pgspool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"posthaste/internal/pack"
	"posthaste/internal/queue"
)

const (
	// cleanPeriod is how often the cleaner looks for work when it has none.
	cleanPeriod = time.Second
	// sparse is the part of a segment, one in so many, under which what is alive in it is written again.
	sparse = 4
	// slack is how many segments there may be beside twice what is alive, before fuller ones are emptied, too.
	slack = 8
	// copyStep bounds the messages, and copyOctets about the octets, that are copied in one transaction.
	copyStep   = 200
	copyOctets = 2 << 20
	// readGrace is how long a segment stays from which long content was copied: somebody may be reading it.
	readGrace = 2 * time.Minute
	// dropTime bounds how long DROP TABLE waits for those who read. It is tried again later.
	dropTime = 200 * time.Millisecond
	// cleanAgain is how long a segment is left alone that could not be cleaned, twice as long each time, up to maxCleanAgain.
	cleanAgain    = 10 * time.Second
	maxCleanAgain = time.Hour
)

// A copying is an order of the cleaner to the committer: write again what the victim has of these messages.
type copying struct {
	shard   *shard
	victim  uint32
	numbers []uint64
	// gone are ends of messages whose older records are still there.
	gone []tombstone
}

// A tombstone is a GONE record, as it was read.
type tombstone struct {
	number uint64
	first  uint32
}

// A move is content that is copied within the database, and how many rows it is.
type move struct {
	sql  string
	args []any
	rows int64
}

// Maintain implements storage.Engine: it is the cleaner. It ends with the engine, too.
func (e *engine) Maintain(ctx context.Context) {
	t := time.NewTimer(cleanPeriod)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		case <-e.broken:
			return
		}
		pause := cleanPeriod
		switch did, err := e.clean(ctx); {
		case err != nil && ctx.Err() == nil && e.Err() == nil:
			e.opt.Warn("spool: cleaning: %v", err)
			pause = 10 * cleanPeriod
		case did:
			pause = 0
		}
		t.Reset(pause)
	}
}

// clean does one step: it copies some of what is alive in a segment, or drops one that has nothing. It says
// whether there was anything to do. A segment whose table is at fault is left alone for a while, and the log told of it: it is not to keep the others.
func (e *engine) clean(ctx context.Context) (did bool, err error) {
	for _, sh := range e.owned() {
		for s := e.victim(sh); s != nil; s = e.victim(sh) {
			if numbers := e.livingIn(sh, s.segno); len(numbers) > 0 {
				err = e.order(&copying{shard: sh, victim: s.segno, numbers: numbers})
			} else {
				err = e.drop(ctx, sh, s)
			}
			// An engine that has ended says why, and that may be what was wrong with a table.
			if err != nil && (ctx.Err() != nil || e.Err() != nil || !isOfTable(err)) {
				return false, err
			}
			if again := e.putOff(s, err); again > 0 {
				e.opt.Warn("spool: cleaning: table %s is left as it is, and tried again in %v: %v", segmentTable(sh.id, s.segno), again, clean(err))
				continue
			}
			return true, nil
		}
	}
	return false, nil
}

// isOfTable says that err, of cleaning a segment, need not concern the next one.
func isOfTable(err error) bool {
	return isOfShard(err) || errors.Is(err, queue.ErrCorrupt) || errors.Is(err, errRefused) && !errors.Is(err, queue.ErrFull)
}

// putOff notes how the cleaning of a segment has ended, and returns for how long it is left alone; 0: it is not.
func (e *engine) putOff(s *segment, err error) (again time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		s.fails = 0
		return 0
	}
	s.fails++
	s.failed = int64(time.Since(e.born))
	return s.again()
}

// again is how long a segment is left alone after its last failure; 0: there was none.
func (s *segment) again() time.Duration {
	if s.fails == 0 {
		return 0
	}
	return min(cleanAgain<<min(s.fails-1, 10), maxCleanAgain)
}

// victim chooses the segment of a shard that is to be emptied next; nil: none is.
func (e *engine) victim(sh *shard) (v *segment) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if sh.reading != nil {
		return nil // what is alive in it is not known yet
	}
	var bytes, alive int64
	for _, s := range sh.segs {
		if s.lost || s.unindexed || s.fails > 0 && time.Since(e.born)-time.Duration(s.failed) < s.again() {
			continue // the others are not to be copied again and again since this one stays
		}
		bytes, alive = bytes+s.bytes, alive+s.live
		if s == sh.head || s.pins > 0 || s.live == 0 && !e.graceOver(s) {
			continue
		}
		if v == nil || s.live*v.bytes < v.live*s.bytes || s.live*v.bytes == v.live*s.bytes && s.segno < v.segno {
			v = s
		}
	}
	if v == nil || v.live > 0 && v.live > v.bytes/sparse && bytes <= 2*alive+slack*e.store.segmentSize {
		return nil
	}
	return v
}

// graceOver says that nobody can be reading content in s any more that has been copied from it.
func (e *engine) graceOver(s *segment) bool {
	return s.read == 0 || time.Since(e.born)-time.Duration(s.read) >= readGrace
}

// livingIn returns some messages of which something in the segment is needed: the newest MSG record, content, the
// newest state, or what was recorded since that.
func (e *engine) livingIn(sh *shard, segno uint32) (list []uint64) {
	size := 0
	for from, more := uint64(0), true; more && len(list) < copyStep && size < copyOctets; {
		from, more = e.some(from, func(l *live) {
			big := e.idx.bigOf(l.number)
			if l.shard == sh.id && needs(l, big, segno) && len(list) < copyStep && size < copyOctets {
				list = append(list, l.number)
				size += int(l.msgLen)
				if big != nil {
					size += int(big.size)
				}
			}
		})
	}
	return list
}

// needs says whether anything of a message is in the segment that must not be lost.
func needs(l *live, big *place, segno uint32) bool {
	return l.msgSeg == segno || big != nil && big.seg == segno || l.refSeg <= segno && segno <= l.last
}

// order has the committer carry c out.
func (e *engine) order(c *copying) error {
	r := &request{upkeep: c, ch: make(chan error, 1)}
	if err := e.enqueue(r, true); err != nil {
		return err
	}
	return <-r.ch
}

// upkeep stages c. While the database does not give a row of the victim that is to be written again nothing is: what it does not give at this
// moment, or by this index, is not to go with the table.
func (g *group) upkeep(ctx context.Context, c *copying) error {
	var numbers []uint64
	for _, n := range c.numbers {
		if s := g.currentNumber(n); s != nil && s.shard == c.shard && needs(&s.live, s.big, c.victim) && g.staged[n] == nil {
			numbers = append(numbers, n)
		}
	}
	var missing error
	lost := func(seg uint32, err error) {
		if seg == c.victim {
			missing = err
		}
	}
	rests := map[uint64][]byte{}
	if g.err = g.e.readRests(ctx, numbers, rests, lost); g.err != nil {
		return g.err
	}
	heads := map[uint64]*row{}
	at := map[rowAt][]int64{}
	for _, n := range numbers {
		l := g.e.idx.find(n)
		p := rowAt{l.shard, l.msgSeg}
		at[p] = append(at[p], int64(l.msgPos))
	}
	for p, pos := range at {
		whole := func(r *row) {
			st, err := r.state(p.seg)
			if err == nil {
				_, err = (&fullRow{row: *r}).verified(&st)
			}
			if err == nil {
				heads[r.number] = r
			}
		}
		if g.err = g.e.readRows(ctx, p, pos, whole, func(err error) { lost(p.seg, err) }); g.err != nil {
			return g.err
		}
	}
	for _, n := range numbers {
		l, big := g.e.idx.find(n), g.e.idx.bigOf(n)
		if rests[n] == nil && l.refSeg == c.victim || heads[n] == nil && (l.msgSeg == c.victim || big != nil && big.seg == c.victim) {
			missing = cmp.Or(missing, errNoRow)
		}
	}
	if missing != nil {
		g.err = fmt.Errorf("%w: %w: %w", errRefused, errTable, clean(missing))
		return g.err
	}
	for _, n := range numbers {
		if b, ok := rests[n]; ok {
			g.rests[n] = b
		}
		g.again(ctx, c, g.currentNumber(n), heads[n])
	}
	for _, t := range c.gone {
		s := &staged{live: live{number: t.number, shard: c.shard.id}, shard: c.shard}
		g.row(ctx, s, rowGONE, pack.Uint(nil, tagFirst, t.first), nil, nil)
	}
	return g.err
}

// currentNumber is current for a message of which the number alone is known.
func (g *group) currentNumber(number uint64) *staged {
	if l := g.e.idx.find(number); l != nil {
		return g.current(number, l.created)
	}
	return nil
}

// again writes a message's records again. When the victim has its content, or its MSG record, that is a new
// MSG record, and otherwise a new state.
func (g *group) again(ctx context.Context, c *copying, s *staged, msg *row) {
	g.staged[s.number] = s
	r := g.restOf(s)
	hasBig := s.big != nil && s.big.seg == c.victim
	if s.msgSeg != c.victim && !hasBig {
		g.putState(ctx, s, &r)
		return
	}
	old, _ := msg.state(s.msgSeg) // upkeep has verified it
	if !r.hasEnv {
		env, _ := decodeRest(msg.rest)
		r.envelope, r.recipients, r.hasEnv = env.envelope, env.recipients, env.hasEnv
	}
	s.rest = r.append([]byte{})
	st := state{live: s.live, done: doneBitmap(&s.live, s.more), handed: s.handed, bodySum: old.bodySum, bodyLen: old.bodyLen}
	w := g.to(ctx, s.shard)
	if w == nil {
		return
	}
	if hasBig {
		g.moveParts(s, w, c)
	}
	if s.big != nil {
		st.big = *s.big
		g.putMSG(ctx, s, &st, nil)
		return
	}
	g.moveMSG(s, w, &st)
}

// moveParts copies content with rows of its own.
func (g *group) moveParts(s *staged, w *writing, c *copying) {
	e := g.e
	from := *s.big
	to := from
	e.mu.Lock()
	to.seg, to.pos = w.seg.segno, w.seg.reserve(from.parts)
	if v := c.shard.segs[c.victim]; v != nil {
		v.read = max(1, int64(time.Since(e.born)))
	}
	e.mu.Unlock()
	s.big = &to
	g.moves = append(g.moves, move{fmt.Sprintf("INSERT INTO %s (pos, kind, number, head, body) SELECT pos - $1::bigint + $2::bigint, kind, number, head, body FROM %s WHERE pos >= $1 AND pos < $1 + $3::bigint AND kind = $4 AND number = $5",
		segmentTable(s.shard.id, to.seg), segmentTable(s.shard.id, from.seg)), []any{int64(from.pos), int64(to.pos), int64(from.parts), rowPART, int64(s.number)}, int64(from.parts)})
	w.bytes += from.size
	g.upkept += from.size
}

// moveMSG writes a MSG record with the content of the former one.
func (g *group) moveMSG(s *staged, w *writing, st *state) {
	st.first, st.restSum = s.first, sum(s.rest, rowMSG, s.number, 0)
	head := sealHead(nil, appendState(nil, st, true), rowMSG, s.number)
	from, fromPos := s.msgSeg, s.msgPos
	g.e.mu.Lock()
	pos := w.seg.reserve(1)
	g.e.mu.Unlock()
	n := rowOverhead + len(head) + len(s.rest) + int(st.bodyLen)
	s.refSeg, s.refPos, s.refLen, s.last = w.seg.segno, pos, uint32(n), w.seg.segno
	s.msgSeg, s.msgPos, s.msgLen = s.refSeg, s.refPos, s.refLen
	g.moves = append(g.moves, move{fmt.Sprintf("INSERT INTO %s (pos, kind, number, head, rest, body) SELECT $1::bigint, $2::smallint, $3::bigint, $4::bytea, $5::bytea, body FROM %s WHERE pos = $6 AND kind = $2 AND number = $3",
		segmentTable(s.shard.id, w.seg.segno), segmentTable(s.shard.id, from)), []any{int64(pos), rowMSG, int64(s.number), head, s.rest, int64(fromPos)}, 1})
	w.bytes += int64(n)
	g.upkept += int64(n)
}

// flushMoves carries the copies out, in one round trip. What is not copied whole is not copied: the victim would go with the rest.
func (g *group) flushMoves(ctx context.Context) error {
	if len(g.moves) == 0 {
		return nil
	}
	var b pgx.Batch
	for _, m := range g.moves {
		b.Queue(m.sql, m.args...)
	}
	results := g.e.conn.SendBatch(ctx, &b)
	var err error
	for i := 0; i < len(g.moves) && err == nil; i++ {
		var tag pgconn.CommandTag
		if tag, err = results.Exec(); err == nil && tag.RowsAffected() != g.moves[i].rows {
			err = errNoRow
		}
	}
	return cmp.Or(err, results.Close())
}

// drop removes a segment in which nothing is alive. First the ends of messages whose older records are still
// there are recorded again (invariant 4).
func (e *engine) drop(ctx context.Context, sh *shard, s *segment) error {
	pool, err := e.store.readers()
	if err != nil {
		return err
	}
	c, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	var stones []tombstone
	err = scan(ctx, c.Conn(), func() (err error) {
		stones, err = e.tombstones(ctx, c.Conn(), sh, s.segno)
		return err
	})
	if sqlState(err) == undefinedTable { // see dropSegment
		stones, err = nil, isDropped(ctx, c.Conn(), segmentTable(sh.id, s.segno))
	}
	if err != nil {
		return err
	}
	for part := range slices.Chunk(stones, 10000) {
		if err := e.order(&copying{shard: sh, victim: s.segno, gone: part}); err != nil {
			return err
		}
	}
	err = e.transact(ctx, c.Conn(), []*shard{sh}, func() error {
		_, err := run(ctx, c.Conn(), fmt.Sprintf("SET LOCAL lock_timeout = %d; %s", dropTime.Milliseconds(), dropSegment(sh.id, s.segno)))
		return err
	})
	if err != nil {
		return err
	}
	e.mu.Lock()
	delete(sh.segs, s.segno)
	e.mu.Unlock()
	return nil
}

// tombstones reads the ends of messages in a segment that may have records in older ones.
func (e *engine) tombstones(ctx context.Context, conn *pgx.Conn, sh *shard, segno uint32) (list []tombstone, err error) {
	e.mu.RLock()
	older := sh.anyIn(0, segno)
	e.mu.RUnlock()
	if !older {
		return nil, nil
	}
	rows, err := conn.Query(ctx, "SELECT number, head FROM "+segmentTable(sh.id, segno)+" WHERE kind = $1", rowGONE)
	if err != nil {
		return nil, err
	}
	var r row
	_, err = pgx.ForEachRow(rows, []any{&r.number, &r.head}, func() error {
		head, err := openHead(r.head, rowGONE, r.number)
		if err != nil {
			// It may be the end of another message, which has not ended. The table is kept as long as there are older ones.
			return fmt.Errorf("the end of message number %d: %w", r.number, err)
		}
		t := tombstone{number: r.number, first: firstOf(head)}
		e.mu.RLock()
		defer e.mu.RUnlock()
		if sh.anyIn(t.first, segno) {
			list = append(list, t)
		}
		return nil
	})
	return list, err
}
