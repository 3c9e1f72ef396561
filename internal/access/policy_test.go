package access

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/lockstep"
)

// A burst of requests leaves connections, of which a quiet time takes only
// the one that was parked last, again and again.
func TestIdlePolicyConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := &policyClient{set: policySettings{maxIdle: 10 * time.Second, maxTTL: time.Hour}}
		for range 3 {
			near, far := net.Pipe()
			defer far.Close()
			p.park(&policyConn{nc: lockstep.New(near), born: time.Now()})
		}
		left := func() int {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return len(p.idle)
		}
		for range 5 {
			time.Sleep(4 * time.Second)
			c, fresh, err := p.conn(t.Context())
			if err != nil || fresh {
				t.Fatal(fresh, err)
			}
			p.park(c)
		}
		if n := left(); n != 1 {
			t.Errorf("%d connections are idle, want the one that is used", n)
		}
		time.Sleep(10 * time.Second)
		if n := left(); n != 0 {
			t.Errorf("%d connections are idle after max_idle", n)
		}
		near, far := net.Pipe()
		defer far.Close()
		p.park(&policyConn{nc: lockstep.New(near), born: time.Now()})
		p.close()
		if n := left(); n != 0 {
			t.Errorf("%d connections are left at the end", n)
		}
	})
}
