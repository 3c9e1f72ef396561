package pgspool

import (
	"fmt"
	"testing"

	"posthaste/internal/nodeshare"
)

// What a node says others hear, and nobody of another topic, until it says something else, nothing, or has been silent for too
// long.
func TestNotes(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, newServer(t), 1)
	a, b := d.store("a"), d.store("b")
	say := func(s *Store, topic, note, want string) {
		t.Helper()
		list, err := s.notes(topic, []byte(note))
		if got := fmt.Sprintf("%q", list); err != nil || got != want {
			t.Errorf("%s of %s: %s, %v, want %s", s.node, topic, got, err, want)
		}
	}
	say(a, "x", "one", `[]`)
	say(b, "x", "", `["one"]`)
	say(b, "y", "\x00\xff", `[]`)
	say(a, "y", "", `["\x00\xff"]`)
	say(a, "x", "two", `[]`)
	say(b, "x", "three", `["two"]`)
	say(a, "x", "", `["three"]`)
	say(b, "x", "three", `[]`)
	if _, err := d.conn().Exec(t.Context(), "UPDATE node_note SET until = clock_timestamp()"); err != nil {
		t.Fatal(err)
	}
	say(a, "x", "", `[]`)
	if _, err := a.notes("x", make([]byte, nodeshare.NoteLimit+1)); err == nil {
		t.Error("a note of any length")
	}
}
