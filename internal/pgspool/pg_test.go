package pgspool

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"posthaste/internal/storage"
	"posthaste/internal/testservers"
)

// server is one that all tests of the package share: each has a schema of its own.
var server struct {
	once sync.Once
	s    *testservers.Server
	n    atomic.Int64
}

// A database is a schema with a queue in it.
type database struct {
	t   testing.TB
	url string // of the account that owns it
}

// newDatabase makes a queue with so many shards.
func newDatabase(t testing.TB, shards int) *database {
	t.Helper()
	s := testservers.PostgreSQL(t, "GRANT CREATE ON DATABASE mail TO mail;")
	return databaseOn(t, s, shards)
}

func databaseOn(t testing.TB, s *testservers.Server, shards int) *database {
	t.Helper()
	d := &database{t: t, url: fmt.Sprintf("postgres://mail@%s/mail?search_path=q%d", s.Addr, server.n.Add(1))}
	st := d.store("init")
	if err := st.Init(t.Context(), shards, func(string) {}); err != nil {
		t.Fatal(err)
	}
	return d
}

// store is that of a node.
func (d *database) store(node string) *Store {
	d.t.Helper()
	c, err := parseURL(d.url)
	if err != nil {
		d.t.Fatal(err)
	}
	c.Password = "secret"
	c.RuntimeParams["application_name"] = sessionName(node)
	s := &Store{config: c, node: node, instance: node + ":/q", segmentSize: 64 << 20}
	d.t.Cleanup(s.Close)
	return s
}

// open opens the queue for a node. It is closed with the test, if it has not been.
func (s *Store) testOpen(t testing.TB, change ...func(*storage.Options)) (*engine, error) {
	t.Helper()
	o := storage.Options{TempDir: t.TempDir(), InlineLimit: 128 << 10, PostDelay: 50 * time.Millisecond, Warn: t.Logf}
	for _, f := range change {
		f(&o)
	}
	en, err := s.Open(context.Background(), o)
	if err != nil {
		return nil, err
	}
	e := en.(*engine)
	t.Cleanup(func() { e.Close() })
	return e, nil
}

func (d *database) conn() *pgx.Conn {
	d.t.Helper()
	c, err := d.store("look").connect(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

var _ = url.Parse
var _ = os.Getenv
