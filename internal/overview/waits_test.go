package overview

import (
	"testing"

	"posthaste/internal/history"
)

// Percentiles of the ages are the ends of the columns that they lie in, over all queues but hold.
func TestWaits(t *testing.T) {
	t.Parallel()
	s := &history.Sample{Tables: []history.Table{
		{Queue: "deferred", Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{40, 20, 0, 34}}, {Domain: "old.test", Counts: history.Counts{9: 5}}, {Domain: "b.test", Counts: history.Counts{9: 1000}}}},
		{Queue: "active", Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{5: 4, 9: 2}}}},
		{Queue: "deferred", Senders: true, Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{9: 1000}}}},
		{Queue: "hold", Rows: []history.Row{{Domain: "a.test", Counts: history.Counts{9: 1000}}}},
	}}
	for domain, want := range map[string]string{
		"A.test":   "Of those who wait half have waited for at most 10 min, 95 in 100 for at most 160 min, and 99 in 100 for more than 1280 min.",
		"old.test": "Of those who wait half have waited for more than 1280 min, 95 in 100 for more than 1280 min, and 99 in 100 for more than 1280 min.",
		"no.test":  "",
	} {
		got := ""
		if w := WaitsOf(s, domain); w != nil {
			got = w.String()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", domain, got, want)
		}
	}
}
