package access

import "strings"

// Expand fills in $name, ${name}, $(name), ${name?text} and ${name:text}: the
// text of the last two stands if name has a value, or has none. Both kinds of
// text may hold names in turn. Names that value does not know stand for
// nothing.
func Expand(text string, value func(name string) string) string {
	if !strings.Contains(text, "$") {
		return text
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = expandOne(&b, rest, value)
	}
}

// expandOne writes what the name at the start of s stands for, and returns
// what follows it.
func expandOne(b *strings.Builder, s string, value func(string) string) (rest string) {
	if s == "" {
		return s
	}
	if s[0] == '$' {
		b.WriteByte('$')
		return s[1:]
	}
	if s[0] != '{' && s[0] != '(' {
		n := nameLen(s)
		b.WriteString(value(s[:n]))
		return s[n:]
	}
	end := closing(s)
	inner := s[1:end]
	n := nameLen(inner)
	v := value(inner[:n])
	switch {
	case n < len(inner) && inner[n] == '?':
		if v != "" {
			b.WriteString(Expand(inner[n+1:], value))
		}
	case n < len(inner) && inner[n] == ':':
		if v == "" {
			b.WriteString(Expand(inner[n+1:], value))
		}
	default:
		b.WriteString(v)
	}
	return s[min(end+1, len(s)):]
}

func nameLen(s string) int {
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] >= 'a' && s[n] <= 'z' || s[n] >= 'A' && s[n] <= 'Z' || s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return n
}

// closing is the index of the bracket that closes the one at s[0], or the
// length of s when there is none.
func closing(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '{', '(':
			depth++
		case '}', ')':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return len(s)
}

// charset is the characters that smtpd_expansion_filter lets through, given
// with C escapes.
func charset(text string) *[256]bool {
	var set [256]bool
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '\\' && i+1 < len(text) {
			i++
			switch c = text[i]; {
			case c >= '0' && c <= '7':
				v := 0
				for n := 0; n < 3 && i < len(text) && text[i] >= '0' && text[i] <= '7'; n++ {
					v = v*8 + int(text[i]-'0')
					i++
				}
				i--
				c = byte(v)
			case c == 't':
				c = '\t'
			case c == 'n':
				c = '\n'
			case c == 'r':
				c = '\r'
			}
		}
		set[c] = true
	}
	return &set
}

func filtered(s string, set *[256]bool) string {
	for i := 0; i < len(s); i++ {
		if !set[s[i]] {
			b := []byte(s)
			for j := range b {
				if !set[b[j]] {
					b[j] = '_'
				}
			}
			return string(b)
		}
	}
	return s
}
