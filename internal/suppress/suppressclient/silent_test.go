package suppressclient

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/ipc"
	"posthaste/internal/proto"
	"posthaste/internal/resolver"
)

// hanging is a service that does not answer until it is told to.
type hanging struct {
	calls int
	err   error
	well  bool
}

func (h *hanging) CallAgain(ctx context.Context, _, _ ipc.Message) error {
	h.calls++
	if h.well {
		return h.err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (*hanging) Close() {}

// A service that hangs holds up one delivery, and not each; and it is found out soon that it answers again.
func TestSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := new(hanging)
		c := &Client{ipc: h}
		ask := func() (time.Duration, error) {
			begin := time.Now()
			_, err := c.Ask(t.Context(), &proto.SuppressAsk{List: "news", Address: "joe@example.net"})
			return time.Since(begin), err
		}
		// Who gives up says nothing of the service.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Tell(ctx, new(proto.SuppressTell)); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		for round := range 3 {
			if took, err := ask(); took != patience || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("round %d: %v, %v", round, took, err)
			}
			for range 50 {
				if took, err := ask(); took != 0 || !errors.Is(err, errSilent) {
					t.Errorf("round %d: %v, %v", round, took, err)
				}
			}
			time.Sleep(restTime)
		}
		if h.calls != 1+3 {
			t.Errorf("%d calls", h.calls)
		}
		// While one finds out, others do not wait.
		go ask()
		synctest.Wait()
		if took, err := ask(); took != 0 || !errors.Is(err, errSilent) {
			t.Errorf("%v, %v", took, err)
		}
		time.Sleep(patience + restTime)
		h.well = true
		for range 2 {
			if _, err := ask(); err != nil {
				t.Error(err)
			}
		}
		// A quick error is no silence.
		h.err = errors.New("it is not running")
		for range 2 {
			if _, err := ask(); !errors.Is(err, h.err) {
				t.Error(err)
			}
		}
	})
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Joe@B\u00fccher.Example":   "joe@xn--bcher-kva.example",
		"JOE@XN--BCHER-KVA.example": "joe@xn--bcher-kva.example",
		"jac\u212a@example.net":     "jac\u212a@example.net",
		"a@b@Example.net":           "a@b@example.net",
		"joe@[192.0.2.1]":           "joe@[192.0.2.1]",
		"Joe":                       "joe",
		"":                          "",
		"joe@\u00fc..example":       "joe@\u00fc..example",
	} {
		if got := Canonical(resolver.Names{}, in); got != want {
			t.Errorf("%s: %s, expected %s", in, got, want)
		}
	}
}
