package config

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// resolveTimeout bounds the search for a host name of inet_interfaces, as nobody
// should wait for long to learn a default.
const resolveTimeout = 5 * time.Second

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
		return c.ownNetworks()
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

// firstLine reads the file that myorigin may name, as it does on Debian, where
// /etc/mailname holds the domain for all mail systems.
func (c *Config) firstLine(path string) (string, error) {
	if line, ok := c.files.Load(path); ok {
		return line.(string), nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("expected a domain, or a file whose first line is one: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if line = strings.TrimSpace(line); line == "" || strings.ContainsAny(line, " \t/") {
		return "", fmt.Errorf("expected a domain in the first line of %s, found %q", path, line)
	}
	c.files.Store(path, line)
	return line, nil
}

// ownNetworks lists the networks of the interfaces that this system receives mail on,
// as mynetworks_style asks: the addresses themselves, their subnets, or their class A,
// B or C networks.
func (c *Config) ownNetworks() string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.0/8 [::1]/128"
	}
	style := c.String("mynetworks_style")
	use4, use6 := protocolsInUse(c.List("inet_protocols"))
	receives := interfaceFilter(c.List("inet_interfaces"))
	var nets []string
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		if !ok || !receives(n.IP) {
			continue
		}
		if is4 := n.IP.To4() != nil; (is4 && !use4) || (!is4 && !use6) {
			continue
		}
		if text := networkText(style, n); !slices.Contains(nets, text) {
			nets = append(nets, text)
		}
	}
	return strings.Join(nets, " ")
}

// interfaceFilter reads inet_interfaces: all, loopback-only, or addresses and
// host names. A name that cannot be resolved stands for no address.
func interfaceFilter(interfaces []string) func(net.IP) bool {
	var listed []net.IP
	for _, name := range interfaces {
		switch strings.ToLower(name) {
		case "all":
			return func(net.IP) bool { return true }
		case "loopback-only":
			return net.IP.IsLoopback
		}
		if ip := net.ParseIP(strings.Trim(name, "[]")); ip != nil {
			listed = append(listed, ip)
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
		ips, err := net.DefaultResolver.LookupIP(ctx, "ip", name)
		cancel()
		if err == nil {
			listed = append(listed, ips...)
		}
	}
	return func(ip net.IP) bool { return slices.ContainsFunc(listed, ip.Equal) }
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
