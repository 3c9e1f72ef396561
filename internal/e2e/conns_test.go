package e2e

import (
	"net"
	"sync"
	"testing"
)

// serveConns has serve called for each connection that comes to l, in a goroutine of its own, and closes it then. At the end of the
// test all are closed and waited for.
func serveConns(t *testing.T, l net.Listener, serve func(net.Conn)) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			wg.Go(func() {
				serve(c)
				c.Close()
				mu.Lock()
				delete(open, c)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for c := range open {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}
