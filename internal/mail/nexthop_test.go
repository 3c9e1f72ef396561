package mail

import "testing"

func TestNexthopHost(t *testing.T) {
	t.Parallel()
	for in, want := range map[Nexthop]string{
		"Example.com":              "example.com",
		"example.com:587":          "example.com",
		"inet:example.com:24":      "example.com",
		"[Gw.Example.com]:587":     "gw.example.com itself",
		"[192.0.2.1]":              "192.0.2.1 itself",
		"[ipv6:2001:db8::1]:25":    "ipv6:2001:db8::1 itself",
		"one.example, two.example": "one.example",
		"[a.example] b.example":    "a.example itself",
		"unix:/run/x":              "",
		"[]":                       "",
		"[a.example]x":             "",
		"":                         "",
	} {
		name, itself := in.Host()
		if itself {
			name += " itself"
		}
		if name != want {
			t.Errorf("%s: %q, expected %q", in, name, want)
		}
	}
}
