package rfc5322

import (
	"bytes"

	"posthaste/internal/reuse"
)

// An Address is one address found in a list.
type Address struct {
	// Addr is the address in internal form, without comments and white space
	// around it; it has a source route if there was one (RFC 5321 appendix
	// C). It is empty for "<>".
	Addr string

	// Hidden is how many octets at the beginning of Addr are a local part
	// that has "@", "%", "!" or ":" in quotes or behind backslashes, where
	// they route nothing. 0, nearly always: there are none.
	Hidden int

	// Start and End are where it stands in the text: the bytes to replace
	// by another address in external form. Angle brackets are outside, a
	// comment inside an address is inside.
	Start, End int

	// Bracketed says that it stood in angle brackets.
	Bracketed bool

	// MissingComma says that no comma stood between this address and the one
	// before it: who writes the list again puts one at Item.
	MissingComma bool

	// Changed is for the caller of AppendRewritten: Addr is another one now.
	Changed bool

	// Item is where the display name starts, or Start when there is none.
	Item int
}

type tokenKind uint8

const (
	tokAtom tokenKind = iota
	tokQuoted
	tokLiteral // [domain literal]
	tokComment
	tokOp // one special character
)

// A token is text[start:end]; op is the character of a tokOp.
type token struct {
	kind       tokenKind
	op         byte
	start, end int
}

func (t token) isWord() bool { return t.kind <= tokLiteral }

// tokenLists are used again: nearly every message has a few such fields.
// Tokens point to nothing.
var tokenLists reuse.Pool[[]token]

// maxScratch is the longest list that is worth keeping.
const maxScratch = 1024

// AppendAddresses finds the addresses in text, the value of an address field
// or any other list of addresses, and appends them to dst in order of
// occurrence. It takes groups, comments, quoted strings, source routes, and
// what is common but wrong: addresses without a comma between them, words
// that are no address (each is one), unbalanced brackets. What it does not
// understand it passes over. Not more than limit tokens are looked at, which
// costs addresses of a longer list without a word: only who leaves those as they are
// may set one. Zero is no limit; a token takes forty octets of memory.
func AppendAddresses(dst []Address, text string, limit int) []Address {
	if limit <= 0 {
		limit = len(text)
	}
	scratch := tokenLists.Get()
	p := listParser{text: text, toks: appendTokens(reuse.Truncated(*scratch), text, limit), out: dst}
	p.parse()
	if cap(p.toks) <= maxScratch {
		*scratch = p.toks
		tokenLists.Put(scratch)
	}
	return p.out
}

// appendTokens cuts text into tokens. White space separates and is dropped.
func appendTokens(toks []token, text string, limit int) []token {
	for i := 0; i < len(text) && len(toks) < limit; {
		c := text[i]
		start := i
		switch {
		case class[c]&space != 0:
			i++
			continue
		case c == '"':
			i = skipDelimited(text, i+1, '"')
			toks = append(toks, token{tokQuoted, 0, start, i})
		case c == '[':
			i = skipDelimited(text, i+1, ']')
			toks = append(toks, token{tokLiteral, 0, start, i})
		case c == '(':
			i = skipComment(text, i+1)
			toks = append(toks, token{tokComment, 0, start, i})
		case class[c]&special != 0 && c != '\\':
			i++
			toks = append(toks, token{tokOp, c, start, i})
		default:
			for i < len(text) && (text[i] == '\\' || class[text[i]]&(special|space) == 0) {
				if text[i] == '\\' && i+1 < len(text) {
					i++
				}
				i++
			}
			toks = append(toks, token{tokAtom, 0, start, i})
		}
	}
	return toks
}

// skipDelimited returns the index after the next unescaped end, or len(text).
func skipDelimited(text string, i int, end byte) int {
	for ; i < len(text); i++ {
		switch text[i] {
		case end:
			return i + 1
		case '\\':
			i++
		}
	}
	return len(text)
}

// skipComment returns the index after the comment whose "(" is before i.
func skipComment(text string, i int) int {
	for depth := 1; i < len(text); i++ {
		switch text[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i + 1
			}
		case '\\':
			i++
		}
	}
	return len(text)
}

// listParser goes over the tokens once, from left to right. pending is the
// first token that may yet turn out to be a display name, a group's name or a
// bare address.
type listParser struct {
	text    string
	toks    []token
	out     []Address
	pending int
	comma   bool // a separator stood before pending
}

