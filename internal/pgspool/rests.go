package pgspool

import (
	"context"

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
	return e.readRests(ctx, want, e.g.rests)
}

// A rowAt is where a row is.
type rowAt struct{ shard, seg uint32 }

// readRests reads the rests of the newest records of messages into out. What is not there, or is damaged, is left
// out.
func (e *engine) readRests(ctx context.Context, numbers []uint64, out map[uint64][]byte) error {
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
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readRows is the function of that name, of the committer's connection.
func (e *engine) readRows(ctx context.Context, p rowAt, pos []int64, f func(*row)) error {
	if err := readRows(ctx, e.conn, p, pos, f); err != nil {
		return e.store.undo(ctx, e.conn, err)
	}
	return nil
}

// readRows reads rows of a segment, but for the content. A row that the database cannot read is left out, and a segment that is not
// there has no rows. f may be called for a row more than once.
func readRows(ctx context.Context, conn *pgx.Conn, p rowAt, pos []int64, f func(*row)) error {
	err := orScan(ctx, conn, func() error {
		list, err := conn.Query(ctx, "SELECT pos, kind, number, head, coalesce(rest, '') FROM "+segmentTable(p.shard, p.seg)+" WHERE pos = ANY($1)", pos)
		if err != nil {
			return err
		}
		var r row
		_, err = pgx.ForEachRow(list, []any{&r.pos, &r.kind, &r.number, &r.head, &r.rest}, func() error {
			c := r
			f(&c)
			return nil
		})
		return err
	})
	switch {
	case err == nil, sqlState(err) == undefinedTable:
		return nil
	case !isDamage(err):
		return err
	}
	// The others must not be taken for damaged, too: what is not found of a message is given up when its segment is cleaned.
	if half := len(pos) / 2; half > 0 {
		if err := readRows(ctx, conn, p, pos[:half], f); err != nil {
			return err
		}
		return readRows(ctx, conn, p, pos[half:], f)
	}
	return nil
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
