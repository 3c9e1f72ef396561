package cluster

import (
	"testing"
	"time"

	"posthaste/internal/pgspool"
)

// What an operator reads of deliveries that may have been made twice, and of a damaged index: what it is about, why, and what to do.
func TestLines(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 30, 8, 0, 0, 0, time.UTC)
	for want, d := range map[string]pgspool.Doubt{
		"Q recipient 3, to mx?, begun 2026-11-30T07:00:00Z; found 2026-11-30T08:00:00Z by b, which took the queue over from a": {ID: "Q", Recipient: 3, Nexthop: "mx\n", Handed: at.Add(-time.Hour), Found: at, Node: "b", LostBy: "a"},
		"Q recipient 0, if it was begun: records are lost; found 2026-11-30T08:00:00Z by b, which took the queue over":         {ID: "Q", Lost: true, Handed: at, Found: at, Node: "b"},
		"any other message of shard 2: records of it are lost; found 2026-11-30T08:00:00Z by b, which took the queue over":     {Shard: 2, Lost: true, Found: at, Node: "b"},
	} {
		if got := doubtLine(&d); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	want := "shard 1: the index of table posthaste.seg_1_2 is damaged, for 1m0s: it is torn. All of it can be read. REINDEX TABLE posthaste.seg_1_2, then reload the node that has the shard"
	if got := indexLine(&pgspool.DamagedIndex{Shard: 1, Table: "posthaste.seg_1_2", Why: "it is torn", Since: time.Minute}); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
