package service

import (
	"fmt"
	"net"
	"time"
)

// triggerTimeout bounds what a wake-up may take.
const triggerTimeout = 10 * time.Second

// Trigger wakes a service: it sends the letters to the socket at path, and
// waits for no answer. What the letters mean is the service's affair: W is a
// wake-up by the clock; qmgr takes D, I, A and F.
func Trigger(path, letters string) error {
	c, err := net.DialTimeout("unix", path, triggerTimeout)
	if err != nil {
		return fmt.Errorf("wake up the service at %s: %w", path, err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(triggerTimeout))
	if _, err := c.Write([]byte(letters)); err != nil {
		return fmt.Errorf("wake up the service at %s: %w", path, err)
	}
	return nil
}
