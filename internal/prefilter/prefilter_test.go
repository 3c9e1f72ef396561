package prefilter

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What a text must have for a pattern to match: all of the clauses, and one word of each.
func TestRequired(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		`(?i)Viagra`:                     "viagra",
		`Viagra`:                         "viagra",
		`^Subject:.*(free|win) money`:    "subject:& money&free|win",
		`(?i)name=.*\.(exe|scr|pif|bat)`: "name=&exe|scr|pif|bat",
		`(abc|de)`:                       "", // de is too short
		`(abc|x*)`:                       "",
		`(abc|def.*ghijk)`:               "abc|ghijk",
		`(abc)?`:                         "",
		`(abc)*def`:                      "def",
		`(abc)+`:                         "abc",
		`(abc){2,3}`:                     "abc",
		`(abc){0,3}`:                     "",
		`ab`:                             "",
		`.*`:                             "",
		``:                               "",
		`[vV]iagra`:                      "iagra",
		`grüße aus berlin`:               "e aus berlin",
		`one.two.three.four.five.sixth`:  "three&sixth&four&five", // the longest
		`\bcasino\b|^poker`:              "casino|poker",
		`zzzzz(a|bc)`:                    "zzzzz",
	} {
		re, err := syntax.Parse(expr, syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range required(re) {
			got = append(got, strings.Join(c, "|"))
		}
		if strings.Join(got, "&") != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

// A text that matches a pattern has the words that the pattern needs, whatever is
// around it, among many other patterns.
func TestLetsPass(t *testing.T) {
	t.Parallel()
	exprs := []string{`(?i)viagra`, `^subject:.*(free|win) money`, `(?i)name=[^;]{0,9}\.(exe|scr|pif|bat)$`, `(abc){2,3}x?(def|ghi.jkl)+`, `(?i)\bPoker\b`,
		`(?s)one.two.three`, `aaaa*`, `(?i)grüße[ -~]{0,3}aus berlin`, `[a-c]def|ghi`, `(?m)^x-spam: (yes|maybe)$`, `(one|three|fourth).*(five|sixth)`}
	f := new(Filter)
	for i := range 3000 { // so that the index is crowded
		f.Add(parsed(t, fmt.Sprintf("word%d|%dother|the%x", i, i, i)))
	}
	needs := make([][]int, len(exprs))
	for i, expr := range exprs {
		if needs[i] = f.Add(parsed(t, expr)); len(needs[i]) == 0 {
			t.Fatalf("%s needs nothing", expr)
		}
	}
	octets := strings.NewReplacer("\u017f", "s", "\u212a", "k") // the same to a matcher; keys do not have such characters, see latin1
	rapid.Check(t, func(t *rapid.T) {
		i := rapid.IntRange(0, len(exprs)-1).Draw(t, "pattern")
		text := octets.Replace(rapid.StringMatching(exprs[i]).Draw(t, "text"))
		if strings.HasPrefix(exprs[i], "(?i)") && rapid.Bool().Draw(t, "upper") {
			text = strings.ToUpper(text)
		}
		has := make(Presence, f.Words())
		f.Find(rapid.StringN(0, 20, -1).Draw(t, "before")+text+rapid.StringN(0, 20, -1).Draw(t, "after"), has)
		if !has.All(needs[i]) {
			t.Errorf("%q is kept from %s", text, exprs[i])
		}
	})
	has := make(Presence, f.Words())
	f.Find("word2999 and others, but nothing of the rest", has)
	if n := fmt.Sprint(has.All([]int{2999}), has.All(needs[0])); n != "true false" {
		t.Errorf("word2999, and a word that is not there: %s", n)
	}
	for _, short := range []string{"", "a", "ab"} {
		f.Find(short, has)
	}
}

// Patterns that need the same words share a clause, and no others do.
func TestShares(t *testing.T) {
	t.Parallel()
	f := new(Filter)
	one := f.Add(parsed(t, `abc\x00def`))
	two, again := f.Add(parsed(t, `abc|def`)), f.Add(parsed(t, `x?(?i:ABC|dEf)$`))
	if len(one) != 1 || len(two) != 1 || one[0] == two[0] || !slices.Equal(two, again) || f.clauses != 2 || len(f.entries) != 3 {
		t.Errorf("%v, %v, %v: %d clauses, %d words", one, two, again, f.clauses, len(f.entries))
	}
}

func parsed(t *testing.T, expr string) *syntax.Regexp {
	t.Helper()
	re, err := syntax.Parse(expr, syntax.Perl)
	if err != nil {
		t.Fatal(err)
	}
	return re
}
