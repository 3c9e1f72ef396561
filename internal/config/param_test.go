package config

import (
	"slices"
	"strings"
	"testing"
)

// A declaration must make sense by itself; that its default is well-formed is
// TestDefaults' business.
func TestDeclarations(t *testing.T) {
	t.Parallel()
	for _, p := range All() {
		if !validName(p.Name) {
			t.Errorf("%s is no name", p.Name)
		}
		if len(p.Doc) < 5 || strings.HasSuffix(p.Doc, ".") {
			t.Errorf("%s: the sentence %q is none, or ends in a full stop", p.Name, p.Doc)
		}
		if p.Tier < 1 || p.Tier > 3 || p.Subsystem == "" {
			t.Errorf("%s: tier %d, subsystem %q", p.Name, p.Tier, p.Subsystem)
		}
		if (p.Type == Enum) != (p.Values != "") {
			t.Errorf("%s: a %s with the words %q", p.Name, p.Type, p.Values)
		}
		if p.Unit != 0 && (p.Type != Duration || !strings.ContainsRune("smhdw", rune(p.Unit))) {
			t.Errorf("%s: a %s with the unit %c", p.Name, p.Type, p.Unit)
		}
		if p.Max != 0 && p.Max < p.Min {
			t.Errorf("%s: bounds %d to %d", p.Name, p.Min, p.Max)
		}
		if (p.Min != 0 || p.Max != 0) && !slices.Contains([]Type{Int, Bytes, Duration}, p.Type) {
			t.Errorf("%s: a %s with bounds", p.Name, p.Type)
		}
		references(p.Default, func(name string) {
			if p.Type == Raw || name == "level" {
				return // expanded by the service, which knows more names
			}
			if _, ok := Lookup(name); !ok {
				t.Errorf("%s: the default %s refers to %s, which is not declared", p.Name, p.Default, name)
			}
		})
	}
	if n := len(All()); n < 1000 {
		t.Errorf("%d parameters are declared, expected more than 1000", n)
	}
}

// A name that several families could claim belongs to the longest suffix.
func TestFamilyMembers(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, fallback string }{
		{"slow_destination_recipient_limit", "$default_destination_recipient_limit"},
		{"slow_extra_recipient_limit", "$default_extra_recipient_limit"},
		{"slow_recipient_limit", "$default_recipient_limit"},
		{"slow_initial_destination_concurrency", "$initial_destination_concurrency"},
		{"my-own.x_time_limit", "$command_time_limit"},
		{"a_b_transport_rate_delay", "$default_transport_rate_delay"},
	}
	for _, tt := range tests {
		if p, ok := Lookup(tt.name); !ok || p.Default != tt.fallback {
			t.Errorf("Lookup(%s) has the default %q (%v), want %q", tt.name, p.Default, ok, tt.fallback)
		}
	}
	for _, name := range []string{"recipient_limit", "_recipient_limit", "slow_limit", ""} {
		if p, ok := Lookup(name); ok {
			t.Errorf("Lookup(%q) = %+v", name, p)
		}
	}
}

func TestUndeclaredPanics(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "")
	for what, read := range map[string]func(){
		"an undeclared name":   func() { c.String("no_such_parameter") },
		"a list as a number":   func() { c.Int("mydestination") },
		"a number as a list":   func() { c.List("hopcount_limit") },
		"an undeclared family": func() { c.Prefix("smtp").Int("no_such_suffix") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was read", what)
				}
			}()
			read()
		}()
	}
}
