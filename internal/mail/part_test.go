package mail

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"posthaste/internal/dsn"
)

// drawParts are parts of which several may be the same, or nearly.
func drawParts(t *rapid.T, name string) []Part {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Part {
		return Part{Address: rapid.SampledFrom([]string{"a@x", "b@x"}).Draw(t, "address"),
			Action: rapid.SampledFrom([]dsn.Action{dsn.Failed, dsn.Deferred}).Draw(t, "action"),
			Status: rapid.SampledFrom([]dsn.Status{dsn.S(5, 1, 1), dsn.S(5, 3, 0)}).Draw(t, "status"),
			Reason: rapid.SampledFrom([]string{"r", "s"}).Draw(t, "reason"), Told: rapid.Bool().Draw(t, "told")}
	}), 0, 6).Draw(t, name)
}

// failedAs counts the parts that failed as p did, told or not.
func failedAs(list []Part, p Part, told bool) (n int) {
	for _, q := range list {
		if q.Action == dsn.Failed && q.Address == p.Address && q.Status == p.Status && q.Told == told {
			n++
		}
	}
	return n
}

// TestFollow: of what fails as something did before as many are told as had
// been told, and no more; while the recipient waits none is forgotten.
func TestFollow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		old := Outcome{Action: dsn.Deferred, Parts: drawParts(t, "old")}
		before := slices.Clone(old.Parts)
		now := Outcome{Action: rapid.SampledFrom([]dsn.Action{dsn.Failed, dsn.Deferred}).Draw(t, "action"), Parts: drawParts(t, "now")}
		for i := range now.Parts {
			now.Parts[i].Told = false
		}
		fresh := slices.Clone(now.Parts)
		now.Follow(&old)
		if !slices.Equal(old.Parts, before) {
			t.Fatalf("the former outcome is changed: %+v, was %+v", old.Parts, before)
		}
		for _, p := range append(fresh, before...) {
			had, is := failedAs(before, p, true), failedAs(now.Parts, p, true)
			untold := failedAs(now.Parts, p, false)
			came := failedAs(fresh, p, false)
			switch {
			case now.Action == dsn.Deferred && is != had:
				t.Fatalf("%+v: %d were told, %d are: %+v", p, had, is, now.Parts)
			case is > had || is+untold < came:
				t.Fatalf("%+v: %d of %d are told, and %d not; it came %d times: %+v", p, is, had, untold, came, now.Parts)
			case untold < came-had:
				t.Fatalf("%+v: %d are to be told, not %d", p, untold, came-had)
			}
		}
		if now.Action == dsn.Failed && len(now.Parts) != len(fresh) {
			t.Fatalf("there are others: %+v", now.Parts)
		}
		told := now
		told.Tell(false)
		if told.Untold() || now.Untold() != slices.ContainsFunc(now.Parts, func(p Part) bool { return p.Action == dsn.Failed && !p.Told }) {
			t.Fatalf("told: %+v, of %+v", told.Parts, now.Parts)
		}
		again := storedAgain(t, now)
		if len(now.Parts) == 0 {
			now.Parts, again.Parts = nil, nil
		}
		if !reflect.DeepEqual(again.Parts, now.Parts) {
			t.Fatalf("stored: %+v, was %+v", again.Parts, now.Parts)
		}
	})
}

// The reason says which of several was told, where it can.
func TestFollowReason(t *testing.T) {
	t.Parallel()
	failed := func(reason string, told bool) Part {
		return Part{Address: "a@x", Action: dsn.Failed, Status: dsn.S(5, 3, 0), Reason: reason, Told: told}
	}
	old := Outcome{Parts: []Part{failed("second", true)}}
	now := Outcome{Action: dsn.Failed, Parts: []Part{failed("first", false), failed("second", false)}}
	now.Follow(&old)
	if now.Parts[0].Told || !now.Parts[1].Told {
		t.Errorf("told: %+v", now.Parts)
	}
	now = Outcome{Action: dsn.Failed, Parts: []Part{failed("second, at another time", false)}}
	now.Follow(&old)
	if now.Untold() {
		t.Errorf("not told: %+v", now.Parts)
	}
	more := Part{Address: "a@x", Action: dsn.Failed, Status: dsn.S(5, 3, 0), More: 2, Told: true}
	old, more.Told, more.More = Outcome{Parts: []Part{more}}, false, 3
	now = Outcome{Action: dsn.Failed, Parts: []Part{more}}
	if now.Follow(&old); !now.Untold() {
		t.Errorf("others have failed, too: %+v", now.Parts)
	}
}

