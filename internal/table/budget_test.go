package table

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// Patterns that take long one by one do not take as long as all of them would: when
// the budget of a message is used up no more are tried, in whatever table, and the
// error says where.
func TestMatchBudget(t *testing.T) {
	t.Parallel()
	const limit = 20 * time.Millisecond
	slow := `/^(?!zz)(a|aa)+$/`
	key := strings.Repeat("a", 60) + "!"
	path := filepath.Join(t.TempDir(), "checks")
	if err := os.WriteFile(path, []byte("# comment\n/^(?!b)c/ no\n"+slow+" never\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := open(t, "pcre:"+path, Options{MatchTimeout: limit})
	short := open(t, "pcre:{{/^(?!a)b/ short}}", Options{MatchTimeout: limit})

	testwait.For(t, func() string { // on a busy machine the pattern before it may have none either
		_, _, err := file.Lookup(t.Context(), key)
		if want := path + ", line 3: the pattern has no answer within 20ms"; err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Sprintf("one match: %v, want %s", err, want)
		}
		return ""
	})
	ctx, budget := NewBudget(t.Context(), limit/2)
	_, _, err := file.Lookup(ctx, key)
	if err == nil {
		t.Error("a match that takes for ever ended without an error")
	}
	_, _, err = file.Lookup(ctx, "short")
	if want := path + ", line 2: the patterns together have taken 10ms, which is all they have: no more are tried"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("after the budget: %v, want %s", err, want)
	}
	if _, _, err = short.Lookup(ctx, "b"); err == nil || !strings.Contains(err.Error(), "pcre:{") {
		t.Errorf("in another table after the budget: %v", err)
	}
	testwait.For(t, func() string { // on a busy machine a match may have a pause that is longer than the budget
		budget.Renew()
		if v, _, err := short.Lookup(ctx, "b"); v != "short" || err != nil {
			return fmt.Sprintf("with a new budget: %q, %v", v, err)
		}
		return ""
	})

	// One lookup that many slow patterns apply to. The limit of one is not what counts.
	var many strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&many, "/^(?!zz)(a?){20}a{20}$/ %d\n", i)
	}
	if err := os.WriteFile(path, []byte(many.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, budget = NewBudget(t.Context(), limit)
	_, _, err = open(t, "pcre:"+path, Options{MatchTimeout: time.Hour}).Lookup(ctx, strings.Repeat("a", 19))
	if err == nil || !strings.Contains(err.Error(), "the patterns together have taken 20ms") || budget.left.Load() > 0 {
		t.Errorf("many patterns: %v, %d ns are left", err, budget.left.Load())
	}
	// Patterns in linear time need none of it.
	if v, _, err := open(t, "regexp:{{/a+/ a}}", Options{}).Lookup(ctx, "a"); v != "a" || err != nil {
		t.Errorf("a linear pattern: %q, %v", v, err)
	}
}
