package tenancy

import (
	"errors"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// The login counts before the address, and that before the sender.
func TestLookup(t *testing.T) {
	t.Parallel()
	cfg, err := config.LoadString("compatibility_level = 3.6\ntenant_maps = inline:{ {ann = login} {192.0.2.7 = client} {news@from.test = sender} {from.test = domain} {bad = a b} }\n")
	if err != nil {
		t.Fatal(err)
	}
	maps := Open(cfg, table.Options{})
	defer maps.Close()
	for _, tt := range []struct{ user, addr, sender, want string }{
		{"ann", "192.0.2.7", "news@from.test", "login"},
		{"bob", "192.0.2.7", "news@from.test", "client"},
		{"", "192.0.2.8", "News@From.test", "sender"},
		{"", "", "x@FROM.test", "domain"},
		{"", "", "x@a.from.test", ""},
		{"", "", "", ""},
	} {
		if got, err := Lookup(t.Context(), maps, tt.user, tt.addr, tt.sender); got != tt.want || err != nil {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
	if got, err := Lookup(t.Context(), maps, "bad", "", ""); got != "" || !errors.As(err, new(NameError)) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := Lookup(t.Context(), nil, "ann", "192.0.2.7", "a@b"); got != "" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	failing := table.OpenMaps("tenant_maps", []string{"fail:x"}, table.Options{})
	defer failing.Close()
	if _, err := Lookup(t.Context(), failing, "", "", "a@b.test"); err == nil {
		t.Error("a table that fails has found nobody")
	}
}
