package pgspool

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// cacheSize bounds the octets of a restCache.
const cacheSize = 8 << 20

// A restCache remembers what the newest records of messages have beside their states. New mail is most
// often deferred, or done, soon after it came: its envelope need not be read for that. The zero value is empty.
// It belongs to the committer.
type restCache struct {
	of    map[uint64][]byte
	order []uint64 // as they were put in; a number may be in it again, or not be there any more
	size  int
}

func (c *restCache) put(number uint64, b []byte) {
	c.drop(number)
	if len(b) > cacheSize/16 {
		return
	}
	if c.of == nil {
		c.of = make(map[uint64][]byte)
	}
	c.of[number] = b
	c.order = append(c.order, number)
	c.size += len(b)
	// An entry takes some memory, too, however short it is.
	for c.size+64*len(c.order) > cacheSize {
		c.drop(c.order[0])
		c.order = c.order[1:]
	}
}

func (c *restCache) drop(number uint64) {
	if b, ok := c.of[number]; ok {
		c.size -= len(b)
		delete(c.of, number)
	}
}

// loadRests reads what is missing in the cache for the updates in list.
func (e *engine) loadRests(ctx context.Context, list []*request) error {
	var want []uint64
	for _, r := range list {
		if r.b == nil {
			continue
		}
		for i := range r.b.ops {
			o := &r.b.ops[i]
			if o.kind != opUpdate {
				continue
			}
			if b, ok := e.cache.of[o.number]; ok {
				e.g.rests[o.number] = b
			} else if _, ok := e.g.rests[o.number]; !ok {
				want = append(want, o.number)
				e.g.rests[o.number] = nil
			}
		}
	}
	return e.readRests(ctx, want, e.g.rests, func(uint32, error) {}) // restOf finds out
}

// A rowAt is where a row is.
type rowAt struct{ shard, seg uint32 }

// readRests reads the rests of the newest records of messages into out. What is not there, or is damaged, is left
// out; lost is called with the segment of what the database does not give.
func (e *engine) readRests(ctx context.Context, numbers []uint64, out map[uint64][]byte, lost func(seg uint32, err error)) error {
	at := map[rowAt][]int64{}
	for _, n := range numbers {
		if l := e.idx.find(n); l != nil {
			p := rowAt{l.shard, l.refSeg}
			at[p] = append(at[p], int64(l.refPos))
		}
	}
	for p, list := range at {
		err := e.readRows(ctx, p, list, func(r *row) {
			if st, err := r.state(p.seg); err == nil && sum(r.rest, r.kind, r.number, 0) == st.restSum {
				out[r.number] = r.rest
			}
		}, func(err error) { lost(p.seg, err) })
		if err != nil {
			return err
		}
	}
	return nil
}

// readRows is the function of that name, of the committer's connection.
func (e *engine) readRows(ctx context.Context, p rowAt, pos []int64, f func(*row), lost func(error)) error {
	if err := readRows(ctx, e.conn, p, pos, f, lost); err != nil {
		return e.store.undo(ctx, e.conn, err)
	}
	return nil
}

// errNoRow says that a row is not there, which a damaged index says of one that is.
var errNoRow = errors.New("no such row")

// readRows reads rows of a segment, but for the content. A row that the database does not give is left out, and lost is called for it: for
// all of them if the segment is not there. f may be called for a row more than once.
func readRows(ctx context.Context, conn *pgx.Conn, p rowAt, pos []int64, f func(*row), lost func(error)) error {
	left := make(map[int64]bool, len(pos))
	for _, n := range pos {
		left[n] = true
	}
	read := func(pos []int64) error {
		list, err := conn.Query(ctx, "SELECT pos, kind, number, head, coalesce(rest, '') FROM "+segmentTable(p.shard, p.seg)+" WHERE pos = ANY($1)", pos)
		if err != nil {
			return err
		}
		var r row
		_, err = pgx.ForEachRow(list, []any{&r.pos, &r.kind, &r.number, &r.head, &r.rest}, func() error {
			delete(left, r.pos)
			c := r
			f(&c)
			return nil
		})
		return err
	}
	err := read(pos)
	if isOfShard(err) || err == nil && len(left) > 0 {
		err = scan(ctx, conn, func() error { return read(pos) })
	}
	why := err
	if isOfShard(err) {
		err = apart(slices.Sorted(maps.Keys(left)), read)
	}
	if err != nil && sqlState(err) != undefinedTable {
		return err
	}
	for range left {
		lost(cmp.Or(why, errNoRow))
	}
	return nil
}

// apart has ever fewer rows read, since those that are whole must not be taken for damaged, too. It reads by the index: the whole table is not
// read for each.
func apart(pos []int64, read func([]int64) error) error {
	if len(pos) == 0 {
		return nil
	}
	err := read(pos)
	half := len(pos) / 2
	if !isOfShard(err) || half == 0 {
		if isOfShard(err) {
			err = nil // that is one of them
		}
		return err
	}
	if err := apart(pos[:half], read); err != nil {
		return err
	}
	return apart(pos[half:], read)
}

// A row is one, without the content.
type row struct {
	pos        int64
	kind       uint8
	number     uint64
	head, rest []byte
}

// state decodes the head of a MSG or STATE row.
func (r *row) state(seg uint32) (state, error) {
	head, err := openHead(r.head, r.kind, r.number)
	if err != nil {
		return state{}, err
	}
	return decodeState(head, r.number, seg, uint32(r.pos))
}
