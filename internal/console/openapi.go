package console

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"posthaste/internal/track"
	"posthaste/internal/webserver"
	"posthaste/internal/whatif"
)

// openAPI describes the API, from the declarations of the operations and the types of their results.
func openAPI(list []operation, version string) []byte {
	schemas := map[string]any{"Problem": map[string]any{"type": "object", "description": "Why something was not done (RFC 9457)", "properties": map[string]any{
		"status": map[string]any{"type": "integer"}, "title": webserver.Text(""), "detail": webserver.Text("In words")}}}
	of := &webserver.Schemas{All: schemas, Name: schemaName}
	paths := map[string]any{}
	for i := range list {
		o := &list[i]
		if paths[o.path] == nil {
			paths[o.path] = map[string]any{}
		}
		paths[o.path].(map[string]any)[strings.ToLower(o.method)] = describe(o, of)
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

// describe is one operation.
func describe(o *operation, of *webserver.Schemas) map[string]any {
	problem := func(what string) any {
		return map[string]any{"description": what, "content": map[string]any{"application/problem+json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/Problem"}}}}
	}
	d := map[string]any{"operationId": o.name, "summary": o.summary, "responses": map[string]any{
		"200":     map[string]any{"description": "It is done", "content": answer(o, of)},
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
			fields[p.name] = webserver.Text(p.doc)
			if p.required {
				required = append(required, p.name)
			}
			continue
		}
		params = append(params, map[string]any{"name": p.name, "in": where, "description": p.doc, "required": p.required, "schema": webserver.Text("")})
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

// answer is what an operation answers, by its media type.
func answer(o *operation, of *webserver.Schemas) map[string]any {
	if _, ok := o.result.(Content); ok {
		return map[string]any{"message/rfc822": map[string]any{}, "text/plain": map[string]any{"schema": webserver.Text("The header")}}
	}
	return map[string]any{"application/json": map[string]any{"schema": of.Make(reflect.TypeOf(o.result))}}
}

// schemaName is the name of a type's schema. What the log has of a message is another thing than a
// message in the queue, and forecasts have lines of their own.
func schemaName(t reflect.Type) string {
	switch t.PkgPath() {
	case reflect.TypeFor[track.Message]().PkgPath():
		return "Log" + t.Name()
	case reflect.TypeFor[whatif.Report]().PkgPath():
		return "Forecast" + t.Name()
	}
	return t.Name()
}
