package spool

import (
	"fmt"
	"testing"
	"time"
)

// TestPlanted proves the proof: each fault of plant.go must be found by one
// of the loops within the time given.
func TestPlanted(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine at a time: the race detector only makes it slow")
	}
	limit := max(20*time.Second, *crashTime)
	for p := fault(1); p < numFaults; p++ {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			how := find(p, start.Add(limit))
			if why := rare[p]; how == "" && why != "" && limit < 10*time.Minute {
				t.Skipf("not found in %v: %s; try -crash.time=10m", limit, why)
			}
			if how == "" {
				t.Fatalf("not found in %v", limit)
			}
			t.Logf("%v: %.200s", time.Since(start).Round(time.Millisecond), how)
		})
	}
}

// hints are the histories of TestCrashEvery in which a fault that takes a
// rare coincidence shows soonest: something else protects, too. Left-overs of
// a segment's former use have batch numbers before the recovery point, and a
// segment used too early does harm when the power fails during the recovery
// from a kill during one certain write.
var hints = map[fault]string{plantNoSegno: "recycle", plantRecycleUnpromised: "old content", plantNoFirst: "aligned", plantNoDirSyncStart: "old content", plantFreeEarly: "recycle"}

// rare says what else protects where a fault does harm so seldom that a short
// run may not see it. With a different layout of segments each has been found
// within a minute.
var rare = map[fault]string{
	plantNoSegno:           "left-over records have batch numbers from before the recovery point",
	plantNoDirSyncStart:    "mail is taken only with spare segments at hand, and making one syncs the directory",
	plantFreeEarly:         "the segment freed has to be taken by the very batch that frees it",
	plantRecycleUnpromised: "the power has to fail in the recovery from a kill in one certain write",
}

// find runs all loops against a planted fault, in turn, until one finds it.
func find(p fault, deadline time.Time) string {
	for i, h := range histories {
		for seed := uint64(1); h.name == hints[p] && seed < 8 && time.Now().Before(deadline); seed++ {
			stop := time.Now().Add(6 * time.Second)
			if _, err := runEnum(i, seed, p, seed > 1, stop); err != nil {
				return fmt.Sprintf("every crash %d: %v", seed, err)
			}
		}
	}
	for seed := uint64(1); time.Now().Before(deadline); seed++ {
		if _, err := runWalk(seed, p, nil); err != nil {
			return fmt.Sprintf("walk %d: %v", seed, err)
		}
		if seed%8 == 0 {
			i := len(histories) - int(seed/8)%len(histories) // the intricate ones first
			for _, deep := range []bool{false, true} {
				stop := time.Now().Add(400 * time.Millisecond)
				if _, err := runEnum(i-1, seed, p, deep, stop); err != nil {
					return fmt.Sprintf("every crash %d: %v", seed, err)
				}
			}
			if _, err := runRot(seed, p); err != nil {
				return fmt.Sprintf("rot %d: %v", seed, err)
			}
		}
	}
	return ""
}
