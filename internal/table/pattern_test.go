package table

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testpeers"
)

const patterns = `
/^one$/ 1
/^(.*)-(x+)$/		$2:$1
/^dollar (.)$/  $$${1}$(1)
!/a/ no a
if /^if /
/b/ if-b
if !/c/
/d/ if-d-not-c
endif
/e/ if-e
endif
/CASE/i case
/^only!here/ x
/multi.line/ dot matches newline
/^second$/m second line
~tilde~ tilde
/\/slash/ slash
/a$/ ends in a
  continued
`

var patternKeys = []string{"one", "ONE", "abc-xxx", "dollar q", "zzz", "if b", "if cd", "if d", "if ce", "acase", "aCASE",
	"a multi\nline", "a\nsecond\na", "a tilde", "a/slash", "aa", "a"}

func TestPatterns(t *testing.T) {
	t.Parallel()
	var warned []string
	o := Options{Warn: func(s string) { warned = append(warned, s) }}
	path := file(t, "p", patterns)
	for _, kind := range []string{"regexp", "pcre"} {
		tab := open(t, kind+":"+path, o)
		for key, want := range map[string]string{
			"one": "1", "ONE": "1", "abc-xxx": "xxx:abc", "dollar q": "$qq", "zzz": "no a", "a if b": "-",
			"a multi\nline": "dot matches newline", "a\nsecond\na": "second line",
			"a tilde": "tilde", "a/slash": "slash", "aCASE": "case", "acase": "-", "xa": "ends in a  continued",
		} {
			if got := ask(tab, key); got != want {
				t.Errorf("%s: %q: got %q, want %q", kind, key, got, want)
			}
		}
	}
	if len(warned) != 0 {
		t.Errorf("warned %q", warned)
	}
}

// TestPatternsLikePostfix compares with the real thing where there is one.
func TestPatternsLikePostfix(t *testing.T) {
	t.Parallel()
	postmap := testpeers.Postfix(t, "postmap")
	dir := t.TempDir()
	writeAll(t, filepath.Join(dir, "main.cf"), "")
	path := filepath.Join(dir, "p")
	writeAll(t, path, patterns)
	kinds := []string{"regexp"}
	if out, err := exec.Command("/usr/sbin/postconf", "-m").Output(); err == nil && strings.Contains(string(out), "pcre") {
		kinds = append(kinds, "pcre")
	}
	for _, kind := range kinds {
		tab := open(t, kind+":"+path, Options{})
		for _, key := range patternKeys {
			if strings.Contains(key, "\n") {
				continue // postmap takes one line
			}
			out, err := exec.Command(postmap, "-c", dir, "-q", key, kind+":"+path).Output()
			want := strings.TrimSuffix(string(out), "\n")
			var exit *exec.ExitError
			if errors.As(err, &exit) && want == "" {
				want = "-"
			} else if err != nil {
				t.Fatal(err)
			}
			if got := ask(tab, key); got != want {
				t.Errorf("%s: %q: got %q, Postfix %q", kind, key, got, want)
			}
		}
	}
}

// A second pattern is for regexp tables only, as in Postfix.
func TestSecondPattern(t *testing.T) {
	t.Parallel()
	const text = "{{/both/!/butnot/ both}, {/./ other}}"
	for _, tc := range []struct{ spec, key, want string }{
		{"regexp:" + text, "a both", "both"},
		{"regexp:" + text, "a both butnot", "other"},
		{"pcre:" + text, "a both", "other"},
	} {
		if got := ask(open(t, tc.spec, Options{}), tc.key); got != tc.want {
			t.Errorf("%s: %q: got %q, want %q", tc.spec, tc.key, got, tc.want)
		}
	}
}

