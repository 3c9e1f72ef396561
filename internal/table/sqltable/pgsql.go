package sqltable

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// PostgreSQL returns the opener of pgsql tables. cfg is main.cf, for tables
// whose settings are there.
func PostgreSQL(cfg *config.Config) table.Opener { return opener(cfg, quoteStandard, openPostgreSQL) }

// unsafeEncodings have characters of which a quote or a backslash is a part.
var unsafeEncodings = []string{"BIG5", "GB18030", "GBK", "JOHAB", "SHIFT_JIS_2004", "SJIS", "SHIFT_JIS", "UHC"}

func openPostgreSQL(s *query.Settings, t *sqlTable, _ table.Options) (*hosts, error) {
	p := poolSettings(s)
	encoding := s.Text("UTF8", "encoding")
	if slices.Contains(unsafeEncodings, strings.ToUpper(encoding)) {
		s.Fail("encoding", "%s: keys cannot be quoted safely in it; use UTF8", encoding)
	}
	user, password, dbname := s.Text("", "user"), s.Text("", "password"), s.Text("", "dbname")
	h := &hosts{retry: p.retry}
	for _, text := range table.SplitList(s.Text("localhost", "hosts")) {
		c, err := postgresHost(text)
		if err != nil {
			s.Fail("hosts", "%v", err)
			continue
		}
		cc := c.ConnConfig
		if user != "" {
			cc.User = user
		}
		if password != "" {
			cc.Password = password
		}
		if dbname != "" {
			cc.Database = dbname
		}
		if cc.Database == "" {
			s.Fail("dbname", "is required and is not set")
		}
		for i := range cc.Fallbacks {
			cc.Fallbacks[i].Host, cc.Fallbacks[i].Port = cc.Host, cc.Port
		}
		cc.ConnectTimeout = t.timeout
		dial := cc.DialFunc
		cc.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return bound(dial(ctx, network, addr))
		}
		cc.RuntimeParams["client_encoding"] = encoding
		cc.RuntimeParams["standard_conforming_strings"] = "on"
		cc.RuntimeParams["application_name"] = "posthaste"
		c.MaxConns, c.MaxConnIdleTime = int32(p.max), p.idle
		pl, err := pgxpool.NewWithConfig(context.Background(), c) // connects to nobody yet
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: hosts: %w", s.Where(), err), h.close())
		}
		h.list = append(h.list, &host{backend: &postgres{pl}, name: "pgsql server " + hostName(text), local: filepath.IsAbs(cc.Host)})
	}
	return h, nil
}

// hostName is a server's name for messages: a URI may have a password in it.
func hostName(text string) string {
	if scheme, rest, ok := strings.Cut(text, "://"); ok {
		if i := strings.LastIndexByte(rest, '@'); i >= 0 {
			rest = rest[i+1:]
		}
		rest, _, _ = strings.Cut(rest, "?")
		return scheme + "://" + rest
	}
	return text
}

// postgresHost is the configuration for one server, without account.
func postgresHost(text string) (*pgxpool.Config, error) {
	if strings.HasPrefix(text, "postgresql://") || strings.HasPrefix(text, "postgres://") {
		c, err := pgxpool.ParseConfig(text)
		if err != nil {
			return nil, errors.New("malformed URI " + hostName(text))
		}
		return c, nil
	}
	w, err := parseHost(text, "5432")
	if err != nil {
		return nil, err
	}
	dir, port := w.addr, "5432"
	if w.network == "tcp" {
		if dir, port, err = net.SplitHostPort(w.addr); err != nil {
			return nil, err
		}
	} else if p, ok := strings.CutPrefix(filepath.Base(w.addr), ".s.PGSQL."); ok {
		dir, port = filepath.Dir(w.addr), p // the socket, where its directory was expected
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%q: port %q is not a number", text, port)
	}
	c, err := pgxpool.ParseConfig("host='" + dir + "' port=" + port)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", text, err)
	}
	c.ConnConfig.Host, c.ConnConfig.Port = dir, uint16(number)
	return c, nil
}

// postgres is one server.
type postgres struct{ pool *pgxpool.Pool }

func (p *postgres) close() error {
	p.pool.Close()
	return nil
}

func (p *postgres) query(ctx context.Context, text string, each func([]byte) error) error {
	stale, err := p.once(ctx, text, each)
	if stale && ctx.Err() == nil {
		p.pool.Reset() // connections of before the server's restart
		_, err = p.once(ctx, text, each)
	}
	var e *pgconn.PgError
	if errors.As(err, &e) && !connectionLost(err) {
		return &reply{err}
	}
	return err
}

// connectionLost says whether the server, or what is between it and us, has
// ended the connection, or does not want it.
func connectionLost(err error) bool {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return true
	}
	switch e.Code[:2] {
	case "08", "28", "53", "57", "3D": // connection, authorization, resources, operator, no such database
		return e.Code != "57014" // a query that took too long
	}
	return false
}

// once asks over one connection. stale says that the connection was lost
// before anything came over it: it may be one of before the server's restart.
func (p *postgres) once(ctx context.Context, text string, each func([]byte) error) (stale bool, err error) {
	c, err := p.pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer c.Release()
	results := c.Conn().PgConn().Exec(ctx, text)
	none := true
	for results.NextResult() && err == nil {
		rows := results.ResultReader()
		for err == nil && rows.NextRow() {
			none = false
			for _, v := range rows.Values() {
				if err = each(v); err != nil {
					break
				}
			}
		}
	}
	if err != nil { // the table's word, not the server's
		_ = results.Close()
		return false, err
	}
	err = results.Close()
	return none && err != nil && connectionLost(err), err
}
