//go:build spoolplant

package spool

import (
	"fmt"
	"testing"
	"time"
)

// TestPlanted proves the proof: each fault of plant.go must be found by one
// of the loops, which takes seconds, and always the same seeds. There are no
// exceptions: a fault that is found by chance only has a history made for it in
// hints.
func TestPlanted(t *testing.T) {
	for p := fault(1); p < numFaults; p++ {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			how := find(p)
			if how == "" {
				t.Fatalf("not found with %d seeds, in %v", maxSeeds, time.Since(start))
			}
			t.Logf("%v: %.200s", time.Since(start).Round(time.Millisecond), how)
		})
	}
}

// hints are the loops that were made for faults that do harm only when
// several things come together, and which are tried first. Why the random
// walk may miss them for minutes:
//
//   - Left-overs of a segment's former use have batch numbers before the
//     recovery point, save those of a start that was cut and of which the
//     segment's header was lost: the next start writes in the same place under
//     the same batch number.
//   - A file of which the name is not durable is the last to be used, and mail is
//     taken only with spare segments at hand, the making of which syncs
//     the directory: it shows with dispositions, which are not refused.
//   - A segment that is freed too early must be taken by the very batch
//     that frees it.
//   - A segment that is used on an unpromised word does harm when the power
//     fails in the recovery from a kill in one certain write.
//   - A record without a mark is taken for the first of a batch only where it
//     starts a block.
var hints = map[fault]string{
	plantNoSegno:           "twice",
	plantRecycleUnpromised: "twice",
	plantNoDirSyncStart:    "dispositions",
	plantFreeEarly:         "last word",
	plantNoFirst:           "aligned",
	plantNoChecksum:        "rot",
	plantStopAtBad:         "rot",
}

// What find tries is bounded by its amount, so that a slow machine finds what
// a fast one does. Each fault is found with less than a tenth of it.
const (
	maxSeeds   = 100
	hintImages = 5_000
	someImages = 500
)

// firstSeeds are the seeds of the random walk that find a fault, where those before them do not. It goes
// on from there should that no longer find it.
var firstSeeds = map[fault]uint64{
	plantNotAtomic: 21,
	plantRetrySync: 41,
}

// find runs all loops against a planted fault, in turn, until one finds it.
func find(p fault) string {
	hint := hints[p]
	if f := direct[p]; f != nil {
		return f(p)
	}
	first := max(1, firstSeeds[p])
	for seed := first; seed < first+maxSeeds; seed++ {
		if _, err := runWalk(seed, p, nil); err != nil {
			return fmt.Sprintf("walk %d: %v", seed, err)
		}
		if hint == "twice" || seed%64 == 0 {
			if _, err := runTwice(seed, 1, p); err != nil {
				return fmt.Sprintf("twice %d: %v", seed, err)
			}
		}
		if hint == "rot" || seed%8 == 0 {
			if _, err := runRot(seed, p); err != nil {
				return fmt.Sprintf("rot %d: %v", seed, err)
			}
		}
		for i, h := range histories {
			deep := seed%2 == 0
			budget := someImages
			switch {
			case h.name == hint:
				budget = hintImages
			case seed%8 != 0 || int(seed/8)%len(histories) != i:
				continue
			}
			if x, err := runEnum(i, seed, p, deep, time.Time{}, budget); err != nil {
				return fmt.Sprintf("every crash %d, image %d: %v", seed, x.images, err)
			}
		}
	}
	return ""
}

// direct are the histories that were made for one class of faults.
var direct = map[fault]func(fault) string{
	plantNoChunkSum: func(p fault) string {
		return some("rot of content", func(seed uint64) error {
			w := newWorld(seed, p)
			return w.guard(func() { w.rotContent() })
		})
	},
	plantOneSize: func(p fault) string {
		return some("changed sizes", func(seed uint64) error {
			w := newWorld(seed, p)
			from, to := paramSizes[seed%4], paramSizes[seed/4%4]
			return w.guard(func() { w.changeParameters(from, to, endings[seed%uint64(len(endings))].run) })
		})
	},
	plantAnyPlace: func(p fault) string {
		return some("another place", func(seed uint64) error {
			w := newPlaceWorld(seed, p)
			return w.guard(w.otherPlace)
		})
	},
	plantNewSize: func(p fault) string {
		return some("another size on a full disk", func(seed uint64) error {
			from, to := paramSizes[seed%3], paramSizes[seed/3%3]
			w := newFullWorld(seed, from, p)
			return w.guard(func() { w.sizeOnFullDisk(to) })
		})
	},
	plantFreeHeadless: blocks,
	plantNoList:       blocks,
	plantUnreadFree:   passes,
	plantHasty:        passes,
	plantWriteOn: func(p fault) string {
		return some("after a failure", func(k uint64) error {
			_, _, after, err := changesAfter(int(k), p)
			if err == nil && len(after) > 0 {
				err = fmt.Errorf("operation %d fails, and after that: %s", k, after[0])
			}
			return err
		})
	},
	plantSweepStops: func(p fault) string {
		return some("short of segments", func(seed uint64) error {
			w := newFullWorld(seed-1, 64<<10, p)
			w.eager = 1
			return w.guard(func() { shortOfSegments(w, 2) })
		})
	},
	plantBootIdle: func(p fault) string {
		return some("many states", func(seed uint64) error {
			w := newFullWorld(seed, 64<<10, p)
			return w.guard(func() { startsManyStates(w, 2) })
		})
	},
}

func blocks(p fault) string {
	return some("blocks", func(seed uint64) error {
		w := &block{world: newWorld(seed, p)}
		return w.guard(w.run)
	})
}

func passes(p fault) string {
	return some("passing failures", func(seed uint64) error {
		w := &walk{world: newWorld(seed, p)}
		return w.guard(func() { w.passing() })
	})
}

func some(what string, run func(seed uint64) error) string {
	for seed := uint64(1); seed <= maxSeeds; seed++ {
		if err := run(seed); err != nil {
			return fmt.Sprintf("%s %d: %v", what, seed, err)
		}
	}
	return ""
}
