package ipc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// dialAs connects as another user, on a thread of its own that ends with the
// goroutine.
func dialAs(t *testing.T, uid int, path string) net.Conn {
	t.Helper()
	type result struct {
		fd  int
		err error
	}
	ch := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked
		const same = ^uintptr(0)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 && err == nil {
			err = errno
		}
		if err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
		ch <- result{fd, err}
	}()
	r := <-ch
	if r.err != nil {
		t.Fatal(r.err)
	}
	f := os.NewFile(uintptr(r.fd), "")
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return nc
}

// A process of another user gets the public services, and nothing else.
func TestPublic(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can be another user")
	}
	const owner, stranger = 54321, 54322
	const open, closed = 1, 2
	var handled atomic.Int32
	srv := &Server{Owner: owner, Public: func(r *Request) bool { return r.Kind == open }, Handler: func(_ *Conn, r *Request) {
		handled.Add(1)
		r.Reply(&text{kind: 3})
	}}
	// A name that everybody can connect to: the directory of a test is not for others.
	path := "@" + filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(ctx, l, 0) }()
	defer func() { cancel(); <-done }()
	for _, x := range []struct {
		uid     int
		kind    uint16
		refused bool
	}{{0, open, false}, {0, closed, false}, {owner, closed, false}, {stranger, open, false}, {stranger, closed, true}} {
		c := NewConn(dialAs(t, x.uid, path), nil)
		before := handled.Load()
		err := c.Call(t.Context(), &text{kind: x.kind}, nil)
		var remote RemoteError
		if x.refused != errors.As(err, &remote) || !x.refused && err != nil {
			t.Errorf("user %d, kind %d: %v", x.uid, x.kind, err)
		}
		if err := c.Send(&text{kind: x.kind}); err != nil { // wants no answer
			t.Error(err)
		}
		if err := c.Call(t.Context(), &text{kind: open}, nil); err != nil {
			t.Errorf("user %d: %v", x.uid, err)
		}
		want := before + 3
		if x.refused {
			want = before + 1
		}
		if got := handled.Load(); got != want {
			t.Errorf("user %d, kind %d: %d requests handled, want %d", x.uid, x.kind, got-before, want-before)
		}
		c.Close()
		c.Wait()
	}
}
