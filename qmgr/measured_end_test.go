package qmgr

import (
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/metrics"
)

// What a queue manager that ends has counted last is asked for when its loop has
// ended. It does not wait for that.
func TestMeasuredAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		asked := make(chan struct{})
		began := time.Now()
		go func() { // while it ends
			s.offer(new(metrics.Offer))
			close(asked)
		}()
		synctest.Wait()
		s.shut()
		<-asked
		s.offer(new(metrics.Offer)) // and afterwards
		if d := time.Since(began); d != 0 {
			t.Errorf("the end is held up for %v", d)
		}
	})
}
