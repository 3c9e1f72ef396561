package table

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func open(t testing.TB, spec string, o Options) Table {
	t.Helper()
	tab, err := Open(spec, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// ask is a lookup as text: the value, "-" for not found, "!" for an error.
func ask(tab Table, key string) string {
	value, found, err := tab.Lookup(context.Background(), key)
	switch {
	case err != nil:
		return "!"
	case !found:
		return "-"
	}
	return value
}

func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// build makes a table of type kind from pairs of keys and values.
func build(t testing.TB, kind, path string, pairs ...string) {
	t.Helper()
	w, err := Create(kind + ":" + path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(pairs); i += 2 {
		if _, err := w.Add(pairs[i], pairs[i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(0o644, -1, -1); err != nil {
		t.Fatal(err)
	}
	if err := w.Abort(); err != nil {
		t.Errorf("abort after commit: %v", err)
	}
}

func TestLookups(t *testing.T) {
	t.Parallel()
	text := file(t, "source", "# comment\nKey  value one\n\n  continued\nempty\n\"a b\"@c quoted\nkey again\n")
	hash := filepath.Join(t.TempDir(), "t")
	build(t, "hash", hash, "key", "value", "other", "x y")
	build(t, "cdb", hash, "key", "cvalue", "other", "x y")
	for _, tc := range []struct{ spec, key, want string }{
		{"texthash:" + text, "key", "value one  continued"},
		{"texthash:" + text, "KEY", "value one  continued"},
		{"texthash:" + text, "empty", "-"},
		{"texthash:" + text, `"a b"@c`, "quoted"},
		{"hash:" + hash, "Key", "value"}, {"btree:" + hash, "other", "x y"}, {"lmdb:" + hash, "none", "-"}, {"proxy:hash:" + hash, "key", "value"},
		{"cdb:" + hash, "KEY", "cvalue"}, {"cdb:" + hash, "none", "-"},
		{"inline:{a=b, {c = d e}}", "A", "b"}, {"inline:{a=b, {c = d e}}", "c", "d e"}, {"inline:{a=b}", "z", "-"},
		{"static:x", "anything", "x"}, {"static:{x y}", "", "x y"},
		{"fail:x", "a", "!"},
		{"unionmap:{static:a,inline:{k=b},static:c}", "k", "a,b,c"}, {"unionmap:{inline:{k=b}}", "z", "-"}, {"unionmap:{static:a,fail:x}", "k", "!"},
		{"pipemap:{inline:{a=b},inline:{b=c}}", "a", "c"}, {"pipemap:{inline:{a=b},inline:{c=c}}", "a", "-"}, {"pipemap:{inline:{a=b},fail:x}", "z", "-"},
		{"randmap:{only}", "whatever", "only"},
		{"unix:passwd.byname", "root", "root:x:0:0:root:/root:"}, {"unix:passwd.byname", "Root", "root:x:0:0:root:/root:"}, {"unix:passwd.byname", "no-such-user", "-"}, {"unix:group.byname", "root", "root:x:0:"},
		{"cidr:{{10.0.0.0/8 ten}, {10.1.0.0/16 never}, {2001:db8::/32 six}, {!192.168.0.0/16 not}}", "10.1.2.3", "ten"},
		{"cidr:{{10.1.0.0/16 first}, {10.0.0.0/8 ten}}", "10.1.2.3", "first"},
		{"cidr:{{!192.168.0.0/16 not}, {::/0 six}}", "2001:db8::1", "six"},
		{"cidr:{{if !10.0.0.0/8}, {::/0 inside}, {endif}, {::/0 after}}", "2001:db8::1", "after"},
		{"cidr:{{if !2001:db8::/32}, {0.0.0.0/0 inside}, {endif}, {0.0.0.0/0 after}}", "192.0.2.1", "after"},
		{"cidr:{{if !10.0.0.0/8}, {0.0.0.0/0 inside}, {endif}, {0.0.0.0/0 after}}", "192.0.2.1", "inside"},
		{"cidr:{{10.1.0.0/16 first}, {2001:db8::/32 six}}", "2001:DB8::1", "six"},
		{"cidr:{{!10.0.0.0/8 other}, {10.0.0.1 one}}", "10.0.0.1", "one"},
		{"cidr:{{!10.0.0.0/8 other}, {10.0.0.1 one}}", "11.0.0.1", "other"},
		{"cidr:{{! 10.0.0.0/8 other}}", "11.0.0.1", "other"},
		{"cidr:{{! 10.0.0.0/8 other}}", "10.0.0.1", "-"},
		{"cidr:{{!! 10.0.0.0/8 ten}}", "10.0.0.1", "ten"},
		{"cidr:{{! !\t10.0.0.0/8 ten}}", "10.0.0.1", "ten"},
		{"cidr:{{!! ! 10.0.0.0/8 other}}", "11.0.0.1", "other"},
		{"cidr:{{if ! 10.0.0.0/8}, {0.0.0.0/0 inside}, {endif}, {0.0.0.0/0 after}}", "192.0.2.1", "inside"},
		{"cidr:{{10.0.0.1 one}}", "a.host", "-"},
		{"cidr:{{10.0.0.1 one}}", "::ffff:10.0.0.1", "one"},
	} {
		tab := open(t, tc.spec, Options{})
		if got := ask(tab, tc.key); got != tc.want {
			t.Errorf("%s: %q: got %q, want %q", tc.spec, tc.key, got, tc.want)
		}
	}
}

// Where somebody asks for it, a lookup does not pass a rule that cannot be read.
func TestStops(t *testing.T) {
	t.Parallel()
	o := Options{Stops: func(result string) bool { return result != "OK" }}
	for _, tc := range []struct{ spec, key, want string }{
		{"cidr:{{10.0.0.0/33 REJECT}, {0.0.0.0/0 all}}", "10.0.0.1", "!"},
		{"cidr:{{10.0.0.0/33 REJECT}}", "10.0.0.1", "!"},
		{"cidr:{{10.0.0.0/33 OK}, {0.0.0.0/0 all}}", "10.0.0.1", "all"},
		{"cidr:{{10.0.0.0/8}, {0.0.0.0/0 all}}", "10.0.0.1", "!"},
		{"cidr:{{10.0.0.1 one}, {10.0.0.0/33 REJECT}, {0.0.0.0/0 all}}", "10.0.0.1", "one"},
		{"cidr:{{10.0.0.1 one}, {10.0.0.0/33 REJECT}, {0.0.0.0/0 all}}", "10.0.0.2", "!"},
		{"cidr:{{if 10.0.0.0/8}, {x REJECT}, {endif}, {0.0.0.0/0 all}}", "10.0.0.2", "!"},
		{"cidr:{{if 10.0.0.0/8}, {x REJECT}, {endif}, {0.0.0.0/0 all}}", "11.0.0.2", "all"},
		{"cidr:{{if x}, {10.0.0.0/8 inside}, {endif}, {0.0.0.0/0 all}}", "10.0.0.2", "!"},
		{"cidr:{{endif}, {0.0.0.0/0 all}}", "10.0.0.2", "all"},
		{"regexp:{{/(/ REJECT}, {/./ all}}", "a", "!"},
		{"pcre:{{/(/ REJECT}, {/./ all}}", "a", "!"},
		{"pcre:{{/(/ OK}, {/./ all}}", "a", "all"},
		{"pcre:{{/a/ REJECT $1}, {/./ all}}", "a", "!"},
		{"pcre:{{/a/!/b/ REJECT}, {/./ all}}", "a", "!"},
		{"pcre:{{/b/ first}, {nonsense}, {/./ all}}", "b", "first"},
		{"pcre:{{if /b/}, {nonsense}, {endif}, {/./ all}}", "a", "all"},
		{"pcre:{{if /a/}, {nonsense}, {endif}, {/./ all}}", "a", "!"},
		{"pcre:{{if (}, {/a/ inside}, {endif}, {/./ all}}", "a", "!"},
	} {
		var warned []string
		o.Warn = func(text string) { warned = append(warned, text) }
		tab := open(t, tc.spec, o)
		if got := ask(tab, tc.key); got != tc.want || len(warned) != 1 {
			t.Errorf("%s: %q: got %q, want %q; warned %q", tc.spec, tc.key, got, tc.want, warned)
		}
	}
}

func TestEnviron(t *testing.T) {
	t.Setenv("POSTHASTE_TABLE_TEST", "env value")
	if got := ask(open(t, "environ:x", Options{}), "POSTHASTE_TABLE_TEST"); got != "env value" {
		t.Errorf("got %q", got)
	}
}

func TestOpenErrors(t *testing.T) {
	t.Parallel()
	for _, spec := range []string{"", "hash", "hash:", ":x", "nosuchtype:x", "hash:/nonexistent/x", "texthash:/nonexistent/x", "regexp:/nonexistent/x",
		"cdb:/nonexistent/x", "inline:a=b", "inline:{}", "inline:{x}", "inline:{{a=b}", "unionmap:{}", "unionmap:{static}", "pipemap:x", "randmap:{}", "unix:x",
		"socketmap:x", "socketmap:unix:/x:", "tcp:nohost", "static:{x", "proxy:nosuch:x"} {
		if tab, err := Open(spec, Options{}); err == nil {
			t.Errorf("%q opened: %T", spec, tab)
		}
	}
}

func TestMoreTypes(t *testing.T) {
	t.Parallel()
	o := Options{Types: map[string]Opener{"mine": func(name string, _ Options) (Table, error) { return staticTable("mine " + name), nil }}}
	if got := ask(open(t, "proxy:mine:x", o), "k"); got != "mine x" {
		t.Errorf("got %q", got)
	}
}

// TestReload replaces and removes files under open tables.
func TestReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var warned []string
	o := Options{Recheck: -1, Warn: func(s string) { warned = append(warned, s) }}
	for _, tc := range []struct {
		kind   string
		write  func(path, value string)
		suffix string
	}{
		{"texthash", func(path, v string) { writeAll(t, path, "k "+v+"\n") }, ""},
		{"regexp", func(path, v string) { writeAll(t, path, "/^k$/ "+v+"\n") }, ""},
		{"hash", func(path, v string) { build(t, "hash", path, "k", v) }, Suffix},
		{"cdb", func(path, v string) { build(t, "cdb", path, "k", v) }, CDBSuffix},
	} {
		path := filepath.Join(dir, tc.kind)
		tc.write(path, "one")
		tab := open(t, tc.kind+":"+path, o)
		for i := range 5 {
			want := fmt.Sprint("v", i)
			tc.write(path, want)
			if got := ask(tab, "k"); got != want {
				t.Errorf("%s: got %q, want %q", tc.kind, got, want)
			}
		}
		warned = nil
		if err := os.Remove(path + tc.suffix); err != nil {
			t.Fatal(err)
		}
		if got := ask(tab, "k"); got != "v4" || len(warned) != 1 {
			t.Errorf("%s: file is gone: got %q, warned %q", tc.kind, got, warned)
		}
	}
}

func writeAll(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestRecheckInterval(t *testing.T) {
	t.Parallel()
	path := file(t, "t", "k one\n")
	tab := open(t, "texthash:"+path, Options{Recheck: time.Hour})
	writeAll(t, path, "k two\n")
	if got := ask(tab, "k"); got != "one" {
		t.Errorf("got %q before it is time to look", got)
	}
}

func TestIndexed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"hash", "cdb"} {
		path := filepath.Join(t.TempDir(), "t")
		var pairs []string
		for i := range 5000 {
			pairs = append(pairs, fmt.Sprint("key", i), strings.Repeat("v", i%50)+fmt.Sprint(i))
		}
		pairs = append(pairs, "", "empty key", "empty value", "")
		build(t, kind, path, pairs...)
		tab := open(t, kind+":"+path, Options{})
		for i := 0; i < len(pairs); i += 2 {
			if got := ask(tab, pairs[i]); got != pairs[i+1] {
				t.Fatalf("%s: %q: got %q, want %q", kind, pairs[i], got, pairs[i+1])
			}
		}
		if got := ask(tab, "key5000"); got != "-" {
			t.Errorf("%s: got %q", kind, got)
		}
		i := 0
		err := tab.(Sequence).All(func(k, v string) bool {
			if k != pairs[i] || v != pairs[i+1] {
				t.Fatalf("%s: entry %d is %q %q", kind, i/2, k, v)
			}
			i += 2
			return true
		})
		if err != nil || i != len(pairs) {
			t.Errorf("%s: %d of %d: %v", kind, i, len(pairs), err)
		}
	}
}

// TestIndexedLarge takes the way of files that are not kept in memory.
func TestIndexedLarge(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"hash", "cdb"} {
		path := filepath.Join(t.TempDir(), "t")
		big := strings.Repeat("x", maxResident/2)
		build(t, kind, path, "a", big+"a", "b", big+"b", "c", "small")
		tab := open(t, kind+":"+path, Options{})
		for key, want := range map[string]string{"a": big + "a", "b": big + "b", "c": "small", "d": "-"} {
			if got := ask(tab, key); got != want {
				t.Errorf("%s: %q: %d bytes", kind, key, len(got))
			}
		}
	}
}

// TestIndexedDamage flips every byte of a small file in turn: a lookup must say
// what is right or fail, and never panic.
func TestIndexedDamage(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "t")
	build(t, "hash", path, "a", "1", "b", "2", "c", "3")
	good, err := os.ReadFile(path + Suffix)
	if err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x41
		writeAll(t, path+Suffix, string(bad))
		tab, err := Open("hash:"+path, Options{})
		if err != nil {
			failed++
			continue
		}
		for key, want := range map[string]string{"a": "1", "b": "2", "c": "3"} {
			value, found, err := tab.Lookup(context.Background(), key)
			if err != nil {
				failed++
				if !errors.Is(err, errDamaged) {
					t.Errorf("byte %d: %v", i, err)
				}
			} else if found && value != want {
				t.Errorf("byte %d: %q is %q", i, key, value)
			}
		}
		if err := tab.Close(); err != nil {
			t.Error(err)
		}
	}
	if failed < len(good)/2 {
		t.Errorf("only %d of %d damages were seen", failed, len(good))
	}
	for n := range good {
		writeAll(t, path+Suffix, string(good[:n]))
		if tab, err := Open("hash:"+path, Options{}); err == nil {
			t.Errorf("cut to %d bytes: opened", n)
			_ = tab.Close()
		}
	}
}

func TestMaps(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var warned []string
	o := Options{Warn: func(s string) { warned = append(warned, s) }}
	m := OpenMaps("some_maps", []string{"inline:{a=1,e=}", "regexp:{{/^(b)$/ re-$1}}", "inline:{a=2,b=3}"}, o)
	for _, tc := range []struct {
		key     string
		partial bool
		want    string
	}{{"a", false, "1"}, {"b", false, "re-b"}, {"b", true, "3"}, {"c", false, "-"}, {"", false, "-"}, {"e", false, "!"}} {
		value, found, err := m.Lookup(ctx, tc.key, tc.partial)
		got := value
		if err != nil {
			got = "!"
		} else if !found {
			got = "-"
		}
		if got != tc.want {
			t.Errorf("%+v: got %q", tc, got)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	var none *Maps
	if _, found, err := none.Lookup(ctx, "a", false); found || err != nil || !none.Empty() {
		t.Error("nil maps")
	}
	m = OpenMaps("some_maps", []string{"hash:/nonexistent/x"}, o)
	if _, _, err := m.Lookup(ctx, "a", false); err == nil || !strings.HasPrefix(err.Error(), "some_maps: ") || len(warned) != 1 {
		t.Errorf("%v %q", err, warned)
	}
}

func TestOwner(t *testing.T) {
	t.Parallel()
	path := file(t, "t", "k v\n")
	m := OpenMaps("x", []string{"texthash:" + path, "inline:{i=j}", "unionmap:{inline:{u=1},texthash:" + path + "}"}, Options{})
	for key, want := range map[string]int{"k": os.Geteuid(), "i": 0} {
		_, uid, owned, found, err := m.LookupOwned(context.Background(), key, false)
		if uid != want || !owned || !found || err != nil {
			t.Errorf("%s: %d %v %v %v", key, uid, owned, found, err)
		}
	}
}

func TestIsSpec(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]bool{"hash:/x": true, "2001:db8::1": false, "[::1]": false, "::1": false, "fe80::/10": false, "a": false,
		"inline:{a=b}": true, "proxy:hash:/x": true, "10.0.0.0/8": false, "a b:c": false, "pcre:/x": true} {
		if got := IsSpec(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}

func TestFold(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "", "abc": "abc", "AbC": "abc", "\u00dcB": "\u00fcb", "\xffA": "\xffa", "\xfeA": "\xfea"} {
		if got := Fold(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestSplitList(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{"a, b\tc,,d": "a|b|c|d", "inline:{a=b, c=d} x": "inline:{a=b, c=d}|x", "{a b} {c}": "{a b}|{c}", "": "", "} a": "}|a"} {
		if got := strings.Join(SplitList(s), "|"); got != want {
			t.Errorf("%q: %q", s, got)
		}
	}
}

func BenchmarkHash(b *testing.B) {
	path := filepath.Join(b.TempDir(), "t")
	build(b, "hash", path, "user@example.com", "x", "b", "y")
	tab := open(b, "hash:"+path, Options{})
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		if _, found, _ := tab.Lookup(ctx, "user@example.com"); !found {
			b.Fatal()
		}
	}
}

// TestSplitEntry: white space in quotes or after a backslash is the key's.
func TestSplitEntry(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][2]string{
		"a b c": {"a", "b c"}, `"a b" c`: {`"a b"`, "c"}, `a\ b c`: {`a\ b`, "c"}, `"a\"b c" d`: {`"a\"b c"`, "d"}, `a\\ b`: {`a\\`, "b"},
		`dom\user x`: {`dom\user`, "x"}, `a\ b`: {}, "a": {}, `"a b`: {},
	} {
		key, value, err := SplitEntry(line)
		if key != want[0] || value != want[1] || (err == nil) != (want[0] != "") {
			t.Errorf("%s: %q, %q, %v", line, key, value, err)
		}
	}
}
