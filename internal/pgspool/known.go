package pgspool

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/mail"
)

// Whereabouts says of messages of these IDs in whose parts of the queue they are, by the names of the nodes. For
// those that have left the queue, as far as there is still a record of them, it is "". It reads all records: it is
// for what happens seldom.
func (s *Store) Whereabouts(ctx context.Context, ids []mail.QueueID) (map[mail.QueueID]string, error) {
	at := make(map[mail.QueueID]string)
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
	rows, _ := conn.Query(ctx, "SELECT shard, segno, coalesce(node, '') FROM segment JOIN shard ON id = shard ORDER BY shard, segno") // its error is that of reading the rows
	type place struct {
		shard, seg uint32
		node       string
	}
	var list []place
	var p place
	if _, err = pgx.ForEachRow(rows, []any{&p.shard, &p.seg, &p.node}, func() error { list = append(list, p); return nil }); err != nil {
		return nil, clean(err)
	}
	gone := map[mail.QueueID]bool{}
	for _, p := range list {
		rows, _ := conn.Query(ctx, "SELECT number, bool_or(kind = $1) FROM "+segmentTable(p.shard, p.seg)+" WHERE kind <> $2 AND number = ANY($3) GROUP BY number",
			rowGONE, rowPART, numbers)
		var number int64
		var end bool
		_, err := pgx.ForEachRow(rows, []any{&number, &end}, func() error {
			id := of[number]
			gone[id] = gone[id] || end
			at[id] = p.node
			return nil
		})
		if err != nil && sqlState(err) != undefinedTable { // cleaned away meanwhile: what is alive is in a later one
			return nil, clean(err)
		}
	}
	for id := range gone {
		if gone[id] {
			at[id] = ""
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
