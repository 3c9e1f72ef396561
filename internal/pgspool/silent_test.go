package pgspool

import (
	"errors"
	"strings"
	"testing"
	"time"

	"posthaste/internal/queue"
)

// What a node without an answer says to those who send mail names what does not answer, which is no disk of this machine.
func TestSilentWords(t *testing.T) {
	t.Parallel()
	fresh := func() *engine {
		return &engine{store: &Store{}, born: time.Now().Add(-time.Hour), lease: &lease{renewed: time.Now(), lasts: time.Minute, margin: time.Second}}
	}
	for _, c := range []struct {
		words string
		set   func(e *engine)
	}{
		{"the database has not answered for 10s", func(e *engine) { e.working.Store(1) }},
		{"is being handed over to other nodes", func(e *engine) { e.turnsAway.Store(true) }},
		{"has not renewed this node's lease", func(e *engine) { e.lease.renewed = time.Now().Add(-time.Hour) }},
	} {
		e := fresh()
		if err := e.Silent(); err != nil {
			t.Fatal(err)
		}
		c.set(e)
		if err := e.Silent(); !errors.Is(err, queue.ErrSilent) || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "disk") {
			t.Errorf("%v, want %q", err, c.words)
		}
		if err := e.Silent(); errors.Is(err, queue.ErrNotOurs) != e.turnsAway.Load() {
			t.Errorf("others have the queue, by %v", err)
		}
	}
}
