package qmgr

import (
	"testing"
	"time"

	"posthaste/internal/config"
)

// TestHelpfulWarnings: who wants no advice is not told what clogs the queue.
func TestHelpfulWarnings(t *testing.T) {
	t.Parallel()
	for main, want := range map[string]time.Duration{"": 300 * time.Second, "helpful_warnings = no\n": 0} {
		cfg, err := config.LoadString(main)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Load(cfg, nil, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		if s.Sched.ClogWarn != want {
			t.Errorf("%q: ClogWarn is %v, want %v", main, s.Sched.ClogWarn, want)
		}
	}
}
