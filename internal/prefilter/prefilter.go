// Package prefilter finds out quickly which of many regular expressions cannot match a text.
//
// A table of patterns is asked about each line of a message, a list of rules about each reply of a
// server, and most of them never match. To find that out by trying one after the other takes
// more time than all else that is done with the text. But most patterns hold words that every text
// which matches must have. One pass over the text finds out which of all these words it has, and the
// patterns that miss one are not tried.
package prefilter

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// A clause is words of which a text must have at least one for a pattern to
// match. They are in lower case, and of ASCII: letters beyond it have other
// ways of being the same.
type clause []string

const (
	// gramLen is the part of a word that is looked for first. Shorter words are
	// in too many texts to be of use.
	gramLen = 3
	// maxWords and maxClauses bound what is remembered of one pattern: more would
	// not make it rarer by much.
	maxWords, maxClauses = 64, 4
	// gramBits is the size of the index of grams.
	gramBits = 12
)

// required returns clauses all of which hold for each text that re matches.
func required(re *syntax.Regexp) []clause {
	switch re.Op {
	case syntax.OpLiteral:
		return literalClauses(re.Rune)
	case syntax.OpCapture, syntax.OpPlus:
		return required(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return required(re.Sub[0])
		}
	case syntax.OpConcat:
		var all []clause
		for _, sub := range re.Sub {
			all = append(all, required(sub)...)
		}
		slices.SortStableFunc(all, func(a, b clause) int { return b.rarity() - a.rarity() })
		return all[:min(len(all), maxClauses)]
	case syntax.OpAlternate:
		var either clause
		for _, sub := range re.Sub {
			all := required(sub)
			if len(all) == 0 {
				return nil
			}
			either = append(either, slices.MaxFunc(all, func(a, b clause) int { return a.rarity() - b.rarity() })...)
		}
		if len(either) <= maxWords {
			return []clause{either}
		}
	}
	return nil
}

// literalClauses are the parts of a text that are in ASCII and long enough.
func literalClauses(text []rune) (all []clause) {
	var word strings.Builder
	end := func() {
		if word.Len() >= gramLen && len(all) < maxClauses {
			all = append(all, clause{word.String()})
		}
		word.Reset()
	}
	for _, r := range text {
		if r < utf8.RuneSelf {
			word.WriteByte(lower(byte(r)))
		} else {
			end()
		}
	}
	end()
	return all
}

// rarity says how seldom a text that has nothing to do with the pattern may be
// thought to fulfil the clause.
func (c clause) rarity() int {
	shortest := len(c[0])
	for _, word := range c {
		shortest = min(shortest, len(word))
	}
	return 16*min(shortest, 16) - len(c)
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}

// A Filter knows the words of all patterns of a list. The zero Filter knows none. Once it
// has all of them it does not change, and may be used concurrently.
type Filter struct {
	clauses int
	known   map[string]int // numbers of clauses by their words, which many patterns share
	entries []gramEntry
	heads   [1 << gramBits]int32 // of a list of entries: index plus one
}

// A gramEntry is a word that is looked for.
type gramEntry struct {
	word   string
	at     int // where its gram is
	clause int
	next   int32
}

// gramHash is of three octets, in lower case, the first the most significant.
func gramHash(gram uint32) uint32 { return gram * 0x9e3779b1 >> (32 - gramBits) }

func gramOf(word string) uint32 {
	return uint32(word[0])<<16 | uint32(word[1])<<8 | uint32(word[2])
}

// Add takes in a pattern, and returns the numbers of what a text must have for it to match, which are
// for Presence.All. None: the pattern must be tried on every text. It may not be called
// while the Filter is in use.
func (f *Filter) Add(expr *syntax.Regexp) (numbers []int) {
	if f.known == nil {
		f.known = make(map[string]int)
	}
	for _, c := range required(expr) {
		words := fmt.Sprintf("%q", c) // a word may have any octets
		n, ok := f.known[words]
		if !ok {
			n = f.clauses
			f.known[words] = n
			for _, word := range c {
				f.addWord(word)
			}
			f.clauses++
		}
		numbers = append(numbers, n)
	}
	return numbers
}

// addWord takes in a word of the clause that comes next, by that gram which the
// fewest others have.
func (f *Filter) addWord(word string) {
	best, fewest := 0, -1
	for at := 0; at+gramLen <= len(word); at++ {
		n := 0
		for i := f.heads[gramHash(gramOf(word[at:]))]; i > 0; i = f.entries[i-1].next {
			n++
		}
		if fewest < 0 || n < fewest {
			best, fewest = at, n
		}
	}
	head := &f.heads[gramHash(gramOf(word[best:]))]
	f.entries = append(f.entries, gramEntry{word: word, at: best, clause: f.clauses, next: *head})
	*head = int32(len(f.entries))
}

// Words is the length that a Presence needs.
func (f *Filter) Words() int { return (f.clauses + 63) / 64 }

// A Presence is what a text has of that which patterns need, a bit for each.
type Presence []uint64

// All says whether the text has all that a pattern needs. If not, the pattern does not match.
func (p Presence) All(numbers []int) bool {
	for _, n := range numbers {
		if p[n>>6]&(1<<(n&63)) == 0 {
			return false
		}
	}
	return true
}

// Find notes in p, which is empty and has the length Words, what a text has. Letter case is ignored
// in ASCII only: an expression that ignores it may match a text with U+017F or U+212A in place of
// an s or a k, and is not tried then.
func (f *Filter) Find(key string, p Presence) {
	if len(key) < gramLen {
		return
	}
	gram := uint32(lower(key[0]))<<8 | uint32(lower(key[1]))
	for i := gramLen - 1; i < len(key); i++ {
		gram = (gram<<8 | uint32(lower(key[i]))) & 0xffffff
		for n := f.heads[gramHash(gram)]; n > 0; {
			e := &f.entries[n-1]
			if hasWord(key, i-(gramLen-1)-e.at, e.word) {
				p[e.clause>>6] |= 1 << (e.clause & 63)
			}
			n = e.next
		}
	}
}

// hasWord says whether word, in lower case, is in key at this place.
func hasWord(key string, at int, word string) bool {
	if at < 0 || len(key)-at < len(word) {
		return false
	}
	for i := range len(word) {
		if lower(key[at+i]) != word[i] {
			return false
		}
	}
	return true
}
