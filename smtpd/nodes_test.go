package smtpd

import (
	"fmt"
	"io"
	"net/netip"
	"testing"
	"time"

	"posthaste/internal/anvil"
	"posthaste/internal/maillog"
	"posthaste/internal/nodeshare"
)

// nodeLimits are those of a node with two limits.
func nodeLimits(now *time.Time) *limits {
	l := &limits{service: "smtp", bits4: 32, bits6: 64}
	l.max[anvil.Connections], l.max[anvil.Message] = 50, 10
	l.Table = anvil.NewTable(anvil.Options[netip.Prefix]{Unit: time.Minute, Now: func() time.Time { return *now }, Log: maillog.New("test", maillog.NewWriter(io.Discard, 0)),
		Name: func(k netip.Prefix) string { return k.String() }})
	return l
}

// What a client does at one node counts at another when it has been told, and no more when nobody has told for a while; and what
// others have told is not told again.
func TestAmongNodes(t *testing.T) {
	t.Parallel()
	now := time.Unix(1800000000, 0)
	a, b, c := nodeLimits(&now), nodeLimits(&now), nodeLimits(&now)
	who := a.key(netip.MustParseAddr("192.0.2.1"))
	six := a.key(netip.MustParseAddr("2001:db8::7"))
	for range 4 {
		a.Add(who, anvil.Message)
	}
	a.Add(who, anvil.Connections)
	a.Add(six, anvil.Message)
	c.Add(who, anvil.Message)
	b.SetOthers(heard([][]byte{a.note(), {'?', 1, 2}, c.note()}), now.Add(nodeshare.NoteTime))
	if n := b.Add(who, anvil.Message); n != 6 {
		t.Errorf("%d messages, want 6", n)
	}
	if n := b.Lookup(who); n[anvil.Connections] != 1 || n[anvil.Message] != 6 {
		t.Errorf("%v", n)
	}
	if n := b.Lookup(six)[anvil.Message]; n != 1 {
		t.Errorf("%d of a client that was never here, want 1", n)
	}
	if got := heard([][]byte{b.note()}); got[who][anvil.Message] != 1 || len(got) != 1 {
		t.Errorf("%v", got)
	}
	now = now.Add(nodeshare.NoteTime)
	if n := b.Add(who, anvil.Message); n != 2 {
		t.Errorf("%d messages, and the others have not told for a while; want 2", n)
	}
	now = now.Add(time.Minute)
	if got := heard([][]byte{a.note()}); got[who][anvil.Message] != 0 || got[who][anvil.Connections] != 1 {
		t.Errorf("%v after the interval", got)
	}
}

// A note has the clients that have used most of their limits, and is bounded.
func TestNoteBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1800000000, 0)
	l := nodeLimits(&now)
	for i := range 3 * toldClients {
		l.Add(l.key(netip.MustParseAddr(fmt.Sprintf("2001:db8:%x::1", i))), anvil.Message)
	}
	busy := l.key(netip.MustParseAddr("192.0.2.1"))
	l.Add(busy, anvil.Message)
	l.Add(busy, anvil.Message)
	b := l.note()
	if got := heard([][]byte{b}); len(got) != toldClients || got[busy][anvil.Message] != 2 || len(b) > nodeshare.NoteLimit {
		t.Errorf("%d clients, %d octets, %v", len(got), len(b), got[busy])
	}
}

// FuzzHeard: whatever a node tells, the others live on.
func FuzzHeard(f *testing.F) {
	now := time.Unix(1800000000, 0)
	l := nodeLimits(&now)
	l.Add(l.key(netip.MustParseAddr("192.0.2.1")), anvil.Message)
	f.Add(l.note())
	f.Fuzz(func(t *testing.T, b []byte) {
		for k, c := range heard([][]byte{b, b}) {
			for _, n := range c {
				if n < 0 {
					t.Errorf("%v: %v", k, c)
				}
			}
		}
	})
}
