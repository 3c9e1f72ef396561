package pgspool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A damaged index does not give rows that are whole. What it does not give is looked for without it, from the beginning of the table to its end.
// The server does not always notice: an index of which a page is an older version of itself, since the disk has lost a write, lacks rows in silence. So
// whatever says which mail there is, is read without an index, or by one that has been compared with its table.

// indexTable has the segments whose index was damaged when they were read, for who asks how the cluster stands. A row counts as long as the
// shard has that epoch: the next one to read the shard finds out anew.
const indexTable = `CREATE TABLE IF NOT EXISTS damaged_index (shard integer NOT NULL, segno bigint NOT NULL, epoch bigint NOT NULL, since timestamptz NOT NULL, why text NOT NULL, PRIMARY KEY (shard, segno))`

// withoutIndex begins a transaction that uses no index. A statement that the session has carried out some times may have a plan that the server
// keeps, with the index in it: it has to make another one.
const withoutIndex = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; " +
	"SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on"

// byIndex has the rest of such a transaction use indexes alone.
const byIndex = "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on"

// errShort says that an index has other rows than its table.
var errShort = errors.New("its index does not have all rows of the table")

// isOfIndex says that err may be the index's fault, so that the table is to be read without it.
func isOfIndex(err error) bool {
	return isOfShard(err) || errors.Is(err, errShort) || errors.Is(err, pgx.ErrNoRows) || errors.Is(err, errNoRow)
}

// compareIndex counts the rows of a segment that nobody writes to, and adds up their positions: without its index, and by that alone. The error is errShort, or one of the
// server.
func compareIndex(ctx context.Context, conn *pgx.Conn, table string) error {
	count := "; SELECT count(*), coalesce(sum(pos), 0) FROM " + table + " WHERE pos >= 0; "
	list, err := conn.PgConn().Exec(ctx, withoutIndex+count+byIndex+count+"ROLLBACK").ReadAll()
	if err != nil {
		if !conn.IsClosed() {
			_, rerr := run(ctx, conn, "ROLLBACK")
			err = errors.Join(err, rerr)
		}
		return err
	}
	var found [][][]byte
	for _, r := range list {
		found = append(found, r.Rows...) // only the counts have any
	}
	if len(found) != 2 {
		return fmt.Errorf("%w: it cannot be counted", errShort)
	}
	if !slices.EqualFunc(found[0], found[1], bytes.Equal) {
		return fmt.Errorf("%w: it has %s, and the table %s", errShort, found[1][0], found[0][0])
	}
	return nil
}

// errHidden says that the server does not find a table that is there.
var errHidden = errors.New("the server does not find it by its name, and its list of tables has it: REINDEX TABLE pg_class")

// isDropped says that a table which the server does not find is not there: nil, or errHidden. The server goes by an index.
func isDropped(ctx context.Context, conn *pgx.Conn, table string) error {
	n := 0
	err := scan(ctx, conn, func() error {
		return conn.QueryRow(ctx, "SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE relname = $1 AND nspname = current_schema()", table).Scan(&n)
	})
	if err == nil && n > 0 {
		err = errHidden
	}
	return err
}

// scan has f read without any index. There is no transaction on conn.
func scan(ctx context.Context, conn *pgx.Conn, f func() error) error {
	_, err := run(ctx, conn, withoutIndex)
	if err == nil {
		err = f()
	}
	if !conn.IsClosed() {
		_, rerr := run(ctx, conn, "ROLLBACK")
		err = errors.Join(err, rerr)
	}
	return err
}

// orScan has f read, and once more without any index when the database does not give what it asks for, or another row. Of a damaged index the server
// also says what it says of faults of its own.
func orScan(ctx context.Context, conn *pgx.Conn, f func() error) error {
	err := f()
	if isOfIndex(err) {
		return scan(ctx, conn, f)
	}
	return err
}

// unindex notes that a segment could be read without its index only, which failed with err.
func (e *engine) unindex(ctx context.Context, conn *pgx.Conn, t *taken, s *segment, err error) error {
	why, schema := fmt.Sprint(clean(err)), ""
	noted := e.transact(ctx, conn, []*shard{&t.shard}, func() error {
		return conn.QueryRow(ctx, `INSERT INTO damaged_index VALUES ($1, $2, $3, clock_timestamp(), $4) ON CONFLICT (shard, segno) DO UPDATE SET why = excluded.why, epoch = excluded.epoch,
			since = CASE WHEN damaged_index.epoch + 1 >= excluded.epoch THEN damaged_index.since ELSE excluded.since END
			RETURNING quote_ident(current_schema())`, int(t.id), int64(s.segno), t.epoch, plainText(why)).Scan(&schema)
	})
	if noted != nil {
		return noted
	}
	e.mu.Lock()
	s.unindexed = true
	e.mu.Unlock()
	e.opt.Warn("spool: table %s can be read without its index only: %s. It is read so, and not cleaned; REINDEX TABLE %s.%[1]s, and reload the mail system after that",
		segmentTable(t.id, s.segno), why, schema)
	return nil
}

// A DamagedIndex is one without which a table had to be read.
type DamagedIndex struct {
	Shard int
	Table string // with its schema, as in a statement
	Why   string
	Since time.Duration // how long it has been so
}

// damagedIndexes lists them.
func damagedIndexes(ctx context.Context, conn *pgx.Conn) (list []DamagedIndex, err error) {
	rows, _ := conn.Query(ctx, `SELECT shard, segno, quote_ident(current_schema()), why, greatest(extract(epoch FROM clock_timestamp() - since), 0)::float8 FROM damaged_index JOIN shard ON id = shard
		AND shard.epoch = damaged_index.epoch ORDER BY shard, segno`) // its error is that of reading the rows
	var d DamagedIndex
	var segno int64
	var schema string
	var seconds float64
	_, err = pgx.ForEachRow(rows, []any{&d.Shard, &segno, &schema, &d.Why, &seconds}, func() error {
		d.Table, d.Since = schema+"."+segmentTable(uint32(d.Shard), uint32(segno)), time.Duration(seconds*float64(time.Second))
		list = append(list, d)
		return nil
	})
	return list, err
}
