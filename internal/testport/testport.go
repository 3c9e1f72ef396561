// Package testport gives tests TCP ports for servers that they start.
//
// A server that is given port 0 and says which one it has got is better. Those
// that cannot are given a port from here: one that the system gives to nobody
// by itself, and that no other test has, in this process or another one.
package testport

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"testing"
)

// Free is a port on which nobody listens on 127.0.0.1. It is the test's own
// until that has ended. Tests may call it concurrently.
func Free(t testing.TB) int {
	t.Helper()
	low, high := 12000, 32000
	if b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		var first int
		if n, _ := fmt.Sscan(string(b), &first); n == 1 && first > low+1000 {
			high = min(high, first) // from there on clients have them
		}
	}
	for range 1000 {
		port := low + rand.IntN(high-low)
		if taken(t, port) {
			return port
		}
	}
	t.Fatalf("no free port between %d and %d on 127.0.0.1", low, high)
	return 0
}

// taken takes a port for the test, if it can be had. A socket without a file,
// which goes with the process, tells the others.
func taken(t testing.TB, port int) bool {
	mark, err := net.Listen("unix", "@posthaste-test-port-"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		mark.Close()
		return false
	}
	l.Close()
	t.Cleanup(func() { mark.Close() })
	return true
}
