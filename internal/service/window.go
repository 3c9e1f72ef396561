package service

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SetWindow gives a TCP socket buffers of size octets (tcp_windowsize), which
// bound the window that it offers. It has to be done before the socket listens
// or connects: the window's scale (RFC 7323 section 2.2) is settled with the
// connection. The socket is of use without, so that the errors are to be
// logged only.
func SetWindow(fd, size int) (errs []error) {
	for _, o := range []struct {
		opt  int
		name string
	}{{unix.SO_SNDBUF, "SO_SNDBUF"}, {unix.SO_RCVBUF, "SO_RCVBUF"}} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, o.opt, size); err != nil {
			errs = append(errs, fmt.Errorf("setsockopt %s %d: %w", o.name, size, err))
		}
	}
	return errs
}
