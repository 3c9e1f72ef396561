package milter

import (
	"net/netip"
	"testing"

	"posthaste/internal/config"
)

var addrLocal = netip.MustParseAddr("127.0.0.1")

func loadConfig(t *testing.T, main string) *config.Config {
	t.Helper()
	cfg, err := config.LoadString(main)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}
