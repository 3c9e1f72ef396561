package table

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"posthaste/internal/testpeers"
)

// keyLog is a table that finds nothing and remembers what it was asked.
type keyLog struct {
	keys    []string
	pattern bool
}

func (k *keyLog) Lookup(_ context.Context, key string) (string, bool, error) {
	k.keys = append(k.keys, key)
	return "", false, nil
}
func (k *keyLog) Pattern() bool { return k.pattern }
func (k *keyLog) Close() error  { return nil }

func logged(pattern bool) (*Maps, *keyLog) {
	k := &keyLog{pattern: pattern}
	o := Options{Types: map[string]Opener{"log": func(string, Options) (Table, error) { return k, nil }}}
	return OpenMaps("test", []string{"log:x"}, o), k
}

func testSearch(delimiters string) *Search {
	return &Search{Delimiters: delimiters, OwnerRequest: true, DoubleBounce: "double-bounce",
		Local: func(_ context.Context, domain string) (bool, error) {
			if domain == "broken" {
				return false, errors.New("cannot tell")
			}
			return strings.EqualFold(domain, "local.test"), nil
		}}
}

func TestKeyOrder(t *testing.T) {
	t.Parallel()
	const access = KeyFull | KeyBare | KeyDomain | KeyParents | KeyLocalpartAt
	for _, tc := range []struct {
		addr, delimiters string
		which            Keys
		want             string
	}{
		{"u+e@x.test", "+", KeysDefault, "u+e@x.test u@x.test @x.test"},
		{"u+e@local.test", "+", KeysDefault, "u+e@local.test u@local.test u+e u @local.test"},
		{"u+e@local.test", "", KeysDefault, "u+e@local.test u+e @local.test"},
		{"u-e@x.test", "+-", KeysDefault, "u-e@x.test u@x.test @x.test"},
		{"u-e+f@x.test", "+-", KeysDefault, "u-e+f@x.test u@x.test @x.test"},
		{"owner-u@x.test", "-", KeysDefault, "owner-u@x.test @x.test"},
		{"u-request@x.test", "-", KeysDefault, "u-request@x.test @x.test"},
		{"u+e-request@x.test", "+-", KeysDefault, "u+e-request@x.test @x.test"},
		{"u+e-request@x.test", "+", KeysDefault, "u+e-request@x.test u@x.test @x.test"},
		{"mailer-daemon@x.test", "-", KeysDefault, "mailer-daemon@x.test @x.test"},
		{"double-bounce@x.test", "-", KeysDefault, "double-bounce@x.test @x.test"},
		{"+e@x.test", "+", KeysDefault, "+e@x.test @x.test"},
		{"u", "+", KeysDefault, "u"},
		{"u+e", "+", KeysDefault, "u+e u"},
		{"a b@x.test", "", KeysDefault, `"a b"@x.test a b@x.test @x.test`},
		{"u+e@a.x.test", "+", access, "u+e@a.x.test u@a.x.test a.x.test x.test test u+e@ u@"},
		{"u@a.x.test", "", KeyFull | KeyDomain | KeyDotParents, "u@a.x.test a.x.test .x.test .test"},
	} {
		m, log := logged(false)
		if _, _, found, err := m.LookupAddress(context.Background(), testSearch(tc.delimiters), tc.addr, tc.which); found || err != nil {
			t.Errorf("%q: %v %v", tc.addr, found, err)
		}
		if got := strings.Join(log.keys, " "); got != tc.want {
			t.Errorf("%q: keys %q, want %q", tc.addr, got, tc.want)
		}
	}
}

func TestPatternTablesGetWholeKeys(t *testing.T) {
	t.Parallel()
	m, log := logged(true)
	ctx := context.Background()
	_, _, _, _ = m.LookupAddress(ctx, testSearch("+"), "u+e@local.test", KeysDefault)
	_, _, _ = m.LookupDomain(ctx, "a.b.test", false)
	_, _, _ = m.LookupClientAddr(ctx, "192.0.2.1")
	if got := strings.Join(log.keys, " "); got != "u+e@local.test a.b.test 192.0.2.1" {
		t.Errorf("keys %q", got)
	}
}

