package table

import "strings"

// superset returns an expression in the syntax of package regexp that matches all
// that expr does, which is in that of regexp2, and perhaps more: looking around is
// left out, and what refers back to a group may be anything. It is for finding out
// what a text must have to match, see required. ok is false when expr has
// something else that package regexp does not know or takes for something else; what
// remains of that, its parser refuses.
func superset(expr string) (plain string, ok bool) {
	s := supersetScanner{in: expr}
	ok = s.group() && s.at == len(s.in)
	return string(s.out), ok
}

// A supersetScanner goes through an expression once.
type supersetScanner struct {
	in    string
	at    int
	depth int // of groups in groups
	out   []byte
}

// maxDepth bounds the groups in groups that are looked into.
const maxDepth = 200

const (
	nothing  = "(?:)"
	anything = "(?s:.*)"
)

// group scans up to the parenthesis that closes the group that it is in, or to the
// end.
func (s *supersetScanner) group() bool {
	for s.at < len(s.in) && s.in[s.at] != ')' {
		from := s.at
		switch s.in[s.at] {
		case '\\':
			text := s.escape()
			if text == "" {
				return false
			}
			s.out = append(s.out, text...)
			continue
		case '[':
			if !s.class() {
				return false
			}
		case '(':
			if !s.open() {
				return false
			}
			continue
		default:
			s.at++
		}
		s.out = append(s.out, s.in[from:s.at]...)
	}
	return true
}

// escape scans a backslash and what belongs to it, and returns what stands for that.
func (s *supersetScanner) escape() string {
	rest := s.in[s.at+1:]
	switch {
	case rest == "":
		return ""
	case rest[0] >= '1' && rest[0] <= '9':
		s.at += 1 + len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		return anything
	case rest[0] == 'k' || rest[0] == 'Q' || rest[0] == 'E':
		return ""
	case rest[0] == 'Z' || rest[0] == 'G':
		s.at += 2
		return nothing
	}
	s.at += 2
	return `\` + rest[:1]
}

// class scans a class of characters. One that is taken from another, [a-z-[aeiou]],
// package regexp would take for something else.
func (s *supersetScanner) class() bool {
	s.at++
	for first := true; s.at < len(s.in); s.at++ {
		switch c := s.in[s.at]; {
		case c == '^' && first:
			continue
		case c == ']' && !first:
			s.at++
			return true
		case c == '\\':
			s.at++
		case c == '[':
			end := strings.Index(s.in[s.at:], ":]")
			if !strings.HasPrefix(s.in[s.at:], "[:") || end < 2 {
				return false
			}
			s.at += end + 1
		}
		first = false
	}
	return false
}

// open scans a group with its parentheses.
func (s *supersetScanner) open() bool {
	if s.depth++; s.depth > maxDepth {
		return false
	}
	defer func() { s.depth-- }()
	rest := s.in[s.at+1:]
	head, length, around := "(", 1, false // what stands for the group's beginning, which is that long
	switch {
	case !strings.HasPrefix(rest, "?"):
	case strings.HasPrefix(rest, "?#"):
		end := strings.IndexByte(rest, ')')
		s.at += 2 + end
		return end >= 0
	case strings.HasPrefix(rest, "?="), strings.HasPrefix(rest, "?!"):
		length, around = 3, true
	case strings.HasPrefix(rest, "?<="), strings.HasPrefix(rest, "?<!"):
		length, around = 4, true
	case strings.HasPrefix(rest, "?:"), strings.HasPrefix(rest, "?>"):
		head, length = "(?:", 3
	case strings.HasPrefix(rest, "?<"):
		end := strings.IndexByte(rest, '>')
		if end < 0 || strings.ContainsAny(rest[:end], "-()") { // groups that take others' place
			return false
		}
		length = end + 2
	default: // flags
		n := len(rest) - len(strings.TrimLeft(rest[1:], "ims-"))
		if n >= len(rest) || rest[n] != ')' && rest[n] != ':' {
			return false
		}
		head, length = "("+rest[:n+1], n+2
		if rest[n] == ')' { // for the rest of the group that this is in
			s.at += length
			s.out = append(s.out, head...)
			return true
		}
	}
	s.at += length
	mark := len(s.out)
	s.out = append(s.out, head...)
	if !s.group() || s.at == len(s.in) {
		return false
	}
	s.at++
	s.out = append(s.out, ')')
	if around {
		s.out = append(s.out[:mark], nothing...)
	}
	return true
}
