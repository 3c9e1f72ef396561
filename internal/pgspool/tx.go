package pgspool

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/queue"
)

// errRefused says that the server has refused a statement, and has taken the transaction back: nothing
// of it has happened, and the next may succeed.
var errRefused = errors.New("the database refuses it")

// errTable says besides that it is because of a table that is damaged or missing.
var errTable = errors.New("a table is damaged")

// transact has body write in a transaction for which the shards are looked up and locked (invariant 2).
// Errors: queue.ErrNotOurs and errRefused, when nothing has happened; queue.ErrBroken, when that is not
// known, or the connection is lost.
func (e *engine) transact(ctx context.Context, conn *pgx.Conn, shards []*shard, body func() error) error {
	return e.store.transact(ctx, conn, shards, body)
}

func (s *Store) transact(ctx context.Context, conn *pgx.Conn, shards []*shard, body func() error) error {
	rows, err := run(ctx, conn, s.beginSQL(shards))
	switch {
	case err != nil:
		return s.undo(ctx, conn, err)
	case rows != len(shards) && !s.plant.noEpoch:
		s.undo(ctx, conn, nil)
		return fmt.Errorf("%w: another node has taken it over", queue.ErrNotOurs)
	}
	if err := body(); err != nil {
		return s.undo(ctx, conn, err)
	}
	tag, err := conn.PgConn().Exec(ctx, "COMMIT").ReadAll()
	switch {
	case err != nil:
		return fmt.Errorf("%w: the end of a transaction is not known: %w", queue.ErrBroken, clean(err))
	case len(tag) != 1 || tag[0].CommandTag.String() != "COMMIT": // invariant 1
		return errRefused
	}
	return nil
}

// beginSQL begins a transaction that is durable when it is committed, on the synchronous standbys too, and
// locks the shards' rows. As one string it is one round trip.
func (s *Store) beginSQL(shards []*shard) string {
	var b strings.Builder
	mode := "on"
	if s.plant.noSync {
		mode = "off"
	}
	b.WriteString("BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit TO " + mode + "; SELECT id FROM shard WHERE node = " + quote(s.node) + " AND (")
	for i, sh := range shards {
		if i > 0 {
			b.WriteString(" OR ")
		}
		fmt.Fprintf(&b, "id = %d AND epoch = %d", sh.id, sh.epoch)
	}
	b.WriteString(") FOR SHARE")
	return b.String()
}

// quote is text as a string of SQL. standard_conforming_strings is on, as parseURL sees to.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// run carries out statements without arguments, and returns how many rows the last of them that returned any
// had.
func run(ctx context.Context, conn *pgx.Conn, sql string) (rows int, err error) {
	list, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	for _, r := range list {
		if r.CommandTag.Select() {
			rows = len(r.Rows)
		}
	}
	return rows, err
}

// undo takes the transaction back, whose cause is err, and says what that means.
func (s *Store) undo(ctx context.Context, conn *pgx.Conn, err error) error {
	if err != nil && (sqlState(err) == "" && !isOwn(err) || conn.IsClosed()) {
		return fmt.Errorf("%w: %w", queue.ErrBroken, clean(err))
	}
	if _, rerr := run(ctx, conn, "ROLLBACK"); rerr != nil {
		return fmt.Errorf("%w: %w", queue.ErrBroken, clean(errors.Join(err, rerr)))
	}
	switch {
	case isOfShard(err), sqlState(err) == undefinedTable, errors.Is(err, errNoRow):
		return fmt.Errorf("%w: %w: %w", errRefused, errTable, clean(err))
	case err == nil, isOwn(err):
		return err
	case strings.HasPrefix(sqlState(err), classResources):
		return fmt.Errorf("%w: %w: %w", errRefused, queue.ErrFull, clean(err))
	}
	return fmt.Errorf("%w: %w", errRefused, clean(err))
}

// isOwn says that err is not one of the connection.
func isOwn(err error) bool {
	return errors.Is(err, queue.ErrUnstored) || errors.Is(err, queue.ErrCorrupt) || errors.Is(err, errNoRow)
}

// A rows is rows for a segment in the binary form of COPY.
type rows struct {
	buf []byte
	n   int
}

// copyHeader is the signature, and two fields of zeros; copyTrailer ends the data.
var (
	copyHeader  = append([]byte("PGCOPY\n\xff\r\n\x00"), make([]byte, 8)...)
	copyTrailer = []byte{0xff, 0xff}
)

// add appends a row. rest and body are NULL when they are nil. Its octets are returned.
func (r *rows) add(pos uint32, kind uint8, number uint64, head, rest, body []byte) int {
	if len(r.buf) == 0 {
		r.buf = append(r.buf, copyHeader...)
	}
	before := len(r.buf)
	b := binary.BigEndian.AppendUint16(r.buf, 6)
	b = binary.BigEndian.AppendUint32(b, 8)
	b = binary.BigEndian.AppendUint64(b, uint64(pos))
	b = binary.BigEndian.AppendUint32(b, 2)
	b = binary.BigEndian.AppendUint16(b, uint16(kind))
	b = binary.BigEndian.AppendUint32(b, 8)
	b = binary.BigEndian.AppendUint64(b, number)
	b = field(b, head)
	b = field(b, rest)
	r.buf = field(b, body)
	r.n++
	return len(r.buf) - before
}

func field(b, v []byte) []byte {
	if v == nil {
		return binary.BigEndian.AppendUint32(b, 1<<32-1)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}

// copyTo writes the rows to a segment, within a transaction.
func (r *rows) copyTo(ctx context.Context, s *Store, conn *pgx.Conn, shard, segno uint32) error {
	r.buf = append(r.buf, copyTrailer...)
	if s.wall != nil {
		return simulateCopy(ctx, conn, copySQL(shard, segno), r.buf)
	}
	_, err := conn.PgConn().CopyFrom(ctx, bytes.NewReader(r.buf), copySQL(shard, segno))
	return err
}

func copySQL(shard, segno uint32) string {
	return "COPY " + segmentTable(shard, segno) + " (pos, kind, number, head, rest, body) FROM STDIN BINARY"
}