func TestLookupDomainAndAddr(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, tc := range []struct {
		ask  func(m *Maps)
		want string
	}{
		{func(m *Maps) { _, _, _ = m.LookupDomain(ctx, "a.b.test", false) }, "a.b.test b.test test"},
		{func(m *Maps) { _, _, _ = m.LookupDomain(ctx, "a.b.test", true) }, "a.b.test .b.test .test"},
		{func(m *Maps) { _, _, _ = m.LookupDomain(ctx, "", true) }, ""},
		{func(m *Maps) { _, _, _ = m.LookupClientAddr(ctx, "192.0.2.1") }, "192.0.2.1 192.0.2 192.0 192"},
		{func(m *Maps) { _, _, _ = m.LookupClientAddr(ctx, "2001:db8::1:2") }, "2001:db8::1:2 2001:db8::1 2001:db8 2001"},
	} {
		m, log := logged(false)
		tc.ask(m)
		if got := strings.Join(log.keys, " "); got != tc.want {
			t.Errorf("keys %q, want %q", got, tc.want)
		}
	}
}

func TestLookupLevel(t *testing.T) {
	t.Parallel()
	m := OpenMaps("levels", []string{"inline:{a.test=1, .b.test=2, c.test=3, off.test=dunno, 192.0.2=4, 192.0.2.9=-1, 2001:db8=x}"}, Options{})
	for _, tc := range []struct {
		name, addr  string
		dot         bool
		level       int
		found, warn bool
	}{
		{"a.test", "192.0.2.1", true, 1, true, false},
		{"x.b.test", "192.0.2.1", true, 2, true, false},
		{"x.c.test", "192.0.2.1", true, 4, true, false},
		{"x.c.test", "192.0.2.1", false, 3, true, false},
		{"off.test", "192.0.2.1", true, 0, false, false},
		{"", "192.0.2.1", true, 4, true, false},
		{"", "192.0.2.9", true, 0, false, true},
		{"", "2001:db8::1", true, 0, false, true},
		{"z.test", "198.51.100.1", true, 0, false, false},
	} {
		warned := false
		level, found := m.LookupLevel(context.Background(), tc.name, tc.addr, tc.dot, func(string, ...any) { warned = true })
		if level != tc.level || found != tc.found || warned != tc.warn {
			t.Errorf("%+v: %d %v, warned %v", tc, level, found, warned)
		}
	}
	failing := OpenMaps("levels", []string{"fail:x"}, Options{})
	warned := false
	if _, found := failing.LookupLevel(context.Background(), "a.test", "192.0.2.1", true, func(string, ...any) { warned = true }); found || !warned {
		t.Error("the error of a table was lost")
	}
}

func TestExtension(t *testing.T) {
	t.Parallel()
	m := OpenMaps("test", []string{"inline:{u@x.test=full, v=local}"}, Options{})
	ctx := context.Background()
	for _, tc := range []struct{ addr, value, ext string }{
		{"u@x.test", "full", ""}, {"u+e@x.test", "full", "+e"}, {"v+e@local.test", "local", "+e"}, {"v@local.test", "local", ""},
	} {
		value, ext, found, err := m.LookupAddress(ctx, testSearch("+"), tc.addr, KeysDefault)
		if value != tc.value || ext != tc.ext || !found || err != nil {
			t.Errorf("%q: %q %q %v %v", tc.addr, value, ext, found, err)
		}
	}
	if _, _, _, err := m.LookupAddress(ctx, testSearch("+"), "q@broken", KeysDefault); err == nil {
		t.Error("an error of Local was lost")
	}
	failing := OpenMaps("test", []string{"fail:x"}, Options{})
	if _, _, found, err := failing.LookupAddress(ctx, testSearch("+"), "q@x.test", KeysDefault); err == nil || found {
		t.Error("an error of the table was lost")
	}
}

