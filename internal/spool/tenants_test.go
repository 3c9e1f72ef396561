package spool

import (
	"fmt"
	"testing"
)

// TestTenants: a name keeps its number, nobody has 0, and beyond the bound there are no more.
func TestTenants(t *testing.T) {
	t.Parallel()
	var ts tenants
	if ts.number(nil) != 0 || ts.name(0) != "" {
		t.Error("no tenant has a number, or 0 a name")
	}
	for i := range maxTenants {
		name := fmt.Sprint("t", i)
		n := ts.number([]byte(name))
		if n == 0 || ts.number([]byte(name)) != n || ts.name(n) != name {
			t.Fatalf("%s has number %d, which is %q's", name, n, ts.name(n))
		}
	}
	if n := ts.number([]byte("further")); n != 0 {
		t.Errorf("one too many has number %d", n)
	}
	if n := ts.number([]byte("t7")); ts.name(n) != "t7" {
		t.Errorf("t7 is %q", ts.name(n))
	}
}
