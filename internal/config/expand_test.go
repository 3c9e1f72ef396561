package config

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"posthaste/internal/testpeers"
)

// expansionMain is what the expansions below refer to.
const expansionMain = `
compatibility_level = 3.6
e =
v = val
u = $nope
idn = π.example
w = <$v>
seven = 7
`

// expansions are in brackets so that white space at the ends shows. A want of
// "error" stands for a refusal.
var expansions = []struct{ text, want string }{
	{"[plain]", "[plain]"},
	{"[$v]", "[val]"},
	{"[$v$v]", "[valval]"},
	{"[$v.x]", "[val.x]"},
	{"[$v-x]", "[val-x]"},
	{"[${v}x]", "[valx]"},
	{"[$(v)x]", "[valx]"},
	{"[${ v }]", "[val]"},
	{"[$nope]", "[]"},
	{"[$w]", "[<val>]"},
	{"[$$v]", "[$v]"},
	{"[$$$v]", "[$val]"},
	{"[{$v}]", "[{val}]"},
	{"[${v}}]", "[val}]"},

	{"[${v?yes}]", "[yes]"},
	{"[${v?$v}]", "[val]"},
	{"[${v? a }]", "[ a ]"},
	{"[${v? {a} }]", "[a]"},
	{"[${v?{ a }}]", "[ a ]"},
	{"[${v ?y}]", "[y]"},
	{"[${v?}]", "[]"},
	{"[${v:}]", "[]"},
	{"[${e?y}${e:n}]", "[n]"},
	{"[${e:{ a }}]", "[ a ]"},
	{"[${nope?y}${nope:n}]", "[n]"},
	{"[${u?y}${u:n}]", "[y]"}, // the test looks at the setting as written
	{"[${v?x:y}]", "[x:y]"},
	{"[${v?x:{y}}]", "[x:{y}]"},
	{"[${v?{x}:y}]", "[x]"},
	{"[${e?{x}:y}]", "[y]"},
	{"[${e?{x}:{y}}]", "[y]"},
	{"[${e ? {x} : {y}}]", "[y]"},
	{"[${e?{x}}]", "[]"},
	{"[${v?{${e?{x}:{in}}}:{y}}]", "[in]"},
	{"[$(v?x)]", "[x]"},

	{"[${v{a}}]", "error"},

	{"[${{a}=={a}?{y}:{n}}]", "[y]"},
	{"[${{a} == {b}?{y}:{n}}]", "[n]"},
	{"[${{a}!={b}?{y}:{n}}]", "[y]"},
	{"[${{a}<={b}?{y}:{n}}]", "[y]"},
	{"[${{A}=={a}?{y}:{n}}]", "[n]"},
	{"[${{$v}=={val}?{y}:{n}}]", "[y]"},
	{"[${{10}<{9}?{y}:{n}}]", "[n]"},
	{"[${{10}>={9}?{y}:{n}}]", "[y]"},
	{"[${{10}<{9a}?{y}:{n}}]", "[y]"},
	{"[${{01}=={1}?{y}:{n}}]", "[y]"},
	{"[${{-1}<{1}?{y}:{n}}]", "[y]"},
	{"[${{$seven}>{6}?{y}:{n}}]", "[y]"},
	{"[${{}=={}?{y}:{n}}]", "[y]"},
	{"[${{ x }=={x}?{y}:{n}}]", "[n]"},
	{"[${{a}=={a}:n}]", "[]"},
	{"[${{a}=={b}:n}]", "[n]"},
	{"[${{a}=={b}?{y}}]", "[]"},
	{"[${{a}=={b}?x:y}]", "[]"},
	{"[${{$compatibility_level} <level {3.6} ? {old} : {new}}]", "[new]"},
	{"[${{$compatibility_level} >=level {2} ? {new} : {old}}]", "[new]"},
	{"[${{3.10} >level {3.9}?{y}:{n}}]", "[y]"},
	{"[${{3.6.1} >level {3.6}?{y}:{n}}]", "[y]"},
	{"[${{3.6} ==level {3.6.0}?{y}:{n}}]", "[y]"},

	{"[$]", "error"},
	{"[$ v]", "error"},
	{"[${}]", "error"},
	{"[${v]", "error"},
	{"[$(v]", "error"},
	{"[${v-x}]", "error"},
	{"[${v?{a}{b}}]", "error"},
	{"[${v?{a}:{b}c}]", "error"},
	{"[${v:{a}?{b}}]", "error"},
	{"[${{a}?{y}:{n}}]", "error"},
	{"[${{a} ~ {b}?{y}}]", "error"},
	{"[${{a}=={b}}]", "[]"},
	{"[${{a}=={a}}]", "[true]"},
	{"[${{x} ==level {3}?{y}:{n}}]", "error"},
	{"[${{3.6.1.2} >level {3.6}?{y}:{n}}]", "error"},
	{"[${{1} <level{2}?{y}:{n}}]", "[y]"},
	{"[${{1} < level {2}?{y}:{n}}]", "error"},
	{"[${{99999999999999999999}=={1}?{y}:{n}}]", "error"},
	{"[${{0x10}=={16}?{y}:{n}}]", "[n]"},
	{"[${{+1}=={1}?{y}:{n}}]", "[n]"},
	{"[${{-2}<{-1}?{y}:{n}}]", "[n]"},
	{"[${{ 1}=={1}?{y}:{n}}]", "[n]"},
	{"[${{1 }=={1}?{y}:{n}}]", "[n]"},
}

