package pgspool

import (
	"strings"
	"testing"

	"posthaste/internal/storage"
)

// A queue whose tables are of a version that this program does not know is not opened, and the error says which it knows.
func TestVersionUnknown(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	if _, err := d.conn().Exec(t.Context(), "UPDATE version SET number = 2"); err != nil {
		t.Fatal(err)
	}
	e, err := d.store("a").Open(t.Context(), storage.Options{TempDir: t.TempDir(), InlineLimit: 128 << 10, Warn: t.Logf})
	if err == nil {
		e.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "the queue in the database is of version 2, and this program knows version 1") {
		t.Errorf("%v", err)
	}
}
