package webserver

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A client that says nothing, or does not end its header, is gone after 15 seconds; one that has had
// its answer may ask again in that time. The end of the service does not cut an answer off.
func TestConns(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		ends       time.Duration // when the connection has been closed
		answers    int
	}{
		{"silent", "", 15 * time.Second, 0},
		{"half a header", "GET / HTTP/1.1\r\nHost: x\r\n", 15 * time.Second, 0},
		{"twice", "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", 15 * time.Second, 2},
		{"once", "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 0, 1},
		{"a header without end", "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 20<<10), 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				conns := NewConns(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }), nil)
				near, far := net.Pipe()
				begun := time.Now()
				var ended sync.WaitGroup
				ended.Go(func() { conns.Handle(t.Context(), far) })
				go io.WriteString(near, c.says)
				text, _ := io.ReadAll(near)
				if n := strings.Count(string(text), "HTTP/1.1 "); n != c.answers {
					t.Errorf("%d answers: %s", n, text)
				}
				ended.Wait()
				// net/http gives a client that is refused half a second to read why.
				if passed := time.Since(begun); passed < c.ends || passed > c.ends+time.Second {
					t.Errorf("the connection was closed after %v, want %v", passed, c.ends)
				}
				near.Close()
				if err := conns.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestConnsEnd(t *testing.T) {
	t.Parallel()
	for _, answer := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			begun := make(chan time.Time, 1)
			conns := NewConns(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				begun <- time.Now()
				select {
				case <-time.After(answer):
				case <-r.Context().Done():
				}
				io.WriteString(w, "hello")
			}), nil)
			near, far := net.Pipe()
			var ended sync.WaitGroup
			ended.Go(func() { conns.Handle(ctx, far) })
			io.WriteString(near, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			ends := <-begun // a request that no answer is under way to is not answered any more
			cancel()
			text, _ := io.ReadAll(near)
			if got, want := strings.Contains(string(text), "hello"), answer < publicClose; got != want {
				t.Errorf("an answer that takes %v: complete %v: %q after %v", answer, got, text, time.Since(ends))
			}
			ended.Wait()
			if passed := time.Since(ends); passed > publicClose+time.Second {
				t.Errorf("the end took %v", passed)
			}
			near.Close()
			if err := conns.Close(); err != nil {
				t.Error(err)
			}
			// Whoever comes after the end is not served.
			near, far = net.Pipe()
			conns.Handle(t.Context(), far)
			if _, err := near.Read(make([]byte, 1)); err == nil {
				t.Error("a connection was served after the end")
			}
		})
	}
}
