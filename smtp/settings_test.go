package smtp

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/maillog"
	"posthaste/internal/resolver/fakezone"
	"posthaste/internal/table"
)

func TestBindAddrs(t *testing.T) {
	t.Parallel()
	one := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for _, tt := range []struct {
		conf string
		lmtp bool
		own  []netip.Addr
		want string // IPv4, then IPv6
	}{
		{"", false, one, "192.0.2.1 2001:db8::1"},
		{"", false, append(one, one...), "192.0.2.1 2001:db8::1"},
		{"", false, append(one, netip.MustParseAddr("2001:db8::2")), "192.0.2.1 -"},
		{"", false, []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::")}, "- -"},
		{"smtp_bind_address6 = 2001:db8::9", false, one, "192.0.2.1 2001:db8::9"},
		{"smtp_bind_address6 = [2001:db8::9]\nsmtp_bind_address = 192.0.2.9", false, nil, "192.0.2.9 2001:db8::9"},
		{"smtp_bind_address6 = 192.0.2.9", false, nil, "smtp_bind_address6 = 192.0.2.9"},
		{"smtp_bind_address6 = mail.test", false, nil, "smtp_bind_address6 = mail.test"},
		{"lmtp_bind_address6 = 192.0.2.9", true, nil, "lmtp_bind_address6 = 192.0.2.9"},
		{"smtp_bind_address6 = 2001:db8::9\nlmtp_bind_address6 = 2001:db8::8", true, nil, "- 2001:db8::8"},
	} {
		cfg, err := config.LoadString(tt.conf + "\n")
		if err != nil {
			t.Fatal(err)
		}
		bind, err := load(cfg, tt.lmtp).bindAddrs(tt.own)
		show := func(v4 bool) string {
			if a, ok := bind[v4]; ok {
				if own := slices.Contains(tt.own, a.addr); own == a.given {
					t.Errorf("%q: %s is given: %v", tt.conf, a.addr, a.given)
				}
				return a.addr.String()
			}
			return "-"
		}
		got := show(true) + " " + show(false)
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), ": ")
		}
		if got != tt.want {
			t.Errorf("%q: %s (%v), want %s", tt.conf, got, err, tt.want)
		}
	}
}

// The time that a whole message may take, with smtp_per_request_deadline.
func TestMinDataRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			conf string
			want string
		}{
			{"", "none"},
			{"smtp_per_request_deadline = yes\nsmtp_data_xfer_timeout = 60s", "1m20s"}, // 500 octets a second
			{"smtp_per_request_deadline = yes\nsmtp_data_xfer_timeout = 60s\nsmtp_min_data_rate = 100", "2m40s"},
			{"smtp_per_request_deadline = yes\nsmtp_data_xfer_timeout = 60s\nsmtp_min_data_rate = 0", "1m0s"},
		} {
			cfg, err := config.LoadString(tt.conf + "\n")
			if err != nil {
				t.Fatal(err)
			}
			o := newOutput(nil, load(cfg, false), 10000)
			got := "none"
			if !o.by.IsZero() {
				got = fmt.Sprint(time.Until(o.by))
			}
			if got != tt.want {
				t.Errorf("%q: %s, want %s", tt.conf, got, tt.want)
			}
		}
	})
}

// TestStartRefused: what is wrong in main.cf or in the arguments ends the process at its start, and the
// error names it.
func TestStartRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ conf, args, want string }{
		{"smtp_tls_protocols = TLSv9", "", "smtp_tls_protocols"},
		{"smtp_tls_mandatory_protocols = >=TLSv9", "", "smtp_tls_mandatory_protocols"},
		{"smtp_tls_security_level = may\nsmtp_tls_cert_file = /nonexistent.pem", "", "smtp_tls_cert_file"},
		{"inet_interfaces = bad..name", "", "bad..name"},
		{"proxy_interfaces = bad..name", "", "bad..name"},
		{"smtp_requiretls_policy = maybe", "", "smtp_requiretls_policy: \"maybe\": expected tables"},
		{"smtp_requiretls_policy = enforce inline:{a=disable}", "", "smtp_requiretls_policy: \"enforce\": expected tables"},
		{"smtp_requiretls_policy = enforce disable", "", "smtp_requiretls_policy: \"enforce\": expected tables"},
		{"", "DORX", "unknown argument"},
		{"", "flags=Z", "flag"},
	} {
		cfg, err := config.LoadString("myhostname = me.test\n" + tt.conf + "\n")
		if err != nil {
			t.Fatal(tt.conf, err)
		}
		dns := fakezone.Must("").Resolver()
		a, err := newAgent(deps{Config: cfg, Log: maillog.New("smtp", new(lines)), Resolver: dns, Args: strings.Fields(tt.args)})
		if err == nil {
			a.Close()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q, %q: %v, want %s", tt.conf, tt.args, err, tt.want)
		}
		dns.Close()
	}
}

// TestPrefixes: each program reads its own parameters, and its messages name them.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("smtp_mx_address_limit = 3\nlmtp_mx_address_limit = 4\nsmtp_helo_name = a.test\nlmtp_lhlo_name = b.test\n" +
		"smtp_balance_inet_protocols = No\nlmtp_balance_inet_protocols = YES\nlmtp_throttle_replies = x\n")
	if err != nil {
		t.Fatal(err)
	}
	smtp, lmtp := load(cfg, false), load(cfg, true)
	if !smtp.randomize {
		t.Error("addresses are not tried in any order by default")
	}
	if smtp.maxAddrs != 3 || lmtp.maxAddrs != 4 || smtp.helloName != "a.test" || lmtp.helloName != "b.test" || smtp.balance || !lmtp.balance {
		t.Errorf("%+v\n%+v", smtp, lmtp)
	}
	if smtp.port != "25" || lmtp.port != "24" || !smtp.skipQuitReply || lmtp.skipQuitReply {
		t.Errorf("defaults: port %s and %s, the reply to QUIT is not waited for: %v and %v", smtp.port, lmtp.port, smtp.skipQuitReply, lmtp.skipQuitReply)
	}
	if tab, err := smtp.open(table.Options{}); err != nil || tab.discard.Title() != "smtp_discard_ehlo_keyword_address_maps" {
		t.Errorf("%v, %s", err, tab.discard.Title())
	}
	if _, err := lmtp.open(table.Options{}); err == nil || !strings.HasPrefix(err.Error(), "lmtp_throttle_replies: ") {
		t.Error(err)
	}
	cfg, err = config.LoadString("")
	if err != nil {
		t.Fatal(err)
	}
	if tab, err := load(cfg, true).open(table.Options{}); err != nil || tab.discard.Title() != "lmtp_discard_lhlo_keyword_address_maps" {
		t.Errorf("%v, %s", err, tab.discard.Title())
	}
}
