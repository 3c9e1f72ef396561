package rfc5322

import (
	"slices"
	"testing"
)

func TestHasMeaning(t *testing.T) {
	t.Parallel()
	if !slices.IsSorted(meant) {
		t.Error("the names are not in order")
	}
	for name, free := range map[string]bool{"X-Unsubscribe": true, "X-Tenant": true, "Unsubscribe": true, "Subject": false, "sUBJECT": false, "List-Unsubscribe": false, "Resent-To": false, "Content-Type": false,
		"DKIM-Signature": false, "References": false, "": false, "a b": false, "x:": false, "To": false, "Tool": true} {
		if FreeField(name) != free {
			t.Errorf("%q is free: %v", name, !free)
		}
	}
}
