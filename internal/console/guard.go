package console

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// policy is the pages' Content-Security-Policy: nothing but files of this server, no code in a
// page, no frame around it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'"

const (
	// maxBody bounds the octets of a request's body.
	maxBody = 64 << 10
	// maxHeader bounds those of its header.
	maxHeader = 16 << 10
)

// guard has every answer say what a browser may do with it, and keeps out requests that another
// site has had a browser make: by their Host, which is that site's when its name has been given
// our address, and by their Origin.
func guard(hosts []string, next http.Handler) http.Handler {
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "the request comes from another site", http.StatusForbidden)
	}))
	next = cross.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if r.TLS != nil {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		if !knownHost(hosts, r.Host) {
			http.Error(w, "this server has another name: see console_hosts", http.StatusMisdirectedRequest)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// knownHost says whether a Host header names this server: by a number, as localhost, or by one of
// its names.
func knownHost(hosts []string, host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

// clientOf is the address that a request came from, without its port.
func clientOf(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return "local" // a socket of this machine has no address
}

// loginFrom is where a login comes from, in the words of the backends.
func loginFrom(r *http.Request) client {
	c := client{address: clientOf(r)}
	c.sasl.TLS = r.TLS
	if host, port, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		c.sasl.RemoteAddr, c.sasl.RemotePort = host, port
	} else {
		c.sasl.Shared = true // everybody who comes by a proxy has the same
	}
	if here, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		if host, port, err := net.SplitHostPort(here.String()); err == nil {
			c.sasl.LocalAddr, c.sasl.LocalPort = host, port
		}
	}
	return c
}
