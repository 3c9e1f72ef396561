package config

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// maxExpansion bounds the text that one expansion may make: a handful of
// settings that each mention the one before twice doubles without end.
const maxExpansion = 1 << 20

// A resolver looks up a name for an expansion. isNonEmpty is what
// the tests of ${name?...} ask; text is called only where the value is wanted.
type resolver interface {
	isNonEmpty(name string) (bool, error)
	text(name string) (string, error)
}

// ExpandNames expands text as values in main.cf are expanded, by names of the
// caller's: value returns "" for an unknown name.
func ExpandNames(text string, value func(name string) string) (string, error) {
	if strings.IndexByte(text, '$') < 0 {
		return text, nil
	}
	out, err := expand(nil, text, valueFunc(value))
	return string(out), err
}

// valueFunc is a resolver whose names have values at once.
type valueFunc func(name string) string

func (f valueFunc) isNonEmpty(name string) (bool, error) { return f(name) != "", nil }
func (f valueFunc) text(name string) (string, error)     { return f(name), nil }

// expand appends the expansion of text to out:
//
//	$name ${name} $(name)        the value of name; nothing if there is no such name
//	${name?text} ${name?{text}}  text if name has a value that is not empty
//	${name:text} ${name:{text}}  text if name has no value or an empty one
//	${name?{text}:{text}}        the one or the other
//	${{a} op {b}?{text}:{text}}  op is == != < <= > >=, on numbers if both are numbers,
//	                             or one of these followed by "level", on compatibility levels
//	${{a} op {b}}                "true" or nothing
//	${domain_to_ascii{text}}     the domain text with A-labels; domain_to_utf8: with U-labels
//	$$                           a dollar sign
//
// The texts are expanded in turn.
func expand(out []byte, text string, names resolver) ([]byte, error) {
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 {
			out = append(out, text...)
			break
		}
		out = append(out, text[:i]...)
		text = text[i:]
		var err error
		switch {
		case strings.HasPrefix(text, "$$"):
			out = append(out, '$')
			text = text[2:]
		case strings.HasPrefix(text, "${"), strings.HasPrefix(text, "$("):
			var inner string
			if inner, text, err = cutGroup(text[1:]); err == nil {
				out, err = expandGroup(out, inner, names)
			}
		default:
			name := leadingName(text[1:])
			if name == "" {
				return out, fmt.Errorf("expected a name after the $ in %q (write $$ for a dollar sign)", text)
			}
			text = text[1+len(name):]
			out, err = appendName(out, name, names)
		}
		if err != nil {
			return out, err
		}
		if len(out) > maxExpansion {
			break
		}
	}
	if len(out) > maxExpansion {
		return out, fmt.Errorf("expected an expansion of at most %d bytes", maxExpansion)
	}
	return out, nil
}

func appendName(out []byte, name string, names resolver) ([]byte, error) {
	v, err := names.text(name)
	return append(out, v...), err
}

// leadingName returns the longest name that text begins with.
func leadingName(text string) string {
	for i := 0; i < len(text); i++ {
		if !isNameByte(text[i]) {
			return text[:i]
		}
	}
	return text
}

func isNameByte(c byte) bool {
	return c == '_' || c-'0' < 10 || (c|0x20)-'a' < 26
}

// cutGroup splits text, which begins with { or (, after the closing character.
func cutGroup(text string) (inner, rest string, err error) {
	open, end := text[0], byte('}')
	if open == '(' {
		end = ')'
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case open:
			depth++
		case end:
			if depth--; depth == 0 {
				return text[1:i], text[i+1:], nil
			}
		}
	}
	return "", "", fmt.Errorf("expected a %c to close %q", end, text)
}

// expandGroup expands what stands between the braces of ${...}.
func expandGroup(out []byte, inner string, names resolver) ([]byte, error) {
	var truth bool
	rest := trimLeft(inner)
	if strings.HasPrefix(rest, "{") {
		var err error
		if truth, rest, err = evalComparison(rest, names); err != nil {
			return out, err
		}
		if rest == "" { // a comparison alone stands for its outcome
			if truth {
				out = append(out, "true"...)
			}
			return out, nil
		}
	} else {
		name := leadingName(rest)
		if name == "" {
			return out, fmt.Errorf("expected a name in \"${%s}\"", inner)
		}
		rest = trimLeft(rest[len(name):])
		if rest == "" {
			return appendName(out, name, names)
		}
		if rest[0] == '{' {
			return expandCall(out, name, rest, names)
		}
		if rest[0] == '?' || rest[0] == ':' {
			var err error
			if truth, err = names.isNonEmpty(name); err != nil {
				return out, err
			}
		}
	}
	chosen, err := choose(rest, truth)
	if err != nil {
		return out, fmt.Errorf("%w in \"${%s}\"", err, inner)
	}
	return expand(out, chosen, names)
}

