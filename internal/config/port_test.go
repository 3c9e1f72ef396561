package config

import "testing"

func TestPort(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	odd := mustLoad(t, "known_tcp_ports = here=there=2525, smtp=26\n")
	bad := mustLoad(t, "known_tcp_ports = here\n")
	for _, tt := range []struct {
		c    *Config
		name string
		want uint16
	}{
		{c, "25", 25}, {c, "65535", 65535}, {c, "0", 0}, {c, "smtp", 25}, {c, "lmtp", 24}, {c, "smtps", 465}, {c, "submissions", 465},
		{c, "submission", 587}, {c, "domain", 53},
		{odd, "here", 2525}, {odd, "there", 2525}, {odd, "smtp", 26},
		{c, "+25", 0}, {c, "65536", 0}, {c, "", 0}, {c, "no-such-service", 0}, {odd, "2525=", 0}, {bad, "smtp", 0},
	} {
		got, err := tt.c.Port(tt.name)
		if got != tt.want || (err == nil) != (tt.want != 0 || tt.name == "0") {
			t.Errorf("%q: %d %v, expected %d", tt.name, got, err, tt.want)
		}
	}
}