func TestPatternErrors(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"/a", "/a/", "abc", "/a/ $", "/a/ $x", "/a/ $1", "/(/ x", "!/(a)/ $1", "/a/q x", "endif", "if abc", `\a\ x`, "/a/!/b x"} {
		var warned []string
		tab := open(t, "regexp:{{"+line+"}, {/.*/ end}}", Options{Warn: func(s string) { warned = append(warned, s) }})
		if len(warned) == 0 {
			t.Errorf("%q: no warning", line)
		}
		want := "end"
		switch line {
		case "if abc": // what is inside a broken if is not looked at
			want = "-"
		case "/a/": // a match, with an answer that says nothing: later rules do not decide
			want = ""
		}
		if got := ask(tab, "a"); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

// TestOctets looks for text that is not ASCII, in UTF-8 and not: patterns are
// about octets.
func TestOctets(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"regexp", "pcre"} {
		tab := open(t, kind+`:{{/^caf(\xc3\xa9)$/ escaped $1}, {/^(th.?\xe9)$/ latin $1}, {/^(gr\xc3\xbcn|grüß)e$/ literal $1}, {/^x..y$/ two}, {/[\x80-\xff]/ high}}`, Options{})
		for key, want := range map[string]string{
			"café": "escaped é", "th\xe9": "latin th\xe9", "grüße": "literal grüß", "xéy": "two", "x€y": "high", "x\xffy": "high", "plain": "-",
		} {
			if got := ask(tab, key); got != want {
				t.Errorf("%s: %q: got %q, want %q", kind, key, got, want)
			}
		}
	}
	// The other matcher.
	tab := open(t, `pcre:{{/^(?!x)(.)\xe9/ $1}}`, Options{})
	if got := ask(tab, "\xe8\xe9"); got != "\xe8" {
		t.Errorf("backtracking: got %q", got)
	}
}

// TestSensitive has tables whose answers are executed keep strangers' words
// out of them, also those that are parts of others.
func TestSensitive(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"regexp", "pcre"} {
		rules := kind + ":{{/^(.*)x$/ |list $1}, {/(y)/ ${1}}, {/(z)/ $(1)}, {/./ |list $$1}}"
		for _, spec := range []string{rules, "proxy:" + rules, "unionmap:{{" + rules + "}}", "pipemap:{static:x,{" + rules + "}}"} {
			var warned []string
			tab := open(t, spec, Options{Warn: func(s string) { warned = append(warned, s) }}.Sensitive())
			if len(warned) != 3 || !strings.Contains(warned[0], "line 1: regular expression substitution is not allowed in this table, for security reasons; line ignored") {
				t.Errorf("%s: warned %q", spec, warned)
			}
			for _, key := range []string{"x", "y", "z"} {
				if got := ask(tab, key); got != "|list $1" {
					t.Errorf("%s: %q: got %q", spec, key, got)
				}
			}
		}
	}
	for _, spec := range []string{"tcp:127.0.0.1:9", "socketmap:inet:127.0.0.1:9:x", "proxy:tcp:127.0.0.1:9", "pipemap:{static:x, socketmap:unix:/x:y}"} {
		if _, err := Open(spec, Options{}.Sensitive()); err == nil || !strings.Contains(err.Error(), "is not allowed for security-sensitive data") {
			t.Errorf("%s: %v", spec, err)
		}
		if tab, err := Open(spec, Options{NoSubstitution: true}); err != nil {
			t.Errorf("%s: %v", spec, err)
		} else {
			tab.Close()
		}
	}
}

func TestLongest(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{"regexp:{{/^(a|ab)/ $1}}": "ab", "pcre:{{/^(a|ab)/ $1}}": "a"} {
		if got := ask(open(t, spec, Options{}), "abc"); got != want {
			t.Errorf("%s: got %q, want %q", spec, got, want)
		}
	}
}

