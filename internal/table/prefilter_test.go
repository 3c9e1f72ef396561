package table

import (
	"context"
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
func TestPrefilterLetsPass(t *testing.T) {
	t.Parallel()
	exprs := []string{`(?i)viagra`, `^subject:.*(free|win) money`, `(?i)name=[^;]{0,9}\.(exe|scr|pif|bat)$`, `(abc){2,3}x?(def|ghi.jkl)+`, `(?i)\bPoker\b`,
		`(?s)one.two.three`, `aaaa*`, `(?i)grüße[ -~]{0,3}aus berlin`, `[a-c]def|ghi`, `(?m)^x-spam: (yes|maybe)$`, `(one|three|fourth).*(five|sixth)`}
	f := new(prefilter)
	for i := range 3000 { // so that the index is crowded
		f.add(parsed(t, fmt.Sprintf("word%d|%dother|the%x", i, i, i)))
	}
	needs := make([][]int, len(exprs))
	for i, expr := range exprs {
		if needs[i] = f.add(parsed(t, expr)); len(needs[i]) == 0 {
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
		has := make(presence, f.clauses/64+1)
		f.find(rapid.StringN(0, 20, -1).Draw(t, "before")+text+rapid.StringN(0, 20, -1).Draw(t, "after"), has)
		if !has.all(needs[i]) {
			t.Errorf("%q is kept from %s", text, exprs[i])
		}
	})
	has := make(presence, f.clauses/64+1)
	f.find("word2999 and others, but nothing of the rest", has)
	if n := fmt.Sprint(has.all([]int{2999}), has.all(needs[0])); n != "true false" {
		t.Errorf("word2999, and a word that is not there: %s", n)
	}
	for _, short := range []string{"", "a", "ab"} {
		f.find(short, has)
	}
}

// Patterns that need the same words share a clause, and no others do.
func TestPrefilterShares(t *testing.T) {
	t.Parallel()
	f := new(prefilter)
	one := f.add(parsed(t, `abc\x00def`))
	two, again := f.add(parsed(t, `abc|def`)), f.add(parsed(t, `x?(?i:ABC|dEf)$`))
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

// BenchmarkPatterns is a line of text in a table of patterns that it does not match.
func BenchmarkPatterns(b *testing.B) {
	for _, n := range []int{1, 50, 1000} {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "/\\b(casino|poker%d)\\b.*http:\\/\\/[a-z0-9.]+\\/%d/ REJECT\n", i, i)
		}
		rules := parsePatterns(dialectPerl, "bench", text.String(), Options{})
		line := strings.Repeat("The quick brown fox jumps over. ", 2)
		for _, how := range []string{"filtered", "all"} {
			if how == "all" {
				tryAll(rules.rules)
			}
			b.Run(fmt.Sprintf("%d/%s", n, how), func(b *testing.B) {
				b.SetBytes(int64(len(line)))
				for b.Loop() {
					if _, found, err := rules.lookup(context.Background(), line); found || err != nil {
						b.Fatal(found, err)
					}
				}
			})
		}
	}
}
