package table

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/dlclark/regexp2"
	"pgregory.net/rapid"
)

func TestSuperset(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		`^Subject:(?!.*\[list\]).*free money`: `^Subject:(?:).*free money`,
		`(?<=a(b|[)])c)d(?<!e)`:               `(?:)d(?:)`,
		`(a|b)\1c\12d`:                        `(a|b)(?s:.*)c(?s:.*)d`,
		`(?>abc)+(?:d)(?<name>e)(f)`:          `(?:abc)+(?:d)(e)(f)`,
		`a(?#not (this)b`:                     `ab`,
		`(?i)a(?-i:b(?s)c)`:                   `(?i)a(?-i:b(?s)c)`,
		`\(?=x\)`:                             `\(?=x\)`,
		`[(?=]a[]b][^]c][[:alpha:]]d`:         `[(?=]a[]b][^]c][[:alpha:]]d`,
		`a\Zb`:                                `a(?:)b`,
		`[a-z-[aeiou]]foo`:                    "", // what follows is no refusal of package regexp: it takes it for something else
		`(?(a)b|c)`:                           "",
		`(?'n'a)`:                             "",
		`(?<a-b>c)`:                           "",
		`(?x)a b`:                             "",
		`\k<a>`:                               "",
		`(a`:                                  "",
		`a)b`:                                 "",
		`(?=a`:                                "",
		`[a`:                                  "",
		`a\`:                                  "",
		`(?`:                                  "",
		`(?<`:                                 "",
		`(?#`:                                 "",
		strings.Repeat("(", maxDepth+1) + strings.Repeat(")", maxDepth+1): "",
	} {
		got, ok := superset(expr)
		if ok != (want != "") || ok && got != want {
			t.Errorf("%s: %q, %v, want %q", expr, got, ok, want)
		}
	}
}

// FuzzSuperset: what the one matches the other does, too.
func FuzzSuperset(f *testing.F) {
	for _, expr := range []string{`(?!a)(b|c)\1`, `(?<=x)[a-c]+(?>d|e)f`, `(?i)K(?-i)k`, `a(?=b)b{2,3}(?#c)`, `[^]a]\Z`} {
		f.Add(expr, "xbbccddeeffKkabbb")
	}
	f.Fuzz(func(t *testing.T, expr, text string) {
		plain, ok := superset(latin1(expr))
		if !ok {
			return
		}
		lin, err := regexp.Compile(plain)
		if err != nil {
			return
		}
		back, err := regexp2.Compile(latin1(expr), regexp2.None)
		if err != nil {
			return
		}
		back.MatchTimeout = 10e6
		if yes, err := back.MatchString(latin1(text)); err == nil && yes && !lin.MatchString(latin1(text)) {
			t.Errorf("%q matches %q, but %q does not", expr, text, plain)
		}
	})
}

// The words that a text needs are found in expressions with look-around, too.
func TestBacktrackingNeeds(t *testing.T) {
	t.Parallel()
	rules := parsePatterns(dialectPerl, "test", "/^Subject:(?!.*\\[list\\]).*free money/ REJECT\n/(?=x)y z/x no\n", Options{Warn: func(text string) { t.Error(text) }})
	first, second := rules.rules[0].match, rules.rules[1].match
	if first.back == nil || len(first.need) != 2 || second.back == nil || second.need != nil {
		t.Errorf("%+v\n%+v", first, second)
	}
	for key, want := range map[string]bool{"Subject: get FREE MONEY": true, "Subject: [list] free money": false, "Subject: money": false} {
		if _, found, err := rules.lookup(context.Background(), key); found != want || err != nil {
			t.Errorf("%s: %v, %v", key, found, err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := "Subject:" + rapid.StringMatching(`[ -Z]{0,9}`).Draw(t, "between") + "Free Money"
		if _, found, err := rules.lookup(context.Background(), text); !found || err != nil {
			t.Errorf("%q: %v, %v", text, found, err)
		}
	})
}
