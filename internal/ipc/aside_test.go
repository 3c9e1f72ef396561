package ipc

import (
	"strings"
	"testing"
	"time"

	"posthaste/internal/testwait"
)

// made is a message that says when it is encoded.
type made struct {
	text
	encoded chan struct{}
}

func (m *made) Append(b []byte) []byte {
	close(m.encoded)
	return m.text.Append(b)
}

// recv is what comes over ch.
func recv[T any](t *testing.T, ch <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(testwait.Patience):
		t.Fatal("waited in vain: " + what)
	}
	return v
}

// While somebody holds the lock of a connection, another makes its frame beside it, and queues it behind what came before.
func TestAside(t *testing.T) {
	t.Parallel()
	got := make(chan string, 3)
	path, _ := server(t, func(_ *Conn, r *Request) { got <- string(r.Payload) })
	client := NewClient(Unix(path), nil)
	defer client.Close()
	c, err := client.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"short", strings.Repeat("long", maxAside), "short again"} {
		m := &made{text{kindPush, body}, make(chan struct{})}
		sent := make(chan error, 1)
		c.wmu.Lock()
		c.out = appendFrame(c.out, frameOneWay, kindPush, 0, &text{kindPush, "before it"})
		go func() { sent <- c.Push(m) }()
		recv(t, m.encoded, "it is encoded while the lock is held")
		c.wmu.Unlock()
		if err := recv(t, sent, "it is queued"); err != nil {
			t.Fatal(err)
		}
		if first := recv(t, got, "what was queued before"); first != "before it" {
			t.Fatalf("%d octets arrive first", len(first))
		}
		if text := recv(t, got, "it arrives"); text != body {
			t.Errorf("%d octets arrive as %d", len(body), len(text))
		}
	}
	// What is too large is not sent, and harms nothing that is.
	m := &made{text{kindPush, strings.Repeat("x", MaxPayload+1)}, make(chan struct{})}
	sent := make(chan error, 1)
	c.wmu.Lock()
	go func() { sent <- c.Push(m) }()
	recv(t, m.encoded, "it is encoded while the lock is held")
	c.wmu.Unlock()
	if err := recv(t, sent, "it is refused"); err != ErrTooLarge {
		t.Errorf("too large: %v", err)
	}
	if err := c.Push(&text{kindPush, "still here"}); err != nil {
		t.Fatal(err)
	}
	if text := recv(t, got, "what is sent next"); text != "still here" {
		t.Errorf("%q arrives behind what is too large", text)
	}
}
