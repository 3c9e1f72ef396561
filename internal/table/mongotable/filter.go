package mongotable

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"posthaste/internal/table/query"
)

// A filter is query_filter: a document in which strings are templates. It is
// parsed once, before there is a key, so that a key can only ever become the
// content of a string: no quote, brace or dollar sign in it is read as part of the
// filter. It is not changed after it is parsed.
type filter struct{ document bson.D }

// literal stands in a document for a string that keys are put into.
type literal struct {
	*query.Template
	quote func(string) string // nil: as it is
}

// pattern stands for a regular expression that keys are put into.
type pattern struct {
	literal
	options string
}

// code are the operators whose strings are programs or search expressions. What is put
// into them cannot be quoted.
var code = []string{"$where", "$function", "$accumulator", "$text", "$jsonSchema"}

// place says what strings mean where one is in a filter.
type place struct {
	code       string // the operator whose code they are; empty: none
	expression bool   // "$name" is a field: inside $expr
	pattern    bool   // they are regular expressions
}

// parseFilter reads a filter, in MongoDB's extended JSON.
func parseFilter(text string) (*filter, error) {
	d, err := parseDocument(text)
	if err != nil {
		return nil, err
	}
	v, err := compile(d, place{})
	if err != nil {
		return nil, err
	}
	return &filter{v.(bson.D)}, nil
}

// parseDocument reads one document, in MongoDB's extended JSON.
func parseDocument(text string) (bson.D, error) {
	var d bson.D
	err := bson.UnmarshalExtJSON([]byte(text), false, &d)
	if err == nil && !json.Valid([]byte(text)) {
		err = errors.New("there is something after the document")
	}
	if err != nil {
		return nil, fmt.Errorf("%q is not a JSON document (%%s and its like stand inside quotes): %w", text, err)
	}
	return d, nil
}

// compile puts templates in the place of the strings of a value.
func compile(v any, at place) (any, error) {
	switch v := v.(type) {
	case bson.D:
		return compileDocument(v, at)
	case bson.A:
		out := make(bson.A, len(v))
		for i := range v {
			var err error
			if out[i], err = compile(v[i], at); err != nil {
				return nil, err
			}
		}
		return out, nil
	case string:
		return compileString(v, at)
	case bson.Regex:
		l, err := compileString(v.Pattern, place{pattern: true})
		if err != nil {
			return nil, err
		}
		return pattern{l.(literal), v.Options}, nil
	case bson.JavaScript:
		_, err := compileString(string(v), place{code: "$code"})
		return v, err
	case bson.CodeWithScope:
		_, err := compileString(string(v.Code), place{code: "$code"})
		return v, err
	}
	return v, nil
}

func compileDocument(d bson.D, at place) (any, error) {
	out := make(bson.D, len(d))
	for i, e := range d {
		name, err := query.Parse(e.Key)
		if err != nil {
			return nil, err
		}
		if !name.Fixed() {
			return nil, fmt.Errorf("%q: the name of a field cannot have a part of the key in it", e.Key)
		}
		inside := at
		inside.pattern = e.Key == "$regex" || at.expression && e.Key == "regex"
		switch {
		case at.code == "" && slices.Contains(code, e.Key):
			inside.code = e.Key
		case e.Key == "$expr":
			inside.expression = true
		case e.Key == "$literal":
			inside.expression = false
		}
		out[i].Key, _ = name.Query("", nil)
		if out[i].Value, err = compile(e.Value, inside); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func compileString(text string, at place) (any, error) {
	t, err := query.Parse(text)
	switch {
	case err != nil:
		return nil, err
	case at.code != "" && !t.Fixed():
		return nil, fmt.Errorf("%q: a key in %s would become part of a program or of a search expression; compare it with a field", text, at.code)
	case at.pattern:
		return literal{t, quotePattern}, nil
	case at.expression && !t.Fixed():
		// A key "$password" would be the field of this name.
		return bson.D{{Key: "$literal", Value: literal{t, nil}}}, nil
	}
	return literal{t, nil}, nil
}

// quotePattern escapes a text for a regular expression of PCRE: any ASCII character that
// is neither letter nor digit stands for itself after a backslash, also with the options
// x and i.
func quotePattern(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c < 128 && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			b.WriteByte('\\')
		}
		b.WriteByte(c)
	}
	return b.String()
}

// query is the filter for a key. ok is false when the key lacks what the filter asks for.
func (f *filter) query(key string) (d bson.D, ok bool) {
	v, ok := expand(f.document, key)
	if !ok {
		return nil, false
	}
	return v.(bson.D), true
}

func expand(v any, key string) (any, bool) {
	switch v := v.(type) {
	case bson.D:
		out := make(bson.D, len(v))
		for i, e := range v {
			value, ok := expand(e.Value, key)
			if !ok {
				return nil, false
			}
			out[i] = bson.E{Key: e.Key, Value: value}
		}
		return out, true
	case bson.A:
		out := make(bson.A, len(v))
		for i := range v {
			var ok bool
			if out[i], ok = expand(v[i], key); !ok {
				return nil, false
			}
		}
		return out, true
	case literal:
		return v.text(key)
	case pattern:
		text, ok := v.text(key)
		return bson.Regex{Pattern: text, Options: v.options}, ok
	}
	return v, true
}

func (l literal) text(key string) (string, bool) { return l.Query(key, l.quote) }
