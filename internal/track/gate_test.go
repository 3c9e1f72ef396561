package track

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A gate lets all keys pass that it was given, of others about every tenth.
func TestGate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SliceOf(rapid.Uint64()).Draw(t, "keys")
		g := make(gate, gateWords(len(keys)))
		for _, k := range keys {
			g.add(k)
		}
		for _, k := range keys {
			if !g.passes(k) {
				t.Fatalf("%x does not pass", k)
			}
		}
	})
	const entries = 100000
	g := make(gate, gateWords(entries))
	for k := range uint64(entries / 2) {
		g.add(k)
	}
	n := 0
	for k := range uint64(entries) {
		if g.passes(entries + k) {
			n++
		}
	}
	if n < entries/100 || n > entries/8 {
		t.Errorf("%d of %d others pass", n, entries)
	}
	if !gate(nil).passes(7) {
		t.Error("what was not read lets nothing pass")
	}
}

// When many keys are looked for the gates are read, within their bound, and the answer is the same; a damaged one is no
// answer.
func TestGates(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "mail.log")
	const messages = 2 * gateAfter
	manyLines(t, name, 0, messages)
	o, w := indexOf(t, name)
	build(t, o)
	list := func() (x *run, ids []string) {
		x = newRun(o)
		var err error
		if x.plan, err = (Query{Conditions: []Condition{{From, "@one.test"}}}).plan(); err != nil {
			t.Fatal(err)
		}
		x.yield = func(f Found) bool {
			for _, m := range f.Messages {
				ids = append(ids, m.ID)
			}
			return true
		}
		if err := x.search(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.close()
		slices.Sort(ids)
		return x, ids
	}
	x, ids := list()
	if size := x.gates.Load(); size == 0 || size > gateMemory || len(slices.Compact(ids)) != messages || w.heard() != "" {
		t.Errorf("%d octets of gates, %d messages", size, len(ids))
	}
	seg := *x.sources[0].segments[0]
	seg.gate = nil
	full := newRun(o)
	full.keys.Store(gateAfter)
	full.gates.Store(gateMemory)
	if full.gated(&seg) || full.gates.Load() != gateMemory {
		t.Error("there is no bound")
	}
	for file := range age(t, o.Index) {
		if filepath.Ext(file) == segmentSuffix {
			path := filepath.Join(o.Index, file)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			clear(text[len(text)-8:])
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, again := list(); !slices.Equal(again, ids) || w.heard() == "" {
		t.Errorf("%d messages with damaged gates", len(again))
	}
	all := Query{Conditions: []Condition{{From, "@one.test"}}}
	if got := found(t, o, all); len(got) != messages {
		t.Errorf("%d then: %s", len(got), fmt.Sprint(slices.Sorted(maps.Keys(got))))
	}
}
