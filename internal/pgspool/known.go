package pgspool

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/mail"
)

// A Whereabout is where a message is.
type Whereabout struct {
	Node string // whose part of the queue it is in; "": nobody's for now
	Left bool   // it has left the queue, and there is still a record of it
}

// Whereabouts says of messages of these IDs where they are; those of which there is no record are left out. It reads all
// records: it is for what happens seldom.
func (s *Store) Whereabouts(ctx context.Context, ids []mail.QueueID) (map[mail.QueueID]Whereabout, error) {
	of := make(map[int64]mail.QueueID, len(ids))
	numbers := make([]int64, 0, len(ids))
	for _, id := range ids {
		_, n, err := id.Parse()
		if err != nil {
			return nil, err
		}
		of[int64(n)] = id
		numbers = append(numbers, int64(n))
	}
	conn, err := s.look(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.Background())
	for {
		var at map[mail.QueueID]Whereabout
		err := scan(ctx, conn, func() (err error) {
			at, err = whereabouts(ctx, conn, numbers, of)
			return err
		})
		if sqlState(err) != undefinedTable {
			return at, clean(err)
		}
		// A segment has been cleaned away meanwhile: what was alive in it is in a later one, which may not have been in the list.
	}
}

// whereabouts looks once.
func whereabouts(ctx context.Context, conn *pgx.Conn, numbers []int64, of map[int64]mail.QueueID) (map[mail.QueueID]Whereabout, error) {
	rows, _ := conn.Query(ctx, `SELECT segment.shard, segno, coalesce(node, '') FROM segment JOIN shard ON id = segment.shard
		WHERE to_regclass('seg_' || segment.shard || '_' || segno) IS NOT NULL ORDER BY segment.shard, segno`) // its error is that of reading the rows
	type place struct {
		shard, seg uint32
		node       string
	}
	var list []place
	var p place
	if _, err := pgx.ForEachRow(rows, []any{&p.shard, &p.seg, &p.node}, func() error { list = append(list, p); return nil }); err != nil {
		return nil, err
	}
	at := make(map[mail.QueueID]Whereabout)
	for _, p := range list {
		rows, _ := conn.Query(ctx, "SELECT number, bool_or(kind = $1) FROM "+segmentTable(p.shard, p.seg)+" WHERE kind <> $2 AND number = ANY($3) GROUP BY number",
			rowGONE, rowPART, numbers)
		var number int64
		var end bool
		_, err := pgx.ForEachRow(rows, []any{&number, &end}, func() error {
			at[of[number]] = Whereabout{Node: p.node, Left: at[of[number]].Left || end}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return at, nil
}

// Others says which parts of the queue other nodes have, for people: "" when there are none.
func (s *Store) Others(ctx context.Context) (string, error) {
	st, err := s.Status(ctx)
	if err != nil {
		return "", err
	}
	var list []string
	for _, sh := range st.Shards {
		if sh.Node != "" && sh.Node != s.node {
			list = append(list, fmt.Sprintf("%d is %s's", sh.ID, sh.Node))
		}
	}
	return strings.Join(list, ", "), nil
}
