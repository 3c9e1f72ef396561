package sqltable

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
	"posthaste/internal/table/query"
)

// quoteStandard is for literals of the SQL standard, between single quotes.
func quoteStandard(s string) string { return strings.ReplaceAll(s, "'", "''") }

// file is an SQLite database. The file is opened again when another has been
// put in its place.
type file struct {
	path string
	busy time.Duration // how long a lock of a writer is waited for
	open func(source string) (*sql.DB, error)

	mu  sync.Mutex
	db  *database
	was os.FileInfo
}

// fileConns is how many lookups read a file at once.
const fileConns = 4

// SQLite returns the opener of sqlite tables. open makes a database, of a driver
// of the caller's choice, for a data source name as SQLite has them, file:path?....
func SQLite(cfg *config.Config, open func(source string) (*sql.DB, error)) table.Opener {
	return opener(cfg, quoteStandard, func(s *query.Settings, t *sqlTable, _ table.Options) (*hosts, error) {
		path := s.Need("dbpath")
		if path == "" {
			return nil, nil
		}
		f := &file{path: path, open: open, busy: t.timeout}
		if _, err := f.now(); err != nil {
			return nil, err
		}
		return &hosts{list: []*host{{backend: f, name: path}}}, nil
	})
}

// now is the database that is there now.
func (f *file) now() (*database, error) {
	is, err := os.Stat(f.path)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db != nil && os.SameFile(is, f.was) {
		return f.db, nil
	}
	source := url.URL{Scheme: "file", Opaque: (&url.URL{Path: f.path}).EscapedPath(),
		RawQuery: fmt.Sprintf("mode=ro&_pragma=busy_timeout(%d)&_pragma=query_only(1)", f.busy.Milliseconds())}
	db, err := f.open(source.String())
	if err != nil {
		return nil, err
	}
	if f.db != nil {
		if err := f.db.close(); err != nil { // waits for nobody: those who read fail, and say so
			return nil, err
		}
	}
	f.db, f.was = pool{max: fileConns, idle: time.Minute}.database(db, true, func(error) bool { return true }), is
	return f.db, nil
}

func (f *file) query(ctx context.Context, text string, each func([]byte) error) error {
	db, err := f.now()
	if err != nil {
		return &reply{err} // there is no other, and trying again costs nothing
	}
	return db.query(ctx, text, each)
}

func (f *file) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.db == nil {
		return nil
	}
	return f.db.close()
}
