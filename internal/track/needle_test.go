package track

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"posthaste/internal/logread"
)

// Of the lines of a block those that have a needle are seen, in whatever case, each once, in order and at its place; a
// block that may write a needle in another way is seen as a whole.
func TestSome(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := []string{"4aAAAA1z", "4bBBBB2y", "a@To7.test", "x@other.test", "b@to77.test", `"\u0061@to7.test`, "none"}
		var text []byte
		for range rapid.IntRange(0, 30).Draw(t, "lines") {
			n, m := rapid.SampledFrom(words).Draw(t, "id"), rapid.SampledFrom(words).Draw(t, "word")
			text = append(text, "Nov 20 17:56:01 mx postfix/qmgr[1]: "+n+": from=<"+m+">, size=1, nrcpt=1 (queue active)\n"...)
		}
		if rapid.Bool().Draw(t, "cut") {
			text = bytes.TrimSuffix(text, []byte("\n"))
		}
		var needles [][]byte
		for _, w := range rapid.SliceOfN(rapid.SampledFrom([]string{"4AaaAa1Z", "to7.test", "@to77.test", "nowhere"}), 1, 3).Draw(t, "needles") {
			needles = addNeedle(needles, w)
		}
		p := logread.NewParser(day)
		var e event
		b := block{off: 100, line: 7, text: text}
		escaped := bytes.Contains(text, escape)
		var want, got []place
		b.lines(1, p, &e, func(at place) {
			low := strings.ToLower(string(e.line.Raw))
			for _, n := range needles {
				if escaped || strings.Contains(low, string(n)) {
					want = append(want, at)
					return
				}
			}
		})
		b.some(needles, 1, p, &e, func(at place) { got = append(got, at) })
		if len(got) != len(want) {
			t.Fatalf("%v, want %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%v, want %v", got, want)
			}
		}
	})
}

// What a log may write in another way is not looked for before its lines are parsed.
func TestNeedles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		condition Condition
		want      int
	}{
		{Condition{To, "@To7.test"}, 1}, {Condition{From, "a@b.test"}, 1}, {Condition{ID, "4aAAAA1z"}, 1}, {Condition{Anything, "word"}, 9},
		{Condition{From, "<>"}, 0}, {Condition{To, "a+b@c.test"}, 0}, {Condition{To, "é@c.test"}, 0}, {Condition{Client, "2001:db8::1"}, 0}, {Condition{Client, "192.0.2.0/24"}, 0}, {Condition{Reply, "try"}, 0}, {Condition{To, `a"b@c.test`}, 0},
	} {
		p, err := Query{Conditions: []Condition{c.condition}}.plan()
		if err != nil {
			t.Fatal(err)
		}
		if got := p.needles(2); len(got) != c.want {
			t.Errorf("%v: %q", c.condition, got)
		}
		if p.needles(1) != nil {
			t.Error("all that is of the time has needles")
		}
	}
	many := map[string]bool{}
	for i := range maxNeedles + 1 {
		many[strings.Repeat("x", i+1)] = true
	}
	if needlesOf(many, nil) != nil || len(needlesOf(map[string]bool{"a": true}, map[string]bool{"b@c.test": true})) != 2 || needlesOf(map[string]bool{"a": true}, map[string]bool{"<b>": true}) != nil {
		t.Error("needles of messages")
	}
}