// TestBacktracking: what needs the other matcher works, and ends.
func TestBacktracking(t *testing.T) {
	t.Parallel()
	tab := open(t, "pcre:{{/^(?!foo)(\\w+)-\\1$/ twice $1}, {/^(?=((a+)+)$)b\\1/ never}}", Options{MatchTimeout: time.Minute})
	for key, want := range map[string]string{"ab-ab": "twice ab", "foo-foo": "-"} {
		if got := ask(tab, key); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
	tab = open(t, "pcre:{{/^(?!zz)(a|aa)+$/ never}}", Options{MatchTimeout: 20 * time.Millisecond})
	if _, _, err := tab.Lookup(context.Background(), strings.Repeat("a", 60)+"!"); err == nil {
		t.Error("a match that takes for ever ended without an error")
	}
	if got := ask(open(t, "pcre:{{/ a b # comment/x y}}", Options{}), "zabz"); got != "y" {
		t.Errorf("flag x: %q", got)
	}
}

func FuzzPatterns(f *testing.F) {
	f.Add("/a(b)/ $1\nif /x/\n/y/ z\nendif\n", "ab")
	f.Add("!/^/!/b/iA x$$\n", "q")
	f.Add("/(?!abc)...def(?=ghi)/ look\n/(abc|xyz)-\\1/ $1\n", "xyzdefghi abc-abc")
	f.Fuzz(func(t *testing.T, text, key string) {
		for _, d := range []dialect{dialectPOSIX, dialectPerl} {
			o := Options{MatchTimeout: 10 * time.Millisecond}
			value, found, err := parsePatterns(d, "fuzz", text, o).lookup(context.Background(), key)
			all := parsePatterns(d, "fuzz", text, o)
			tryAll(all.rules)
			wantValue, want, wantErr := all.lookup(context.Background(), key)
			if err == nil && wantErr == nil && (value != wantValue || found != want) {
				t.Errorf("%s: %q in %q: %q, %v; trying all patterns: %q, %v", d, key, text, value, found, wantValue, want)
			}
		}
	})
}

// tryAll has each pattern tried, whatever words it needs.
func tryAll(rules []patternRule) {
	for i := range rules {
		r := &rules[i]
		if r.match.need = nil; r.also != nil {
			r.also.need = nil
		}
		tryAll(r.inside)
	}
}

func FuzzNetworks(f *testing.F) {
	f.Add("10.0.0.0/8 x\nif 10.0.0.0/8\n!10.1.0.0/16 y\nendif\n[::1]/128 z\n", "10.1.2.3")
	f.Fuzz(func(t *testing.T, text, key string) {
		tab := &cidrTable{text: parseNetworks("fuzz", text, Options{})}
		_, _, _ = tab.Lookup(context.Background(), key)
	})
}

// FuzzSource: the parsers of text tables take anything.
func FuzzSource(f *testing.F) {
	f.Add("a b\n c\n# d\n\"x y\" z\nq:\tr\n")
	f.Fuzz(func(t *testing.T, text string) {
		last := 0
		err := ParseSource("fuzz", text, nil, func(l Line) error {
			if l.Number <= last || l.Key == "" || l.Value == "" || strings.ContainsAny(l.Key+l.Value, "\n") {
				t.Fatalf("%q: %+v", text, l)
			}
			last = l.Number
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzIndexed(f *testing.F) {
	path := filepath.Join(f.TempDir(), "t")
	build(f, "hash", path, "a", "1", "b", "2")
	build(f, "cdb", path, "a", "1", "b", "2")
	for _, suffix := range []string{Suffix, CDBSuffix} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "a")
	}
	f.Fuzz(func(t *testing.T, data []byte, key string) {
		path := filepath.Join(t.TempDir(), "t")
		for kind, suffix := range map[string]string{"hash": Suffix, "cdb": CDBSuffix} {
			writeAll(t, path+suffix, string(data))
			tab, err := Open(kind+":"+path, Options{})
			if err != nil {
				continue
			}
			_, _, _ = tab.Lookup(context.Background(), key)
			n := 0
			_ = tab.(Sequence).All(func(string, string) bool { n++; return n < 1000 })
			_ = tab.Close()
		}
	})
}

// manyRules is a table of n rules none of which matches but the last.
func manyRules(b *testing.B, kind string, n int) Table {
	var text strings.Builder
	for i := range n {
		switch kind {
		case "cidr":
			fmt.Fprintf(&text, "10.%d.%d.0/24 REJECT\n", i/250, i%250)
		case "cidr-if": // rules that no index helps with
			fmt.Fprintf(&text, "!0.0.0.0/0 REJECT %d\n", i)
		default:
			fmt.Fprintf(&text, "/^(user%d|spam%d)@([a-z]+\\.)*bad%d\\.example$/ REJECT\n", i, i, i)
		}
	}
	if strings.HasPrefix(kind, "cidr") {
		text.WriteString("192.0.2.1 OK\n")
		kind = "cidr"
	} else {
		text.WriteString("/^good@/ OK\n")
	}
	return open(b, kind+":"+file(b, "rules", text.String()), Options{Warn: func(text string) { b.Error(text) }})
}

func BenchmarkThousandRules(b *testing.B) {
	for kind, key := range map[string]string{"cidr": "192.0.2.1", "cidr-if": "192.0.2.1", "regexp": "good@mail.example.com", "pcre": "good@mail.example.com"} {
		b.Run(kind, func(b *testing.B) {
			tab := manyRules(b, kind, 1000)
			for b.Loop() {
				if ask(tab, key) != "OK" {
					b.Fatal("not found")
				}
			}
		})
	}
}
