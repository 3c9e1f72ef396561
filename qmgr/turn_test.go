package qmgr

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// New messages are learned of in the order in which they came, whoever is
// looked up first, as long as none takes very long.
func TestInTurn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes []time.Duration // what looking at each message takes
		want  []int
	}{
		"one is slower": {[]time.Duration{0, time.Second, 0, time.Millisecond, 0}, []int{0, 1, 2, 3, 4}},
		"all are slow":  {[]time.Duration{2500 * time.Millisecond, 2 * time.Second, 1500 * time.Millisecond}, []int{0, 1, 2}},
		"one hangs":     {[]time.Duration{0, time.Minute, 0, time.Millisecond}, []int{0, 2, 3, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &Server{ctx: t.Context()}
				var mu sync.Mutex
				var got []int
				var wg sync.WaitGroup
				for i, takes := range tt.takes {
					inTurn := s.inTurn()
					wg.Go(func() {
						time.Sleep(takes)
						inTurn(func() {
							mu.Lock()
							defer mu.Unlock()
							got = append(got, i)
						})
					})
				}
				wg.Wait()
				if !slices.Equal(got, tt.want) {
					t.Errorf("order %v, want %v", got, tt.want)
				}
			})
		})
	}
}