// TestBoundParts: however many there are, and whatever is said of them, an
// outcome stays small, and each is counted.
func TestBoundParts(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 300).Draw(t, "n")
		text := strings.Repeat(rapid.SampledFrom([]string{"x", "é", "\xff"}).Draw(t, "text"), rapid.IntRange(0, 5000).Draw(t, "length"))
		list := make([]Part, n)
		var count [2]int
		for i := range list {
			list[i] = Part{Address: text, Action: dsn.Failed, Reason: text, DiagText: text, Owner: rapid.SampledFrom([]string{"", "o"}).Draw(t, "owner")}
			if k := rapid.IntRange(0, 1).Draw(t, "action"); k > 0 {
				list[i].Action = dsn.Deferred
			}
			count[list[i].Action-dsn.Deferred]++
		}
		got := BoundParts(list, "whole@x")
		size := 0
		for _, p := range got {
			size += p.Octets()
			count[p.Action-dsn.Deferred] -= max(p.More, 1)
			if utf8.ValidString(text) && !(utf8.ValidString(p.Reason) && utf8.ValidString(p.Address)) {
				t.Fatalf("cut within a character: %q", p.Reason)
			}
		}
		if len(got) > maxParts+2 || size > maxPartsOctets+4*maxPartText+1000 || count != [2]int{} {
			t.Fatalf("%d parts, %d octets, not counted: %v", len(got), size, count)
		}
	})
}

// TestWhy: what keeps a recipient in the queue is said of those whom it is
// about, and not of the others.
func TestWhy(t *testing.T) {
	t.Parallel()
	late := func(addr, reason string) Part { return Part{Address: addr, Action: dsn.Deferred, Reason: reason} }
	failed := Part{Address: "f@x", Action: dsn.Failed, Reason: "unknown user"}
	good := Part{Address: "l@x", Action: dsn.Expanded, Reason: "alias expanded"}
	for name, tt := range map[string]struct {
		action dsn.Action
		parts  []Part
		want   string
	}{
		"no parts":         {dsn.Deferred, nil, "whole"},
		"one":              {dsn.Deferred, []Part{late("a@x", "full")}, "a@x: full"},
		"others":           {dsn.Deferred, []Part{good, failed, late("a b@x", "full")}, `"a b"@x: full`},
		"several":          {dsn.Deferred, []Part{late("a@x", "full"), late("b@x", "locked"), late("c@x", "full")}, "a@x, c@x: full; b@x: locked"},
		"none of them":     {dsn.Deferred, []Part{good, failed}, "whole"},
		"its notice waits": {dsn.Failed, []Part{good, failed}, "f@x: unknown user"},
		"more": {dsn.Deferred, []Part{late("a@x", "full"), {Address: "list@x", Action: dsn.Deferred, Reason: "2 more destinations, ...: full", More: 2}},
			"a@x: full; 2 more destinations, ...: full"},
		"long": {dsn.Deferred, []Part{late("a@x", strings.Repeat("x", maxPartText))}, "a@x: " + strings.Repeat("x", maxPartText-5)},
	} {
		o := &Outcome{Action: tt.action, Reason: "whole", Parts: tt.parts}
		if got := o.Why(); got != tt.want {
			t.Errorf("%s: %q, not %q", name, got, tt.want)
		}
	}
}
