package smtp

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWindowSize: a connection's buffers are those of tcp_windowsize, which
// Linux doubles for its own needs.
func TestWindowSize(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := tcpAgent(t, "tcp_windowsize = 6000\n")
	d := &delivery{a: a, set: a.set}
	d.set.time.connect = 40 * time.Second
	addr := l.Addr().(*net.TCPAddr)
	c, f := d.dial(context.Background(), &target{host: "x.test", ip: netip.MustParseAddr("127.0.0.1"), port: strconv.Itoa(addr.Port)})
	if f != nil {
		t.Fatal(f)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for _, opt := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
		var got int
		var gerr error
		if err := raw.Control(func(fd uintptr) { got, gerr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, opt) }); err != nil || gerr != nil {
			t.Fatal(err, gerr)
		}
		if got != 12000 {
			t.Errorf("option %d is %d octets, want twice 6000", opt, got)
		}
	}
}
