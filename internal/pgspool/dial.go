package pgspool

import (
	"context"
	"net"
	"strings"
	"syscall"
	"time"
)

// deadTime is how long the machine of a server may be silent until the connections to it are given up: that is for those that
// wait without a limit of their own, such as for the records of a shard, which may take long to read. The system's own limits are a
// quarter of an hour for what has been sent, and hours for who only waits.
const deadTime = 10 * time.Second

// tcpUserTimeout is TCP_USER_TIMEOUT of Linux, in ms: how long what was sent, or a probe, may wait to be acknowledged.
const tcpUserTimeout = 0x12

// dial connects to a server. That a process of the server hangs is not noticed by this, only that its machine is gone, or the way to it.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: deadTime / 2, Interval: deadTime / 10, Count: 5}}
	d.Control = func(network, _ string, c syscall.RawConn) (err error) {
		if !strings.HasPrefix(network, "tcp") {
			return nil // a socket of this machine
		}
		if cerr := c.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(deadTime.Milliseconds()))
		}); cerr != nil {
			return cerr
		}
		return err
	}
	return d.DialContext(ctx, network, addr)
}
