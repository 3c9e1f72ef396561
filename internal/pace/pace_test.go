package pace

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// Each number of deliveries belongs to the first level that stands for as many or more.
func TestLevels(t *testing.T) {
	for busy := 1; busy <= 1024; busy++ {
		l := LevelOf(busy)
		if Busy(l) < busy || l > 0 && Busy(l-1) >= busy {
			t.Fatalf("%d at once: level %d, which stands for %d", busy, l, Busy(l))
		}
	}
	if LevelOf(0) != 0 || LevelOf(1<<30) != Levels-1 {
		t.Error("levels at the ends:", LevelOf(0), LevelOf(1<<30))
	}
}

func TestFade(t *testing.T) {
	var b Behaviour
	now := time.Unix(1_800_000_000, 0)
	b.Add(now, Delivery{Took: 2 * time.Second, Busy: 3, Rcpts: 4, Later: 1})
	b.Add(now.Add(Half), Delivery{Took: time.Second, Busy: 3, Away: true})
	l := b.Levels[2]
	if l.Served != 0.5 || l.ServedTime != 1 || l.Away != 1 || l.AwayTime != 1 {
		t.Errorf("half the weight is %+v", l)
	}
	if b.First.All != 2 || b.First.Later != 0.5 || b.R != 2 || b.TR != 4 || b.Streak != 1 {
		t.Errorf("half the weight is %+v", b)
	}
	b.Add(now.Add(Half), Delivery{Busy: 1, Rcpts: 1, Again: true, Failed: 1})
	if b.Streak != 0 || b.Longest != 1 || b.Again != (Rcpts{All: 1, Failed: 1}) {
		t.Errorf("after one that was served: %+v", b)
	}
}

// The destination that was heard of least recently makes room.
func TestBound(t *testing.T) {
	var b Book
	now := time.Unix(1_800_000_000, 0)
	for i := range MaxDestinations + 1 {
		b.Add(now, fmt.Sprint("smtp:", i), Delivery{Busy: 1, Rcpts: 1})
		b.Add(now, "smtp:kept", Delivery{Busy: 1, Rcpts: 1})
	}
	if len(b.byName) != MaxDestinations || b.order.Len() != MaxDestinations {
		t.Errorf("%d destinations, %d in order", len(b.byName), b.order.Len())
	}
	if b.Of("smtp:0") != nil || b.Of("smtp:kept") == nil {
		t.Error("the wrong one was forgotten")
	}
	if got := b.Of("smtp:kept").Levels[0].Served; math.Abs(got-MaxDestinations-1) > 1e-9 {
		t.Errorf("%g deliveries", got)
	}
}

// What is told to another process is what was counted.
func TestEncode(t *testing.T) {
	var b, got Behaviour
	now := time.Unix(1_800_000_000, 0)
	for i := range 50 {
		b.Add(now, Delivery{Took: time.Second / 3, Busy: i, Rcpts: i, Later: i / 2, Failed: i / 3, Again: i%2 == 0, Away: i%5 == 0})
	}
	if err := got.Decode(b.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if b.at = got.at; got != b {
		t.Errorf("%+v became %+v", b, got)
	}
}

// FuzzDecode: whatever comes, there is no panic, and no number that is none.
func FuzzDecode(f *testing.F) {
	b := Behaviour{Streak: 1}
	b.Add(time.Unix(1, 0), Delivery{Took: time.Second, Busy: 30, Rcpts: 2})
	f.Add(b.Append(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		var b Behaviour
		_ = b.Decode(in)
		for i := range b.Levels {
			for _, n := range b.Levels[i].floats() {
				if !(*n >= 0) {
					t.Fatalf("level %d has %v", i, *n)
				}
			}
		}
	})
}
