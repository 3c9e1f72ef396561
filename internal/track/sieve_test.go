package track

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Of the blocks of a sieve, whether it was made at once or joined of several, and whether it is in memory or in a file, all are picked that have the
// text; and in one that has few texts, no others.
func TestSieve(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var parts []*sieve
		var counts []int
		var texts []string
		for range rapid.IntRange(1, 4).Draw(t, "parts") {
			filters := make([]blockFilter, rapid.IntRange(1, 20).Draw(t, "blocks"))
			for i := range filters {
				text := rapid.StringMatching(`[a-d]{0,6}`).Draw(t, "text")
				filters[i].addText([]byte(text))
				texts = append(texts, text)
			}
			parts, counts = append(parts, newSieve(filters)), append(counts, len(filters))
		}
		v := parts[0]
		if len(parts) > 1 {
			v = joinSieves(parts, counts)
		}
		file := bytes.NewReader(append([]byte("before"), v.rows...))
		stored := &sieve{width: v.width, sums: v.sums}
		all, err := stored.load(file, 6)
		if err != nil || !bytes.Equal(all.rows, v.rows) {
			t.Fatal("the rows differ in the file", err)
		}
		word := rapid.StringMatching(`[a-d]{3,4}`).Draw(t, "word")
		var want []int32 // those that have each three octets of the word
		for n, text := range texts {
			if strings.Contains(text, word[:3]) && strings.Contains(text, word[len(word)-3:]) {
				want = append(want, int32(n))
			}
		}
		for _, v := range []*sieve{v, stored} {
			got, err := v.pick(len(texts), textTokens([]byte(word)), file, 6, new([]byte))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%q: %v, want %v: %q", word, got, want, texts)
			}
		}
	})
}

// A damaged group of rows is an error, and is not taken for one that has nothing.
func TestSieveDamaged(t *testing.T) {
	t.Parallel()
	filters := make([]blockFilter, 9)
	filters[8].addText([]byte("later"))
	v := newSieve(filters)
	tokens := textTokens([]byte("later"))
	w, _ := tokens[1].word()
	rows := bytes.Clone(v.rows)
	clear(rows[w*v.group() : (w+1)*v.group()])
	stored := &sieve{width: v.width, sums: v.sums}
	if got, err := stored.pick(9, tokens, bytes.NewReader(rows), 0, new([]byte)); err == nil {
		t.Errorf("picked %v", got)
	}
	if _, err := stored.load(bytes.NewReader(rows), 0); err == nil {
		t.Error("loaded")
	}
	if got, err := stored.pick(9, tokens, bytes.NewReader(v.rows[:len(v.rows)-1]), 0, new([]byte)); err != nil || !slices.Equal(got, []int32{8}) {
		t.Errorf("%v, %v", got, err)
	}
}

// The share of blocks that seem to have a text, or a network, that they have not: in a block of 128 KiB of a busy log there are about
// 11,000 trigrams, and 400 networks. It is what docs/trace.md says.
func TestFalsePositives(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	var f blockFilter
	for range 11000 {
		f.add(newToken(uint64(r.IntN(1 << 23))))
	}
	for range 130 {
		a := netip.AddrFrom4([4]byte{byte(r.IntN(100)), byte(r.IntN(256)), byte(r.IntN(256)), 1})
		networks(a, 128, f.add)
	}
	seems := func(tokens []token) bool {
		return !slices.ContainsFunc(tokens, func(t token) bool { n, mask := t.word(); return f[n]&mask != mask })
	}
	const tries = 100000
	count := func(tokens func() []token) (n int) {
		for range tries {
			if seems(tokens()) {
				n++
			}
		}
		return n
	}
	absent := func(n int) func() []token {
		return func() (list []token) {
			for range n {
				list = append(list, newToken(1<<23+uint64(r.IntN(1<<23))))
			}
			return list
		}
	}
	net := func() []token {
		a := netip.AddrFrom4([4]byte{byte(100 + r.IntN(100)), byte(r.IntN(256)), byte(r.IntN(256)), 0})
		return netTokens(netip.PrefixFrom(a, 16))
	}
	one, three, wide := count(absent(1)), count(absent(3)), count(net)
	said := fmt.Sprintf("one trigram that is not there: %.1f %%; three: %.2f %%; a network: %.3f %%", float64(one)*100/tries, float64(three)*100/tries, float64(wide)*100/tries)
	t.Log(said)
	if one < tries/100 || one > tries*30/100 || three > tries*3/100 || wide > tries/100 {
		t.Error(said)
	}
}

// What is looked for in a block for a network is noted there for each client in it.
func TestNetworks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "octets")
		a, ok := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "client"))
		if !ok {
			t.Fatal("no address")
		}
		a = a.Unmap()
		p, err := a.Prefix(rapid.IntRange(0, a.BitLen()).Draw(t, "length"))
		if err != nil {
			t.Fatal(err)
		}
		var f blockFilter
		networks(a, 128, f.add)
		wanted := netTokens(p)
		for _, token := range wanted {
			if n, mask := token.word(); f[n]&mask != mask {
				t.Fatalf("%v is not noted for %v", p, a)
			}
		}
		if long := p.Bits() >= netSizes[a.BitLen()/128][0]; long != (len(wanted) > 0) {
			t.Fatalf("%v: %d tokens", p, len(wanted))
		}
	})
}
