package queueclient

import (
	"fmt"
	"slices"
	"testing"
)

// Each of the other nodes is one, with all of its parts, and who is down is told from who is alive.
func TestPartsOfOthers(t *testing.T) {
	t.Parallel()
	parts := Parts{{ID: 7}, {ID: 2, Node: "a", Own: true}, {ID: 1, Node: "b"}, {ID: 5, Node: "b"}, {ID: 4, Node: "d", Down: true}, {ID: 6, Node: "b"}}
	living, missing := parts.Living(nil, "ann")
	if len(living) != 1 || living[0].Name != "b" || living[0].By != "ann" || !slices.Equal(living[0].Parts, []int{1, 5, 6}) || !slices.Equal(missing, []string{"no node", "d"}) {
		t.Errorf("%+v, missing %q", living, missing)
	}
	if d, e := parts.Other(nil, "d", ""), parts.Other(nil, "e", ""); fmt.Sprint(d.Name, d.Parts, e.Name, e.Parts) != "d[4]e[]" {
		t.Errorf("%+v, %+v", d, e)
	}
}
