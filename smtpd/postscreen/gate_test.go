package postscreen

import (
	"net/netip"
	"testing"
	"testing/synctest"
)

func newGate(pre, post, client, sessions int) *gate {
	return &gate{preLimit: pre, postLimit: post, clientLimit: client,
		sessions: make(chan struct{}, sessions), clients: map[netip.Addr]int{}}
}

func TestGateClients(t *testing.T) {
	t.Parallel()
	g := newGate(0, 0, 2, 1)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	var p [4]pass
	if !g.enter(&p[0], a) || !g.enter(&p[1], a) || !g.enter(&p[2], b) {
		t.Error("a client within its limit is refused")
	}
	if g.enter(&p[3], a) {
		t.Error("a client over its limit may come in")
	}
	for i := range p {
		g.leave(&p[i])
	}
	if len(g.clients) > 0 {
		t.Errorf("clients are left: %v", g.clients)
	}
}

func TestGateTests(t *testing.T) {
	t.Parallel()
	g := newGate(2, 0, 0, 5)
	var p [3]pass
	if !g.test(&p[0]) || !g.test(&p[1]) {
		t.Fatal("a client within the limit is refused")
	}
	if g.test(&p[2]) {
		t.Error("too many clients are tested")
	}
	if !g.admit(&p[0]) || !g.test(&p[2]) {
		t.Error("who has passed is tested still")
	}
	for i := range p {
		g.leave(&p[i])
	}
	if g.testing != 0 || len(g.sessions) != 0 {
		t.Errorf("%d are tested, %d sessions", g.testing, len(g.sessions))
	}
}

// A client that has passed waits for a session, but not with too many others.
func TestGateSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate(0, 1, 0, 1)
		var first, second, third pass
		if !g.admit(&first) {
			t.Fatal("there is room for one session")
		}
		done := make(chan bool)
		go func() { done <- g.admit(&second) }()
		synctest.Wait() // the second waits
		if g.admit(&third) {
			t.Error("two wait where one may")
		}
		g.leave(&first)
		if !<-done {
			t.Error("who waited is refused")
		}
		g.leave(&second)
		g.leave(&third)
		if g.waiting != 0 || len(g.sessions) != 0 {
			t.Errorf("%d wait, %d sessions", g.waiting, len(g.sessions))
		}
	})
}
