package schedconf

import (
	"reflect"
	"testing"

	"posthaste/internal/config"
	"posthaste/qmgr/sched"
)

// other has another value than the default for each parameter.
var other = map[string]string{
	"defer_transports": "smtp", "qmgr_message_recipient_limit": "30000", "tenant_weights": "shop=3", "scheduler": "fifo", "thread_order": "random", "destination_adaptive": "yes",
	"destination_concurrency_positive_feedback": "1/concurrency", "destination_concurrency_negative_feedback": "1/concurrency",
}

// plain is what can be compared of the settings, with those of smtp.
func plain(t *testing.T, over ...config.Override) (sched.Config, sched.TransportConfig, int) {
	t.Helper()
	cfg, err := config.LoadString("", over...)
	if err != nil {
		t.Fatal(err)
	}
	services, _ := config.LoadMasterString("smtp unix - - n - - smtp\n", cfg)
	c, err := Load(cfg, services, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	smtp, weight := c.Transport("smtp", c.DefaultTransports), 1
	if c.TenantWeight != nil {
		weight = c.TenantWeight("shop")
	}
	c.Transport, c.TenantWeight, c.Seed = nil, nil, 0
	return c, smtp, weight
}

// Each parameter that a forecast honours changes the scheduler's settings, alone and for its
// transport.
func TestParameters(t *testing.T) {
	t.Parallel()
	all, smtp, weight := plain(t)
	for _, name := range Parameters([]string{"smtp"}) {
		value := "7"
		for suffix, v := range other {
			if name == suffix || name == "default_"+suffix || name == "smtp_"+suffix {
				value = v
			}
		}
		a, s, w := plain(t, config.Override{Name: name, Value: value})
		if reflect.DeepEqual(a, all) && s == smtp && w == weight {
			t.Errorf("%s = %s changes nothing", name, value)
		}
	}
}

// Each family of parameters that the scheduler has is honoured: time_limit is for agents.
func TestFamilies(t *testing.T) {
	t.Parallel()
	known := map[string]bool{"time_limit": true}
	for _, s := range suffixes {
		known[s] = true
	}
	for _, f := range config.Families() {
		if !known[f.Suffix] {
			t.Errorf("forecasts do not honour %s", f.Suffix)
		}
	}
}
