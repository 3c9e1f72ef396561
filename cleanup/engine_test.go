package cleanup

import (
	"path/filepath"
	"testing"

	"posthaste/internal/pgspool/pgspooltest"
	"posthaste/internal/queueread"
	"posthaste/internal/spool"
	"posthaste/internal/storage"
	"posthaste/internal/storage/storagetest"
)

// engines are both engines, each with a new, empty queue, which is closed with the test.
func engines(t *testing.T) map[string]func(t *testing.T) engine {
	return map[string]func(t *testing.T) engine{
		"log": func(t *testing.T) engine {
			en, err := openLog(spool.Options{Dir: filepath.Join(t.TempDir(), "spool"), SegmentSize: 64 << 10, Warn: t.Logf}, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { en.Close() })
			return en
		},
		"postgresql": func(t *testing.T) engine { return pgspooltest.Open(t) },
	}
}

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
