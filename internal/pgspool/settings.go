package pgspool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/config"
)

// settingTable has what each node's main.cf sets, as digests: they tell that two nodes differ, and not in what.
const settingTable = `CREATE TABLE IF NOT EXISTS node_setting (node text NOT NULL, name text NOT NULL, digest text NOT NULL, PRIMARY KEY (node, name))`

// ownSettings are parameters that each node has its own value of.
var ownSettings = []string{"cluster_node_name", "data_directory", "inet_interfaces", "maillog_file", "myhostname", "proxy_interfaces", "queue_directory",
	"smtp_bind_address", "smtp_bind_address6"}

// secretWords are in the names of parameters that may have a secret as their value. A short one could be guessed
// from its digest.
var secretWords = []string{"password", "passwd", "secret", "credential", "token", "key"}

// A settingDigest is a parameter that main.cf sets.
type settingDigest struct{ name, digest string }

// digestSettings is what main.cf sets, but for secrets, and what is each node's own. White space is not told apart.
func digestSettings(cfg *config.Config) (list []settingDigest) {
	for _, name := range cfg.Names() {
		_, file, _ := cfg.IsSet(name)
		secret := slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(strings.ToLower(name), w) })
		if file == "-o" || secret || slices.Contains(ownSettings, name) {
			continue // -o: of one service in master.cf
		}
		sum := sha256.Sum256([]byte(strings.Join(strings.Fields(cfg.Raw(name)), " ")))
		list = append(list, settingDigest{plainText(name), hex.EncodeToString(sum[:8])})
	}
	return list
}

// publishSettings makes them known to who compares the nodes.
func (s *Store) publishSettings(ctx context.Context, tx pgx.Tx) error {
	names, sums := make([]string, 0, len(s.settings)), make([]string, 0, len(s.settings))
	for _, d := range s.settings {
		names, sums = append(names, d.name), append(sums, d.digest)
	}
	if _, err := tx.Exec(ctx, "DELETE FROM node_setting WHERE node = $1", s.node); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "INSERT INTO node_setting SELECT $1, * FROM unnest($2::text[], $3::text[])", s.node, names, sums)
	return err
}

// A Difference is a parameter that nodes that live have not the same setting of.
type Difference struct {
	Name  string
	Nodes [][]string // those that have the same; at least two groups
}

// differences compares the nodes that live.
func differences(ctx context.Context, conn *pgx.Conn) (list []Difference, err error) {
	rows, _ := conn.Query(ctx, `SELECT name FROM node WHERE seen > clock_timestamp() - interval '10 seconds' AND EXISTS (SELECT FROM node_setting WHERE node = node.name) ORDER BY name`) // its error is that of reading the rows
	nodes, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(nodes) < 2 {
		return nil, err
	}
	digests := map[string]map[string]string{} // by parameter and node
	rows, _ = conn.Query(ctx, "SELECT name, node, digest FROM node_setting WHERE node = ANY($1)", nodes)
	var name, node, digest string
	_, err = pgx.ForEachRow(rows, []any{&name, &node, &digest}, func() error {
		if digests[name] == nil {
			digests[name] = map[string]string{}
		}
		digests[name][node] = digest
		return nil
	})
	if err != nil {
		return nil, err
	}
	for name, of := range digests {
		at := map[string]int{} // groups, by digest; "": not set
		d := Difference{Name: name}
		for _, node := range nodes {
			i, ok := at[of[node]]
			if !ok {
				i = len(d.Nodes)
				at[of[node]], d.Nodes = i, append(d.Nodes, nil)
			}
			d.Nodes[i] = append(d.Nodes[i], node)
		}
		if len(d.Nodes) > 1 {
			list = append(list, d)
		}
	}
	slices.SortFunc(list, func(a, b Difference) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// A Standby is a server that follows the primary one.
type Standby struct {
	Name   string
	State  string // sync, quorum, async or potential; "": the account may not see it, nor the rest
	Behind int64  // octets of the primary's log that are not on its disk yet
}

// standbys lists them. Without the rights of pg_read_all_stats it can only be seen that there are some.
func standbys(ctx context.Context, conn *pgx.Conn) ([]Standby, error) {
	rows, _ := conn.Query(ctx, `SELECT coalesce(application_name, ''), coalesce(sync_state, ''), greatest(coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn), 0), 0)::bigint
		FROM pg_stat_replication ORDER BY 1`)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Standby])
}
