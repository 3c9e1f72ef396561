package webserver

import (
	"encoding/json"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/table"
)

// Where TLS is on and cannot be had, the error says which parameter to look at.
func TestTLSErrors(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.pem")
	for _, tt := range []struct{ settings, want string }{
		{"console_tls = no\nsmtpd_tls_chain_files = " + missing + "\n", ""},
		{"console_tls = yes\n", "console_tls = yes: the certificate of the SMTP server: no server certificate"},
		{"console_tls = yes\nsmtpd_tls_cert_file = none\n", "no server certificate"},
		{"console_tls = yes\nsmtpd_tls_chain_files = " + missing + "\n", "open " + missing},
		{"console_tls = yes\nsmtpd_tls_cert_file = " + missing + "\n", "open " + missing},
	} {
		cfg, err := config.LoadString("compatibility_level = 3.6\n" + tt.settings)
		if err != nil {
			t.Fatal(err)
		}
		secure, err := TLS(cfg, table.Options{Warn: func(text string) { t.Error(text) }}, "console_tls", "http/1.1")
		if secure != nil || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, %v", tt.settings, secure, err)
		}
	}
}

type tree struct {
	Name  string            `json:"name" doc:"In words" required:"yes"`
	Kids  []tree            `json:"kids,omitempty"`
	Marks map[string]string `json:"marks"`
	At    time.Time         `json:"at"`
	Raw   json.RawMessage   `json:"raw"`
	Any   any               `json:"any"`
	On    bool              `json:"on"`
	N     *int              `json:"n"`
	Own   own               `json:"own"`
	Not   string            `json:"-"`
}

type own struct{}

// A schema says what encoding/json makes of a type, also of one that has itself in it.
func TestSchema(t *testing.T) {
	t.Parallel()
	s := Schemas{All: map[string]any{}, Name: func(t reflect.Type) string { return "A" + t.Name() }, Of: func(t reflect.Type) map[string]any {
		if t == reflect.TypeFor[own]() {
			return Text("its own")
		}
		return nil
	}}
	ref := s.Make(reflect.TypeFor[tree]())
	got, err := json.Marshal([]any{ref, s.All})
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"$ref":"#/components/schemas/Atree"},{"Atree":{"properties":{"any":{},"at":{"format":"date-time","type":"string"},` +
		`"kids":{"items":{"$ref":"#/components/schemas/Atree"},"type":"array"},"marks":{"additionalProperties":{"type":"string"},"type":"object"},` +
		`"n":{"type":"integer"},"name":{"description":"In words","type":"string"},"on":{"type":"boolean"},` +
		`"own":{"description":"its own","type":"string"},"raw":{}},"required":["name"],"type":"object"}}]`
	if string(got) != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestProblem(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	Problem(w, 422, "no such thing", map[string]any{"field": "to", "status": 1})
	if got := strings.TrimSpace(w.Body.String()); w.Code != 422 || w.Header().Get("Content-Type") != "application/problem+json" ||
		got != `{"detail":"no such thing","field":"to","status":422,"title":"Unprocessable Entity"}` {
		t.Errorf("%d %v %s", w.Code, w.Header(), got)
	}
}
