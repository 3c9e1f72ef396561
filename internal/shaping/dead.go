package shaping

import (
	"regexp/syntax"
	"strings"
)

// Dead are the parts of the files that can have no effect, or are most likely not what their writer meant: a provider
// without a match, an ending with a dot, an expression that no reply can match. Files of others have some; nothing is
// repaired.
func (r *Rules) Dead() (list []Warning) {
	if r == nil {
		return nil
	}
	for _, s := range r.sections() {
		if s.kind == providerSection && len(s.match) == 0 {
			list = append(list, Warning{s.at, s.String() + " has no match, and so is never anybody's"})
		}
		for i := range s.match {
			if m := &s.match[i]; strings.HasSuffix(m.text, ".") {
				list = append(list, Warning{m.at, s.String() + ": " + m.by.String() + " " + quoted(m.text) + " never matches: names have no dot at the end"})
			}
		}
		for _, rule := range s.rules {
			for _, p := range rule.patterns {
				if why := p.never(); why != "" {
					list = append(list, Warning{p.at, s.String() + ": the expression " + quoted(p.text) + " never matches: " + why})
				}
			}
		}
	}
	return list
}

// never says why no reply matches; "": one may.
func (p *pattern) never() string {
	if p.expr == nil {
		return ""
	}
	re := p.expr.Simplify()
	if wants(re, '\\') {
		return "it wants a backslash, which no reply has; between single quotes one is enough"
	}
	for re.Op == syntax.OpCapture {
		re = re.Sub[0]
	}
	if re.Op == syntax.OpConcat && len(re.Sub) > 1 && re.Sub[0].Op == syntax.OpBeginText && re.Sub[1].Op == syntax.OpLiteral &&
		(re.Sub[1].Rune[0] < '2' || re.Sub[1].Rune[0] > '5') {
		return "a reply begins with its code"
	}
	return ""
}

// wants says whether each text that matches has a character.
func wants(re *syntax.Regexp, c rune) bool {
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			if r == c {
				return true
			}
		}
	case syntax.OpCapture, syntax.OpPlus:
		return wants(re.Sub[0], c)
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if wants(sub, c) {
				return true
			}
		}
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			if !wants(sub, c) {
				return false
			}
		}
		return true
	}
	return false
}
