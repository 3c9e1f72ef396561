// Package sqltable is lookup tables in SQL databases: mysql (MySQL and
// MariaDB), pgsql (PostgreSQL) and sqlite, with the settings of Postfix's
// mysql_table(5), pgsql_table(5) and sqlite_table(5). Package query says where
// settings are, and what %s, %u and so on mean in query and result_format.
//
// # Settings of all three
//
//	query                 the query; what it selects, all columns of all rows, is the answer
//	result_format         %s: what becomes of each value
//	domain                the domains that the table is for; empty: any key
//	expansion_limit       0: more values than this are an error
//	timeout               10: seconds for one server's answer, connecting included (ours)
//	table select_field where_field additional_conditions
//	                      the old way to say
//	                      SELECT select_field FROM table WHERE where_field = '%s' additional_conditions
//
// # Settings of mysql and pgsql
//
//	hosts                 localhost: servers, any of which will do: host, host:port,
//	                      inet:host:port, unix:/path, [2001:db8::1]:port; pgsql also
//	                      postgresql://... with all that such a URI can say
//	user password dbname  the account and the database
//	idle_interval         60: seconds after which a connection that is not used is closed
//	retry_interval        60: seconds for which a server that failed is asked last
//	max_connections       10: at most so many to one server at a time (ours)
//
// Of mysql: option_file, option_group, charset, require_result_set, tls_key_file,
// tls_cert_file, tls_CAfile, tls_CApath, tls_verify_cert. Of pgsql: encoding, and
// select_function, the old way to say SELECT select_function('%s'). Of
// sqlite: dbpath, the file.
//
// # Servers
//
// Servers are tried in random order, those on a local socket first. One that
// fails is asked last for retry_interval, and if it is the only one, once a
// second: it is back as soon as it is back, and meanwhile lookups fail at
// once and do not wait for it one after the other. A connection that has
// died since it was last used, because the server was restarted, is replaced without
// anybody noticing.
//
// A query that fails at one server is tried at the next. When none is left the
// lookup has failed, which is not the same as not having found anything.
//
// # Security
//
// Keys come from strangers, and are put between the quotes that the
// administrator has written around %s. They are escaped for a literal in single quotes,
// and the session is set up so that this is right: MySQL's NO_BACKSLASH_ESCAPES
// is switched off, PostgreSQL's standard_conforming_strings on, and character
// sets in which a quote can be a part of another character are refused. A %s
// that is not inside single quotes cannot be made safe by anybody; End of
// statement inside a key would not help an attacker with mysql, as only one statement is
// taken at a time. Give the account no more than SELECT.
package sqltable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/lockstep"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// backend is one server, or one file.
type backend interface {
	// query sends text and calls each with every column of every row; the
	// bytes are good until it returns, and nil for NULL. An error of each ends it.
	query(ctx context.Context, text string, each func(value []byte) error) error
	close() error
}

// sqlTable is a table of any of the types.
type sqlTable struct {
	query   *query.Template
	format  *query.Template
	keys    query.Keys
	limit   int
	timeout time.Duration
	quote   func(string) string
	hosts   *hosts
}

// common reads what all types have in common, after dflt has said which query
// there is when there is none.
func common(s *query.Settings, o table.Options, quote func(string) string) *sqlTable {
	t := &sqlTable{quote: quote, format: s.ResultFormat(), limit: s.Limit(), keys: s.Domain(o), timeout: s.Seconds("timeout", 10*time.Second)}
	old := "SELECT " + escapePercent(s.Text("", "select_field")) + " FROM " + escapePercent(s.Text("", "table")) +
		" WHERE " + escapePercent(s.Text("", "where_field")) + " = '%s' " + escapePercent(s.Text("", "additional_conditions"))
	switch {
	case s.Text("", "query") != "":
		t.query = s.Template("query", "")
	case s.Text("", "select_function") != "":
		t.query = s.Template("query", "SELECT "+escapePercent(s.Text("", "select_function"))+"('%s')")
	case s.Has("select_field") && s.Has("table") && s.Has("where_field"):
		t.query = s.Template("query", old)
	default:
		s.Fail("query", "is required and is not set")
	}
	return t
}

// escapePercent: the old settings are no templates.
func escapePercent(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// opener makes the opener of a type: settings are read, and then dial is asked for
// the servers.
func opener(cfg *config.Config, quote func(string) string, dial func(s *query.Settings, t *sqlTable, o table.Options) (*hosts, error)) table.Opener {
	return func(name string, o table.Options) (table.Table, error) {
		s, err := query.Load(name, cfg)
		if err != nil {
			return nil, err
		}
		t := common(s, o, quote)
		t.hosts, err = dial(s, t, o)
		if err == nil {
			err = s.End(o)
		}
		if err != nil {
			if t.hosts != nil {
				err = errors.Join(err, t.hosts.close())
			}
			return nil, err
		}
		return t, nil
	}
}

// Lookup implements table.Table.
func (t *sqlTable) Lookup(ctx context.Context, key string) (string, bool, error) {
	key, ok, err := t.keys.Key(ctx, key)
	if err != nil || !ok {
		return "", false, err
	}
	text, ok := t.query.Query(key, t.quote)
	if !ok {
		return "", false, nil
	}
	var found query.Results
	err = t.hosts.each(func(h *host) error {
		found = query.Results{Key: key, Format: t.format, Limit: t.limit}
		ctx, cancel := context.WithTimeout(ctx, t.timeout)
		defer cancel()
		var answer error
		err := h.query(ctx, text, func(value []byte) error {
			answer = found.Add(string(value))
			return answer
		})
		switch {
		case answer != nil:
			return &final{answer}
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("no answer within %v: %w", t.timeout, ctx.Err())
		}
		return err
	})
	if err != nil {
		return "", false, query.OneLine(err)
	}
	value, isFound := found.Answer()
	return value, isFound, nil
}

// Pattern implements table.Table.
func (t *sqlTable) Pattern() bool { return false }

// Close implements table.Table.
func (t *sqlTable) Close() error { return t.hosts.close() }

// bound bounds what a server says to one question on a connection.
func bound(nc net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return lockstep.Bound(nc, query.MaxAnswer), nil
}
