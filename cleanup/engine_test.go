package cleanup

import (
	"path/filepath"
	"testing"

	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
	"posthaste/internal/storage/storagetest"
)

// The log keeps what every engine promises. Package pgspool has the same test.
func TestLogEngine(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, func(t *testing.T) *storagetest.Queue {
		dir := filepath.Join(t.TempDir(), "spool")
		return &storagetest.Queue{
			Open: func() storage.Engine {
				t.Helper()
				en, err := openLog(spool.Options{Dir: dir, SegmentSize: 4 << 20, InlineLimit: 128 << 10, ExactDoubt: true, Warn: t.Logf}, nil)
				if err != nil {
					t.Fatal(err)
				}
				return en
			},
			Reader: func() storage.Reader { return queueread.Log(spool.NewReader(nil, dir)) },
		}
	})
}
