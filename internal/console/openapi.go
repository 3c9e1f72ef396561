package console

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"time"

	"posthaste/internal/track"
)

// openAPI describes the API, from the declarations of the operations and the types of their results.
func openAPI(list []operation, version string) []byte {
	schemas := map[string]any{"Problem": map[string]any{"type": "object", "description": "Why something was not done (RFC 9457)", "properties": map[string]any{
		"status": map[string]any{"type": "integer"}, "title": text(""), "detail": text("In words")}}}
	paths := map[string]any{}
	for i := range list {
		o := &list[i]
		if paths[o.path] == nil {
			paths[o.path] = map[string]any{}
		}
		paths[o.path].(map[string]any)[strings.ToLower(o.method)] = describe(o, schemas)
	}
	doc := map[string]any{"openapi": "3.1.0", "info": map[string]any{"title": "Posthaste console", "version": version,
		"description": "What the pages of the console show and do. Times are RFC 3339. Without a token, or a session's cookie for GET, the answer is 401."},
		"servers": []any{map[string]any{"url": apiPath}}, "paths": paths,
		"components": map[string]any{"schemas": schemas, "securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}}}}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		panic(err) // it has maps, lists and texts
	}
	return b
}

func text(doc string) map[string]any {
	m := map[string]any{"type": "string"}
	if doc != "" {
		m["description"] = doc
	}
	return m
}

// describe is one operation.
func describe(o *operation, schemas map[string]any) map[string]any {
	problem := func(what string) any {
		return map[string]any{"description": what, "content": map[string]any{"application/problem+json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/Problem"}}}}
	}
	d := map[string]any{"operationId": o.name, "summary": o.summary, "responses": map[string]any{
		"200":     map[string]any{"description": "It is done", "content": map[string]any{"application/json": map[string]any{"schema": schema(reflect.TypeOf(o.result), schemas)}}},
		"default": problem("It is not done")}}
	if o.role > nobody {
		d["security"] = []any{map[string]any{"token": []any{}}}
		d["description"] = "For users who may " + o.role.String() + "."
	}
	var params, required []any
	fields := map[string]any{}
	for _, p := range o.params {
		where := "query"
		if strings.Contains(o.path, "{"+p.name+"}") {
			where = "path"
		} else if o.method != http.MethodGet {
			fields[p.name] = text(p.doc)
			if p.required {
				required = append(required, p.name)
			}
			continue
		}
		params = append(params, map[string]any{"name": p.name, "in": where, "description": p.doc, "required": p.required, "schema": text("")})
	}
	if params != nil {
		d["parameters"] = params
	}
	if len(fields) > 0 {
		body := map[string]any{"type": "object", "properties": fields, "additionalProperties": false}
		if required != nil {
			body["required"] = required
		}
		d["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": map[string]any{"schema": body}}}
	}
	return d
}

// schema is that of a type. Named structs go to schemas.
func schema(t reflect.Type, schemas map[string]any) map[string]any {
	switch t.Kind() {
	case reflect.Pointer:
		return schema(t.Elem(), schemas)
	case reflect.String:
		return text("")
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Slice, reflect.Array:
		return map[string]any{"type": "array", "items": schema(t.Elem(), schemas)}
	case reflect.Struct:
		if t == reflect.TypeFor[time.Time]() {
			return map[string]any{"type": "string", "format": "date-time"}
		}
		name := t.Name()
		if t.PkgPath() == reflect.TypeFor[track.Message]().PkgPath() {
			name = "Log" + name // what the log has of a message is another thing than a message in the queue
		}
		ref := map[string]any{"$ref": "#/components/schemas/" + name}
		if schemas[name] == nil {
			properties := map[string]any{}
			schemas[name] = map[string]any{"type": "object", "properties": properties} // before its fields: a message has messages
			addFields(t, properties, schemas)
		}
		return ref
	}
	return map[string]any{"type": "integer"}
}

func addFields(t reflect.Type, properties, schemas map[string]any) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && name == "":
			addFields(f.Type, properties, schemas)
		default:
			s := schema(f.Type, schemas)
			if doc := f.Tag.Get("doc"); doc != "" {
				s["description"] = doc
			}
			properties[name] = s
		}
	}
}
