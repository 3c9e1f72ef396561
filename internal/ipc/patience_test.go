package ipc

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A peer that hangs holds up nobody for ever: neither who waits for its answer
// nor who waits until it reads.
func TestPatience(t *testing.T) {
	t.Parallel()
	t.Run("no answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			c := NewConn(ours, nil)
			peer := NewConn(theirs, func(*Conn, *Request) {})
			began := time.Now()
			err := c.Call(context.Background(), &text{kindEcho, "x"}, nil)
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != Patience {
				t.Errorf("after %s: %v", took, err)
			}
			c.Close()
			c.Wait()
			peer.Wait()
		})
	})
	t.Run("reads nothing", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			c := NewConn(ours, nil)
			began := time.Now()
			var err error
			for i := 0; i < 100 && err == nil; i++ {
				err = c.Send(&text{kindPush, strings.Repeat("x", softQueued/2)})
			}
			if took := time.Since(began); !errors.Is(err, errNotReading) || took != Patience {
				t.Errorf("after %s: %v", took, err)
			}
			c.Wait()
		})
	})
}
