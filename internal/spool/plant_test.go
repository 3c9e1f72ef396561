package spool

import (
	"fmt"
	"testing"
	"time"
)

// TestPlanted proves the proof: each fault of plant.go must be found by one
// of the loops within the time given.
func TestPlanted(t *testing.T) {
	limit := max(15*time.Second, *crashTime)
	for p := fault(1); p < numFaults; p++ {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			how := find(p, start.Add(limit))
			if how == "" && slowFaults[p] && limit < time.Minute {
				t.Skipf("not found in %v; it takes up to a minute: -crash.time=1m", limit)
			}
			if how == "" {
				t.Fatalf("not found in %v", limit)
			}
			t.Logf("%v: %.200s", time.Since(start).Round(time.Millisecond), how)
		})
	}
}

// slowFaults need a rare coincidence, since something else still protects:
// batch numbers for the first two, and for the third that a power cut has to
// come during the recovery from a kill that came during one certain write.
var slowFaults = map[fault]bool{plantNoSegno: true, plantNoFirst: true, plantRecycleUnpromised: true, plantFreeEarly: true, plantNoDirSyncStart: true}

// find runs all loops against a planted fault, in turn, until one finds it.
func find(p fault, deadline time.Time) string {
	for seed := uint64(1); time.Now().Before(deadline); seed++ {
		if err, _ := runWalk(seed, p, nil); err != nil {
			return fmt.Sprintf("walk %d: %v", seed, err)
		}
		if seed%8 == 0 {
			i := len(histories) - int(seed/8)%len(histories) // the intricate ones first
			stop := time.Now().Add(300 * time.Millisecond)
			if _, err := runEnum(i-1, seed, p, false, stop); err != nil {
				return fmt.Sprintf("every crash %d: %v", seed, err)
			}
			if err, _ := runRot(seed, p); err != nil {
				return fmt.Sprintf("rot %d: %v", seed, err)
			}
		}
	}
	return ""
}
