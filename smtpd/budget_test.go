package smtpd

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/table"
)

// All lookups of a command share what patterns may cost, and the next command
// begins anew; so does the next client in the same memory.
func TestLookupBudget(t *testing.T) {
	t.Parallel()
	slow := table.OpenMaps("slow", []string{"pcre:{{/^(?!zz)(a|aa)+$/ REJECT}}"}, table.Options{MatchTimeout: 20 * time.Millisecond})
	quick := table.OpenMaps("quick", []string{"pcre:{{/^(?!zz)b/ OK}}"}, table.Options{})
	defer slow.Close()
	defer quick.Close()
	s := &session{srv: new(Server)}
	s.renewBudget() // before there is any
	if ctx := s.ctx(); ctx != s.ctx() {
		t.Error("each lookup has a context of its own")
	}
	ask := func(m *table.Maps, key string) error {
		_, _, err := m.Lookup(s.ctx(), key, false)
		return err
	}
	if err := ask(quick, "b"); err != nil {
		t.Error(err)
	}
	s.lookups, s.budget = table.NewBudget(t.Context(), 10*time.Millisecond)
	if err := ask(slow, strings.Repeat("a", 60)+"!"); err == nil {
		t.Error("a match that takes for ever ended without an error")
	}
	if err := ask(quick, "b"); err == nil || !strings.Contains(err.Error(), "line 1: the patterns together have taken 10ms") {
		t.Errorf("in the same command: %v", err)
	}
	s.forget()
	s.srv = new(Server)
	s.renewBudget()
	if err := ask(quick, "b"); err != nil {
		t.Errorf("in the next: %v", err)
	}
}
