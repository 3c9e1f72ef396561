package smtpd

import (
	"bytes"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"

	"posthaste/internal/maillog"
	"posthaste/internal/resolver"
	"posthaste/internal/table"
)

// keptLog is what was logged.
type keptLog struct{ bytes.Buffer }

func (*keptLog) Format() maillog.Format { return maillog.Plain }
func (*keptLog) Close() error           { return nil }

// What smtpd_dns_reply_filter makes of a record; where it cannot be asked, the record is dropped, and the log
// names the table once.
func TestKeepRecord(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]struct {
		kept bool
		log  string
	}{
		"inline:{ { x = IGNORE } }":     {false, ""},
		"inline:{ { x = ignore } }":     {false, ""},
		"inline:{ { other = IGNORE } }": {true, ""},
		"fail:x":                        {false, "warning: smtpd_dns_reply_filter: fail:x: lookup of"},
	} {
		sink := new(keptLog)
		log := maillog.New("smtpd", sink)
		maps := table.OpenMaps("smtpd_dns_reply_filter", []string{spec}, table.Options{})
		kept := keepRecord(log, maps, "x")
		_ = maps.Close()
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		if kept != want.kept || !strings.Contains(sink.String(), want.log) {
			t.Errorf("%s: kept: %v, log: %s", spec, kept, sink.String())
		}
	}
}

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
