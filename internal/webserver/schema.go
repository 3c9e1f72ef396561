package webserver

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// Schemas are JSON schemas of Go types, by name, as the components of an OpenAPI document.
type Schemas struct {
	// Name is the name of a struct type; nil: the type's own.
	Name func(reflect.Type) string
	// Of says what a type is that has a JSON form of its own; nil, or a nil answer: what Go makes of it.
	Of func(reflect.Type) map[string]any
	// All is what has been made so far.
	All map[string]any
}

// Text is the schema of a text. doc may be empty.
func Text(doc string) map[string]any {
	m := map[string]any{"type": "string"}
	if doc != "" {
		m["description"] = doc
	}
	return m
}

// Make is the schema of a type, in the form that encoding/json gives it. A struct goes to All under its
// name, and the schema refers to it there. The tag doc of a field is its description.
func (s *Schemas) Make(t reflect.Type) map[string]any {
	if s.Of != nil {
		if own := s.Of(t); own != nil {
			return own
		}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.Make(t.Elem())
	case reflect.String:
		return Text("")
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Float64, reflect.Float32:
		return map[string]any{"type": "number"}
	case reflect.Slice, reflect.Array:
		if t == reflect.TypeFor[json.RawMessage]() {
			return map[string]any{}
		}
		return map[string]any{"type": "array", "items": s.Make(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.Make(t.Elem())}
	case reflect.Interface:
		return map[string]any{}
	case reflect.Struct:
		return s.object(t)
	}
	return map[string]any{"type": "integer"}
}

// object refers to a struct.
func (s *Schemas) object(t reflect.Type) map[string]any {
	if t == reflect.TypeFor[time.Time]() {
		return map[string]any{"type": "string", "format": "date-time"}
	}
	name := t.Name()
	if s.Name != nil {
		name = s.Name(t)
	}
	if s.All[name] == nil {
		properties := map[string]any{}
		o := map[string]any{"type": "object", "properties": properties}
		s.All[name] = o // before its fields: a message has messages
		if required := s.fields(t, properties); required != nil {
			o["required"] = required
		}
	}
	return map[string]any{"$ref": "#/components/schemas/" + name}
}

// fields adds those of a struct. Those with the tag required are.
func (s *Schemas) fields(t reflect.Type, properties map[string]any) (required []any) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			required = append(required, s.fields(f.Type, properties)...)
		default:
			schema := s.Make(f.Type)
			if doc := f.Tag.Get("doc"); doc != "" {
				schema["description"] = doc
			}
			if f.Tag.Get("required") != "" {
				required = append(required, name)
			}
			properties[name] = schema
		}
	}
	return required
}
