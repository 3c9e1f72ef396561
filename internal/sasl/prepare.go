package sasl

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/bidi"
	"golang.org/x/text/unicode/norm"
)

// prepare gives a user name or a password the form in which those are the same
// that look the same, SASLprep (RFC 4013). It is of today's Unicode: a character
// that the RFC's did not have yet is allowed, as in a query. ok is false for what
// has no such form: nothing, control characters, what is no UTF-8.
func prepare(s string) (prepared string, ok bool) {
	plain := func(c rune) bool { return c >= ' ' && c <= '~' }
	if strings.IndexFunc(s, func(c rune) bool { return !plain(c) }) < 0 {
		return s, s != ""
	}
	if !utf8.ValidString(s) {
		return "", false
	}
	s = norm.NFKC.String(strings.Map(func(c rune) rune {
		switch {
		case c > '~' && unicode.Is(spaces, c):
			return ' '
		case unicode.Is(nothing, c):
			return -1
		}
		return c
	}, s))
	if s == "" || strings.IndexFunc(s, func(c rune) bool { return !plain(c) && prohibited(c) }) >= 0 {
		return "", false
	}
	return s, oneDirection(s)
}

// spaces are those of RFC 3454 table C.1.2.
var spaces = &unicode.RangeTable{R16: []unicode.Range16{{0x00a0, 0x00a0, 1}, {0x1680, 0x1680, 1}, {0x2000, 0x200b, 1},
	{0x202f, 0x202f, 1}, {0x205f, 0x205f, 1}, {0x3000, 0x3000, 1}}}

// nothing are the characters of RFC 3454 table B.1, which do not count.
var nothing = &unicode.RangeTable{R16: []unicode.Range16{{0x00ad, 0x00ad, 1}, {0x034f, 0x034f, 1}, {0x1806, 0x1806, 1},
	{0x180b, 0x180d, 1}, {0x200b, 0x200d, 1}, {0x2060, 0x2060, 1}, {0xfe00, 0xfe0f, 1}, {0xfeff, 0xfeff, 1}}}

// never are the characters of RFC 3454 tables C.2.2 and C.6 to C.9 that are of
// no category which is prohibited as a whole.
var never = &unicode.RangeTable{
	R16: []unicode.Range16{{0x0340, 0x0341, 1}, {0x06dd, 0x06dd, 1}, {0x070f, 0x070f, 1}, {0x180e, 0x180e, 1}, {0x200c, 0x200f, 1},
		{0x2028, 0x202e, 1}, {0x2060, 0x2063, 1}, {0x206a, 0x206f, 1}, {0x2ff0, 0x2ffb, 1}, {0xfeff, 0xfeff, 1}, {0xfff9, 0xfffd, 1}},
	R32: []unicode.Range32{{0x1d173, 0x1d17a, 1}, {0xe0001, 0xe0001, 1}, {0xe0020, 0xe007f, 1}},
}

// prohibited says whether no name or password can have a character: controls,
// private use, what is no character, and never.
func prohibited(c rune) bool {
	return unicode.In(c, unicode.Cc, unicode.Co, unicode.Noncharacter_Code_Point, never)
}

// oneDirection is the rule of RFC 3454 section 6: a text with characters that
// are written from right to left has none of the others, and begins and ends
// with such.
func oneDirection(s string) bool {
	isRight := func(class bidi.Class) bool { return class == bidi.R || class == bidi.AL }
	left, right := false, false
	var first, last bidi.Class
	for i, c := range s {
		p, _ := bidi.LookupRune(c)
		last = p.Class()
		if i == 0 {
			first = last
		}
		left, right = left || last == bidi.L, right || isRight(last)
	}
	return !right || !left && isRight(first) && isRight(last)
}
