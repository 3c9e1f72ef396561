package manual

import (
	"slices"
	"testing"

	"posthaste/internal/selection"
)

// The pages describe the conditions that there are.
func TestSelectionText(t *testing.T) {
	t.Parallel()
	var names []string
	for _, o := range selectionOptions() {
		names = append(names, o.name)
		if known, value := selection.Known(o.name); known && value != (o.arg != "") {
			t.Errorf("--%s: the value is described wrongly", o.name)
		}
	}
	if want := append(selection.Names(), "dry-run"); !slices.Equal(names, want) {
		t.Errorf("described are %q, there are %q", names, want)
	}
}
