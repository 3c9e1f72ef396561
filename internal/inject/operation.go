package inject

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"posthaste/internal/webserver"
)

// An operation is one thing that the service does for its clients. OpenAPI is made of this declaration.
type operation struct {
	name, method, path, summary string
	bodies                      []bodyKind
	params                      []param
	result                      any    // an empty one of its kind
	also                        any    // another form of it; nil: none
	role                        string // that a token needs; empty: inject
	do                          func(s *server, w http.ResponseWriter, r *http.Request, who *caller) error
}

// A bodyKind is a form of a request's body.
type bodyKind struct {
	kind string
	of   []any // empty ones of the types that it may be; none: octets
	doc  string
}

// A param is a parameter of the query, or a header field.
type param struct {
	name, where, doc string
	list             bool
}

// operations are all of them.
func operations() []operation {
	key := param{"Idempotency-Key", "header", "Of one message: the request is carried out once, and repeated ones get the same answer", false}
	return append([]operation{
		{"messages", "POST", "/v1/messages", "Queue messages. 200 means that what the answer has under messages is on stable storage, as the reply 250 of SMTP does",
			[]bodyKind{{"application/json", []any{MessageRequest{}, []MessageRequest{}}, "One message, or a batch"},
				{"application/x-ndjson", []any{MessageRequest{}}, "A batch: a message on each line. The answer has a result on each line"},
				{"message/rfc822", nil, "A message as it is to be (RFC 5322). The envelope is in the query, or in the fields X-Envelope-From and X-Envelope-To"}},
			[]param{key, {"from", "query", "With message/rfc822: the sender in the envelope; empty for the null sender", false},
				{"to", "query", "With message/rfc822: a recipient; may be repeated", true}, {"send_at", "query", "With message/rfc822: when it is tried first", false},
				{"X-Envelope-From", "header", "In place of from", false}, {"X-Envelope-To", "header", "In place of to: addresses with commas between", false}},
			Result{}, Results{}, "", (*server).messages},
		{"kumo", "POST", "/api/inject/v1", "Queue messages, as KumoMTA does. The answer is 200 also if all recipients were refused",
			[]bodyKind{{"application/json", []any{KumoRequest{}}, "KumoMTA's request"}}, []param{key}, KumoResult{}, KumoContent{}, "", (*server).kumo},
	}, suppressionOperations()...)
}

// openAPI describes the API, from the declarations of the operations and the types of their results.
func openAPI(list []operation, version string) []byte {
	schemas := map[string]any{"Problem": map[string]any{"type": "object", "description": "Why something was not done (RFC 9457)", "properties": map[string]any{
		"status": map[string]any{"type": "integer"}, "title": webserver.Text(""), "detail": webserver.Text("In words"), "field": webserver.Text("Which field of the request is meant"),
		"refused": map[string]any{"type": "array", "items": map[string]any{"$ref": "#/components/schemas/Refused"}},
		"results": map[string]any{"type": "array", "items": map[string]any{"$ref": "#/components/schemas/Result"}, "description": "Of a batch that broke off: what came of the messages before"}}}}
	of := &webserver.Schemas{All: schemas, Of: ownSchema}
	paths := map[string]any{}
	for i := range list {
		o := &list[i]
		methods, _ := paths[o.path].(map[string]any)
		if methods == nil {
			methods = map[string]any{}
			paths[o.path] = methods
		}
		methods[strings.ToLower(o.method)] = describe(o, of)
	}
	doc := map[string]any{"openapi": "3.1.0", "info": map[string]any{"title": "Posthaste injection", "version": version,
		"description": "Mail by HTTP. Fields that are not described are refused."}, "paths": paths,
		"components": map[string]any{"schemas": schemas, "securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}}}}
	b, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		panic(err) // it has maps, lists and texts
	}
	return b
}

// ownSchema is that of a type with a JSON form of its own: a mailbox may be a text. All of their fields
// stand in the type.
func ownSchema(t reflect.Type) map[string]any {
	if t != reflect.TypeFor[Mailbox]() && t != reflect.TypeFor[To]() {
		return nil
	}
	of := &webserver.Schemas{All: map[string]any{}}
	of.Make(t)
	object := of.All[t.Name()].(map[string]any)
	return map[string]any{"oneOf": []any{map[string]any{"type": "string"}, object}}
}

// describe is one operation.
func describe(o *operation, of *webserver.Schemas) map[string]any {
	result := []any{of.Make(reflect.TypeOf(o.result))}
	if o.also != nil {
		if s := of.Make(reflect.TypeOf(o.also)); o.name == "messages" {
			result = append(result, s)
		}
	}
	content := map[string]any{}
	for _, b := range o.bodies {
		var kinds []any
		for _, t := range b.of {
			kinds = append(kinds, of.Make(reflect.TypeOf(t)))
		}
		schema := map[string]any{"description": b.doc}
		if kinds != nil {
			schema["oneOf"] = kinds
		}
		content[b.kind] = map[string]any{"schema": schema}
	}
	var params []any
	for _, p := range o.params {
		schema := webserver.Text("")
		if p.list {
			schema = map[string]any{"type": "array", "items": webserver.Text("")}
		}
		params = append(params, map[string]any{"name": p.name, "in": p.where, "description": p.doc, "required": false, "schema": schema})
	}
	problem := map[string]any{"description": "It is not done", "content": map[string]any{"application/problem+json": map[string]any{"schema": map[string]any{"$ref": "#/components/schemas/Problem"}}}}
	out := map[string]any{"operationId": o.name, "summary": o.summary, "parameters": params, "security": []any{map[string]any{"token": []any{}}},
		"responses": map[string]any{"200": map[string]any{"description": "It is done, for all or for some recipients", "content": map[string]any{"application/json": map[string]any{
			"schema": map[string]any{"oneOf": result}}}}, "default": problem}}
	if len(content) > 0 {
		out["requestBody"] = map[string]any{"required": true, "content": content}
	}
	return out
}
