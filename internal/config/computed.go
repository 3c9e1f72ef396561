package config

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// rawDefault returns the default of p: the declared text, or what is found out
// from the system for the few that have no fixed one.
func (c *Config) rawDefault(p *Param) string {
	switch p.Name {
	case "config_directory":
		return c.dir
	case "myhostname":
		return c.hostname()
	case "mydomain":
		return domainOf(c.String("myhostname"))
	case "mynetworks":
		return ownNetworks(c.String("mynetworks_style"), c.List("inet_protocols"))
	case "mail_owner":
		return mailOwner()
	case "process_name":
		return filepath.Base(os.Args[0])
	case "process_id":
		return strconv.Itoa(os.Getpid())
	}
	return p.Default
}

// hostname is the system's host name, made fully qualified with mydomain if
// that is set.
func (c *Config) hostname() string {
	name, err := os.Hostname()
	if err != nil || name == "" {
		name = "localhost"
	}
	name = strings.TrimSuffix(name, ".")
	if strings.Contains(name, ".") {
		return name
	}
	if s, ok := c.settings["mydomain"]; ok && s.raw != "" && !strings.Contains(s.raw, "$") {
		return name + "." + s.raw
	}
	return name + ".localdomain"
}

// domainOf is the host name without its first label.
func domainOf(host string) string {
	if _, domain, ok := strings.Cut(host, "."); ok && domain != "" {
		return domain
	}
	return "localdomain"
}

// mailOwner is posthaste if there is such a user, else the user that a site
// that ran Postfix has.
func mailOwner() string {
	if _, err := user.Lookup("posthaste"); err == nil {
		return "posthaste"
	}
	return "postfix"
}

// ownNetworks lists the networks of this machine's interfaces, as mynetworks_style
// asks: the addresses themselves, their subnets, or their class A, B or C networks.
func ownNetworks(style string, protocols []string) string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.0/8 [::1]/128"
	}
	use4, use6 := protocolsInUse(protocols)
	var nets []string
	seen := make(map[string]bool)
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		v4 := n.IP.To4()
		if (v4 != nil && !use4) || (v4 == nil && !use6) {
			continue
		}
		text := networkText(style, n)
		if !seen[text] {
			seen[text] = true
			nets = append(nets, text)
		}
	}
	return strings.Join(nets, " ")
}

// protocolsInUse reads inet_protocols.
func protocolsInUse(protocols []string) (use4, use6 bool) {
	for _, p := range protocols {
		switch strings.ToLower(p) {
		case "all":
			use4, use6 = true, true
		case "ipv4":
			use4 = true
		case "ipv6":
			use6 = true
		}
	}
	return use4, use6
}

// networkText writes an interface's network in Postfix's notation.
func networkText(style string, n *net.IPNet) string {
	bits, size := n.Mask.Size()
	ip := n.IP
	if v4 := ip.To4(); v4 != nil {
		ip = v4
		switch {
		case ip.IsLoopback(): // the whole of 127/8 is this machine
			bits = 8
		case style == "class" && ip[0] < 128:
			bits = 8
		case style == "class" && ip[0] < 192:
			bits = 16
		case style == "class":
			bits = 24
		case style == "host":
			bits = 32
		}
		return ip.Mask(net.CIDRMask(bits, 32)).String() + "/" + strconv.Itoa(bits)
	}
	if style == "host" {
		bits = size
	}
	return "[" + ip.Mask(net.CIDRMask(bits, size)).String() + "]/" + strconv.Itoa(bits)
}
