package resolver_test

import (
	"testing"

	"posthaste/internal/resolver"
	"posthaste/internal/resolver/fakezone"
)

func TestTransitional(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule               resolver.Names
		name, ascii, other string
	}{
		{resolver.Names{}, "faß.example", "xn--fa-hia.example", "xn--fa-hia.example"},
		{resolver.Names{Transitional: true}, "faß.example", "fass.example", "fass.example"},
		{resolver.Names{Transitional: true}, "bücher.example", "xn--bcher-kva.example", "xn--bcher-kva.example"},
		{resolver.Names{Transitional: true}, "xn--fa-hia.example", "xn--fa-hia.example", "faß.example"},
	} {
		ascii, ok := c.rule.ToASCII(c.name)
		if other := c.rule.OtherForm(c.name); ascii != c.ascii || !ok || other != c.other {
			t.Errorf("%s by %+v: %s, %v, other form %s", c.name, c.rule, ascii, ok, other)
		}
	}
}

// TestTransitionalLookup: two Clients of one process may have two rules.
func TestTransitionalLookup(t *testing.T) {
	t.Parallel()
	z := fakezone.Must("fass.example. TXT old\nxn--fa-hia.example. TXT new\n")
	for want, rule := range map[string]resolver.Names{"new": {}, "old": {Transitional: true}} {
		c := resolver.New(resolver.Options{Exchanger: z, Hosts: "/dev/null", Names: rule})
		if a, err := c.TXT(t.Context(), "faß.example"); err != nil || len(a.Records) != 1 || a.Records[0] != want {
			t.Errorf("by %+v: %v, %v; want %s", rule, a.Records, err, want)
		}
		c.Close()
	}
}
