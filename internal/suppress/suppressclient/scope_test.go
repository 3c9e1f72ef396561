package suppressclient

import (
	"context"
	"slices"
	"strings"
	"testing"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

func TestScopes(t *testing.T) {
	t.Parallel()
	for scope, want := range map[string]bool{"": false, "news": true, "shop/": true, "shop/news": true, "/": false, "/news": false, "shop/a/b": false, "shop//": false,
		"shop/*": false, "a b/": false, strings.Repeat("a", 64) + "/" + strings.Repeat("b", 64): true, strings.Repeat("a", 65) + "/": false, "shop/" + strings.Repeat("b", 65): false} {
		if got := ValidScope(scope); got != want {
			t.Errorf("%q: %v", scope, got)
		}
		if tenant, list := Parts(scope); want && Scope(tenant, list) != scope {
			t.Errorf("%q: %q, %q", scope, tenant, list)
		}
	}
}

// Entries hold for the mail that they are about, and bounces are about all mail of a tenant.
func TestChain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ scope, home, chain string }{
		{"", "", "*"},
		{"news", "news", "news *"},
		{"shop/", "shop/", "shop/ *"},
		{"shop/news", "shop/", "shop/news shop/ news *"},
	} {
		chain := Chain(tt.scope)
		if i := slices.Index(chain, ""); i >= 0 {
			chain[i] = "*"
		}
		if got := strings.Join(chain, " "); got != tt.chain || Home(tt.scope) != tt.home {
			t.Errorf("%q: %s, home %s", tt.scope, got, Home(tt.scope))
		}
	}
}

// Whose list mail is under: that of its sender, and for some tenants the tenant's.
func TestLists(t *testing.T) {
	t.Parallel()
	open := func(main string) *Lists {
		cfg, err := config.LoadString("compatibility_level = 3.6\n" + main)
		if err != nil {
			t.Fatal(err)
		}
		l, err := OpenLists(cfg, table.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := open("tenant_maps = static:shop\n"); l != nil {
		t.Error("there is no list, and one is asked for")
	}
	const maps = "suppress_list_maps = inline:{ {@news.test = letter} {bad@x.test = a/b} {@no.test = DUNNO} }\n"
	for _, tt := range []struct{ main, tenant, sender, want string }{
		{maps, "shop", "a@news.test", "letter"},
		{maps + "suppress_tenants = shop\n", "shop", "a@news.test", "shop/letter"},
		{maps + "suppress_tenants = shop\n", "bank", "a@news.test", "letter"},
		{maps + "suppress_tenants = shop\n", "shop", "a@no.test", "shop/"},
		{maps + "suppress_tenants = shop\n", "shop", "bad@x.test", "error"},
		{"suppress_tenants = shop\n", "shop", "a@x.test", "shop/"},
		{"suppress_tenants = shop\n", "", "a@x.test", ""},
		{"suppress_tenants = shop\n", "shop", "", ""},
		{"suppress_tenants = static:all\n", "bank", "a@x.test", "bank/"},
		{"suppress_tenants = !shop static:all\n", "shop", "a@x.test", ""},
		{"suppress_tenants = inline:{shop=x}\n", "shop", "a@x.test", "shop/"},
		{"suppress_tenants = fail:x\n", "shop", "a@x.test", "error"},
	} {
		l := open(tt.main)
		got, err := l.Of(context.Background(), tt.tenant, tt.sender)
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
