package dkimkey

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"posthaste/internal/table"
)

// Which key signs the mail of a tenant and a domain: the nearest one, that of the tenant before others. Patterns are
// asked about the domain itself, and a table that fails is an error, not mail that goes out unsigned.
func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	patterns := filepath.Join(dir, "patterns")
	if err := os.WriteFile(patterns, []byte(`/(^|\.)example\.net$/ s:/net`+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const own = "inline:{ { example.com = s:/com } { .example.com = s:/below } { shop/example.com = s:/shop } }"
	for _, c := range []struct{ maps, tenant, domain, want string }{
		{own, "", "example.com", "/com"},
		{own, "", "a.b.example.com", "/below"},
		{own, "shop", "example.com", "/shop"},
		{own, "shop", "b.example.com", "/below"},
		{own, "other", "example.com", "/com"},
		{own, "", "shop/example.com", ""},
		{own, "", "example.org", ""},
		{"regexp:" + patterns, "", "example.net", "/net"},
		{"regexp:" + patterns, "", "a.example.net", "/net"},
		{"regexp:" + patterns, "", "example.org", ""},
		{"static:{example.com:s:/all}", "", "example.org", "/all"},
		{"fail:x", "", "example.com", "error"},
	} {
		maps := table.OpenMaps("dkim_sign_maps", []string{c.maps}, table.Options{})
		defer maps.Close()
		list, err := Find(context.Background(), maps, c.tenant, c.domain)
		got := ""
		switch {
		case err != nil:
			got = "error"
		case len(list) == 1:
			got = list[0].File
		}
		if got != c.want {
			t.Errorf("%s: tenant %q, %s: %q (%v), want %q", c.maps, c.tenant, c.domain, got, err, c.want)
		}
	}
}
