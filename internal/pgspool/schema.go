package pgspool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// version is that of the tables. It changes with what an older program could not work with.
const version = 1

// numberStep is how many message numbers a value of the sequence stands for, and so what a node takes at a
// time. No number is given twice, whatever becomes of the node.
const numberStep = 1 << 20

// schemaSQL makes the tables that are there from the beginning, in the schema that search_path names
// first. The tables of segments come and go: see createSegment.
var schemaSQL = []string{
	`CREATE TABLE version (number integer NOT NULL)`,
	`INSERT INTO version VALUES (` + strconv.Itoa(version) + `)`,
	`CREATE TABLE node (name text PRIMARY KEY, instance text NOT NULL, seen timestamptz NOT NULL, drained boolean NOT NULL DEFAULT false)`,
	`CREATE TABLE shard (id integer PRIMARY KEY, node text REFERENCES node, epoch bigint NOT NULL)`,
	`CREATE TABLE lease (shard integer PRIMARY KEY REFERENCES shard, until timestamptz NOT NULL)`,
	`CREATE TABLE segment (shard integer NOT NULL REFERENCES shard, segno bigint NOT NULL, epoch bigint NOT NULL, PRIMARY KEY (shard, segno))`,
	`CREATE TABLE doubtful (id text NOT NULL, recipient integer NOT NULL, nexthop text NOT NULL, handed timestamptz NOT NULL,
		found timestamptz NOT NULL, shard integer NOT NULL, epoch bigint NOT NULL, node text NOT NULL, lost_by text, PRIMARY KEY (id, recipient, epoch))`,
	closedTable, nodeShareTable, limitShareTable, settingTable, noteTable, callTable, orderTable, nodeVersionTable, unreadableTable, indexTable,
	`CREATE SEQUENCE message_number MINVALUE 1 START 1 INCREMENT ` + strconv.Itoa(numberStep) + ` CACHE 1`,
}

// closedTable has the epochs that ended in order: everything that was told to the engine is recorded, and nobody has
// to guess.
const closedTable = `CREATE TABLE IF NOT EXISTS closed (shard integer PRIMARY KEY, epoch bigint NOT NULL)`

// later are tables that were not there from the beginning, by name: a node makes those that are missing. Older
// programs do not know them, and are not hindered.
var later = [][2]string{{"closed", closedTable}, {"node_share", nodeShareTable}, {"limit_share", limitShareTable}, {"node_setting", settingTable}, {"node_note", noteTable}, {"node_call", callTable}, {"node_order", orderTable}, {"node_version", nodeVersionTable}, {"unreadable", unreadableTable}, {"damaged_index", indexTable}}

// addTables makes what an older program has not made.
func addTables(ctx context.Context, conn *pgx.Conn) error {
	for _, t := range later {
		there, err := hasTable(ctx, conn, t[0])
		if err != nil {
			return err
		}
		if there {
			continue
		}
		if _, err := conn.Exec(ctx, t[1]); err != nil {
			// Another node may have made it at the same time. What our statement meets then depends on how far the
			// other one was: the table, its row type, or a key of the catalogue.
			if there, _ := hasTable(ctx, conn, t[0]); !there {
				return err
			}
		}
	}
	return nil
}

// hasTable says whether the schema has a table of that name.
func hasTable(ctx context.Context, conn *pgx.Conn, name string) (there bool, err error) {
	err = conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", name).Scan(&there)
	return there, err
}

// errNoSchema says that the database has no queue.
var errNoSchema = errors.New(`the database has no queue in it; "posthaste cluster init" makes one`)

// checkSchema says whether conn has the tables, and of a version that is known.
func checkSchema(ctx context.Context, conn *pgx.Conn) error {
	var v int
	err := conn.QueryRow(ctx, "SELECT number FROM version").Scan(&v)
	switch {
	case sqlState(err) == undefinedTable || errors.Is(err, pgx.ErrNoRows):
		return errNoSchema
	case err != nil:
		return err
	case v != version:
		return fmt.Errorf("the queue in the database is of version %d, and this program knows version %d", v, version)
	}
	return nil
}

// initSchema makes the tables, and shards that nobody owns, and tells say of each statement before it is
// carried out. Either all of it is done or nothing.
func initSchema(ctx context.Context, conn *pgx.Conn, schema string, shards int, say func(string)) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // nothing after Commit
	list := append([]string{"CREATE SCHEMA IF NOT EXISTS " + pgx.Identifier{schema}.Sanitize()}, schemaSQL...)
	list = append(list, newShards(1, shards)...)
	for _, text := range list {
		say(strings.Join(strings.Fields(text), " ") + ";")
		if _, err := tx.Exec(ctx, text); err != nil {
			return err
		}
	}
	return tx.Commit(ctx)
}

// newShards makes shards with these numbers, that nobody owns.
func newShards(first, last int) (list []string) {
	for i := first; i <= last; i++ {
		list = append(list, fmt.Sprintf("INSERT INTO shard VALUES (%d, NULL, 0)", i), fmt.Sprintf("INSERT INTO lease VALUES (%d, '-infinity')", i))
	}
	return list
}

// segmentTable is the table of a segment.
func segmentTable(shard, segno uint32) string { return fmt.Sprintf("seg_%d_%d", shard, segno) }

// createSegment makes a segment's table, which is empty, within a transaction. Its rows are never changed nor
// removed: there is nothing for autovacuum to do. Content is not compressed, since most is long and is
// written and read once.
func createSegment(shard, segno uint32, epoch int64) string {
	t := segmentTable(shard, segno)
	return fmt.Sprintf(`INSERT INTO segment VALUES (%d, %d, %d);
CREATE TABLE %s (pos bigint PRIMARY KEY, kind smallint NOT NULL, number bigint NOT NULL, head bytea NOT NULL, rest bytea, body bytea)
	WITH (autovacuum_enabled = false, toast.autovacuum_enabled = false);
ALTER TABLE %s ALTER COLUMN head SET STORAGE EXTERNAL, ALTER COLUMN rest SET STORAGE EXTERNAL, ALTER COLUMN body SET STORAGE EXTERNAL;
`, shard, segno, epoch, t, t)
}

// dropSegment removes it. The table may be missing: somebody has dropped it, or the answer to a COMMIT did not come.
func dropSegment(shard, segno uint32) string {
	return fmt.Sprintf("DELETE FROM segment WHERE shard = %d AND segno = %d; DROP TABLE IF EXISTS %s;\n", shard, segno, segmentTable(shard, segno))
}

// SQLSTATE codes, and classes of them, that are told apart.
const (
	undefinedTable = "42P01"
	lockTimeout    = "55P03"
	deadlock       = "40P01"
	classResources = "53" // the disk is full, there is no memory
	// classIntervention is of sessions that an operator, or the server's end, has ended.
	classIntervention = "57"
	dataCorrupted     = "XX001"
	indexCorrupted    = "XX002"
	ioError           = "58030"
	// classInternal and classSystem are of what the server finds wrong with itself, its files or its disk.
	classInternal, classSystem = "XX", "58"
)

// sqlState is the code of the server's error, "" for other errors.
func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}
