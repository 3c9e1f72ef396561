package inject

import (
	"bytes"
	"html"
	"net/url"
	"slices"
)

// A template is a text with places for variables, {{name}}.
type template struct {
	parts []piece
	// fixed says that there is no variable in it.
	fixed bool
}

// A piece is text, or the name of a variable.
type piece struct {
	text []byte
	name string
	raw  bool // the variable is put in as it is, also into HTML
}

// maxPieces bounds the pieces of a template: text and variables.
const maxPieces = 20000

// A dialect is a language of templates.
type dialect uint8

const (
	static     dialect = iota // nothing is replaced
	plain                     // {{name}}; {{{name}}} is not escaped in HTML
	handlebars                // the same, as far as it goes
	jinja                     // {{ name }}; what else begins with {% or {# is refused
)

// A place is where a text goes, which decides how variables are written in it.
type place uint8

const (
	inText   place = iota
	inHTML         // HTML's special characters are escaped
	inURL          // escaped as a part of a query
	inHeader       // a line of its own: no control characters
)

// parseTemplate reads a template. Constructs of Jinja and Handlebars other than a variable are
// refused, since mail in which they stand as they are is worse than none.
func parseTemplate(text []byte, d dialect) (*template, error) {
	t := &template{fixed: true}
	if d == static || bytes.IndexByte(text, '{') < 0 {
		t.parts = []piece{{text: text}}
		return t, nil
	}
	for {
		i, err := nextVariable(text, d)
		if err != nil {
			return nil, err
		}
		t.literal(text[:i])
		if text = text[i:]; len(text) == 0 {
			return t, nil
		}
		if len(t.parts) > maxPieces {
			return nil, tooLarge("the template has more than %d variables", maxPieces/2)
		}
		open, end := []byte("{{"), []byte("}}")
		if d != jinja && bytes.HasPrefix(text, []byte("{{{")) {
			open, end = []byte("{{{"), []byte("}}}")
		}
		n := bytes.Index(text[:min(len(text), 200)], end)
		name := ""
		if n >= 0 {
			name = string(bytes.Trim(text[len(open):n], " \t"))
		}
		if !isPath(name) {
			return nil, refuse("the template has %q; only variables, {{ name }}, are replaced", text[:min(len(text), 20)])
		}
		t.parts = append(t.parts, piece{name: name, raw: len(open) == 3})
		t.fixed = false
		text = text[n+len(end):]
	}
}

// nextVariable is where the next place of a variable begins; at the end of the text if there is none.
func nextVariable(text []byte, d dialect) (int, error) {
	for from := 0; ; {
		i := bytes.IndexByte(text[from:], '{')
		if i < 0 || from+i+1 >= len(text) {
			return len(text), nil
		}
		i += from
		switch c := text[i+1]; {
		case c == '{':
			return i, nil
		case d == jinja && (c == '%' || c == '#'):
			return 0, refuse("the template has %q; only variables, {{ name }}, are replaced", text[i:min(len(text), i+20)])
		}
		from = i + 1
	}
}

func (t *template) literal(b []byte) {
	if len(b) > 0 {
		t.parts = append(t.parts, piece{text: b})
	}
}

// isVariable says whether a text is a name of a variable.
func isVariable(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || c != '_' && c != '-' && (c < '0' || c > '9')) && (i > 0 || c != '_') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

// isPath says whether a text is names of variables with dots between.
func isPath(s string) bool {
	for part := range bytes.SplitSeq([]byte(s), []byte(".")) {
		if !isVariable(string(part)) {
			return false
		}
	}
	return len(s) <= 256
}

// A scope has the values of variables: those of the recipient hide those that all have.
type scope []map[string]string

func (s scope) value(name string) (string, bool) {
	for _, m := range s {
		if v, ok := m[name]; ok {
			return v, true
		}
	}
	return "", false
}

// check says which variable of a template has no value, or none that can stand in its place.
func (t *template) check(s scope, p place) error {
	for i := range t.parts {
		name := t.parts[i].name
		if name == "" {
			continue
		}
		v, ok := s.value(name)
		if !ok {
			return refuse("the variable %q has no value", name)
		}
		if (p == inHeader || p == inURL) && hasLineControl(v) {
			return refuse("the value of the variable %q has a control character, which cannot stand in a header", name)
		}
	}
	return nil
}

// hasLineControl says whether a text has a control character: it cannot be a part of one line then.
func hasLineControl[T ~string | ~[]byte](s T) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// append appends the text with the values of variables, which check has seen.
func (t *template) append(b []byte, s scope, p place) []byte {
	for i := range t.parts {
		part := &t.parts[i]
		if part.name == "" {
			b = append(b, part.text...)
			continue
		}
		v, _ := s.value(part.name)
		switch {
		case p == inHTML && !part.raw:
			v = html.EscapeString(v)
		case p == inURL:
			v = url.QueryEscape(v)
		}
		b = append(b, v...)
	}
	return b
}

// text is what the template says to a scope. That of a fixed one is not copied.
func (t *template) text(s scope, p place) []byte {
	if t.fixed && len(t.parts) <= 1 {
		if len(t.parts) == 0 {
			return nil
		}
		return t.parts[0].text
	}
	return t.append(nil, s, p)
}

// oneOf says whether a text is one of the words.
func oneOf(s string, words ...string) bool { return slices.Contains(words, s) }
