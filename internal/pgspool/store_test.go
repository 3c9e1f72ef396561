package pgspool

import (
	"errors"
	"testing"

	"posthaste/internal/queue"
)

// A store that is closed makes no new connections, which nobody would close any more.
func TestStoreClosed(t *testing.T) {
	t.Parallel()
	c, err := parseURL("postgres://mail@127.0.0.1:1/mail?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	s := &Store{config: c, node: "n1"}
	if _, err := s.readers(); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := s.readers(); !errors.Is(err, queue.ErrClosed) {
		t.Errorf("readers of a closed store: %v", err)
	}
	s.Close() // again: nothing happens
}
