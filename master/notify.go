package master

import (
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sdNotify tells the service manager whose socket is at path of a change, in
// the protocol of sd_notify(3). Without a socket it does nothing.
func sdNotify(path, state string) error {
	if path == "" {
		return nil
	}
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
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = c.Write([]byte(state))
	return err
}
