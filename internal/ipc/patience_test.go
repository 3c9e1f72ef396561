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
	// The answer that comes too late is nobody's.
	t.Run("late answer", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			c := NewConn(ours, nil)
			var late []*Request
			peer := NewConn(theirs, func(_ *Conn, r *Request) {
				if late = append(late, r); len(late)%2 == 0 {
					r.Reply(&text{kindEcho, string(r.Payload)})
					late[len(late)-2].Reply(&text{kindEcho, "late"})
				}
			})
			for i := range 10 {
				var got text
				began := time.Now()
				err := c.CallWithin(context.Background(), time.Minute, &text{kindEcho, "x"}, &got)
				if took := time.Since(began); err != context.DeadlineExceeded || took != time.Minute {
					t.Fatalf("after %s: %v", took, err)
				}
				want := strings.Repeat("y", i)
				if err := c.CallWithin(context.Background(), time.Minute, &text{kindEcho, want}, &got); err != nil || got.body != want {
					t.Fatalf("got %q, %v; want %q", got.body, err, want)
				}
				time.Sleep(time.Hour) // the limit of a call that has ended ends nothing
			}
			c.Close()
			c.Wait()
			peer.Wait()
		})
	})
	t.Run("reads nothing within the limit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			c := NewConn(ours, nil)
			for range 3 {
				c.Push(&text{kindPush, strings.Repeat("x", softQueued)})
			}
			began := time.Now()
			err := c.CallWithin(context.Background(), time.Minute, &text{kindEcho, "x"}, nil)
			if took := time.Since(began); err != context.DeadlineExceeded || took != time.Minute {
				t.Errorf("after %s: %v", took, err)
			}
			c.Close()
			c.Wait()
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
