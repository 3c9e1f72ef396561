// Package webserver is what the services that speak HTTP have in common: TLS with the certificates of
// the SMTP server, errors in one JSON form, and JSON schemas made of Go types, for descriptions of an
// API (OpenAPI).
//
// # Standards
//
//	RFC 9457 (problem details)
//	OpenAPI 3.1
package webserver

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"time"

	"posthaste/internal/config"
	"posthaste/internal/servercert"
	"posthaste/internal/table"
)

// TLS serves with the certificates of the SMTP server, and reads them again when they have changed. It
// is nil where the parameter, a Bool, says no. An error names the parameter. protocols are what ALPN
// offers, in order of preference.
func TLS(cfg *config.Config, o table.Options, parameter string, protocols ...string) (*tls.Config, error) {
	if !cfg.Bool(parameter) {
		return nil, nil
	}
	keys := servercert.New(cfg, servercert.Options{Warn: o.Warn, Confined: o.Confined, Names: table.OpenMaps("tls_server_sni_maps", cfg.List("tls_server_sni_maps"), o)})
	if err := keys.Refresh(time.Now()); err != nil {
		return nil, fmt.Errorf("%s = yes: the certificate of the SMTP server: %w", parameter, err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols,
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, _ := keys.Choose(hello)
			return cert, nil
		}}, nil
}

// Reply writes an answer of JSON. A client that is gone does not get it, which is no error.
func Reply(w http.ResponseWriter, status int, result any) {
	write(w, "application/json", status, result)
}

// Problem writes an error (RFC 9457). more are further members, which may be nil; the names status,
// title and detail are taken.
func Problem(w http.ResponseWriter, status int, detail string, more map[string]any) {
	members := map[string]any{}
	maps.Copy(members, more)
	members["status"], members["title"], members["detail"] = status, http.StatusText(status), detail
	write(w, "application/problem+json", status, members)
}

func write(w http.ResponseWriter, contentType string, status int, body any) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
