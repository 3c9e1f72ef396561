package smtpd

import (
	"net/netip"
	"os"
	"regexp"
	"testing"

	"posthaste/internal/resolver"
)

// The name of loopback comes from /etc/hosts, without a question to anybody.
func TestHostNames(t *testing.T) {
	t.Parallel()
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil || !regexp.MustCompile(`(?m)^127\.0\.0\.1\s+localhost\b`).Match(hosts) {
		t.Skip("/etc/hosts does not have localhost first for 127.0.0.1")
	}
	dns := resolver.New(resolver.Options{ResolvConf: "/dev/null"})
	defer dns.Close()
	n := newHostNames(dns)
	a := netip.MustParseAddr("127.0.0.1")
	ptr, err := n.PTR(t.Context(), a)
	if err != nil || ptr.Records[0] != "localhost" {
		t.Fatalf("PTR = %v, %v", ptr.Records, err)
	}
	addrs, err := n.Addrs(t.Context(), ptr.Records[0], resolver.IPv4)
	if err != nil || len(addrs.Records) == 0 || addrs.Records[0] != a {
		t.Errorf("Addrs = %v, %v", addrs.Records, err)
	}
}
