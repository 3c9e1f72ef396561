// Package rfc5322 reads and writes the text of messages: addresses, lists of
// addresses, header fields, dates. It is vocabulary: pure functions over
// bytes, no I/O, no state, safe for any number of callers at once.
//
// Two forms of an address occur. The internal form is what the rest of the
// system keeps: local part without quotes, "@", domain; "" is the null
// address. The external form is what stands in header fields and in SMTP
// commands, quoted where the grammar asks for it. [Quote] and [Unquote] go
// from one to the other.
//
// The parsers are lenient where mail in the wild is sloppy: [AppendAddresses]
// takes every obsolete form of RFC 5322 section 4.4, missing commas, bare
// eight-bit text and unbalanced punctuation, and reports where in the text
// each address stands so that a field can be rewritten without touching the
// rest of it.
//
// # Security
//
// All input is hostile. No function fails, recurses or allocates more than a
// small multiple of what it was given.
//
// # Standards
//
//	RFC 5322 (Internet Message Format)
//	RFC 5321 section 4.1.2 (quoting of local parts)
//	RFC 6532 (internationalized headers: bytes over 127 are ordinary text)
//	RFC 2045, RFC 2046 (MIME structure, as far as filters need it)
package rfc5322

import "strings"

// Split cuts an address in internal form at its last "@". The domain is empty
// when there is no "@", which is not the same as an empty domain after one:
// at tells them apart.
func Split(addr string) (local, domain string, at bool) {
	i := strings.LastIndexByte(addr, '@')
	if i < 0 {
		return addr, "", false
	}
	return addr[:i], addr[i+1:], true
}

// Domain is what follows the last "@" of addr, empty when there is none.
func Domain(addr string) string {
	_, domain, _ := Split(addr)
	return domain
}

// Character classes of RFC 5322 section 3.2.3. Bytes over 127 count as text
// (RFC 6532 section 3.2).
const (
	atext   = 1 << iota // may stand in an atom
	special             // ()<>@,;:\".[] and the operators | % !
	space               // space, tab, CR, LF
	ftext               // may stand in a field name
)

var class = func() (t [256]uint8) {
	for c := range t {
		switch {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			t[c] = space
		case c > ' ' && c < 127:
			t[c] = atext | ftext
		case c > 127:
			t[c] = atext
		}
	}
	for _, c := range []byte(`()<>@,;:\".[]`) {
		t[c] = t[c]&^atext | special
	}
	for _, c := range []byte(`|%!`) { // of this parser: they join words without white space
		t[c] |= special
	}
	t[':'] &^= ftext
	return t
}()

// isDotAtom says whether s may stand as a local part without quotes,
// RFC 5322 section 3.2.3.
func isDotAtom(s string) bool {
	if s == "" || s[0] == '.' || s[len(s)-1] == '.' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; class[c]&atext == 0 && (c != '.' || s[i-1] == '.') {
			return false
		}
	}
	return true
}

// NeedsQuotes says whether a local part cannot stand in an address without
// quotes.
func NeedsQuotes(local string) bool { return !isDotAtom(local) }

// Quote turns an address in internal form into external form: the local part
// is put in quotes if it is not a dot-atom. The null address stays empty.
// Addresses that need no quotes, which is nearly all, are returned as they
// are, without a copy.
func Quote(addr string) string {
	local, _, _ := Split(addr)
	if addr == "" || isDotAtom(local) {
		return addr
	}
	return string(AppendQuoted(make([]byte, 0, len(addr)+8), addr))
}

// AppendQuoted appends what Quote returns.
func AppendQuoted(b []byte, addr string) []byte {
	local, _, _ := Split(addr)
	if addr == "" || isDotAtom(local) {
		return append(b, addr...)
	}
	b = appendQuotedString(b, local)
	return append(b, addr[len(local):]...)
}

// appendQuotedString appends s as a quoted-string, RFC 5322 section 3.2.4.
func appendQuotedString(b []byte, s string) []byte {
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		if c := s[i]; c == '"' || c == '\\' || c == '\r' || c == '\n' {
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return append(b, '"')
}

// AppendPhrase appends s as a phrase, RFC 5322 section 3.2.5, as it stands
// before an address in angle brackets: in quotes unless it is a sequence of
// atoms. Control characters become spaces.
func AppendPhrase(b []byte, s string) []byte {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 127 {
			return ' '
		}
		return r
	}, s)
	for i := 0; i < len(s); i++ {
		if s[i] != ' ' && class[s[i]]&atext == 0 {
			return appendQuotedString(b, s)
		}
	}
	return append(b, s...)
}

// AppendComment appends s as a comment, RFC 5322 section 3.2.2, with its
// parentheses.
func AppendComment(b []byte, s string) []byte {
	b = append(b, '(')
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '(' || c == ')' || c == '\\':
			b = append(b, '\\')
		case c < ' ' || c == 127:
			c = ' '
		}
		b = append(b, c)
	}
	return append(b, ')')
}

// Unquote turns an address in external form into internal form: quotes and
// backslashes of the local part go, what they protected stays. An address
// without either is returned as it is.
func Unquote(addr string) string {
	end := lastUnquotedAt(addr)
	if strings.IndexByte(addr[:end], '"') < 0 && strings.IndexByte(addr[:end], '\\') < 0 {
		return addr
	}
	b := make([]byte, 0, len(addr))
	for i := 0; i < end; i++ {
		c := addr[i]
		if c == '"' {
			continue
		}
		if c == '\\' && i+1 < end {
			i++
			c = addr[i]
		}
		b = append(b, c)
	}
	return string(append(b, addr[end:]...))
}

// Mailbox reads a mailbox as RFC 5321 section 4.1.2 has it, and returns it in
// internal form. Where the local part is a quoted string, quotes and backslashes
// go, whether or not they were needed, and spaces in it stay. Other local parts
// are taken as they are, without spaces: people and other programs write some
// that would need quotes.
func Mailbox(text string) (addr string, ok bool) {
	var local []byte
	i := 0
	if strings.HasPrefix(text, `"`) {
		for i = 1; i < len(text) && text[i] != '"'; i++ {
			if text[i] == '\\' && i+1 < len(text) {
				i++
			}
			local = append(local, text[i])
		}
		i++ // the closing quote, if there is one
	} else if i = strings.LastIndexByte(text, '@'); i >= 0 {
		local = []byte(text[:i])
		if strings.IndexByte(text[:i], ' ') >= 0 {
			return "", false
		}
	}
	if len(local) == 0 || i < 0 || i >= len(text)-1 || text[i] != '@' || strings.ContainsAny(text[i+1:], `@" `) || hasControl(text) {
		return "", false
	}
	return string(local) + text[i:], true
}

// hasControl says whether s has a control character of ASCII.
func hasControl(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// lastUnquotedAt is the index of the "@" before the domain, or len(addr) when
// there is none. An "@" inside quotes does not count.
func lastUnquotedAt(addr string) int {
	i := strings.LastIndexByte(addr, '@')
	if i < 0 {
		return len(addr)
	}
	// The domain cannot hold a quote: a quote after the last "@" means that
	// the "@" was quoted, and that there is no domain.
	if strings.IndexByte(addr[i:], '"') >= 0 {
		return len(addr)
	}
	return i
}
