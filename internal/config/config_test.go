package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func mustLoad(t testing.TB, main string, over ...Override) *Config {
	t.Helper()
	c, err := LoadString(main, over...)
	if err != nil {
		t.Fatalf("LoadString: %v", err)
	}
	return c
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	for i := range declared().params {
		p := &declared().params[i]
		if v := c.lookup(p); v.err != nil {
			t.Errorf("default of %s (%s): %v", p.Name, p.Default, v.err)
		}
	}
	if got := c.Int("smtp_destination_concurrency_limit"); got != 20 {
		t.Errorf("smtp_destination_concurrency_limit = %d, want 20", got)
	}
	if got := c.Duration("maximal_queue_lifetime"); got != 5*24*time.Hour {
		t.Errorf("maximal_queue_lifetime = %v, want 5 days", got)
	}
	if got := c.Bytes("spool_inline_limit"); got != 128<<10 {
		t.Errorf("spool_inline_limit = %d, want 128 KiB", got)
	}
}

func TestAccessors(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
myhostname = mail.example.com
mydestination = $myhostname, localhost.$mydomain { a b } x
maximal_queue_lifetime = 2
delay_warning_time = 4
message_size_limit = 20m
smtpd_helo_required = YES
slow_destination_rate_delay = 3
local_destination_concurrency_limit = 4
`, Override{"always_bcc", "first"}, Override{"always_bcc", "archive@$mydomain"})
	if got, want := c.List("mydestination"), []string{"mail.example.com", "localhost.example.com", "a b", "x"}; !slices.Equal(got, want) {
		t.Errorf("mydestination = %q, want %q", got, want)
	}
	if got := c.Duration("maximal_queue_lifetime"); got != 48*time.Hour {
		t.Errorf("maximal_queue_lifetime = %v, want 48h: a bare number counts days", got)
	}
	if got := c.Duration("delay_warning_time"); got != 4*time.Hour {
		t.Errorf("delay_warning_time = %v, want 4h: a bare number counts hours", got)
	}
	if got := c.Int("message_size_limit"); got != 20<<20 {
		t.Errorf("message_size_limit = %d, want %d", got, 20<<20)
	}
	if !c.Bool("smtpd_helo_required") {
		t.Error("smtpd_helo_required = false, want true")
	}
	if got := c.String("always_bcc"); got != "archive@example.com" {
		t.Errorf("always_bcc = %q, want the later override, expanded", got)
	}
	if got := c.Prefix("slow").Duration("destination_rate_delay"); got != 3*time.Second {
		t.Errorf("slow_destination_rate_delay = %v, want 3s", got)
	}
	if got := c.Prefix("slow").Int("destination_concurrency_limit"); got != 20 {
		t.Errorf("slow_destination_concurrency_limit = %d, want the default's 20", got)
	}
	if got := c.Prefix("local").Int("destination_concurrency_limit"); got != 4 {
		t.Errorf("local_destination_concurrency_limit = %d, want 4", got)
	}
	if got := c.Prefix("virtual").Int("initial_destination_concurrency"); got != 5 {
		t.Errorf("virtual_initial_destination_concurrency = %d, want 5", got)
	}
	if set, file, line := c.IsSet("message_size_limit"); !set || file != "main.cf" || line != 6 {
		t.Errorf("IsSet(message_size_limit) = %v, %s, %d; want true, main.cf, 6", set, file, line)
	}
}

func TestErrorsAreCollected(t *testing.T) {
	t.Parallel()
	_, err := LoadString(strings.Join([]string{
		"message_size_limit = 10x",
		"no equals sign",
		"= 3",
		"smtpd_helo_required = maybe",
		"maximal_backoff_time = soon",
		"initial_destination_concurrency = 0",
		"mynetworks_style = all",
		"relay_domains = $a1",
		"a1 = $b1",
		"b1 = x${a1}",
		"always_bcc = ${x",
		"bad name = 1",
	}, "\n"), Override{"hopcount_limit", "-1"})
	if err == nil {
		t.Fatal("LoadString accepted malformed settings")
	}
	want := []string{
		`main.cf:2: expected name = value, found "no equals sign"`,
		`main.cf:3: expected a parameter name before the = in "= 3"`,
		`main.cf:12: expected a parameter name made of letters, digits and _, found "bad name"`,
		`-o: hopcount_limit = -1: expected at least 1`,
		`main.cf:1: message_size_limit = 10x: expected a size such as 10240000, 512k or 20m`,
		`main.cf:4: smtpd_helo_required = maybe: expected yes or no`,
		`main.cf:5: maximal_backoff_time = soon: expected a time such as 30s, 5m, 2h, 1d or 1w`,
		`main.cf:6: initial_destination_concurrency = 0: expected at least 1`,
		`main.cf:7: mynetworks_style = all: expected one of: class, subnet, host`,
		`main.cf:8: relay_domains = $a1: expected a value that does not refer to itself: a1 -> b1 -> a1`,
		`main.cf:9: a1 = $b1: expected a value that does not refer to itself: a1 -> b1 -> a1`,
		`main.cf:10: b1 = x${a1}: expected a value that does not refer to itself: b1 -> a1 -> b1`,
		`main.cf:11: always_bcc = ${x: expected a } to close "{x"`,
	}
	if got := strings.Split(err.Error(), "\n"); !slices.Equal(got, want) {
		t.Errorf("errors:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
