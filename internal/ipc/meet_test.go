package ipc

import (
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"posthaste/internal/quickio"
)

// overPipes says what a connection's frames go over.
func (c *Conn) overPipes() bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.stream != c.nc
}

// TestPipes: a client of the mail system gets pipes, for small and for large frames
// in both directions, many at a time.
func TestPipes(t *testing.T) {
	t.Parallel()
	path, _ := server(t, echo)
	cl := NewClient(Unix(path), nil)
	defer cl.Close()
	var wg sync.WaitGroup
	for i := range 3 { // whose answers are less than maxQueued in all
		wg.Go(func() {
			for _, n := range []int{0, 1, 4096, 70_000, sizeToServer + 1, 3 << 20} {
				body := strings.Repeat(string(rune('a'+i)), n)
				if got, err := ask(t, cl, &text{kindEcho, body}); err != nil || got != body {
					t.Errorf("%d octets: %d, %v", n, len(got), err)
				}
			}
		})
	}
	wg.Wait()
	if !cl.present().overPipes() {
		t.Error("the socket was used")
	}
}

// TestPipesEnd: whichever side ends, the other one notices.
func TestPipesEnd(t *testing.T) {
	t.Parallel()
	path, stop := server(t, echo)
	cl := NewClient(Unix(path), nil)
	defer cl.Close()
	if _, err := ask(t, cl, &text{kindEcho, "x"}); err != nil {
		t.Fatal(err)
	}
	c := cl.present()
	answered := make(chan error, 1)
	c.Go(&text{kind: kindHang}, func(_ []byte, err error) { answered <- err })
	c.Close()
	if err := <-answered; !errors.Is(err, ErrLost) {
		t.Errorf("after our end: %v", err)
	}
	c.Wait()

	if _, err := ask(t, cl, &text{kindEcho, "x"}); err != nil {
		t.Fatal(err)
	}
	c = cl.present()
	stop() // tells c to go away, which it does: nothing is open
	c.Wait()
	if !c.Away() {
		t.Error("a connection is left of a server that has ended")
	}
}

// socketPair are two connected sockets.
func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var list [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		nc, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		list[i] = nc.(*net.UnixConn)
		t.Cleanup(func() { nc.Close() })
	}
	return list[0], list[1]
}

// TestMeetServer: what a server says to clients that have or have not asked for pipes.
func TestMeetServer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		preface string
		trusted bool
		pipes   bool
	}{{"\x00PH\x01\x01\x00\x00\x00", true, true}, {"\x00PH\x01\x00\x00\x00\x00", true, false}, {"\x00PH\x01\x01\x00\x00\x00", false, false}} {
		ours, theirs := socketPair(t)
		var c *Conn
		if tt.trusted {
			c = newServerConn(quickio.New(theirs), echo)
		} else {
			c = newConn(quickio.New(theirs), echo)
		}
		c.start()
		ours.Write([]byte(tt.preface))
		var h [prefaceLen]byte
		oob := make([]byte, 100)
		n, oobn, _, _, err := ours.ReadMsgUnix(h[:], oob)
		if err != nil || n != prefaceLen {
			t.Fatal(n, err)
		}
		files, err := passedFiles(oob[:oobn])
		if err != nil || (len(files) == 2) != tt.pipes || (h[4] == flagPipes) != tt.pipes {
			t.Errorf("%q: preface %q, %d files, %v", tt.preface, h, len(files), err)
		}
		for i, f := range files { // to read from and to write to
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
			if want := []int{unix.O_RDONLY, unix.O_WRONLY}[i]; err != nil || flags&unix.O_ACCMODE != want {
				t.Errorf("file %d: flags %#o, %v", i, flags, err)
			}
		}
		if tt.pipes {
			closeAll(files) // our end of it
		} else {
			ours.Close()
		}
		c.Wait()
	}
}

// TestMeetClient: what a client makes of a server's answer.
func TestMeetClient(t *testing.T) {
	t.Parallel()
	pipe := func() int {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
			t.Fatal(err)
		}
		unix.Close(p[1])
		return p[0]
	}
	for name, tt := range map[string]struct {
		answer string
		files  int
		is     error // of a call
		pipes  bool
	}{
		"a server without pipes": {"\x00PH\x01\x00\x00\x00\x00", 0, nil, false},
		"one too few":            {"\x00PH\x01\x01\x00\x00\x00", 1, ErrLost, false},
		"none":                   {"\x00PH\x01\x01\x00\x00\x00", 0, ErrLost, false},
		"not announced":          {"\x00PH\x01\x00\x00\x00\x00", 2, ErrLost, false},
		"another version":        {"\x00PH\x7f\x01\x00\x00\x00", 2, ErrVersion, false},
		"an end":                 {"", 0, ErrLost, false},
		"an end in the middle":   {"\x00PH", 2, ErrLost, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, theirs := socketPair(t)
			c := newClientConn(ours, nil)
			c.start()
			answered := make(chan error, 1)
			c.Go(&text{kindEcho, "x"}, func(_ []byte, err error) { answered <- err })
			if flags, err := readPreface(theirs); err != nil || flags != flagPipes {
				t.Fatalf("asked with %d, %v", flags, err)
			}
			var fds []int
			for range tt.files {
				fds = append(fds, pipe())
			}
			if tt.answer != "" {
				theirs.WriteMsgUnix([]byte(tt.answer), unix.UnixRights(fds...), nil)
			}
			for _, fd := range fds {
				unix.Close(fd)
			}
			if tt.is == nil { // what is asked comes over the socket
				b := make([]byte, headerLen+1)
				if _, err := io.ReadFull(theirs, b); err != nil || b[headerLen] != 'x' {
					t.Errorf("%q, %v", b, err)
				}
				theirs.Write([]byte{1, 0, 0, 0, kindEcho, 0, frameReply, 0, b[8], b[9], b[10], b[11], 'y'})
			} else {
				theirs.CloseWrite()
			}
			if err := <-answered; !errors.Is(err, tt.is) {
				t.Errorf("the call ended with %v, want %v", err, tt.is)
			}
			c.Close()
			c.Wait()
			if c.overPipes() != tt.pipes {
				t.Errorf("over pipes: %v", c.overPipes())
			}
		})
	}
}

// TestMeetClosed: a connection that is closed before the server has answered, or
// while it does, leaves nothing open.
func TestMeetClosed(t *testing.T) {
	path, stop := server(t, echo)
	before := openFiles(t)
	for i := range 200 {
		nc, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c := newClientConn(nc, nil)
		c.start()
		for range i % 7 {
			runtime.Gosched()
		}
		c.Close()
		c.Wait()
	}
	stop()
	if after := openFiles(t); after > before {
		t.Errorf("%d files are open, %d were before", after, before)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestMakePipe: a pipe that cannot be as large as it should is none.
func TestMakePipe(t *testing.T) {
	t.Parallel()
	p, ok := makePipe(sizeToServer)
	if !ok {
		t.Fatal("no pipe")
	}
	if n, err := unix.FcntlInt(uintptr(p[1]), unix.F_GETPIPE_SZ, 0); n < sizeToServer || err != nil {
		t.Errorf("%d octets, %v", n, err)
	}
	unix.Close(p[0])
	unix.Close(p[1])
	if _, ok := makePipe(1 << 31); ok { // more than any pipe may have
		t.Error("a pipe of 2 GB")
	}
}
