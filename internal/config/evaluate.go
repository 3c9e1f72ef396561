package config

import (
	"fmt"
	"strings"
)

// An evaluation is one expansion under way: it knows the names it is inside of.
type evaluation struct {
	c     *Config
	stack []string
	known map[string]string // user-defined names that came up already
}

func (e *evaluation) expand(text string) (string, error) {
	if strings.IndexByte(text, '$') < 0 {
		return text, nil
	}
	b, err := expand(nil, text, e)
	if err != nil {
		return "", err
	}
	return string(b), nil
}

// enter notes that the text of name is being expanded. It fails if that is
// so already: the names between are a cycle.
func (e *evaluation) enter(name string) error {
	for i, outer := range e.stack {
		if outer == name {
			cycle := strings.Join(append(e.stack[i:len(e.stack):len(e.stack)], name), " -> ")
			return fmt.Errorf("expected a value that does not refer to itself: %s", cycle)
		}
	}
	e.stack = append(e.stack, name)
	return nil
}

func (e *evaluation) leave() { e.stack = e.stack[:len(e.stack)-1] }

// lookup evaluates a declared parameter, with its type.
func (e *evaluation) lookup(p *Param) *value {
	index, cached := declared().index[p.Name]
	if cached {
		if v := e.c.cache[index].Load(); v != nil {
			return v
		}
	}
	v := e.evaluate(p)
	if cached && (v.err == nil || len(e.stack) == 0) {
		e.c.cache[index].Store(v)
	}
	return v
}

func (e *evaluation) evaluate(p *Param) *value {
	raw := ""
	s, set := e.c.settings[p.Name]
	if set {
		raw = s.raw
	} else {
		raw = e.c.rawDefault(p)
	}
	text := raw
	if p.Type != Raw {
		if err := e.enter(p.Name); err != nil {
			return &value{err: err}
		}
		var err error
		text, err = e.expand(raw)
		e.leave()
		if err == nil && p.Name == "myorigin" && strings.HasPrefix(text, "/") {
			text, err = e.c.firstLine(text)
		}
		if err != nil {
			return &value{err: err}
		}
	}
	if p.Origin == OldName && text == "" {
		return &value{} // not set, which only its replacement needs to know
	}
	v := p.parse(text)
	return &v
}

// text implements resolver. Inside another value a parameter stands for its text,
// whatever its type; a Raw one is expanded there.
func (e *evaluation) text(name string) (string, error) {
	if p, ok := Lookup(name); ok && p.Type != Raw {
		v := e.lookup(&p)
		if v.err != nil && v.text == "" {
			return "", v.err
		}
		return v.text, nil
	}
	if text, ok := e.known[name]; ok {
		return text, nil
	}
	if err := e.enter(name); err != nil {
		return "", err
	}
	defer e.leave()
	text, err := e.expand(e.c.Raw(name))
	if err == nil {
		if e.known == nil {
			e.known = make(map[string]string)
		}
		e.known[name] = text
	}
	return text, err
}

// isNonEmpty implements resolver: a setting counts as it is written, a
// default as it comes out.
func (e *evaluation) isNonEmpty(name string) (bool, error) {
	if s, ok := e.c.settings[name]; ok {
		return s.raw != "", nil
	}
	text, err := e.text(name)
	return text != "", err
}
