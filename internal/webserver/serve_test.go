package webserver

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A client that says nothing, or does not end its header, is gone after 15 seconds; one that has had
// its answer may ask again in that time. The end of the service does not cut an answer off.
func TestServeConns(t *testing.T) {
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
				web := Public(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") }))
				near, far := net.Pipe()
				begun := time.Now()
				served := make(chan error, 1)
				go func() {
					served <- ServeConns(t.Context(), web, nil, grace, func(ctx context.Context, handle func(context.Context, net.Conn)) error {
						handle(ctx, far)
						return nil
					})
				}()
				go io.WriteString(near, c.says)
				text, _ := io.ReadAll(near)
				if n := strings.Count(string(text), "HTTP/1.1 "); n != c.answers {
					t.Errorf("%d answers: %s", n, text)
				}
				err := <-served
				// net/http gives a client that is refused half a second to read why.
				if passed := time.Since(begun); passed < c.ends || passed > c.ends+time.Second {
					t.Errorf("the connection was closed after %v, want %v", passed, c.ends)
				}
				near.Close()
				if err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// grace is how long the end of a service waits for answers in these tests.
const grace = 2 * time.Second

func TestServeConnsEnd(t *testing.T) {
	t.Parallel()
	for _, answer := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			begun := make(chan time.Time, 1)
			web := Public(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				begun <- time.Now()
				select {
				case <-time.After(answer):
				case <-r.Context().Done():
				}
				io.WriteString(w, "hello")
			}))
			near, far := net.Pipe()
			lateNear, lateFar := net.Pipe()
			served := make(chan error, 1)
			go func() {
				served <- ServeConns(ctx, web, nil, grace, func(ctx context.Context, handle func(context.Context, net.Conn)) error {
					handle(ctx, far)
					handle(ctx, lateFar)
					return nil
				})
			}()
			io.WriteString(near, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			ends := <-begun // a request that no answer is under way to is not answered any more
			cancel()
			text, _ := io.ReadAll(near)
			if got, want := strings.Contains(string(text), "hello"), answer < grace; got != want {
				t.Errorf("an answer that takes %v: complete %v: %q after %v", answer, got, text, time.Since(ends))
			}
			err := <-served
			if passed := time.Since(ends); passed > grace+time.Second {
				t.Errorf("the end took %v", passed)
			}
			near.Close()
			if err != nil {
				t.Error(err)
			}
			// Whoever comes after the end is not served.
			if _, err := lateNear.Read(make([]byte, 1)); err == nil {
				t.Error("a connection was served after the end")
			}
		})
	}
}