// choose reads "?{text}:{text}", "?{text}", "?text", ":{text}" or ":text" and
// returns the text that truth selects.
func choose(rest string, truth bool) (string, error) {
	switch rest[0] {
	case '?':
		yes, after, err := cutText(rest[1:])
		if err != nil {
			return "", err
		}
		no := ""
		if after != "" {
			if after[0] != ':' {
				return "", fmt.Errorf("expected : or } at %q", after)
			}
			if no, after, err = cutText(after[1:]); err != nil {
				return "", err
			}
		}
		if after != "" {
			return "", fmt.Errorf("expected } at %q", after)
		}
		if truth {
			return yes, nil
		}
		return no, nil
	case ':':
		no, after, err := cutText(rest[1:])
		if err != nil {
			return "", err
		}
		if after != "" {
			return "", fmt.Errorf("expected } at %q", after)
		}
		if truth {
			return "", nil
		}
		return no, nil
	}
	return "", fmt.Errorf("expected ?, : or } at %q", rest)
}

// cutText takes a {text} group off rest, or all of rest if there is none.
func cutText(rest string) (text, after string, err error) {
	if t := trimLeft(rest); strings.HasPrefix(t, "{") {
		text, after, err = cutGroup(t)
		return text, trimLeft(after), err
	}
	return rest, "", nil
}

// evalComparison evaluates "{a} op {b}" and returns what follows it.
func evalComparison(text string, names resolver) (truth bool, rest string, err error) {
	var side [2]string
	var op string
	rest = text
	for i := range side {
		if !strings.HasPrefix(rest, "{") {
			return false, "", fmt.Errorf("expected a { at %q", rest)
		}
		var inner string
		if inner, rest, err = cutGroup(rest); err != nil {
			return false, "", err
		}
		b, err := expand(nil, inner, names)
		if err != nil {
			return false, "", err
		}
		side[i] = string(b)
		rest = trimLeft(rest)
		if i == 0 {
			n := 0
			for n < len(rest) && strings.IndexByte("=!<>", rest[n]) >= 0 {
				n++
			}
			for n < len(rest) && isNameByte(rest[n]) {
				n++
			}
			op, rest = rest[:n], trimLeft(rest[n:])
		}
	}
	truth, err = compare(side[0], op, side[1])
	return truth, rest, err
}

// compare evaluates one comparison.
func compare(a, op, b string) (bool, error) {
	var order int
	op, isLevel := strings.CutSuffix(op, "level")
	if isLevel {
		la, err := ParseLevel(a)
		if err != nil {
			return false, err
		}
		lb, err := ParseLevel(b)
		if err != nil {
			return false, err
		}
		order = la.Compare(lb)
	} else {
		var err error
		if order, err = compareText(a, b); err != nil {
			return false, err
		}
	}
	switch op {
	case "==":
		return order == 0, nil
	case "!=":
		return order != 0, nil
	case "<":
		return order < 0, nil
	case "<=":
		return order <= 0, nil
	case ">":
		return order > 0, nil
	case ">=":
		return order >= 0, nil
	}
	return false, fmt.Errorf("expected == != < <= > or >= between {%s} and {%s}, not %q", a, b, op)
}

// compareText compares two texts, as numbers if both consist of digits only.
func compareText(a, b string) (int, error) {
	if !allDigits(a) || !allDigits(b) {
		return strings.Compare(a, b), nil
	}
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	if errX != nil || errY != nil {
		return 0, fmt.Errorf("expected numbers below 2^63 in {%s} and {%s}", a, b)
	}
	return cmp.Compare(x, y), nil
}

func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i]-'0' > 9 {
			return false
		}
	}
	return s != ""
}

func trimLeft(s string) string { return strings.TrimLeft(s, " \t\r\n") }

// A Level is a compatibility level: up to three numbers, compared in order.
type Level [3]int

// ParseLevel reads a level such as 2, 3.6 or 3.7.1.
func ParseLevel(text string) (Level, error) {
	var l Level
	parts := strings.Split(text, ".")
	ok := len(parts) <= len(l)
	for i := 0; ok && i < len(parts); i++ {
		n, err := strconv.ParseUint(parts[i], 10, 16)
		l[i], ok = int(n), err == nil
	}
	if !ok {
		return Level{}, fmt.Errorf("expected a compatibility level such as 2 or 3.6, not %q", text)
	}
	return l, nil
}

// Compare returns -1, 0 or 1 as l is before, the same as, or after m.
func (l Level) Compare(m Level) int {
	for i := range l {
		if l[i] != m[i] {
			return cmp.Compare(l[i], m[i])
		}
	}
	return 0
}

// references calls found for every name that an expansion of text could look at.
func references(text string, found func(name string)) {
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 {
			return
		}
		text = text[i+1:]
		switch {
		case strings.HasPrefix(text, "$"):
			text = text[1:]
			continue
		case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "("):
			text = trimLeft(text[1:])
		}
		if name := leadingName(text); name != "" {
			found(name)
		}
	}
}
