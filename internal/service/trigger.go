package service

import (
	"fmt"
	"net"
	"time"
)

// Trigger wakes a service: it sends the letters to the socket at path, and
// waits for no answer, and for no longer than timeout (trigger_timeout). What the letters mean is the service's affair: W is a
// wake-up by the clock; qmgr takes D, I, A and F.
func Trigger(path, letters string, timeout time.Duration) error {
	c, err := net.DialTimeout("unix", path, timeout)
	if err != nil {
		return fmt.Errorf("wake up the service at %s: %w", path, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(timeout))
	if _, err := c.Write([]byte(letters)); err != nil {
		return fmt.Errorf("wake up the service at %s: %w", path, err)
	}
	return nil
}
