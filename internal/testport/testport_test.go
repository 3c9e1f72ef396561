package testport

import (
	"net"
	"strconv"
	"sync"
	"testing"
)

// Nobody gets a port twice, and each can be listened on.
func TestFree(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	had := map[int]bool{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				port := Free(t)
				mu.Lock()
				if had[port] {
					t.Errorf("port %d twice", port)
				}
				had[port] = true
				mu.Unlock()
				l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
				if err != nil {
					t.Error(err)
					continue
				}
				l.Close()
			}
		})
	}
	wg.Wait()
	if taken(t, func() int {
		for port := range had {
			return port
		}
		return 0
	}()) {
		t.Error("a port that somebody has was given away")
	}
}
