package smtpwire

import "strings"

// loosePath reads what stands for a path with strict_rfc821_envelopes = no and
// is none by RFC 5321: no brackets or too many, comments, blanks, a name before
// the brackets, a quoted part or a backslash in the middle of a local part. It
// returns what follows the path.
//
// Postfix 3.7 takes more, and gets an address out of it that other programs would
// not. That is refused: see "Addresses that are no paths" in docs/smtpd.md.
func loosePath(s string) (p Path, rest string, ok bool) {
	s, rest = cutLoose(strings.TrimLeft(s, " \t"))
	if len(s) > maxPath || !printableText(s) {
		return p, rest, false
	}
	if s, ok = stripComments(s); !ok {
		return p, rest, false
	}
	brackets := strings.IndexByte(s, '<') >= 0
	if s, ok = stripBrackets(s); !ok || s == "" {
		return p, rest, ok && brackets
	}
	if s[0] == '@' { // a source route
		i := strings.IndexByte(s, ':')
		if i < 0 || strings.IndexByte(s[:i], '"') >= 0 {
			return p, rest, false
		}
		s = s[i+1:]
	}
	local, domain, ok := looseMailbox(s)
	if !ok || !printableUTF8(local) {
		return p, rest, false
	}
	p.Address = local + domain
	p.Raw = quoteLocal(local) + domain
	return p, rest, true
}

// cutLoose cuts s at the first blank that is neither in quotes nor in brackets.
func cutLoose(s string) (path, rest string) {
	var quoted, angle bool
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '<':
			angle = true
		case c == '>':
			angle = false
		case !angle && (c == ' ' || c == '\t'):
			return s[:i], s[i:]
		}
	}
	return s, ""
}

// stripComments returns s without comments, and without blanks but those in
// quotes and those between two words, which make it something else than an
// address. ok is false when quotes or parentheses do not match.
func stripComments(s string) (_ string, ok bool) {
	b := make([]byte, 0, len(s))
	depth, blank, quoted := 0, false, false
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\' && i+1 == len(s):
			return "", false
		case c == '\\' && depth > 0:
			i++
		case depth > 0:
			switch c {
			case '(':
				depth++
			case ')':
				depth--
				blank = true // what it stands between are two words
			}
		case c == '"':
			quoted = !quoted
			fallthrough
		case quoted:
			b = appendAfterBlank(b, c, blank)
			if blank = false; c == '\\' {
				i++
				b = append(b, s[i])
			}
		case c == '(':
			depth++
		case c == ')':
			return "", false
		case c == ' ' || c == '\t':
			blank = true
		default:
			b = appendAfterBlank(b, c, blank)
			if blank = false; c == '\\' {
				i++
				b = append(b, s[i])
			}
		}
	}
	return string(b), depth == 0 && !quoted
}

// appendAfterBlank appends c, and the blank before it where both neighbours are
// parts of words.
func appendAfterBlank(b []byte, c byte, blank bool) []byte {
	if blank && len(b) > 0 && !strings.ContainsRune("<>@.", rune(b[len(b)-1])) && !strings.ContainsRune("<>@.", rune(c)) {
		b = append(b, ' ')
	}
	return append(b, c)
}

// stripBrackets returns what is in the brackets of s, of which there may be none,
// one pair or two, one within the other. A name before them is dropped.
func stripBrackets(s string) (_ string, ok bool) {
	if i := firstBracket(s); i > 0 {
		if s[len(s)-1] != '>' {
			return "", false
		}
		if strings.ContainsAny(s[:i], "@,:;>") {
			return "", false
		}
		s = s[i:]
	}
	for range 2 {
		if !strings.HasPrefix(s, "<") {
			break
		}
		if !strings.HasSuffix(s, ">") {
			return "", false
		}
		s = s[1 : len(s)-1]
	}
	return s, true
}

// firstBracket is where the first "<" outside of quotes is, or -1.
func firstBracket(s string) int {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '<' && !quoted:
			return i
		}
	}
	return -1
}

// looseMailbox splits local-part "@" domain, of which the local part may be
// made of words, quoted strings and characters behind a backslash. domain
// begins with "@", or is empty.
func looseMailbox(s string) (local, domain string, ok bool) {
	b := make([]byte, 0, len(s))
	i, word := 0, false // something stood there, if only ""
	for quoted := false; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\\':
			if i++; i == len(s) {
				return "", "", false
			}
			b, word = append(b, s[i]), true
			continue
		case c == '"':
			// A quoted string is a word of its own.
			if next := s[i+1:]; !quoted && i > 0 && s[i-1] != '.' || quoted && next != "" && next[0] != '.' && next[0] != '@' {
				return "", "", false
			}
			quoted, word = !quoted, true
			continue
		case quoted:
			b = append(b, c)
			continue
		case c == '@':
		case c <= ' ' || strings.IndexByte(specials, c) >= 0:
			return "", "", false
		default:
			b, word = append(b, c), true
			continue
		}
		break
	}
	if local = string(b); !word {
		return "", "", false
	}
	if i == len(s) {
		return local, "", local != ""
	}
	return local, s[i:], validDomain(s[i+1:])
}

// quoteLocal is a local part as it stands in a path.
func quoteLocal(local string) string {
	if local != "" && !strings.ContainsAny(local, specials+"@ \t") {
		return local
	}
	var b strings.Builder
	b.WriteByte('"')
	for i := 0; i < len(local); i++ {
		if c := local[i]; c == '"' || c == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(local[i])
	}
	b.WriteByte('"')
	return b.String()
}

// printableText is printableUTF8, for text in which tabs may stand.
func printableText(s string) bool { return printableUTF8(strings.ReplaceAll(s, "\t", " ")) }