func newList(t *testing.T, kind Kind, parent bool, elements ...string) *List {
	t.Helper()
	l, err := NewList("test", elements, ListOptions{Kind: kind, Parent: parent})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestList(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	inFile := file(t, "list", "# comment\nfromfile !negated, other\n  continued\n")
	many := []string{"a.test", "b.test", "c.test", "d.test", "e.test", "f.test", "g.test", ".h.test", "i.test"}
	for _, tc := range []struct {
		list *List
		key  string
		want bool
	}{
		{newList(t, Strings, false, "Example.COM"), "example.com", true},
		{newList(t, Strings, false, "example.com"), "sub.example.com", false},
		{newList(t, Strings, true, "example.com"), "sub.example.com", false},
		{newList(t, Domains, true, "example.com"), "sub.Example.com", true},
		{newList(t, Domains, true, "example.com"), "notexample.com", false},
		{newList(t, Domains, false, "example.com"), "sub.example.com", false},
		{newList(t, Domains, false, ".example.com"), "sub.example.com", true},
		{newList(t, Domains, false, ".example.com"), "example.com", false},
		{newList(t, Domains, true, "!a.example.com", "example.com"), "b.a.example.com", false},
		{newList(t, Domains, true, "!a.example.com", "example.com"), "b.example.com", true},
		{newList(t, Strings, false, "inline:{x=y}"), "X", true},
		{newList(t, Strings, false, "inline:{x=}"), "x", true},
		{newList(t, Strings, false, "!inline:{x=y}", "static:all"), "x", false},
		{newList(t, Domains, true, "inline:{example.com=y}"), "a.example.com", true},
		{newList(t, Domains, false, "inline:{example.com=y}"), "a.example.com", false},
		{newList(t, Domains, false, "inline:{.example.com=y}"), "a.example.com", true},
		{newList(t, Domains, true, "regexp:{{/^example.com$/ y}}"), "a.example.com", false},
		{newList(t, Strings, false, inFile), "fromfile", true},
		{newList(t, Strings, false, inFile), "negated", false},
		{newList(t, Strings, false, inFile), "continued", true},
		{newList(t, Strings, false, "!"+inFile), "negated", true},
		{newList(t, Strings, false, many...), "g.TEST", true},
		{newList(t, Strings, false, many...), "x.g.test", false},
		{newList(t, Domains, true, many...), "x.g.test", true},
		{newList(t, Domains, false, many...), "x.g.test", false},
		{newList(t, Domains, false, many...), "x.h.test", true},
		{newList(t, Addresses, false, "192.168.0.0/16"), "192.168.3.4", true},
		{newList(t, Addresses, false, "192.168.0.0/16"), "192.169.3.4", false},
		{newList(t, Addresses, false, "!192.168.3.4", "192.168.0.0/16"), "192.168.3.4", false},
		{newList(t, Addresses, false, "[2001:db8::]/32"), "2001:db8:1::2", true},
		{newList(t, Addresses, false, "2001:db8::/32"), "2001:db8:1::2", true},
		{newList(t, Addresses, false, "[::1]"), "0:0:0:0:0:0:0:1", true},
		{newList(t, Addresses, false, "10.0.0.1"), "::ffff:10.0.0.1", true},
		{newList(t, Addresses, false, "cidr:{{10.0.0.0/8 x}}"), "10.1.1.1", true},
		{newList(t, Addresses, false, "10.0.0.0/8"), "host.name", false},
		{newList(t, Clients, true, "example.com", "10.0.0.0/8"), "a.example.com", true},
		{newList(t, Clients, true, "example.com", "10.0.0.0/8"), "10.2.3.4", true},
		{nil, "x", false},
		{newList(t, Strings, false), "x", false},
	} {
		got, err := tc.list.Match(ctx, tc.key)
		if got != tc.want || err != nil {
			t.Errorf("%+v: %q: %v %v", tc.list, tc.key, got, err)
		}
	}
}

func TestMatchClient(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := newList(t, Clients, false, "!bad.example.com", ".example.com", "192.0.2.0/24")
	for _, tc := range []struct {
		name, addr string
		want       bool
	}{{"a.example.com", "10.0.0.1", true}, {"bad.example.com", "192.0.2.1", false}, {"unknown", "192.0.2.1", true}, {"unknown", "10.0.0.1", false}} {
		if got, err := l.MatchClient(ctx, tc.name, tc.addr); got != tc.want || err != nil {
			t.Errorf("%+v: %v %v", tc, got, err)
		}
	}
}

func TestListErrors(t *testing.T) {
	t.Parallel()
	for _, e := range []string{"!", "10.0.0.1/8", "10.0.0.0/33", "[::1", "[::1]x", "hostname", "10.0.0.0/x", "x/8"} {
		if _, err := NewList("mynetworks", []string{e}, ListOptions{Kind: Addresses}); err == nil || !strings.HasPrefix(err.Error(), "mynetworks: ") {
			t.Errorf("%q: %v", e, err)
		}
	}
	for _, e := range []string{"/nonexistent/file", "fail:x", "hash:/nonexistent/x"} {
		l, err := NewList("x", []string{e}, ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := l.Match(context.Background(), "k"); ok || err == nil {
			t.Errorf("%q: %v %v", e, ok, err)
		}
	}
	path := filepath.Join(t.TempDir(), "loop")
	writeAll(t, path, path+"\n")
	if _, err := NewList("x", []string{path}, ListOptions{}); err == nil {
		t.Error("a file that names itself is no error")
	}
}

func TestLocal(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := &Local{Origin: "origin.test", Destination: newList(t, Strings, false, "dest.test"),
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	for _, tc := range []struct {
		domain      string
		dest, local bool
	}{
		{"Dest.test", true, true}, {"dest.test.", true, true}, {"origin.test", false, true}, {"x.test", false, false}, {"", false, false}, {".", false, false},
		{"[192.0.2.1]", true, true}, {"[192.0.2.2]", false, false}, {"[IPv6:2001:db8::1]", true, true}, {"[2001:db8::1]", false, false}, {"192.0.2.1", false, false},
	} {
		dest, err := l.IsDestination(ctx, tc.domain)
		local, err2 := l.IsLocal(ctx, tc.domain)
		if dest != tc.dest || local != tc.local || err != nil || err2 != nil {
			t.Errorf("%+v: %v %v %v", tc, dest, local, errors.Join(err, err2))
		}
	}
	addrs, err := OwnAddresses(ctx, []string{"loopback-only", "192.0.2.7", "[2001:db8::7]"})
	if err != nil || len(addrs) < 3 || addrs[len(addrs)-1] != netip.MustParseAddr("2001:db8::7") {
		t.Errorf("%v %v", addrs, err)
	}
}

// TestHashLikePostfix: what Postfix's own postmap says about a source, our
// tables say too.
func TestHashLikePostfix(t *testing.T) {
	t.Parallel()
	testpeers.Postfix(t, "postmap")
	dir := t.TempDir()
	writeAll(t, filepath.Join(dir, "main.cf"), "")
	source := "Key  value\n cont\n# c\nnovalue\n\"q k\"@x v w \na:b\tc\nkey dup\n\n  # indented comment\n \nlast x\n"
	path := filepath.Join(dir, "t")
	writeAll(t, path, source)
	out, err := exec.Command("/usr/sbin/postmap", "-c", dir, "-s", "texthash:"+path).Output()
	if err != nil {
		t.Skipf("postmap -s: %v", err)
	}
	tab := open(t, "texthash:"+path, Options{})
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		key, want, _ := strings.Cut(line, "\t")
		if got := ask(tab, key); got != want {
			t.Errorf("%q: got %q, Postfix %q", key, got, want)
		}
	}
}
