package config

import (
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	words := []string{"permit_mynetworks", "permit", "reject", "smtp", "smtpd", "relay"}
	for word, want := range map[string]string{
		"permit_mynetwork": "permit_mynetworks", "permit_mynetwrosk": "permit_mynetworks", "premit": "permit", "smpt": "smtp",
		"relya": "relay", "smtp": "smtp", "x": "", "": "", "dovecot": "", "permit_sasl_authenticated": "", "rejekt_": "reject",
	} {
		if got := Nearest(word, slices.Values(words)); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	for name, want := range map[string]string{"smtpd_recipient_restriction": "smtpd_recipient_restrictions", "my_own": "", "relayhosts": "relayhost"} {
		if got := NearestParameter(name); got != want {
			t.Errorf("NearestParameter(%q) = %q, want %q", name, got, want)
		}
	}
}
