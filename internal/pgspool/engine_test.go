package pgspool

import (
	"testing"

	"posthaste/internal/storage"
	"posthaste/internal/storage/storagetest"
)

// The engine keeps what every engine promises. Package cleanup has the same test of the log.
func TestEngine(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	t.Run("suite", func(t *testing.T) {
		storagetest.Run(t, func(t *testing.T) *storagetest.Queue {
			st := newDatabase(t, server, 1).store("a")
			return &storagetest.Queue{
				Open: func() storage.Engine {
					t.Helper()
					e, err := st.testOpen(t)
					if err != nil {
						t.Fatal(err)
					}
					return e
				},
				Reader:  st.Reader,
				Pending: true,
				Resumes: true,
			}
		})
	})
}
