package config

import (
	"strings"
	"testing"
)

// TestMalformed: what a parameter cannot be is said when main.cf is checked.
func TestMalformed(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{
		"error_service_name =",
		"empty_address_local_login_sender_maps_lookup_key =",
		"enable_idna2003_compatibility = maybe",
		"helpful_warnings = some",
		"info_log_address_format = quoted",
		"local_login_sender_maps = inline:{",
		"tcp_windowsize = 64k",
		"tcp_windowsize = -1",
		"mydomain = ${domain_to_ascii{π..}}",
	} {
		name, _, _ := strings.Cut(setting, " ")
		c, err := LoadString(setting + "\n")
		if err == nil {
			err = c.Check(name)
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", setting, err)
		}
	}
}
