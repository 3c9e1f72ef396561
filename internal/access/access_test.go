package access

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"posthaste/internal/dsn"
)

func TestDNSList(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		spec string
		yes  []string
		no   []string
		bad  bool
	}{
		{spec: "list.test", yes: []string{"127.0.0.2", "10.0.0.1"}, no: []string{"2001:db8::1"}},
		{spec: "list.test=127.0.0.2", yes: []string{"127.0.0.2"}, no: []string{"127.0.0.3", "127.0.1.2"}},
		{spec: "list.test=127.0.0.[2..4;9]", yes: []string{"127.0.0.3", "127.0.0.9"}, no: []string{"127.0.0.5"}},
		{spec: "list.test=127.[0..1].0.2", yes: []string{"127.1.0.2"}, no: []string{"127.2.0.2"}},
		{spec: "", bad: true}, {spec: "x=", bad: true}, {spec: "x=127.0.0", bad: true}, {spec: "x=127.0.0.256", bad: true},
		{spec: "x=127.0.0.[3..2]", bad: true}, {spec: "x=127.0.0.[1", bad: true}, {spec: "x=127.0.0.1.1", bad: true}, {spec: "x=127.0.0.[]", bad: true},
	} {
		l, err := ParseDNSList(tc.spec)
		if (err != nil) != tc.bad {
			t.Errorf("%q: %v", tc.spec, err)
		}
		for _, a := range tc.yes {
			if !l.Counts(netip.MustParseAddr(a)) {
				t.Errorf("%q does not count %s", tc.spec, a)
			}
		}
		for _, a := range tc.no {
			if l.Counts(netip.MustParseAddr(a)) {
				t.Errorf("%q counts %s", tc.spec, a)
			}
		}
	}
	if got := AddrQuery(netip.MustParseAddr("192.0.2.1"), "x"); got != "1.2.0.192.x" {
		t.Error(got)
	}
	// RFC 5782 section 2.4.
	if got := AddrQuery(netip.MustParseAddr("2001:db8:1:2:3:4:567:89ab"), "ugly.example.com"); got != "b.a.9.8.7.6.5.0.4.0.0.0.3.0.0.0.2.0.0.0.1.0.0.0.8.b.d.0.1.0.0.2.ugly.example.com" {
		t.Error(got)
	}
}

func FuzzDNSList(f *testing.F) {
	f.Add("list.test=127.0.0.[2..4;9]")
	f.Add("x=1.2.3.4")
	f.Fuzz(func(t *testing.T, spec string) {
		if l, err := ParseDNSList(spec); err == nil {
			l.Counts(netip.MustParseAddr("127.0.0.2"))
			if l.Filter != nil && len(l.Filter) != 4 {
				t.Errorf("%d parts", len(l.Filter))
			}
		}
		filtered(spec, charset(spec))
	})
}

func TestFixStatus(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		in   dsn.Status
		cl   class
		want dsn.Status
	}{
		{dsn.S(5, 7, 1), classSender, dsn.S(5, 7, 1)},
		{dsn.S(5, 1, 1), classSender, dsn.S(5, 1, 7)},
		{dsn.S(5, 1, 2), classSender, dsn.S(5, 1, 8)},
		{dsn.S(5, 1, 5), classSender, dsn.S(5, 1, 0)},
		{dsn.S(5, 1, 7), classRcpt, dsn.S(5, 1, 3)},
		{dsn.S(5, 1, 8), classRcpt, dsn.S(5, 1, 2)},
		{dsn.S(5, 1, 1), classRcpt, dsn.S(5, 1, 1)},
		{dsn.S(5, 1, 1), classClient, dsn.S(5, 0, 0)},
	} {
		if got := mapStatus(tc.in, tc.cl); got != tc.want {
			t.Errorf("%v in class %d: %v, want %v", tc.in, tc.cl, got, tc.want)
		}
	}
}

func TestCharset(t *testing.T) {
	t.Parallel()
	set := charset("ab\\t\\40\\\\")
	if got := filtered("a c\t\\x", set); got != "a _\t\\_" {
		t.Errorf("%q", got)
	}
}

func TestParseSeconds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"0": 0, "5": 5 * time.Second, "2m": 2 * time.Minute, "1d": 24 * time.Hour} {
		if d, err := parseSeconds(text); err != nil || d != want {
			t.Errorf("%q: %v %v", text, d, err)
		}
	}
	for _, text := range []string{"", "s", "x", "-1", "1y", strings.Repeat("9", 30)} {
		if d, err := parseSeconds(text); err == nil {
			t.Errorf("%q: %v", text, d)
		}
	}
}