func (p *listParser) parse() {
	p.comma = true
	lastSemi := -1
	for i := len(p.toks) - 1; i >= 0; i-- {
		if p.toks[i].op == ';' {
			lastSemi = i
			break
		}
	}
	for i := 0; i < len(p.toks); i++ {
		switch p.toks[i].op {
		case ',', ';':
			p.flush(i)
			p.pending, p.comma = i+1, true
		case ':':
			// A group's name, if the group is ever closed or nothing follows;
			// otherwise part of an address such as node::user.
			if i < lastSemi || i == len(p.toks)-1 {
				p.pending, p.comma = i+1, true
			}
		case '<':
			end := p.closing(i)
			if end < 0 {
				continue
			}
			p.add(i+1, end, p.toks[p.pending].start, true)
			p.pending = end + 1
			i = end
		}
	}
	p.flush(len(p.toks))
}

// closing is the index of the ">" that belongs to the "<" at i, -1 if none.
func (p *listParser) closing(i int) int {
	for j := i + 1; j < len(p.toks); j++ {
		switch p.toks[j].op {
		case '>':
			return j
		case '<', ';':
			return -1
		}
	}
	return -1
}

// flush takes the tokens from pending to end as addresses without brackets.
// Two words in a row with nothing to join them are two addresses.
func (p *listParser) flush(end int) {
	first, last := -1, -1
	joined := false
	for i := p.pending; i < end; i++ {
		t := p.toks[i]
		switch {
		case t.kind == tokComment:
			continue
		case t.op == '<' || t.op == '>':
			joined = true // an unbalanced bracket: drop it
			continue
		case first >= 0 && t.isWord() && !joined:
			p.add(first, last+1, p.toks[first].start, false)
			first = -1
		}
		if first < 0 {
			first = i
		}
		last = i
		joined = !t.isWord()
	}
	if first >= 0 {
		p.add(first, last+1, p.toks[first].start, false)
	}
}

// add appends the address made of tokens from first up to, not including, end.
func (p *listParser) add(first, end, item int, bracketed bool) {
	a := Address{Bracketed: bracketed, Item: item, MissingComma: !p.comma}
	p.comma = false
	if first < end {
		a.Start, a.End = p.toks[first].start, p.toks[end-1].end
		a.Addr, a.Hidden = internal(p.text, p.toks[first:end])
	} else { // "<>": the place between the brackets
		a.Start = p.toks[end].start
		a.End = a.Start
	}
	p.out = append(p.out, a)
}

// internal is the internal form of the address that toks spell, and what is to
// be said of it in Hidden.
func internal(text string, toks []token) (addr string, hidden int) {
	if s := text[toks[0].start:toks[len(toks)-1].end]; isPlain(s, toks) {
		return s, 0
	}
	b := make([]byte, 0, toks[len(toks)-1].end-toks[0].start)
	word := false
	local := -1 // the length of the local part, once its end or a route is seen
	for _, t := range toks {
		if local < 0 && t.kind == tokOp && t.op != '.' {
			if local = len(b); t.op != '@' {
				local = 0
			}
		}
		if t.kind == tokComment {
			continue
		}
		if word && t.isWord() {
			b = append(b, ' ')
		}
		word = t.isWord()
		switch t.kind {
		case tokQuoted:
			b = appendUnescaped(b, trimDelimiters(text[t.start:t.end], '"'))
		case tokLiteral:
			b = append(b, '[')
			b = appendUnescaped(b, trimDelimiters(text[t.start:t.end], ']'))
			b = append(b, ']')
		default:
			b = appendUnescaped(b, text[t.start:t.end])
		}
	}
	if local < 0 {
		local = len(b)
	}
	if !bytes.ContainsAny(b[:local], "@%!:") {
		local = 0
	}
	return string(b), local
}

// isPlain says whether s, the text that toks were cut from, is in internal
// form already.
func isPlain(s string, toks []token) bool {
	for i, t := range toks {
		if t.kind == tokQuoted || t.kind == tokComment || t.kind == tokLiteral ||
			i > 0 && t.start != toks[i-1].end {
			return false
		}
	}
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' {
			return false
		}
	}
	return true
}

// trimDelimiters removes the first byte of s, and the last if it is end.
func trimDelimiters(s string, end byte) string {
	s = s[1:]
	if n := len(s); n > 0 && s[n-1] == end {
		s = s[:n-1]
	}
	return s
}

// appendUnescaped appends s without its backslashes. Line ends and tabs, which
// no address in internal form has, become spaces.
func appendUnescaped(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\\' {
			if i+1 == len(s) {
				break
			}
			i++
			c = s[i]
		}
		if class[c]&space != 0 {
			c = ' '
		}
		b = append(b, c)
	}
	return b
}
