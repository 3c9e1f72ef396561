package sqltable

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"posthaste/internal/table/query"
)

// pool is the settings that say how connections are kept.
type pool struct {
	idle, retry time.Duration
	max         int
}

func poolSettings(s *query.Settings) pool {
	return pool{
		idle:  s.Seconds("idle_interval", 60*time.Second),
		retry: s.Seconds("retry_interval", 60*time.Second),
		max:   s.Int("max_connections", 10, 1, 10000),
	}
}

// database is a backend over database/sql.
type database struct {
	db *sql.DB
	// own says whether an error is the server's word about the query.
	own func(error) bool
	// stale says whether an error may be that of a connection from before the
	// server's restart.
	stale func(error) bool
	// needRows has a statement without a result be an error.
	needRows bool
}

func (p pool) database(db *sql.DB, needRows bool, own func(error) bool) *database {
	db.SetMaxOpenConns(p.max)
	db.SetMaxIdleConns(p.max)
	db.SetConnMaxIdleTime(p.idle)
	return &database{db: db, own: own, needRows: needRows}
}

func (d *database) close() error { return d.db.Close() }

var errNoResult = errors.New("the query has no result; with require_result_set = no that would mean not found")

func (d *database) query(ctx context.Context, text string, each func([]byte) error) error {
	rows, err := d.db.QueryContext(ctx, text)
	if err != nil && ctx.Err() == nil && d.stale != nil && d.stale(err) {
		rows, err = d.db.QueryContext(ctx, text)
	}
	if err != nil {
		return d.classify(err)
	}
	err = d.read(rows, each)
	return d.classify(errors.Join(err, rows.Close()))
}

func (d *database) read(rows *sql.Rows, each func([]byte) error) error {
	for some := false; ; {
		columns, err := rows.Columns()
		if err != nil {
			return err
		}
		some = some || len(columns) > 0
		values := make([]sql.RawBytes, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		for rows.Next() {
			if err := rows.Scan(into...); err != nil {
				return err
			}
			for _, v := range values {
				if err := each(v); err != nil {
					return err
				}
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if rows.NextResultSet() {
			continue
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if d.needRows && !some {
			return &reply{errNoResult}
		}
		return nil
	}
}

func (d *database) classify(err error) error {
	if err != nil && d.own(err) {
		return &reply{err}
	}
	return err
}
