// Package macro expands the $names that delivery agents know in settings such
// as forward_path, luser_relay, command_execution_directory and the pipe
// transport's command. It is pure.
//
//	$name ${name} $(name)      the value of name
//	${name?text} ${name?{text}}  text, when name has a value that is not empty
//	${name:text} ${name:{text}}  text, when it has none
//	${name?{text}:{text}}      the one or the other
//	$$                         a dollar sign
//
// # Security
//
// Values come from strangers' addresses. Characters that are not in the
// caller's filter become "_".
package macro

import (
	"fmt"
	"strings"
)

// maxDepth bounds conditional texts inside conditional texts.
const maxDepth = 20

// Names are what can be asked for. Value is false for a name that has no
// value, also when it is not known at all.
type Names func(name string) (value string, ok bool)

// Expand expands text. Characters of values that are not in filter become
// "_"; an empty filter lets everything pass. undefined says that the text
// named something that has no value, other than in a condition.
func Expand(text string, names Names, filter string) (out string, undefined bool, err error) {
	e := expansion{names: names, filter: filter}
	if err := e.expand(text, 0); err != nil {
		return "", false, err
	}
	return e.out.String(), e.undefined, nil
}

type expansion struct {
	out       strings.Builder
	names     Names
	filter    string
	undefined bool
}

func (e *expansion) expand(text string, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("conditions nested more than %d deep", maxDepth)
	}
	for {
		i := strings.IndexByte(text, '$')
		if i < 0 {
			e.out.WriteString(text)
			return nil
		}
		e.out.WriteString(text[:i])
		text = text[i+1:]
		switch {
		case strings.HasPrefix(text, "$"):
			e.out.WriteByte('$')
			text = text[1:]
		case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "("):
			inner, rest, ok := Group(text)
			if !ok {
				return fmt.Errorf("unbalanced %q in %q", text[:1], text)
			}
			if err := e.group(inner, depth); err != nil {
				return err
			}
			text = rest
		default:
			n := nameLen(text)
			if n == 0 {
				return fmt.Errorf("expected a name after the $ before %q", text)
			}
			e.value(text[:n])
			text = text[n:]
		}
	}
}

// group expands what stands between the braces.
func (e *expansion) group(inner string, depth int) error {
	n := nameLen(inner)
	name, rest := inner[:n], inner[n:]
	switch {
	case name == "":
		return fmt.Errorf("expected a name at the start of %q", inner)
	case rest == "":
		e.value(name)
		return nil
	case rest[0] != '?' && rest[0] != ':':
		return fmt.Errorf("expected ? or : after the name in %q", inner)
	}
	value, ok := e.names(name)
	ok = ok && value != ""
	then, otherwise := rest[1:], ""
	if strings.HasPrefix(then, "{") {
		first, after, balanced := Group(then)
		if !balanced {
			return fmt.Errorf("unbalanced { in %q", inner)
		}
		then = first
		if rest[0] == '?' && strings.HasPrefix(after, ":") {
			otherwise = after[1:]
			if in, left, balanced := Group(otherwise); balanced && left == "" && strings.HasPrefix(otherwise, "{") {
				otherwise = in
			}
		} else if after != "" {
			return fmt.Errorf("unexpected %q in %q", after, inner)
		}
	}
	if rest[0] == ':' {
		then, otherwise = "", then
	}
	if !ok {
		then = otherwise
	}
	return e.expand(then, depth+1)
}

func (e *expansion) value(name string) {
	v, ok := e.names(name)
	if !ok {
		e.undefined = true
		return
	}
	e.out.WriteString(Censor(v, e.filter))
}

// Censor replaces what is not in filter by "_". An empty filter lets
// everything pass.
func Censor(s, filter string) string {
	if filter == "" || strings.Trim(s, filter) == "" {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if strings.IndexByte(filter, c) < 0 {
			b[i] = '_'
		}
	}
	return string(b)
}

// Group cuts the balanced {group} or (group) at the start of text and returns
// what is in it and what follows it. ok is false if text does not begin with one.
func Group(text string) (inner, rest string, ok bool) {
	if text == "" || text[0] != '{' && text[0] != '(' {
		return "", text, false
	}
	open, shut := text[0], byte('}')
	if open == '(' {
		shut = ')'
	}
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case open:
			depth++
		case shut:
			if depth--; depth == 0 {
				return text[1:i], text[i+1:], true
			}
		}
	}
	return "", text, false
}

func nameLen(s string) int {
	i := 0
	for i < len(s) && (s[i] == '_' || s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'z' || s[i] >= 'A' && s[i] <= 'Z') {
		i++
	}
	return i
}
