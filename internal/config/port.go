package config

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Port is the number of a TCP port: of a number, 0 too, of a name in
// known_tcp_ports, or of one in /etc/services.
func (c *Config) Port(name string) (uint16, error) {
	if n, err := strconv.ParseUint(name, 10, 16); err == nil {
		return uint16(n), nil // LookupPort has its ceremonies even for a number
	}
	for _, entry := range c.List("known_tcp_ports") {
		names := strings.Split(entry, "=")
		number := strings.TrimSpace(names[len(names)-1])
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 || len(names) < 2 {
			return 0, fmt.Errorf("known_tcp_ports: %q: expected name=number, or name=name=number", entry)
		}
		for _, known := range names[:len(names)-1] {
			if strings.TrimSpace(known) == name {
				return uint16(n), nil
			}
		}
	}
	if !strings.HasPrefix(name, "+") && !strings.HasPrefix(name, "-") { // which LookupPort takes for a number's
		if n, err := net.LookupPort("tcp", name); err == nil && n > 0 {
			return uint16(n), nil
		}
	}
	return 0, fmt.Errorf("no such port or service: %q", name)
}
