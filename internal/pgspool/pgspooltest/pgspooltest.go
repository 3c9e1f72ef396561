// Package pgspooltest opens a queue in PostgreSQL for the tests of other packages.
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
	server := testservers.PostgreSQL(t, "GRANT CREATE ON DATABASE mail TO mail;")
	dir := t.TempDir()
	settings := "spool_postgresql_url = postgres://mail@" + server.Addr + "/mail\nspool_postgresql_password_file = " + filepath.Join(dir, "password") + "\n"
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
	if err == nil {
		t.Cleanup(st.Close)
		err = st.Init(t.Context(), 1, func(string) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	en, err := st.Open(t.Context(), storage.Options{TempDir: dir, InlineLimit: 128 << 10, Warn: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { en.Close() })
	return en
}