func TestExpand(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, expansionMain)
	for _, tt := range expansions {
		got, err := c.Expand(tt.text)
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("Expand(%s) = %s (%v), want %s", tt.text, got, err, tt.want)
		}
	}
}

// realPostconf returns the path of Postfix's postconf. The differential tests
// need it; where it is not installed they are skipped.
func realPostconf(t *testing.T) string {
	t.Helper()
	return testpeers.Postfix(t, "postconf")
}

// calls are expansions that the installed Postfix may be too old for.
var calls = []struct{ text, want string }{
	{"[${domain_to_ascii{mail.example}}]", "[mail.example]"},
	{"[${domain_to_ascii{ Bücher.example }}]", "[xn--bcher-kva.example]"},
	{"[${domain_to_ascii {$idn}}]", "[xn--1xa.example]"},
	{"[${domain_to_ascii{${v?{faß.example}}}}]", "[xn--fa-hia.example]"},
	{"[${domain_to_utf8{xn--1xa.example}}]", "[π.example]"},
	{"[${domain_to_utf8{$idn}}]", "[π.example]"},
	{"[${domain_to_ascii{}}]", "[]"},
	{"[${domain_to_ascii{π..-example}}]", "error"},
	{"[${domain_to_utf8{xn--a.example}}]", "error"},
	{"[${domain_to_ascii{a}{b}}]", "error"},
	{"[${domain_to_ascii{a}?x}]", "error"},
	{"[${domain_to_ascii{a}", "error"},
}

func TestFunctions(t *testing.T) {
	t.Parallel()
	for _, main := range []string{"", "enable_idna2003_compatibility = yes\n"} {
		c, err := LoadString(expansionMain + main)
		if err != nil {
			t.Fatal(err)
		}
		for _, tt := range calls {
			if main != "" {
				tt.want = strings.ReplaceAll(tt.want, "xn--fa-hia", "fass")
			}
			got, err := c.Expand(tt.text)
			if err != nil {
				got = "error"
			}
			if got != tt.want {
				t.Errorf("%sExpand(%s) = %s (%v), want %s", main, tt.text, got, err, tt.want)
			}
		}
	}
}

func TestExpandAsPostfix(t *testing.T) {
	t.Parallel()
	postconf := realPostconf(t)
	dir := t.TempDir()
	old := time.Now().Add(-time.Hour) // Postfix waits for files that were just written
	for name, text := range map[string]string{"main.cf": expansionMain, "master.cf": ""} {
		name = filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(name, []byte(text), 0o644), os.Chtimes(name, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	command := func(text string) *exec.Cmd {
		return exec.Command(postconf, "-c", dir, "-o", "always_bcc="+text, "-xh", "always_bcc")
	}
	// Postfix sleeps a second before it gives up, so the refusals run side by side.
	// What it accepts is asked in one go.
	refusals := make(map[string]*exec.Cmd)
	var texts, wants []string
	for _, tt := range expansions {
		if tt.want != "error" {
			texts, wants = append(texts, tt.text), append(wants, tt.want)
			continue
		}
		refusals[tt.text] = command(tt.text)
		if err := refusals[tt.text].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for text, cmd := range refusals {
		if cmd.Wait() == nil {
			t.Errorf("postconf expands %s, want an error", text)
		}
	}
	const between = "#%#"
	out, err := command(strings.Join(texts, between)).Output()
	if err != nil {
		t.Fatalf("postconf: %v", err)
	}
	for i, got := range strings.Split(strings.TrimSuffix(string(out), "\n"), between) {
		if got != wants[i] {
			t.Errorf("postconf expands %s to %s, want %s", texts[i], got, wants[i])
		}
	}
}

func TestExpandNames(t *testing.T) {
	t.Parallel()
	values := map[string]string{"a": "A", "b_1": "B", "empty": ""}
	for text, want := range map[string]string{
		"":                         "",
		"plain":                    "plain",
		"$a-$b_1":                  "A-B",
		"${a}$(a)":                 "AA",
		"$none.":                   ".",
		"$$a":                      "$a",
		"${a?yes}${empty?yes}":     "yes",
		"${a:no}${empty:no}":       "no",
		"${a?<${b_1}>}":            "<B>",
		"${empty?<${b_1}>}x":       "x",
		"${a?{b}}":                 "b",
		"${a?{b}:{c}}":             "b",
		"${none?{b}:{[$b_1]}}":     "[B]",
		"${{$a} == {A} ? {yes}}":   "yes",
		"${{$a} == {B} ? {}:{no}}": "no",
	} {
		got, err := ExpandNames(text, func(n string) string { return values[n] })
		if err != nil || got != want {
			t.Errorf("%q: %q, want %q: %v", text, got, want, err)
		}
	}
	for _, text := range []string{"${a", "$", "${", "${a?{b}", "${a?{b}x}"} {
		if got, err := ExpandNames(text, func(n string) string { return values[n] }); err == nil {
			t.Errorf("%q: %q", text, got)
		}
	}
}
