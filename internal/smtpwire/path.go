package smtpwire

import (
	"strings"
	"unicode/utf8"
)

// A Path is the address of a MAIL or RCPT command.
type Path struct {
	// Address is in internal form: no quotes, no source route, "" for <>.
	Address string
	// Raw is what was typed, without angle brackets and source route. It is
	// what ORCPT becomes when the client gives none.
	Raw string
}

// Longest addresses that are taken, RFC 5321 section 4.5.3.1.1 to .3 say 64,
// 255 and 256; longer local parts are seen, and are no danger.
const (
	maxDomain = 255
	maxPath   = 1000
)

// readPath reads the path that s begins with, and returns what follows it. found is
// false when there is nothing that could be one.
func readPath(s string, strict bool) (p Path, rest string, found, ok bool) {
	path, rest, ok := cutPath(s)
	if path == "" {
		return p, "", false, false
	}
	if ok {
		p, ok = parsePath(path, strict)
	}
	if !ok && !strict {
		p, rest, ok = loosePath(s)
	}
	return p, rest, true, ok
}

// cutPath cuts the first path off s and returns what follows it. ok is false
// when the path does not end properly; path is then all of s. Inside quotes
// and after a backslash, ">" and white space are part of the path.
func cutPath(s string) (path, rest string, ok bool) {
	s = strings.TrimLeft(s, " \t")
	angle := strings.HasPrefix(s, "<")
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case angle && c == '>':
			path, rest = s[:i+1], s[i+1:]
			return path, rest, rest == "" || rest[0] == ' ' || rest[0] == '\t'
		case !angle && (c == ' ' || c == '\t'):
			return s[:i], s[i:], true
		}
	}
	return s, "", !angle && !quoted
}

// parsePath reads a path, RFC 5321 section 4.1.2. A source route is dropped
// (appendix C).
func parsePath(s string, strict bool) (p Path, ok bool) {
	if strings.HasPrefix(s, "<") {
		s = strings.Trim(s[1:len(s)-1], " \t")
	} else if strict {
		return p, false
	}
	if s == "" {
		return p, true
	}
	if strings.HasPrefix(s, "@") { // @one,@two:local@domain
		i := strings.IndexByte(s, ':')
		if i < 0 || strings.IndexByte(s[:i], '"') >= 0 {
			return p, false
		}
		s = s[i+1:]
	}
	if s == "" || len(s) > maxPath || !printableUTF8(s) {
		return p, false
	}
	p.Raw = s
	p.Address, ok = unquoteMailbox(s)
	return p, ok
}

// specials may not stand in a local part without quotes.
const specials = `()<>[]:;,"\`

// unquoteMailbox checks local-part [ "@" domain ] and returns it in internal
// form. A local part is a quoted string, or text without specials: dots are
// not counted, since addresses with two in a row are in use.
func unquoteMailbox(s string) (string, bool) {
	i := 0
	var local string
	if s[0] == '"' {
		b := make([]byte, 0, len(s))
		for i = 1; ; i++ {
			if i >= len(s) {
				return "", false
			}
			c := s[i]
			if c == '"' {
				i++
				break
			}
			if c == '\\' {
				if i++; i >= len(s) {
					return "", false
				}
				c = s[i]
			}
			b = append(b, c)
		}
		local = string(b)
	} else {
		for i < len(s) && s[i] != '@' {
			if c := s[i]; c <= ' ' || strings.IndexByte(specials, c) >= 0 {
				return "", false
			}
			i++
		}
		local = s[:i]
	}
	if local == "" {
		return "", false
	}
	if i == len(s) {
		return local, true
	}
	if s[i] != '@' || !validDomain(s[i+1:]) {
		return "", false
	}
	if s[0] != '"' {
		return s, true
	}
	return local + s[i:], true
}

// validDomain takes address literals, RFC 5321 section 4.1.3, and anything
// that could be meant as a name: what is wrong with it in the DNS is for
// restrictions to find.
func validDomain(s string) bool {
	if s == "" || len(s) > maxDomain {
		return false
	}
	if s[0] == '[' {
		return len(s) > 2 && s[len(s)-1] == ']' && !strings.ContainsAny(s[1:len(s)-1], "[]@ \t<>\"\\")
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c == '@' || strings.IndexByte(specials, c) >= 0 {
			return false
		}
	}
	return true
}

func isASCII(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] > 127 {
			return false
		}
	}
	return true
}

// IsASCII says whether all of s is 7-bit.
func IsASCII(s string) bool { return isASCII(s) }

func printableUTF8(s string) bool {
	ascii := true
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c < ' ' || c == 127:
			return false
		case c > 127:
			ascii = false
		}
	}
	return ascii || utf8.ValidString(s)
}
