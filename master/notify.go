// Messages to the service manager (systemd): that the mail system is ready, reloads or
// stops. The protocol needs one datagram, and no library.

package master

import (
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sdNotify sends state to the socket at path, as in sd_notify(3); without a path it does
// nothing. It waits for at most a second: a service manager that hangs must not stop
// mail.
func sdNotify(path, state string) error {
	if path == "" {
		return nil
	}
	// An abstract socket.
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	if state == "RELOADING=1" {
		// The manager tells a reload's end from an older READY by this.
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
			return err
		}
		state = fmt.Sprintf("%s\nMONOTONIC_USEC=%d", state, now.Nano()/1000)
	}
	// A connection for each message: there are few, and the manager may be restarted in
	// between.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = c.Write([]byte(state))
	return err
}
