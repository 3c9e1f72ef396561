// Package pgspooltest opens a queue in PostgreSQL for the tests of other packages. Its lease lasts for minutes: a test whose
// machine is busy does not lose it.
package pgspooltest

import (
	"os"
	"path/filepath"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/pgspool"
	"posthaste/internal/storage"
	"posthaste/internal/testservers"
)

// Open starts a server, and opens a new, empty queue in it. Both end with the test.
func Open(t testing.TB) storage.Engine {
	t.Helper()
	en, err := New(t).Open(t.Context(), storage.Options{TempDir: t.TempDir(), InlineLimit: 128 << 10, Warn: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { en.Close() })
	return en
}

// New starts a server, and makes a new, empty queue of one part in it. Both end with the test.
func New(t testing.TB) *pgspool.Store {
	t.Helper()
	st := Node(t, testservers.PostgreSQL(t, "GRANT CREATE ON DATABASE mail TO mail;").Addr, "a")
	if err := st.Init(t.Context(), 1, func(string) {}); err != nil {
		t.Fatal(err)
	}
	return st
}

// Node is the queue in the server at addr, as a node sees it.
func Node(t testing.TB, addr, name string) *pgspool.Store {
	t.Helper()
	dir := t.TempDir()
	settings := "spool_postgresql_url = postgres://mail@" + addr + "/mail\nspool_postgresql_password_file = " + filepath.Join(dir, "password") +
		"\ncluster_node_name = " + name + "\ncluster_lease_time = 5m\n"
	for name, text := range map[string]string{"main.cf": settings, "password": "secret\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	st, err := pgspool.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return st
}
