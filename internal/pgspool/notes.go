package pgspool

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/nodeshare"
	"posthaste/internal/queue"
)

// noteTable has what nodes tell each other, one row for each node and topic.
const noteTable = `CREATE TABLE IF NOT EXISTS node_note (node text NOT NULL, topic text NOT NULL, until timestamptz NOT NULL, note bytea NOT NULL, PRIMARY KEY (node, topic))`

// Notes implements storage.Noter.
func (e *engine) Notes(topic string, note []byte) ([][]byte, error) {
	return e.store.notes(topic, note)
}

func (s *Store) notes(topic string, note []byte) (list [][]byte, err error) {
	if len(note) > nodeshare.NoteLimit {
		return nil, fmt.Errorf("%w: a note of %d octets, %d are possible", queue.ErrTooLarge, len(note), nodeshare.NoteLimit)
	}
	pool, err := s.readers()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), nodeshare.NoteTime-nodeshare.NotePeriod)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, clean(err)
	}
	defer conn.Release()
	err = pgx.BeginFunc(ctx, conn.Conn(), func(tx pgx.Tx) error {
		// What is lost with the server's power is told again a second later: nobody waits for a disk.
		if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit TO off"); err != nil {
			return err
		}
		if list, err = notesIn(ctx, tx, s.node, plainText(topic)); err != nil {
			return err
		}
		return noteOwn(ctx, tx, s.node, plainText(topic), note)
	})
	return list, clean(err)
}

// notesIn reads what others say.
func notesIn(ctx context.Context, tx pgx.Tx, node, topic string) ([][]byte, error) {
	rows, _ := tx.Query(ctx, "SELECT note FROM node_note WHERE topic = $1 AND node <> $2 AND until > clock_timestamp() ORDER BY node LIMIT $3", topic, node, nodeshare.NoteNodes) // its error is that of reading the rows
	return pgx.CollectRows(rows, pgx.RowTo[[]byte])
}

// noteOwn writes this node's row. One with nothing to say has none.
func noteOwn(ctx context.Context, tx pgx.Tx, node, topic string, note []byte) error {
	if len(note) == 0 {
		_, err := tx.Exec(ctx, "DELETE FROM node_note WHERE node = $1 AND topic = $2", node, topic)
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO node_note VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3), $4)
		ON CONFLICT (node, topic) DO UPDATE SET until = excluded.until, note = excluded.note`, node, topic, nodeshare.NoteTime.Seconds(), note)
	return err
}
