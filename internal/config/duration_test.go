package config

import (
	"strings"
	"testing"
	"time"
)

// TestDurationsLikePostfix has the outcomes of Postfix 3.7.11, in which one letter
// after the number counts; ms is Posthaste's own, and so are capital letters.
func TestDurationsLikePostfix(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want time.Duration // 0: refused
		read string        // what a warning says that is read
	}{
		{"1", time.Second, ""},
		{"1hh", time.Hour, "1h"},
		{"1hour", time.Hour, ""},
		{"2days", 48 * time.Hour, ""},
		{"90seconds", 90 * time.Second, ""},
		{"5mins", 5 * time.Minute, ""},
		{"+5m", 5 * time.Minute, ""},
		{"1H", time.Hour, ""},
		{"500ms", time.Second / 2, ""},
		{"5m30s", 5 * time.Minute, "5m"},
		{"2months", 2 * time.Minute, "2m"},
		{"1h x", time.Hour, "1h"},
		{"1s,", time.Second, "1s"},
		{"1d1", 24 * time.Hour, "1d"},
		{"1mss", time.Minute, "1m"},
		{"", 0, ""},
		{"10 s", 0, ""},
		{"1x", 0, ""},
		{"1y", 0, ""},
		{"-1h", 0, ""},
		{"0x10", 0, ""},
		{"5.5m", 0, ""},
		{"10$$", 0, ""},
		{"99999999999999999999", 0, ""},
	} {
		c, err := LoadString("max_idle = " + tt.text + "\n")
		if err == nil {
			err = c.Check("max_idle")
		}
		switch {
		case (err == nil) != (tt.want != 0):
			t.Errorf("max_idle = %s: %v", tt.text, err)
		case err == nil && c.Duration("max_idle") != tt.want:
			t.Errorf("max_idle = %s is %v, want %v", tt.text, c.Duration("max_idle"), tt.want)
		}
		if err != nil {
			continue
		}
		warned := strings.Join(c.Warnings(), "\n")
		want := ""
		if tt.read != "" {
			want = "is read as " + tt.read + ":"
		}
		if (warned == "") != (want == "") || !strings.Contains(warned, want) {
			t.Errorf("max_idle = %s: the warning %q, want %q", tt.text, warned, want)
		}
	}
}

// TestDefaultsOfOthers: a default that is made of another parameter's value is well-formed
// for whatever that parameter may be set to.
func TestDefaultsOfOthers(t *testing.T) {
	t.Parallel()
	forms := map[Type][]string{
		Duration: {"1s", "1m", "1h", "1d", "1w", "1", "86400"},
		Int:      {"1", "100"},
		Bytes:    {"100000", "1000k", "10m"},
		Bool:     {"yes", "no"},
	}
	tried := 0
	for _, p := range All() {
		references(p.Default, func(name string) {
			of, ok := Lookup(name)
			if !ok || forms[p.Type] == nil {
				return
			}
			texts := forms[of.Type]
			if of.Type == Enum {
				texts = strings.Split(of.Values, "|")
			}
			for _, text := range texts {
				c, err := LoadString(name + " = " + text + "\n")
				if err != nil && strings.Contains(err.Error(), " "+name+" = ") {
					continue // not a value of that parameter
				}
				if err != nil {
					t.Errorf("with %s = %s: %v", name, text, err)
					continue
				}
				tried++
				if err := c.Check(p.Name); err != nil {
					t.Errorf("with %s = %s: %v", name, text, err)
				}
			}
		})
	}
	if tried < 100 {
		t.Errorf("only %d settings were tried", tried)
	}
	c := mustLoad(t, "postscreen_dnsbl_ttl = 2h\n")
	if got := c.Duration("postscreen_dnsbl_max_ttl"); got != 2*time.Hour {
		t.Errorf("postscreen_dnsbl_max_ttl is %v", got)
	}
}

// TestZeroTaken: postconf(5) of Postfix 3.7.11 says of these that zero turns off what
// they are about.
func TestZeroTaken(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"address_verify_cache_cleanup_interval", "postscreen_cache_cleanup_interval",
		"smtp_tls_session_cache_timeout", "lmtp_tls_session_cache_timeout", "smtpd_tls_session_cache_timeout",
		"delay_warning_time", "in_flow_delay", "smtp_connect_timeout", "qmgr_clog_warn_time", "address_verify_sender_ttl",
		"maximal_queue_lifetime", "bounce_queue_lifetime", "default_destination_rate_delay", "default_transport_rate_delay",
		"postscreen_greet_wait", "smtpd_error_sleep_time"} {
		c, err := LoadString(name + " = 0\n")
		if err != nil {
			t.Error(err)
		} else if got := c.Duration(name); got != 0 {
			t.Errorf("%s = 0 is %v", name, got)
		}
	}
}
